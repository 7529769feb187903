"""Two ranks send a tensor to and fro, as one graph: what an edge between machines costs.

Run it with ``mpiexec -n 2 python -m mpi4py examples/ping_pong.py --size 262144``.
"""

import argparse
import time

import numpy as np

import actorflow as af


def build(elements: int, rounds: int) -> tuple[af.Graph, af.Blob, af.Blob]:
    """A graph in which a tensor goes to rank 1 and back to rank 0 several times."""
    graph = af.Graph("ping pong")
    x = graph.blob("x", (elements,), place="0/cpu")
    y = x
    for i in range(2 * rounds):
        with graph.at(f"{(i + 1) % 2}/cpu"):
            y = af.ops.scale(y, -1.0, name=f"hop{i}")
    return graph, x, y


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=1024, help="bytes of the tensor")
    parser.add_argument("--rounds", type=int, default=50, help="how often it goes to and fro in a frame")
    parser.add_argument("--steps", type=int, default=20, help="how many frames")
    args = parser.parse_args()
    world = af.world()
    if world.size != 2:
        raise SystemExit("ping_pong needs two ranks: mpiexec -n 2 python -m mpi4py examples/ping_pong.py")
    graph, x, y = build(max(args.size // 4, 1), args.rounds)
    feed = {x: np.arange(max(args.size // 4, 1), dtype=np.float32)}
    times_s = []
    async with graph:
        for _ in range(args.steps):
            begin_s = time.perf_counter()
            result = await graph.run(feed, fetch=[y])
            times_s.append(time.perf_counter() - begin_s)
            if world.rank == 0:
                np.testing.assert_array_equal(result[y], feed[x])
    if world.rank == 0:
        hop_us = float(np.median(times_s)) / (2 * args.rounds) * 1e6
        print(f"{args.size} bytes: {hop_us:.1f} us a hop, {args.size / hop_us / 1e3:.3g} GB/s")


af.run(main())
