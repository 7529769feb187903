"""Graphs with open axes give the results of the same graphs with all axes closed, for any lengths, bit for bit.

Frames of several lengths overlap, in random order, and variables go from each to the next.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest

import actorflow as af
from tests.plan.test_random_fusion import assert_same
from tests.support.effort import FULL, slow
from tests.support.random_graphs import LENGTHS, OpenGraphs, cases

GRAPHS, BLOCK = (3_000, 50) if FULL else (20, 2)
FRAMES = 5
SETTINGS: list[dict[str, Any]] = [{}, {"place": "sim:0"}, {"place": "sim:0", "capture": True}, {"sequential": True}]


async def of_closed(graphs: OpenGraphs, order: list[int]) -> list[Any]:
    """What frames of closed graphs give, each with the variables that the one before has left; or their errors."""
    found: list[Any] = []
    for number, lengths in enumerate(order):
        graph = graphs.graphs[lengths + 1]
        feeds = graphs.feeds(lengths + 1, lengths)
        result = await graph.run(feeds, fetch=[*[x.closed[lengths] for x in graphs.fetch], graph], atomic=True)
        found.append([af.to_numpy(result[x.closed[lengths]]) for x in graphs.fetch])
        values = [np.array(variable.value) for variable in graph.variables]
        for i, other in enumerate(graphs.graphs[1:]):
            for variable, value in zip(other.variables, values, strict=True):
                variable.value = value
            if i != lengths:  # random numbers are those of the frame's number
                await other.run(fetch=[graphs.ticks[i + 1]])
        assert number < FRAMES
    return found


async def compared(seed: int, setting: dict[str, Any]) -> tuple[OpenGraphs, int]:
    """The graphs of a seed, and for how many frames they were compared."""
    graphs = OpenGraphs(seed, **setting)
    rng = np.random.default_rng(seed)
    order = [int(i) for i in (*rng.permutation(LENGTHS), *rng.integers(LENGTHS, size=FRAMES - LENGTHS))]
    graph = graphs.graphs[0]
    async with AsyncExitStack() as stack:
        for each in graphs.graphs:
            await stack.enter_async_context(each)
        try:
            expected = await of_closed(graphs, order)
        except af.OpError:
            return graphs, 0
        fetch = [*[x.open for x in graphs.fetch], graph]
        results = await asyncio.gather(
            *[graph.run(graphs.feeds(0, lengths), fetch=fetch, atomic=True) for lengths in order]
        )
        for number, (lengths, result, own) in enumerate(zip(order, results, expected, strict=True)):
            for twins, value in zip(graphs.fetch, own, strict=True):
                try:
                    assert_same(af.to_numpy(result[twins.open]), value, not graphs.has_ones(lengths))
                except AssertionError as error:
                    said = f"frame {number} with {graphs.lengths[lengths]}, under {setting}"
                    error.add_note(f"seed {seed}: {twins.open.name}, {said}, all of {order}")
                    raise
        for one, other in zip(graph.variables, graphs.graphs[1].variables, strict=True):
            assert_same(np.array(one.value), np.array(other.value), signs_of_zeros=False)
        return graphs, FRAMES


@pytest.mark.parametrize("first", slow(range(0, GRAPHS, BLOCK), but={10, 12}))
async def test_open_axes_give_what_closed_ones_give(first: int) -> None:
    for seed in range(first, first + BLOCK):
        await compared(seed, SETTINGS[seed % len(SETTINGS)])


@pytest.mark.skipif(not FULL, reason="few graphs have not all kinds: ACTORFLOW_FULL_TESTS=1")
def test_every_kind_has_open_axes() -> None:
    kinds = set().union(*(OpenGraphs(seed).kinds for seed in range(GRAPHS // 2, GRAPHS)))
    assert {*cases()} - kinds <= {"Constant", "NormFactor"}, "the shape of an array, and scalars, are closed"


def test_nearly_nothing_is_refused() -> None:
    """What can be done for all lengths tried can be done with open axes, but for what needs the number at once."""
    refused = {what for seed in range(2, 26 if FULL else 14) for what, _ in OpenGraphs(seed).refused}
    assert not refused - {"Conv", "MaxPool", "AveragePool", "x[[...]]"}, refused
