"""Rank 0 sees what the ops of all ranks do."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest

import actorflow as af
from actorflow.trace.counters import NodeState, OpProfile
from tests.ranks.conftest import Ranks
from tests.ranks.test_edges import there_and_back

pytestmark = pytest.mark.any_loop


async def test_rank_0_shows_the_ops_of_all_ranks() -> None:
    ranks = Ranks(there_and_back)
    graph = ranks.graphs[0]
    monitor = graph.engine.resources.watch()
    feed = {"x": np.ones(4, np.float32)}
    for count in range(1, 4):
        await ranks.all(lambda graph, _: graph.run(feed))
        async with asyncio.timeout(100):
            while graph.engine.profile.get(graph["b"].id) is None or graph.engine.profile[graph["b"].id].calls < count:
                await asyncio.sleep(0)
    assert monitor.states[graph["b"].id] == NodeState.DONE
    assert graph.engine.profile[graph["b"].id].total_ns > 0
    assert ranks.graphs[1].engine.monitor is not None
    graph.engine.resources.unwatch()
    async with asyncio.timeout(100):
        while ranks.graphs[1].engine.monitor is not None:
            await asyncio.sleep(0)
    await ranks.aclose()


async def test_nodes_are_known_by_their_names() -> None:
    def build(graph: object) -> None:
        if graph.world.rank:  # a node more: all numbers after it are others
            graph.blob("unused", ())
        there_and_back(graph)

    ranks = Ranks(build)
    graph = ranks.graphs[0]
    assert ranks.graphs[1]["b"].id != graph["b"].id
    graph.engine.resources.watch()
    await ranks.all(lambda graph, _: graph.run({"x": np.ones(4, np.float32)}, fetch=["c/out"]))
    async with asyncio.timeout(100):  # a report may come while the op still runs: it has no call then
        while graph.engine.profile.get(graph["b"].id, OpProfile()).calls != 1:
            await asyncio.sleep(0)
    assert graph.engine.profile[graph["b"].id].total_ns > 0
    graph.engine.resources.unwatch()
    await ranks.aclose()


async def test_rank_0_has_the_calls_of_all_ranks_on_tracks_of_their_own() -> None:
    ranks = Ranks(there_and_back)
    graph = ranks.graphs[0]
    graph.engine.resources.watch()
    for _ in range(3):
        await ranks.all(lambda graph, _: graph.run({"x": np.ones(4, np.float32)}))
    trace, there = graph.engine.trace, graph["b"].id
    async with asyncio.timeout(100):
        while (trace.since(0).node == there).sum() < 3:
            await asyncio.sleep(0)
    calls = trace.since(0)
    remote = calls.node == there
    assert {trace.tracks[track].partition(":")[0] for track in calls.track[remote].tolist()} == {"rank 1"}
    assert calls.frame[remote].tolist() == [0, 1, 2]
    other = ranks.graphs[1].engine.trace.since(0)
    own = other.node == ranks.graphs[1]["b"].id
    assert (calls.end_ns - calls.start_ns)[remote].tolist() == (other.end_ns - other.start_ns)[own].tolist()
    assert np.abs(calls.start_ns[remote] - other.start_ns[own]).max() < 10**9, "in one process, the clocks are one"
    graph.engine.resources.unwatch()
    await ranks.aclose()


async def test_rank_0_has_the_failed_calls_of_all_ranks() -> None:
    failing = False

    def build(graph: af.Graph) -> None:
        def b(x: np.ndarray) -> np.ndarray:
            if failing:
                raise ValueError("no good")
            return x

        x = graph.blob("x", (4,))
        y = graph.function("a", lambda x: x, af.TensorSpec.of((4,)))(x)
        with graph.at("1/cpu"):
            y = graph.function("b", b, af.TensorSpec.of((4,)))(y)
        graph.function("c", lambda x: x, af.TensorSpec.of((4,)))(y)

    ranks = Ranks(build)
    graph = ranks.graphs[0]
    graph.engine.resources.watch()
    feed = {"x": np.ones(4, np.float32)}
    await ranks.all(lambda graph, _: graph.run(feed))
    failing = True
    await ranks.all(lambda graph, _: _ends_badly(graph, feed))
    trace, there = graph.engine.trace, graph["b"].id
    async with asyncio.timeout(100):
        while (trace.since(0).node == there).sum() < 2:
            await asyncio.sleep(0)
    calls = trace.since(0)
    remote = calls.node == there
    assert calls.failed[remote].tolist() == [False, True]
    assert [text for row, text in calls.errors.items() if remote[row]] == ["ValueError: no good"]
    async with asyncio.timeout(100):
        while graph.engine.profile[there].failed != 1:
            await asyncio.sleep(0)
    assert graph.engine.profile[there].calls == 1
    graph.engine.resources.unwatch()
    await ranks.aclose()


async def test_rank_0_counts_calls_that_another_rank_repeats() -> None:
    """A call that will be repeated leaves the op's state as it is, and is told of nevertheless."""
    repeated, release, failing = asyncio.Event(), asyncio.Event(), False

    def build(graph: af.Graph) -> None:
        calls = itertools.count()

        async def b(x: np.ndarray) -> np.ndarray:
            if next(calls) == 1:
                raise ValueError("not yet")
            if failing:
                repeated.set()
                await release.wait()
            return x

        with graph.at("1/cpu"):
            y = graph.function("b", b, af.TensorSpec.of((4,)), retries=1, backoff=0)(graph.blob("x", (4,)))
        graph.function("c", lambda x: x, af.TensorSpec.of((4,)))(y)

    ranks = Ranks(build)
    graph = ranks.graphs[0]
    monitor = graph.engine.resources.watch()
    feed, there = {"x": np.ones(4, np.float32)}, graph["b"].id
    await ranks.all(lambda graph, _: graph.run(feed))
    async with asyncio.timeout(100):
        while graph.engine.profile.get(there, OpProfile()).calls != 1:
            await asyncio.sleep(0)
        failing = True
        run = asyncio.create_task(ranks.all(lambda graph, _: graph.run(feed)))
        await repeated.wait()
        while graph.engine.profile[there].failed != 1:
            await asyncio.sleep(0)
    assert graph.engine.profile[there].calls == 1
    assert monitor.states[there] == NodeState.RUNNING
    release.set()
    await run
    graph.engine.resources.unwatch()
    await ranks.aclose()


async def _ends_badly(graph: af.Graph, feed: dict[str, np.ndarray]) -> None:
    with pytest.raises((af.OpError, af.PeerFailedError)):
        await graph.run(feed)


async def test_closing_ends_the_reports() -> None:
    ranks = Ranks(there_and_back)
    ranks.graphs[0].engine.resources.watch()
    await ranks.all(lambda graph, _: graph.run({"x": np.ones(4, np.float32)}))
    await ranks.aclose()
    assert ranks.graphs[1].engine.monitor is None
