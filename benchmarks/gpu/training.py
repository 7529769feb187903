"""Training a Network in Network on CIFAR-10."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import actorflow as af
from actorflow.data import Dataset
from benchmarks.gpu.bench import ACTORFLOW, TORCH, Bench
from benchmarks.gpu.network import DROPOUT, RATE, Network, TorchNetwork
from benchmarks.harness import Case, Row, Table, per

__all__ = ["measure"]

_MS = 1e-3
_CPU = af.Place()


async def measure(bench: Bench, data: Dataset | None) -> list[Table]:
    """The same weights as on the CPU after some steps; time per step; accuracy after some epochs."""
    await _check(bench)
    tables = [await _steps(bench)]
    if data is None:
        bench.harness.leave_out("accuracy on CIFAR-10: name its directory, --data DIR")
    else:
        tables.append(await _accuracy(bench, data.standardized()))
    return tables


#: Largest error of what three steps change, computed in float32, against float64. On a CPU it is 6e-6, actorflow's as
#: torch's; with TF32, which rounds factors to 2**-11 = 5e-4, it is more than 1e-3.
_FLOAT32_ERROR = 1e-4


async def _check(bench: Bench) -> None:
    """Compare the changes of some steps: against the CPU, and without dropout, whose masks differ, against float64.

    The latter are torch's. Those of torch in float32 are compared, too: times are those of one precision.
    """
    batch, steps = 8, 3
    here, there = await _changes(bench, bench.place, batch, steps), await _changes(bench, _CPU, batch, steps)
    bench.check(f"changes of the weights in {steps} steps of training", here[1], there[1], 1e-3)
    if bench.torch is None:
        return
    start, change = await _changes(bench, bench.place, batch, steps, dropout=0.0)
    network = Network.build(bench, af.Graph("feeds"), batch)
    changes = {}
    for dtype in ("float32", "float64"):
        peer = TorchNetwork(bench, start, dropout=0.0, dtype=dtype)
        for feed in network.noise(steps):
            peer.step(feed[network.images], feed[network.labels])
        changes[dtype] = _change(start, peer.weights())
    for name, found in ((ACTORFLOW, change), (TORCH, changes["float32"])):
        what = f"the same without dropout, {name} against torch in float64"
        bench.check(what, found, changes["float64"], _FLOAT32_ERROR)


async def _changes(
    bench: Bench, place: af.Place, batch: int, steps: int, dropout: float = DROPOUT
) -> tuple[list[Any], Any]:
    """The weights before, and what training on noise changed."""
    network = Network.build(bench, af.Graph("check"), batch, place, dropout)
    try:
        start = network.weights()
        await network.train(network.noise(steps))
        return start, _change(start, network.weights())
    finally:
        await network.graph.aclose()


def _change(start: list[Any], end: list[Any]) -> Any:
    return np.concatenate([(now - before).ravel() for now, before in zip(end, start, strict=True)])


async def _steps(bench: Bench) -> Table:
    batch, steps = bench.harness.pick(128, 4), bench.harness.pick(50, 2)
    networks = {name: Network.build(bench, graph, batch) for name, graph in bench.graphs("training").items()}
    first = networks[ACTORFLOW]
    feeds = {name: network.noise(4) * (steps // 4 + 1) for name, network in networks.items()}
    cases: dict[str, Case] = {
        name: per(steps, _MS, lambda name=name, network=network: network.train(feeds[name][:steps]))
        for name, network in networks.items()
    }
    if bench.torch is not None:
        peer = TorchNetwork(bench, first.weights())

        def train() -> None:
            for feed in feeds[ACTORFLOW][:steps]:
                peer.step(feed[first.images], feed[first.labels])

        cases[TORCH] = bench.case(steps, _MS, train)
    try:
        title = f"training steps of a Network in Network, {batch} images of 32x32, float32"
        return await bench.harness.compare(
            title, "ms per step", cases, reference=TORCH if bench.torch is not None else ACTORFLOW, warm_up=2
        )
    finally:
        for network in networks.values():
            await network.graph.aclose()


async def _accuracy(bench: Bench, data: Dataset) -> Table:
    batch, epochs = bench.harness.pick(128, 4), bench.harness.pick(10, 1)
    batch = min(batch, len(data.train))
    steps = epochs * (len(data.train) // batch)
    network = Network.build(bench, af.Graph("cifar-10"), batch)
    try:
        start = network.weights()
        rng, rates = np.random.default_rng(0), _rates(steps)
        for _ in range(epochs):
            await network.epoch(data.train.shuffled(batch, rng), rates)
        reached = {ACTORFLOW: await network.accuracy(data.test)}
    finally:
        await network.graph.aclose()
    if bench.torch is not None:
        reached[TORCH] = _torch_accuracy(bench, data, start, batch, epochs)
    rows = {name: Row(name, [100 * share]) for name, share in reached.items()}
    return Table(f"CIFAR-10, test images recognized after {epochs} epochs of {batch} a step", "%", rows)


def _torch_accuracy(bench: Bench, data: Dataset, start: list[Any], batch: int, epochs: int) -> float:
    peer = TorchNetwork(bench, start)
    rng, rates = np.random.default_rng(0), _rates(epochs * (len(data.train) // batch))
    for _ in range(epochs):
        for part, rate in zip(data.train.shuffled(batch, rng), rates, strict=False):
            peer.step(part.images, part.labels, rate)
    return peer.accuracy(data.test, batch)


def _rates(steps: int) -> Iterator[float]:
    """Linearly down to 0."""
    return (RATE * (1 - step / steps) for step in range(steps))
