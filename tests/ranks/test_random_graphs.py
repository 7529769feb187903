"""Random graphs spread over three ranks give what the plain sequential program gives, whatever the network does."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow.core import FrameState
from tests.ranks.ranks import PLACES, PlantedError, Rank, World
from tests.support.recipes import Recipe, recipes

pytestmark = pytest.mark.any_loop

GRAPHS = settings(max_examples=max(25, settings.default.max_examples // 10))
#: Of what `make test` tries: each takes some 50 ms.
FEW_GRAPHS = settings(max_examples=max(8, settings.default.max_examples // 10))
SEEDS = st.none() | st.integers(0, 2**16)


@FEW_GRAPHS
@given(recipe=recipes(PLACES), seed=SEEDS)
async def test_equals_the_sequential_program(recipe: Recipe, seed: int | None) -> None:
    world = World(recipe, seed)
    for _ in range(2):
        feeds = world.feeds(recipe.in_flight + 2)
        results = await world.run(feeds)
        assert all(len(result) == len(feeds) for result in results), results
        assert not [error for result in results for error in result if isinstance(error, BaseException)]
        world.check(feeds, results)
    await world.aclose()


@pytest.mark.slow
@GRAPHS
@given(recipe=recipes(PLACES), seed=SEEDS, op=st.integers(0, 8))
async def test_a_failed_op_fails_its_frame_alone(recipe: Recipe, seed: int | None, op: int) -> None:
    world = World(recipe, seed)
    failing = op % len(recipe.steps)
    guilty = world.ranks[af.Place.parse(recipe.steps[failing].place).rank]
    guilty.armed = (failing, 0)
    feeds = world.feeds(recipe.in_flight + 2)
    results = await world.run(feeds)
    for rank, result in zip(world.ranks, results, strict=True):
        errors = [error for error in result if isinstance(error, BaseException)]
        for error in errors:
            assert isinstance(error, af.OpError if rank is guilty else af.PeerFailedError), error
            if rank is guilty:
                assert isinstance(error.__cause__, PlantedError)
            else:  # by the guilty one, or by another that ended its stream for that
                assert error.rank != rank.rank
    world.check(feeds, results)
    # The graph is as good as ever, on all ranks.
    guilty.armed = None
    feeds = world.feeds(3)
    results = await world.run(feeds)
    assert not [error for result in results for error in result if isinstance(error, BaseException)]
    world.check(feeds, results)
    await world.aclose()


@pytest.mark.slow
@GRAPHS
@given(recipe=recipes(PLACES), seed=SEEDS, stop=st.integers(0, 4))
async def test_streams_that_end_early(recipe: Recipe, seed: int | None, stop: int) -> None:
    world = World(recipe, seed)
    feeds = world.feeds(12)

    async def work(rank: Rank) -> list[object]:
        results: list[object] = []
        dicts = ({f"x{i}": value for i, value in enumerate(feed)} for feed in feeds)
        stream = rank.graph.stream(dicts, fetch=rank.fetch, in_flight=recipe.in_flight, atomic=recipe.atomic)
        async with aclosing(stream):
            async for result in stream:
                results.append(result)
                if len(results) > stop:
                    break
        return results

    results = await world.on_all(work)
    assert all(len(result) == stop + 1 for result in results), results
    while any(rank.graph.engine.frames.in_flight for rank in world.ranks):
        await asyncio.sleep(0)
    world.check(feeds, results)
    feeds = world.feeds(3)
    results = await world.run(feeds)
    assert not [error for result in results for error in result if isinstance(error, BaseException)]
    assert world.count(FrameState.FAILED) == 0
    world.check(feeds, results)
    await world.aclose()
