"""One rank of the job that trains GoogLeNet with waits instead of computations, and real reductions between ranks.

Each layer waits as long as it would compute on an accelerator of its own; its gradient, of the real size, is reduced
over all ranks by MPI, and the forward pass of that layer in the next iteration waits for it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import actorflow as af
from benchmarks.scaling.layers import Layer, googlenet


def build(layers: list[Layer], waits: bool, reduces: bool) -> tuple[af.Graph, list[Any]]:
    """The graph of all ranks, and what an iteration runs of it."""
    world = af.world()
    graph = af.Graph("googlenet")
    ranks = tuple(range(world.size))
    targets: list[Any] = []
    for rank in ranks:
        with graph.at(f"{rank}/cpu", lane="main"):
            targets += _replica(graph, rank, ranks, layers, waits, reduces and len(ranks) > 1)
    return graph, targets


def _replica(
    graph: af.Graph, rank: int, ranks: tuple[int, ...], layers: list[Layer], waits: bool, reduces: bool
) -> list[Any]:
    token = af.TensorSpec.of((), "float32")
    weights = [graph.variable(f"w{i}.{rank}", (layer.elements,)) for i, layer in enumerate(layers)]
    y = graph.blob(f"x.{rank}", ())
    for i, layer in enumerate(layers):
        forward = _waiting(layer.forward_s if waits else 0.0, np.float32(0))
        y = graph.function(f"forward{i}.{rank}", forward, token)(y, weights[i])
    targets = []
    for i, layer in reversed(list(enumerate(layers))):
        gradient = np.full(layer.elements, rank, np.float32)
        y, g = graph.function(
            f"backward{i}.{rank}",
            _waiting(layer.backward_s if waits else 0.0, (np.float32(0), gradient)),
            (token, weights[i].spec),
        )(y)
        if reduces:
            reduce = af.ops.AllReduce(f"gradient{i}", ranks, priority=len(layers) - i)
            g = graph.op(f"reduce{i}.{rank}", reduce)(g)
        # An accelerator would compute the update; here the sum itself becomes the value, which costs nothing.
        update = graph.function(f"update{i}.{rank}", lambda g: g, weights[i].spec)
        [g] >> update >> [weights[i]]
        targets.append(update)
    return targets


def _waiting(wait_s: float, result: Any) -> Callable[..., Any]:
    def wait(*_: Any) -> Any:
        if wait_s:
            time.sleep(wait_s)
        return result

    return wait


async def iteration_s(layers: list[Layer], steps: int, waits: bool, reduces: bool) -> float:
    """Seconds per iteration, with two iterations in flight."""
    graph, targets = build(layers, waits, reduces)
    feed = {f"x.{rank}": np.float32(0) for rank in range(af.world().size)}
    async with graph:
        begin_s = 0.0
        done = 0
        async for _ in graph.stream((feed for _ in range(steps + 2)), fetch=targets, in_flight=2):
            done += 1
            if done == 2:  # warm
                begin_s = time.perf_counter()
        return (time.perf_counter() - begin_s) / steps


async def main() -> None:
    rounds, steps, scale = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    layers = googlenet() if scale == 1.0 else googlenet(0.1)
    if scale != 1.0:
        layers = [layer._replace(elements=max(int(layer.elements * scale), 1)) for layer in layers]
    found: dict[str, list[float]] = {"all": [], "waits": [], "transfers": []}
    for _ in range(rounds):
        found["all"].append(await iteration_s(layers, steps, waits=True, reduces=True))
        found["waits"].append(await iteration_s(layers, steps, waits=True, reduces=False))
        found["transfers"].append(await iteration_s(layers, steps, waits=False, reduces=True))
    if af.world().rank == 0:
        print(json.dumps(found))


af.run(main())
