"""A data-parallel training that saves every second step. Arguments: its folder, step and rank of an exception."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

import actorflow as af
from actorflow import ops

folder, failing_step, failing_rank = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
world = af.world()
places = [f"{rank}/cpu" for rank in range(world.size)]


def fails(x: np.ndarray) -> np.ndarray:
    if step == failing_step:
        raise ValueError("the planted error")
    return x


graph = af.Graph("training", world=world)
for rank, place in enumerate(places):
    with graph.at(place):
        x = graph.blob(f"x{rank}", (4, 3), "float64")
        if rank == failing_rank:
            x = graph.function("risky", fails, x.spec)(x)
        w = graph.variable(f"w{rank}", (3, 200_000), "float64", init=0.5)
        g = ops.matmul(ops.transpose(x), ops.matmul(x, w, name=f"y{rank}"), name=f"g{rank}")
        g = graph.op(f"reduce{rank}", ops.AllReduce("gradient", tuple(range(world.size))))(g)
        [w, g] >> graph.op(f"update{rank}", ops.WeightedSum((1.0, -1e-4))) >> [w]
step = 0


async def main() -> None:
    global step
    checkpoints = af.Checkpoints(graph, folder)
    async with graph:
        found = await checkpoints.load(fallback=False)
        step = 0 if found is None else found.position["step"]
        expected = found is None or found.frame == step
        sys.stdout.write(f"ready {os.getpid()} {step} {expected}\n")
        sys.stdout.flush()
        while step < 100_000:
            rng = np.random.default_rng(step)
            await graph.run({f"x{rank}": rng.standard_normal((4, 3)) for rank in range(world.size)})
            step += 1
            if step % 2 == 0:
                await checkpoints.save(step, {"step": step})
            if world.rank == 0:
                sys.stdout.write(f"step {step}\n")
                sys.stdout.flush()


af.run(main())
