"""The protocol of ranks, and the outcome when one of them breaks it, fails, or dies."""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from tests.ranks.conftest import Ranks
from tests.ranks.test_edges import there_and_back
from tests.support.waiting import HELD_S, held_limits, settle


class PlantedError(Exception):
    pass


def with_function(fn: Any) -> Any:
    """A graph whose rank 1 computes a function of a value from rank 0, and gives it back."""

    def build(graph: af.Graph) -> af.Blob:
        with graph.at("0/cpu"):
            x = graph.blob("x", (), "float64")
        with graph.at("1/cpu"):
            y = graph.function("risky", fn, af.TensorSpec.of((), "float64"))(x)
        with graph.at("0/cpu"):
            return ops.scale(y, 2.0, name="z")

    return build


# -- the same graph ------------------------------------------------------------------------------------------------


async def test_the_first_difference_is_named_on_all_ranks() -> None:
    def build(graph: af.Graph) -> None:
        with graph.at("0/cpu"):
            a = ops.scale(graph.blob("x", (4,)), 2.0, name="a")
        with graph.at("1/cpu"):
            ops.scale(a, 3.0 if graph.world.rank < 2 else 4.0, name="b")

    ranks = Ranks(build, 3)
    errors = await ranks.all(lambda graph, _: graph.run({"x": np.ones(4, np.float32)}))
    for error in errors:
        assert isinstance(error, af.GraphError)
        assert "ranks 0 and 2 have different graphs; the first difference is op 'b'" in str(error)
        assert "Scale(factor=3.0)" in str(error)
        assert "Scale(factor=4.0)" in str(error)
    await ranks.aclose()


async def test_an_op_that_only_one_rank_has_is_named() -> None:
    def build(graph: af.Graph) -> None:
        there_and_back(graph)
        if graph.world.rank == 1:
            ops.scale(graph["c/out"], 1.0, name="more")

    ranks = Ranks(build)
    for error in await ranks.all(lambda graph, _: graph.run({"x": np.ones(4, np.float32)})):
        assert isinstance(error, af.GraphError)
        assert "op 'more': rank 0: has none; rank 1: Scale" in str(error)
    await ranks.aclose()


async def test_the_order_of_building_does_not_matter() -> None:
    def build(graph: af.Graph) -> list[af.Blob]:
        with graph.at("0/cpu"):
            x = graph.blob("x", (2,))
        names = ["p", "q", "r", "s"]
        made = {}
        for name in names if graph.world.rank else reversed(names):
            with graph.at("0/cpu"):
                a = ops.scale(x, float(ord(name)), name=f"{name}0")
            with graph.at("1/cpu"):
                made[name] = ops.scale(a, 1.0, name=f"{name}1")
        return [made[name] for name in names]

    ranks = Ranks(build)
    _, result = await ranks.all(lambda graph, fetch: graph.run({"x": [1, 0]}, fetch=fetch))
    assert [result[f"{name}1/out"][0] for name in "pqrs"] == [ord(name) for name in "pqrs"]
    await ranks.aclose()


async def test_edges_of_more_programs_than_there_are_tags_for_take_turns() -> None:
    def build(graph: af.Graph) -> None:
        there_and_back(graph)
        with graph.at("0/cpu"):
            d = ops.scale(graph["x"], 3.0, name="d")
        with graph.at("1/cpu"):
            ops.scale(d, 1.0, name="e")

    ranks, feed = Ranks(build), {"x": np.ones(4, np.float32)}
    for transport in ranks.local.transports:
        transport.max_tag = 1500  # one program of one edge each way has 1024
    for fetch in ("c/out", "e/out"):
        found = await ranks.all(lambda graph, _, fetch=fetch: graph.run(feed, fetch=fetch))
        assert sum(map(len, found)) == 1
    for error in await ranks.all(lambda graph, _: graph.run(feed)):
        with pytest.raises(af.GraphError, match=r"more edges between two ranks than .* can number"):
            raise error
    await ranks.aclose()


async def test_frames_wait_where_so_many_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of one edge are told apart modulo so many: a frame more would take those of the oldest one."""
    for module in "peers", "edges":
        monkeypatch.setattr(f"actorflow.ranks.{module}.WINDOW", 2)
    may_end, most = asyncio.Event(), [0]

    async def held(x: float) -> float:
        most[0] = max(most[0], len(ranks.graphs[1].engine.running))
        await may_end.wait()
        return x

    ranks = Ranks(with_function(held))
    runs = [asyncio.ensure_future(ranks.all(lambda graph, _, n=n: graph.run({"x": float(n)}))) for n in range(5)]
    await settle()
    may_end.set()
    for n, (first, second) in enumerate(await asyncio.gather(*runs)):
        assert (first["z/out"], len(second)) == (2 * n, 0)
    assert most == [2]
    await ranks.aclose()


async def test_frames_that_overtake_an_old_one_leave_it_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in "peers", "edges":
        monkeypatch.setattr(f"actorflow.ranks.{module}.WINDOW", 3)
    may_end, ended = asyncio.Event(), list[float]()

    async def held(x: float) -> float:
        if not x:
            await may_end.wait()
        ended.append(float(x))
        return x

    ranks = Ranks(with_function(held))
    runs = [asyncio.ensure_future(ranks.all(lambda graph, _, n=n: graph.run({"x": float(n)}))) for n in range(8)]
    await settle()
    assert ended == [1, 2], "the fourth frame has the tags of the first"
    may_end.set()
    for n, (first, second) in enumerate(await asyncio.gather(*runs)):
        assert (first["z/out"], len(second)) == (2 * n, 0)
    await ranks.aclose()


async def test_a_stopped_frame_keeps_no_messages_from_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in "peers", "edges":
        monkeypatch.setattr(f"actorflow.ranks.{module}.WINDOW", 2)
    entered, may_end = asyncio.Event(), asyncio.Event()

    async def stubborn(x: float) -> float:
        entered.set()
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()
        return x

    def build(graph: af.Graph) -> af.Blob:
        with_function(stubborn)(graph)
        with graph.at("1/cpu"):
            return ops.scale(graph["x"], 3.0, name="w")

    ranks = Ranks(build)
    runs = [asyncio.ensure_future(graph.run({"x": 1.0}, fetch="z/out")) for graph in ranks.graphs]
    await entered.wait()
    runs[0].cancel()
    for n in range(4):
        _, second = await ranks.all(lambda graph, w, n=n: graph.run({"x": float(n)}, fetch=w))
        assert second["w/out"] == 3 * n
    assert not runs[1].done(), "its function runs"
    may_end.set()
    first, second = await asyncio.gather(*runs, return_exceptions=True)
    assert (type(first), type(second)) == (asyncio.CancelledError, af.PeerFailedError)
    await ranks.aclose()


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_frames_behind_the_end_of_a_stream_elsewhere_are_made_up_for(
    is_forgotten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By messages of the program that they are of, so that a later frame with the same tags gets its own."""
    for module in "peers", "edges":
        monkeypatch.setattr(f"actorflow.ranks.{module}.WINDOW", 2)

    def build(graph: af.Graph) -> None:
        there_and_back(graph)
        with graph.at("1/cpu"):
            d = ops.scale(graph["a/out"], 7.0, name="d")
        with graph.at("0/cpu"):
            ops.scale(d, 1.0, name="e")

    ranks, fetches = Ranks(build), {"e/out": 14, "c/out": 30}
    graph, other = ranks.graphs
    if is_forgotten:
        graph.options = graph.options._replace(max_plans=1)

    async def check() -> None:
        for n in range(4):
            for fetch, factor in fetches.items():
                feed = {"x": np.full(4, n, np.float32)}
                first, _ = await ranks.all(lambda graph, _, fetch=fetch, feed=feed: graph.run(feed, fetch=fetch))
                np.testing.assert_array_equal(first[fetch], feed["x"] * factor)

    await check()
    gc.collect()
    run = asyncio.ensure_future(other.run({"x": np.ones(4, np.float32)}, fetch="e/out"))
    await settle()
    for each in other, graph:
        assert [result async for result in each.stream([], fetch=["c/out"])] == []
    async with asyncio.timeout(100):
        if is_forgotten:
            with pytest.raises(af.ActorflowError):
                await run
            for error in await ranks.all(lambda graph, _: graph.run({"x": np.ones(4, np.float32)}, fetch="c/out")):
                with pytest.raises(af.GraphError, match="rank 0 fetches 'c/out', rank 1 fetches 'e/out'"):
                    raise error
        else:
            with pytest.raises(af.PeerFailedError, match="rank 0 ended its stream before this frame"):
                await run
            await check()
    await ranks.aclose()


async def test_what_is_made_up_for_leaves_frames_in_flight_their_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in "peers", "edges":
        monkeypatch.setattr(f"actorflow.ranks.{module}.WINDOW", 2)
    may_end = asyncio.Event()

    async def held(x: float) -> float:
        if x:
            await may_end.wait()
        return x

    def build(graph: af.Graph) -> af.Blob:
        with graph.at("1/cpu"):
            x = ops.scale(graph.blob("x", (), "float64"), 1.0)
        with graph.at("0/cpu"):
            y = graph.function("held", held, af.TensorSpec.of((), "float64"))(x)
        with graph.at("2/cpu"):
            return ops.scale(y, 1.0, name="z")

    ranks = Ranks(build, 3)

    async def streamed(rank: int, count: int) -> list[Any]:
        return [result async for result in ranks.graphs[rank].stream([{"x": 9.0}] * count, in_flight=2)]

    await ranks.all(lambda graph, _: graph.run({"x": 0.0}))
    runs = [asyncio.ensure_future(graph.run({"x": 5.0})) for graph in ranks.graphs]
    await settle()
    streams = [asyncio.ensure_future(streamed(1, 2))]
    await settle()
    assert ranks.graphs[1].engine.next_number == 4, "rank 1 has done its part of the frame that is held"
    streams += [asyncio.ensure_future(streamed(rank, 0)) for rank in (0, 2)]
    await settle()
    may_end.set()
    async with asyncio.timeout(100):
        assert (await asyncio.gather(*runs))[2]["z/out"] == 5.0
        ahead, *others = await asyncio.gather(*streams, return_exceptions=True)
        assert isinstance(ahead, af.PeerFailedError)
        assert others == [[], []]
        for n in range(4):
            *_, third = await ranks.all(lambda graph, _, n=n: graph.run({"x": float(n)}))
            assert third["z/out"] == n
    await ranks.aclose()


async def test_programs_of_two_graphs_never_have_the_same_tags() -> None:
    may_end = asyncio.Event()

    async def held(x: float) -> float:
        if x:
            await may_end.wait()
        return x

    ranks = Ranks(with_function(held))
    others = [af.Graph("others", world=transport) for transport in ranks.local.transports]
    for graph in others:
        graph.world.max_tag = 2500  # two programs of one edge each way have 2048
        there_and_back(graph, "n")
    await ranks.all(lambda graph, _: graph.run({"x": 0.0}))
    runs = [asyncio.ensure_future(graph.run({"x": 7.0})) for graph in ranks.graphs]
    await settle()
    async with asyncio.timeout(100):
        for n in range(1, 5):
            feeds: list[dict[str, Any]] = [{"x": np.ones(n, np.float32)}, {}]
            pairs = zip(others, feeds, strict=True)
            first, _ = await asyncio.gather(*(graph.run(feed) for graph, feed in pairs))
            np.testing.assert_array_equal(first["c/out"], np.full(n, 30.0))
        may_end.set()
        first, _ = await asyncio.gather(*runs)
    assert first["z/out"] == 14.0
    for graph in others:
        await graph.aclose()
    await ranks.aclose()


async def test_frames_that_no_rank_can_start_leave_nothing_behind() -> None:
    def build(graph: af.Graph) -> None:
        with graph.at("0/cpu"):
            x = graph.blob("x", (4,))
        with graph.at("1/cpu"):
            ops.add(x, graph.blob("y", (4,)), name="z")

    ranks = Ranks(build)
    await ranks.all(lambda graph, _: graph.run(dict.fromkeys("xy", np.ones(4, np.float32))))
    for graph in ranks.graphs:
        with pytest.raises(af.errors.ShapeError):
            await graph.run({"xy"[graph.world.rank]: np.ones(3, np.float32)})
        await settle()
    assert [graph.engine.resources.peers._refused for graph in ranks.graphs] == [{}, {}]
    await ranks.aclose()


async def test_waiting_for_a_rank_that_does_not_run_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("actorflow.ranks.peers._PATIENCE_S", 0.0)
    ranks = Ranks(there_and_back)
    logged = asyncio.Event()
    monkeypatch.setattr(
        logging.getLogger("actorflow"), "warning", lambda *args: (caplog.set_level(0), logged.set(), args)
    )
    run = asyncio.create_task(ranks.graphs[0].run({"x": np.ones(4, np.float32)}))
    async with asyncio.timeout(100):
        await logged.wait()
    second = asyncio.create_task(ranks.graphs[1].run({"x": np.ones(4, np.float32)}))
    np.testing.assert_array_equal((await run)["c/out"], np.full(4, 30.0))
    await second
    await ranks.aclose()


# -- failure -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 1, 2])
async def test_an_error_reaches_every_rank_that_waits(seed: int | None) -> None:
    failing = True

    def risky(x: float) -> float:
        if failing:
            raise PlantedError("here")
        return x

    ranks = Ranks(with_function(risky), 2, seed)
    first, second = await ranks.all(lambda graph, _: graph.run({"x": 1.0}))
    assert isinstance(second, af.OpError)
    assert isinstance(second.__cause__, PlantedError)
    assert isinstance(first, af.PeerFailedError)
    assert first.rank == 1
    assert "op 'risky'" in str(first)
    assert "failed with PlantedError: here" in str(first)
    failing = False
    first, _ = await ranks.all(lambda graph, _: graph.run({"x": 3.0}))
    assert first["z/out"] == 6.0
    await ranks.aclose()


async def test_a_feed_that_does_not_fit_on_one_rank_stops_the_others() -> None:
    ranks = Ranks(there_and_back)
    shapes = {0: (5,), 1: (4,)}
    first, second = await ranks.all(lambda graph, _: graph.run({"x": np.ones(shapes[graph.world.rank], np.float32)}))
    assert isinstance(first, af.errors.ShapeError)
    assert isinstance(second, af.PeerFailedError)
    assert "frame 0 could not start: feed for blob 'x'" in str(second)
    first, _ = await ranks.all(lambda graph, _: graph.run({"x": np.ones(4, np.float32)}))
    np.testing.assert_array_equal(first["c/out"], np.full(4, 30.0))
    await ranks.aclose()


@pytest.mark.parametrize("seed", [None, 1, 2])
async def test_a_cancelled_run_ends_the_frame_on_the_other_ranks(seed: int | None) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def risky(x: float) -> float:
        entered.set()
        await release.wait()
        return x

    ranks = Ranks(with_function(risky), 2, seed)
    runs = [asyncio.create_task(graph.run({"x": 1.0})) for graph in ranks.graphs]
    await entered.wait()
    runs[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await runs[0]
    with pytest.raises(af.PeerFailedError, match="frame 0 was cancelled\n  on rank 0"):
        await runs[1]
    release.set()
    first, _ = await ranks.all(lambda graph, _: graph.run({"x": 3.0}))
    assert first["z/out"] == 6.0
    await ranks.aclose()


async def test_a_timeout_names_the_message_that_is_missing() -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def risky(x: float) -> float:
        entered.set()
        await release.wait()
        return x

    ranks = Ranks(with_function(risky))

    async def work(graph: af.Graph, _: af.Blob) -> Any:
        return await graph.run({"x": 1.0}, timeout=HELD_S if graph.world.rank == 0 else None)

    with held_limits() as end_limits:
        working = asyncio.create_task(ranks.all(work))
        await entered.wait()
        await settle()
        end_limits()
        first, second = await working
    assert isinstance(first, af.RunTimeoutError)
    assert "(receive from rank 1)" in str(first)
    assert isinstance(second, af.PeerFailedError)
    release.set()
    await ranks.aclose()


@pytest.mark.together("seed", [None, 1, 2])
@pytest.mark.together("how", ["cancelled", "timed out"])
@pytest.mark.together("where", ["plan", "lengths", "pause"])
async def test_a_run_that_is_given_up_before_it_starts_ends_on_the_other_ranks(
    where: str, how: str, seed: int | None
) -> None:
    """And those behind it meet their own counterparts."""
    ranks = Ranks(partial(there_and_back, length="n" if where == "lengths" else 4), 2, seed)
    graph, other = ranks.graphs

    def feeds(value: float) -> dict[str, Any]:
        return {"x": np.full(4, value, np.float32)}

    if where == "pause":
        await ranks.all(lambda graph, _: graph.run(feeds(0.0)))
        graph.pause("for a while")
    async with asyncio.timeout(100):
        if how == "timed out":
            with pytest.raises(af.RunTimeoutError, match="before its frame started"):
                await graph.run(feeds(1.0), timeout=0.01)
        else:
            given_up = asyncio.create_task(graph.run(feeds(1.0)))
            await settle()
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
        behind = [asyncio.create_task(graph.run(feeds(value))) for value in (2.0, 3.0) if where == "pause"]
        await settle()
        graph.resume()
        with pytest.raises(af.PeerFailedError, match=r"could not start: .*cancelled or timed out before"):
            await other.run(feeds(1.0))
        if where != "pause":
            behind = [asyncio.create_task(graph.run(feeds(value))) for value in (2.0, 3.0)]
        for number, run in enumerate(behind, 2):
            await other.run(feeds(number))
            np.testing.assert_array_equal((await run)["c/out"], np.full(4, 30.0 * number))
    assert graph.engine.resources.dispatcher.claims == 0
    await ranks.aclose()


@pytest.mark.parametrize("length", [4, "n"])
@pytest.mark.parametrize("given_up", [False, True])
async def test_runs_that_wait_for_other_ranks_end_with_their_graph(given_up: bool, length: int | str) -> None:
    ranks = Ranks(partial(there_and_back, length=length))
    run = asyncio.create_task(ranks.graphs[0].run({"x": np.ones(4, np.float32)}))
    await settle()
    if given_up:
        run.cancel()
        await asyncio.wait([run])
    async with asyncio.timeout(100):
        await ranks.graphs[0].aclose()
        with pytest.raises(asyncio.CancelledError):
            await run
    await ranks.aclose()


async def test_a_stream_that_goes_on_alone_fails() -> None:
    ranks = Ranks(there_and_back)

    async def work(graph: af.Graph, _: af.Blob) -> int:
        count = 0
        async for _ in graph.stream(
            ({"x": np.ones(4, np.float32)} for _ in range(3 + 2 * graph.world.rank)), in_flight=2
        ):
            count += 1
        return count

    first, second = await ranks.all(work)
    assert first == 3
    assert isinstance(second, af.PeerFailedError)
    assert "rank 0 ended its stream before this frame, rank 1 did not" in str(second)
    first, _ = await ranks.all(lambda graph, _: graph.run({"x": np.ones(4, np.float32)}))
    np.testing.assert_array_equal(first["c/out"], np.full(4, 30.0))
    await ranks.aclose()


async def test_a_lost_rank_fails_what_is_under_way_and_what_follows() -> None:
    entered = asyncio.Event()

    async def risky(x: float) -> float:
        entered.set()
        await asyncio.get_running_loop().create_future()
        return x

    ranks = Ranks(with_function(risky))
    runs = [asyncio.create_task(graph.run({"x": 1.0})) for graph in ranks.graphs]
    await entered.wait()
    ranks.local.kill(1)
    with pytest.raises(af.PeerLostError, match="rank 1 is lost"):
        await runs[0]
    with pytest.raises(af.PeerLostError):
        await ranks.graphs[0].run({"x": 1.0})
    runs[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await runs[1]
    await ranks.aclose()


# -- collectives ---------------------------------------------------------------------------------------------------


def reduced(graph: af.Graph) -> list[af.Blob]:
    """Three collectives over two of three ranks; those of rank 1 become ready in the other order."""
    outputs = []
    for number in range(3):
        for rank in (0, 2):
            with graph.at(f"{rank}/cpu"):
                x = graph.blob(f"x{number}.{rank}", (3,), "float64")
                operation = ops.AllReduce(f"sum{number}", (0, 2), priority=number)
                outputs.append(graph.op(f"reduce{number}.{rank}", operation)(ops.scale(x, 2.0)))
    return outputs


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
async def test_collectives_run_in_one_order(seed: int | None) -> None:
    ranks = Ranks(reduced, 3, seed)
    feed = {f"x{number}.{rank}": np.full(3, 10.0**number * (rank + 1)) for number in range(3) for rank in (0, 2)}

    async def work(graph: af.Graph, outputs: list[af.Blob]) -> list[Any]:
        return [result async for result in graph.stream([feed] * 6, fetch=outputs, in_flight=3)]

    results = await ranks.all(work)
    for rank in (0, 2):
        for result in results[rank]:
            assert [result[f"reduce{number}.{rank}/out"][0] for number in range(3)] == [8.0, 80.0, 800.0]
    assert [list(result) for result in results[1]] == [[]] * 6
    await ranks.aclose()


async def test_a_part_of_a_collective_brings_the_others() -> None:
    ranks = Ranks(reduced, 3)
    feed = {f"x1.{rank}": np.ones(3) for rank in (0, 2)}
    results = await ranks.all(lambda graph, outputs: graph.run(feed, fetch=outputs[2:3]))
    np.testing.assert_array_equal(results[0]["reduce1.0/out"], np.full(3, 4.0))
    await ranks.aclose()


@pytest.mark.parametrize("seed", [None, 1, 2])
async def test_a_frame_that_fails_before_its_collective_takes_it_from_the_others(seed: int | None) -> None:
    failing = True

    def risky(x: np.ndarray) -> np.ndarray:
        if failing:
            raise PlantedError
        return x

    def build(graph: af.Graph) -> list[af.Blob]:
        outputs = []
        for rank in range(2):
            with graph.at(f"{rank}/cpu"):
                x = graph.blob(f"x{rank}", (3,), "float64")
                if rank:
                    x = graph.function("risky", risky, x.spec)(x)
                outputs.append(graph.op(f"reduce{rank}", ops.AllReduce("sum", (0, 1)))(x))
        return outputs

    ranks = Ranks(build, 2, seed)
    feed = {"x0": np.ones(3), "x1": np.ones(3)}
    first, second = await ranks.all(lambda graph, _: graph.run(feed))
    assert isinstance(first, af.PeerFailedError)
    assert isinstance(second, af.OpError)
    failing = False
    first, second = await ranks.all(lambda graph, _: graph.run(feed))
    np.testing.assert_array_equal(first["reduce0/out"], np.full(3, 2.0))
    np.testing.assert_array_equal(second["reduce1/out"], np.full(3, 2.0))
    await ranks.aclose()
