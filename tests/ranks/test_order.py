"""Runs that overlap: all ranks ask each other, and start their frames, in the order of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from tests.ranks.conftest import Ranks
from tests.ranks.test_edges import there_and_back
from tests.support.waiting import settle

_FACTORS = {"b/out": 6.0, "c/out": 30.0}
_MOST_CALLS = 6


def started(graph: af.Graph, number: int, length: int, fetch: str | None) -> asyncio.Task[af.Result]:
    """A run whose feeds are all the same number."""
    feeds = {"x": np.full(length, number, np.float32)} if graph.world.rank == 0 else {}
    return asyncio.create_task(graph.run(feeds, fetch=fetch))


def check(result: af.Result, number: int, length: int) -> None:
    for name, value in result.items():
        np.testing.assert_array_equal(value, np.full(length, number * _FACTORS[name], np.float32))


@given(
    calls=st.lists(st.tuples(st.sampled_from([*_FACTORS, None]), st.integers(1, 3)), min_size=2, max_size=_MOST_CALLS),
    turns=st.lists(st.integers(0, 40), min_size=2 * _MOST_CALLS, max_size=2 * _MOST_CALLS),
    seed=st.integers(0, 99),
    is_open=st.booleans(),
)
def test_it_does_not_matter_when_each_rank_calls(
    calls: list[tuple[str | None, int]], turns: list[int], seed: int, is_open: bool
) -> None:
    """Programs are new to some calls and known to others, and each rank is as far as it happens to be."""

    async def main() -> None:
        ranks = Ranks(partial(there_and_back, length="n" if is_open else 4), 2, seed)

        async def call(graph: af.Graph, _: Any) -> None:
            runs = []
            for number, (fetch, length) in enumerate(calls):
                for _ in range(turns[2 * number + graph.world.rank]):
                    await asyncio.sleep(0)
                runs.append(started(graph, number, length if is_open else 4, fetch))
            for number, ((_, length), result) in enumerate(zip(calls, await asyncio.gather(*runs), strict=True)):
                check(result, number, length if is_open else 4)

        outcome = await ranks.all(call)
        await ranks.aclose()
        assert outcome == [None, None]

    asyncio.run(main())


async def test_a_known_program_does_not_overtake_one_that_is_new() -> None:
    """Here it is called while the new one is agreed on, and there when that has started."""
    ranks = Ranks(there_and_back)
    here, there = ranks.graphs
    await asyncio.gather(started(here, 0, 4, "b/out"), started(there, 0, 4, "b/out"))
    runs = [started(here, 1, 4, "c/out"), started(here, 2, 4, "b/out"), started(there, 1, 4, "c/out")]
    while not there.engine.running:
        await asyncio.sleep(0)
    runs.append(started(there, 2, 4, "b/out"))
    async with asyncio.timeout(100):
        for number, result in zip((1, 2, 1, 2), await asyncio.gather(*runs), strict=True):
            check(result, number, 4)
    await ranks.aclose()


async def test_what_a_rank_does_alone_does_not_wait_for_others() -> None:
    def build(graph: af.Graph) -> None:
        there_and_back(graph)
        with graph.at("0/cpu"):
            ops.scale(graph.blob("own", (4,)), 2.0, name="alone")

    ranks = Ranks(build)
    here, there = ranks.graphs
    own = {"own": [1, 1, 1, 1]}
    async with asyncio.timeout(100):
        first = asyncio.create_task(
            here.run(own, fetch="alone/out")
        )  # new: nobody knows that it is no concern of others
        await there.run(fetch="alone/out")
        await first
        waiting = started(here, 1, 4, "c/out")
        await settle()
        result = await here.run(own, fetch="alone/out")
        np.testing.assert_array_equal(result["alone/out"], np.full(4, 2.0, np.float32))
        assert not waiting.done()
        await started(there, 1, 4, "c/out")
        check(await waiting, 1, 4)
    await ranks.aclose()


# -- ranks that do not do the same ---------------------------------------------------------------------------------


def around(graph: af.Graph, length: int | str = 4) -> None:
    """A value that goes from rank to rank, and back to the first; and one that goes to the second, of fixed length."""
    with graph.at("0/cpu"):
        blob = graph.blob("x", (length,))
    for rank in [*range(1, graph.world.size), 0]:
        with graph.at(f"{rank}/cpu"):
            blob = ops.scale(blob, 2.0, name=f"double{rank}")
    with graph.at("0/cpu"):
        fixed = graph.blob("fixed", (4,))
    with graph.at("1/cpu"):
        ops.scale(fixed, 3.0, name="triple")


def fetched(graph: af.Graph, fetch: Sequence[str], number: float) -> asyncio.Task[af.Result]:
    feeds = {"x": np.full(4, number, np.float32), "fixed": np.full(4, number, np.float32)}
    needed = (
        {} if graph.world.rank else {name: feeds[name] for name in feeds if (name == "fixed") == ("triple" in fetch)}
    )
    return asyncio.create_task(graph.run(needed, fetch=[f"{name}/out" for name in fetch]))


selections = st.sampled_from([("double0",), ("double1",), ("double0", "double1"), ("triple",)])


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
@given(
    known=st.lists(selections, max_size=3),
    calls=st.lists(st.tuples(selections, selections, selections), min_size=1, max_size=3),
    after=st.lists(selections, min_size=1, max_size=3),
    size=st.integers(2, 3),
    seed=st.integers(0, 99),
    at_once=st.booleans(),
)
def test_ranks_that_run_different_ops_are_told(
    is_open: bool,
    known: list[tuple[str, ...]],
    calls: list[tuple[tuple[str, ...], ...]],
    after: list[tuple[str, ...]],
    size: int,
    seed: int,
    at_once: bool,
) -> None:
    """Nobody waits for ever, and no value is wrong, whatever they call afterwards."""

    async def main() -> None:
        ranks = Ranks(partial(around, length="n" if is_open else 4), size, seed)

        async def all_of(choices: Sequence[tuple[str, ...]], number: float) -> list[Any]:
            runs = [fetched(graph, choice, number) for graph, choice in zip(ranks.graphs, choices, strict=False)]
            return await asyncio.gather(*runs, return_exceptions=True)

        def check_all(results: list[Any], number: float, *, is_right: bool) -> None:
            for result in results:
                if is_right or not isinstance(result, af.GraphError | af.PeerFailedError):
                    for name, value in result.items():
                        factor = {"double1/out": 2.0, "double0/out": 2.0**size, "triple/out": 3.0}[name]
                        np.testing.assert_array_equal(value, np.full(4, number * factor, np.float32))

        async with asyncio.timeout(100):
            for number, selection in enumerate(known):
                check_all(await all_of([selection] * size, number), number, is_right=True)
            work = [all_of(choices, len(known)) for choices in calls]
            outcomes = await asyncio.gather(*work) if at_once else [await each for each in work]
            for choices, results in zip(calls, outcomes, strict=True):
                check_all(results, len(known), is_right=False)
                if len(set(choices[:size])) > 1 and not at_once:
                    assert any(isinstance(result, af.GraphError) for result in results)
            for number, selection in enumerate(after):
                check_all(await all_of([selection] * size, number), number, is_right=False)
            await ranks.aclose()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("actorflow.ranks.peers._SILENCE_S", 0.0)
        asyncio.run(main())
