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
from mpi4py import MPI

import actorflow as af
from actorflow.nn.parallel import BucketedAllReduce
from benchmarks.scaling.layers import Layer, googlenet


def build(layers: list[Layer], waits: bool, reduces: bool) -> tuple[af.Graph, list[Any]]:
    """The graph of all ranks, and what an iteration runs of it."""
    world = af.world()
    graph = af.Graph("googlenet")
    weights: list[list[af.Variable]] = []
    gradients: list[list[af.Blob]] = []
    for rank in range(world.size):
        with graph.at(f"{rank}/cpu", lane="main"):
            found = _replica(graph, rank, layers, waits)
        weights.append([weight for weight, _ in found])
        gradients.append([gradient for _, gradient in found])
    by_layer = [blob for blobs in zip(*gradients, strict=True) for blob in blobs]
    if reduces and world.size > 1:
        reduce = BucketedAllReduce(world.size, names=[layer.name for layer in layers])
        with graph.at(lane="copies"):  # as an accelerator has engines for them
            reduce(*by_layer)
        by_layer = list(reduce.top)
    # An accelerator would compute the update; here the sum itself becomes the value, which costs nothing.
    targets: list[Any] = []
    for i, (g, weight) in enumerate(zip(by_layer, [w for ws in zip(*weights, strict=True) for w in ws], strict=True)):
        with graph.at(weight.place, lane="main"):
            update = graph.function(f"update{i}", lambda g: g, weight.spec)
        [g] >> update >> [weight]
        targets.append(update)
    return graph, targets


def _replica(graph: af.Graph, rank: int, layers: list[Layer], waits: bool) -> list[tuple[af.Variable, af.Blob]]:
    """The weights of each layer, and their gradient."""
    token = af.TensorSpec.of((), "float32")
    weights = [graph.variable(f"w{i}.{rank}", (layer.elements,)) for i, layer in enumerate(layers)]
    y = graph.blob(f"x.{rank}", ())
    for i, layer in enumerate(layers):
        forward = _waiting(layer.forward_s if waits else 0.0, np.float32(0))
        y = graph.function(f"forward{i}.{rank}", forward, token)(y, weights[i])
    found = []
    for i, layer in reversed(list(enumerate(layers))):
        gradient = np.full(layer.elements, rank, np.float32)
        y, g = graph.function(
            f"backward{i}.{rank}",
            _waiting(layer.backward_s if waits else 0.0, (np.float32(0), gradient)),
            (token, weights[i].spec),
        )(y)
        found.append((weights[i], g))
    return found[::-1]


def _waiting(wait_s: float, result: Any) -> Callable[..., Any]:
    def wait(*_: Any) -> Any:
        if wait_s:
            time.sleep(wait_s)
        return result

    return wait


async def iteration_s(layers: list[Layer], steps: int, waits: bool, reduces: bool) -> tuple[float, float]:
    """Seconds per iteration, and of all ranks' processor time, with two iterations in flight."""
    graph, targets = build(layers, waits, reduces)
    feed = {f"x.{rank}": np.float32(0) for rank in range(af.world().size)}
    async with graph:
        begin_s = busy_s = 0.0
        done = 0
        async for _ in graph.stream((feed for _ in range(steps + 2)), fetch=targets, in_flight=2):
            done += 1
            if done == 2:  # warm
                begin_s, busy_s = time.perf_counter(), time.process_time()
        busy_s = MPI.COMM_WORLD.allreduce(time.process_time() - busy_s)
        return (time.perf_counter() - begin_s) / steps, busy_s / steps


def copies_and_additions_s(layers: list[Layer], steps: int) -> float:
    """Seconds that copying and adding take that reductions cannot do without, on the cores that there are.

    Each rank copies its gradients to where others read them, adds all ranks' shares of one part, and copies the sums.
    """
    ranks, elements = MPI.COMM_WORLD.size, sum(layer.elements for layer in layers)
    gradients, shared = np.ones(elements, np.float32), np.ones(elements, np.float32)
    part = elements // ranks
    MPI.COMM_WORLD.Barrier()
    begin_s = time.perf_counter()
    for _ in range(steps):
        np.copyto(shared, gradients)
        for i in range(1, ranks):
            np.add(shared[:part], shared[i * part :][:part], out=shared[:part])
        np.copyto(gradients, shared)
    return MPI.COMM_WORLD.allreduce((time.perf_counter() - begin_s) / steps, MPI.MAX)


async def main() -> None:
    rounds, steps, scale = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    layers = googlenet() if scale == 1.0 else googlenet(0.1)
    if scale != 1.0:
        layers = [layer._replace(elements=max(int(layer.elements * scale), 1)) for layer in layers]
    kinds = {"all": (True, True), "waits": (True, False), "transfers": (False, True)}
    found: dict[str, list[float]] = {name: [] for kind in kinds for name in (kind, f"{kind} busy")} | {"ideal": []}
    for _ in range(rounds):
        for kind, (waits, reduces) in kinds.items():
            wall_s, busy_s = await iteration_s(layers, steps, waits, reduces)
            found[kind].append(wall_s)
            found[f"{kind} busy"].append(busy_s)
        found["ideal"].append(copies_and_additions_s(layers, steps))
    if af.world().rank == 0:
        print(json.dumps(found))


af.run(main())
