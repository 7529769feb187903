"""A data-parallel training that rank 0 pauses for longer than a stall takes to be reported: ``mpiexec -n 2``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops

#: Two frames wait at most: of five looks one frame has had three, and two in a row without progress are a stall.
LOOKS = 5
STEPS, PAUSED_BEHIND, RATE = 12, 4, -1e-2
world = af.world()
ranks = range(world.size)

graph = af.Graph("training", world=world, stall_limit=1)
for rank in ranks:
    with graph.at(f"{rank}/cpu"):
        x = graph.blob(f"x{rank}", (4, 3), "float64")
        w = graph.variable(f"w{rank}", (3, 5), "float64", init=0.5)
        g = ops.matmul(ops.transpose(x), ops.matmul(x, w), name=f"g{rank}")
        g = graph.op(f"reduce{rank}", ops.AllReduce("gradient", tuple(ranks)))(g)
        [w, g] >> graph.op(f"update{rank}", ops.WeightedSum((1.0, RATE))) >> [w]
        graph.function(f"norm{rank}", np.sum, af.TensorSpec.of((), "float64"))(g)


def feeds() -> Iterator[dict[str, np.ndarray]]:
    for step in range(STEPS):
        rng = np.random.default_rng(step)
        yield {f"x{rank}": rng.standard_normal((4, 3)) for rank in ranks}


def expected() -> np.ndarray:
    """The weights after all steps, as one rank would compute them."""
    w = np.full((3, 5), 0.5)
    for feed in feeds():
        w = w + RATE * sum(x.T @ (x @ w) for x in feed.values())
    return w


def count_looks(enough: Any) -> None:
    """Call something when it has been looked so often whether frames that wait for a paused rank make progress."""
    supervisor, counted = graph.engine.observer.limits, 0
    look = supervisor._look

    def counting(frame: Any, *args: Any) -> None:
        nonlocal counted
        look(frame, *args)
        if graph.engine.queue.paused_ranks and frame.state.value == "running":
            counted += 1
            if counted == LOOKS:
                enough()

    supervisor._look = counting  # type: ignore[method-assign]


async def main() -> None:
    async with graph:
        enough, steps = asyncio.Event(), 0
        if world.rank == 0:
            async with aclosing(graph.stream(feeds(), in_flight=2)) as results:
                async for _ in results:
                    steps += 1
                    if steps == PAUSED_BEHIND:
                        graph.engine.resources.peers.handlers["enough"] = lambda _: enough.set()
                        graph.pause("for a look")
                        await enough.wait()
                        graph.resume()
        else:
            count_looks(lambda: graph.engine.resources.peers.post(0, "enough"))
            async with aclosing(graph.stream(feeds(), in_flight=2)) as results:
                async for _ in results:
                    steps += 1
        frames, w = graph.engine.frames, graph[f"w{world.rank}"].value
        right = np.allclose(w, expected(), rtol=1e-12)
        sys.stdout.write(f"rank {world.rank}: {steps} steps, {frames.failed} failed, right: {right}\n")
        sys.stdout.flush()


af.run(main())
