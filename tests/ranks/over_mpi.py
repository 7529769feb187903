"""Random graphs over the ranks of an MPI job, each compared with its plain program: ``mpiexec -n 3 python -m mpi4py``.

All ranks draw the same graphs, since nothing but the position in the sequence decides what comes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings

import actorflow as af
from tests.ranks.ranks import PLACES, Rank
from tests.support.recipes import Recipe, Reference, recipes


async def check(rank: Rank, recipe: Recipe) -> None:
    """Some frames, then the same comparison that the tests within one process make."""
    reference = Reference(recipe)
    for frame in range(2 * recipe.in_flight):
        generator = np.random.default_rng([recipe.seed, frame])
        feeds = [generator.standard_normal(shape) for shape in recipe.sources]
        feed = {f"x{i}": value for i, value in enumerate(feeds)}
        result = await rank.graph.run(feed, fetch=rank.fetch, atomic=recipe.atomic)
        values, new = reference.frame(feeds)
        for i, value in rank.fetched(result).items():
            np.testing.assert_array_equal(value, values[i])
        for target, value in new.items():
            reference.state[target - len(recipe.sources)] = value
    streamed = ({f"x{i}": np.ones(shape) for i, shape in enumerate(recipe.sources)} for _ in range(6))
    async for result in rank.graph.stream(streamed, fetch=rank.fetch, in_flight=recipe.in_flight):
        values, new = reference.frame([np.ones(shape) for shape in recipe.sources])
        for i, value in rank.fetched(result).items():
            np.testing.assert_array_equal(value, values[i])
        for target, value in new.items():
            reference.state[target - len(recipe.sources)] = value
    await rank.graph.aclose()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--graphs", type=int, default=20)
    args = parser.parse_args()
    world = af.world()
    counts = {"graphs": 0}

    @settings(
        max_examples=args.graphs,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(recipe=recipes(PLACES))
    def graphs(recipe: Recipe) -> None:
        async def one() -> None:
            async with asyncio.timeout(60):
                await check(Rank(recipe, world), recipe)

        runner.run(one())
        counts["graphs"] += 1

    with asyncio.Runner() as runner:
        graphs()
        gc.collect()
    # In one piece: `print` of an unbuffered Python writes the end of the line apart, and another rank may come between.
    sys.stdout.write(f"rank {world.rank} of {world.size}: {counts['graphs']} graphs\n")


main()
