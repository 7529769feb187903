"""Chains of kernels on one stream, small and large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import actorflow as af
from benchmarks.gpu.bench import ACTORFLOW, TORCH, Bench
from benchmarks.harness import Budget, Relation, Row, Table, per

__all__ = ["measure"]

_US = 1e-6
_FACTORS = (0.5, 2.0)

_Array = npt.NDArray[np.float32]


class _Chain(NamedTuple):
    title: str
    count: int
    start: _Array
    constants: tuple[_Array, ...]
    link: Callable[..., af.Blob]  # (y, i, *constants), of blobs
    bare: Callable[..., Any]  # (xp, y, i, out, *constants)
    torch: Callable[..., Any]  # (torch, y, i, out, *constants)
    share: float
    tolerance: float
    values: int  # how many the device must hold at once, besides the constants and the start


async def measure(bench: Bench) -> list[Table]:
    """Elementwise kernels bound by launching and by memory, then large matrix products."""
    rng = np.random.default_rng(0)
    small, large = bench.harness.pick(1 << 10, 16), bench.harness.pick(1 << 22, 64)
    chains = [_scales(bench.harness.pick(1_000, 10), size, rng) for size in (small, large)]
    chains.append(_products(bench.harness.pick(20, 4), bench.harness.pick(4096, 16), rng))
    measured = [await _measure(bench, chain) for chain in chains]
    return [speed for speed, _ in measured] + [memory for _, memory in measured]


def _scales(count: int, size: int, rng: np.random.Generator) -> _Chain:
    def bare(xp: Any, y: Any, i: int, out: Any) -> Any:
        return xp.multiply(y, np.float32(_FACTORS[i % 2]), out=out)

    return _Chain(
        f"{count:,} small kernels, y * c on {size:,} floats",
        count,
        rng.standard_normal(size, dtype=np.float32),
        (),
        lambda y, i: af.ops.scale(y, _FACTORS[i % 2]),
        bare,
        lambda torch, y, i, out: torch.mul(y, _FACTORS[i % 2], out=out),
        0.9,
        0.0,
        1,
    )


def _products(count: int, size: int, rng: np.random.Generator) -> _Chain:
    # Products of any number of such factors stay of about one size.
    factor = rng.standard_normal((size, size), dtype=np.float32) / np.float32(np.sqrt(size))
    return _Chain(
        f"{count:,} products of {size:,} x {size:,}",
        count,
        rng.standard_normal((size, size), dtype=np.float32),
        (factor,),
        lambda y, i, w: af.ops.inner(y, w),
        lambda xp, y, i, out, w: xp.matmul(y, w.T, out=out),
        lambda torch, y, i, out, w: torch.matmul(y, w.T, out=out),
        0.99,
        1e-4,
        2,
    )


async def _measure(bench: Bench, chain: _Chain) -> tuple[Table, Table]:
    graphs = bench.graphs(chain.title)
    ends = {name: _build(bench, graph, chain) for name, graph in graphs.items()}
    peers = {bench.bare: _bare(bench, chain)}
    if bench.torch is not None:
        peers[TORCH] = _torch(bench, chain)
    try:
        expected = peers[bench.bare]()
        for name, graph in graphs.items():
            bench.check(f"{chain.title}: {name}", (await graph.run())[ends[name]], expected, chain.tolerance)
        # Run, but not fetched: no result leaves.
        runs = {name: _runner(graph, ends[name].producers[0]) for name, graph in graphs.items()}
        cases = {name: per(chain.count, _US, run) for name, run in runs.items()}
        cases |= {name: bench.case(chain.count, _US, work) for name, work in peers.items()}
        text = f"at least {chain.share} of the speed of {bench.bare}"
        budgets = [Budget(f"{name}: {text}", name, Relation.BELOW, chain.share, bench.bare) for name in graphs]
        table = await bench.harness.compare(
            chain.title, "us per kernel", cases, reference=bench.bare, budgets=budgets, warm_up=2
        )
        return table, _memory(bench, chain, graphs[ACTORFLOW])
    finally:
        for graph in graphs.values():
            await graph.aclose()


def _build(bench: Bench, graph: af.Graph, chain: _Chain) -> af.Blob:
    with graph.at(bench.place):
        y: af.Blob = graph.variable("x", chain.start.shape, init=chain.start)
        constants = [graph.variable(f"c{i}", c.shape, init=c) for i, c in enumerate(chain.constants)]
        for i in range(chain.count):
            y = chain.link(y, i, *constants)
    return y


def _runner(graph: af.Graph, last: af.Op) -> Callable[[], Any]:
    return lambda: graph.run(fetch=[last])


def _bare(bench: Bench, chain: _Chain) -> Callable[[], Any]:
    """The same with two buffers in turn, as someone would write it who cares."""
    xp = bench.xp
    start, *constants = (xp.asarray(x) for x in (chain.start, *chain.constants))
    buffers = xp.empty_like(start), xp.empty_like(start)

    def work() -> Any:
        y = start
        for i in range(chain.count):
            y = chain.bare(xp, y, i, buffers[i % 2], *constants)
        return y

    return work


def _torch(bench: Bench, chain: _Chain) -> Callable[[], Any]:
    torch = bench.torch
    start, *constants = (torch.from_numpy(x).to(bench.torch_device) for x in (chain.start, *chain.constants))
    buffers = torch.empty_like(start), torch.empty_like(start)

    def work() -> Any:
        with torch.inference_mode():
            y = start
            for i in range(chain.count):
                y = chain.torch(torch, y, i, buffers[i % 2], *constants)
        return y

    return work


def _memory(bench: Bench, chain: _Chain, graph: af.Graph) -> Table:
    """Memory that the device holds for the chain, beside the least that it takes."""
    floor = (1 + chain.values) * chain.start.nbytes + sum(constant.nbytes for constant in chain.constants)
    held = graph.engine.resources.device(bench.place).memory.held_bytes
    rows = {name: Row(name, [float(size)]) for name, size in (("floor", floor), (ACTORFLOW, held))}
    budget = Budget("memory of the device within 10% of the floor", ACTORFLOW, Relation.TIMES, 1.1, "floor")
    return Table(f"{chain.title}: memory held", "bytes", rows, "floor", [budget])
