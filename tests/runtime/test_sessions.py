"""Sessions: state per caller, steps that share frames, slots, and clean ends."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.runtime.rows import Ahead
from tests.checkpoint.test_broken_graphs import check_refused, edited, node
from tests.runtime.test_batched import on_virtual_time
from tests.support.waiting import settle


class Sums:
    """A graph that adds up what each session sends, by an async function that tests hold up; negative rows fail.

    `total` has its rows on the first axis, `last` on the second one.
    """

    def __init__(self, **options: Any) -> None:
        self.frames: list[list[float]] = []
        self.entered = asyncio.Semaphore(0)
        self.gate = asyncio.Event()
        self.gate.set()
        self.graph = graph = af.Graph("sums", **options)
        self.x = graph.blob("x", ["row", 1])
        total, last = graph.state("total", ["row"], init=100), graph.state("last", [2, "row"])
        self.y, after = graph.blob("y", ["row"]), graph.blob("after", [2, "row"])
        [self.x, total, last] >> graph.function("add", self.add) >> [self.y, after]
        total.assign(self.y)
        last.assign(after)

    async def add(self, x: Any, total: Any, last: Any) -> Any:
        self.frames.append(x[:, 0].tolist())
        self.entered.release()
        await self.gate.wait()
        if (x < 0).any():
            raise ValueError("negative")
        return total + x[:, 0], np.stack([x[:, 0], last[0]])

    async def step(self, session: Any, value: float, **options: Any) -> float:
        return float((await session.run({self.x: [[value]]}, **options))[self.y][0])


# -- state ------------------------------------------------------------------------------------------------------------


async def test_sessions_share_frames_and_each_goes_on_from_its_own_state() -> None:
    sums = Sums()
    async with sums.graph, sums.graph.batched() as batcher, batcher.session() as one, batcher.session() as two:
        for _ in range(3):
            await asyncio.gather(sums.step(one, 1), sums.step(two, 10))
        assert await sums.step(one, 5) == 108
        kept = one.state_dict(), two.state_dict()
    assert sums.frames == [[1, 10]] * 3 + [[5]]
    assert [each["total"] for each in kept] == [108, 130]
    assert [each["last"].tolist() for each in kept] == [[5, 1], [10, 10]]


async def test_steps_of_one_session_are_computed_in_order() -> None:
    sums = Sums()
    async with sums.graph, sums.graph.batched(in_flight=3) as batcher, batcher.session() as session:
        assert await asyncio.gather(*[sums.step(session, n) for n in (1, 2, 3)]) == [101, 103, 106]
        mapped = af.pipeline.source([{sums.x: [[n]]} for n in (4, 5)]).map(session.run)  # on the loop, as it is async
        assert [result[sums.y][0] async for result in mapped] == [110, 115]
    assert sums.frames == [[1], [2], [3], [4], [5]]


async def test_a_step_that_is_cancelled_leaves_the_state_even_in_the_turn_of_its_end() -> None:
    sums = Sums()
    async with sums.graph, sums.graph.batched() as batcher, batcher.session() as session, batcher.session() as other:
        deliver = batcher._deliver

        def deliver_and_cancel(*given: Any) -> None:
            deliver(*given)
            steps[0].cancel()  # when its result is there, and not yet returned

        batcher._deliver = deliver_and_cancel  # type: ignore[method-assign]
        steps = [asyncio.ensure_future(sums.step(each, 1)) for each in (session, other)]
        with pytest.raises(asyncio.CancelledError):
            await steps[0]
        assert await steps[1] == 101
        assert await sums.step(session, 2) == 102


async def test_a_step_that_fails_leaves_its_state_and_all_of_the_others() -> None:
    sums = Sums()
    async with sums.graph, sums.graph.batched() as batcher:
        sessions = [batcher.session() for _ in range(4)]
        for each in sessions:
            await each.__aenter__()
        values = [1, 2, -3, 4]
        steps = [sums.step(each, value) for each, value in zip(sessions, values, strict=True)]
        results = await asyncio.gather(*steps, return_exceptions=True)
        assert isinstance(results.pop(2), af.OpError)
        assert results == [101, 102, 104]
        assert await asyncio.gather(*[sums.step(each, 10) for each in sessions]) == [111, 112, 110, 114]
        for each in sessions:
            each.close()


async def test_a_nan_stays_in_the_session_that_sent_it() -> None:
    graph = af.Graph("sums")
    x, total = graph.blob("x", ["row"]), graph.state("total", ["row"])
    y = total + x
    total.assign(y)
    async with graph, graph.batched() as batcher, batcher.session() as one, batcher.session() as two:
        for value in np.nan, 1:
            results = await asyncio.gather(one.run({x: [value]}), two.run({x: [1]}))
        assert [float(result[y][0]) for result in results] == pytest.approx([np.nan, 2], nan_ok=True)


async def test_results_are_the_callers_own_and_states_stay_as_they_are() -> None:
    sums = Sums()
    async with sums.graph, sums.graph.batched() as batcher, batcher.session() as session:
        result = await session.run({sums.x: [[1]]})
        assert list(result) == ["y"]  # which is the next value of a state, too
        result[sums.y][:] = 0
        session.state_dict()["total"][...] = 0
        assert await sums.step(session, 1) == 102


def test_padding_and_fixed_feeds_go_with_states() -> None:
    graph = af.Graph("sums")
    x, factor = graph.blob("x", ["row", "time"]), graph.blob("factor", [])
    total = graph.state("total", ["row"])
    y = total + af.ops.sum(x, 1) * factor
    total.assign(y)

    def pad(requests: Any) -> Any:
        longest = max(feeds[x].shape[1] for feeds in requests)
        return [{x: np.pad(feeds[x], ((0, 0), (0, longest - feeds[x].shape[1])))} for feeds in requests]

    async def client(batcher: Any, length: int) -> float:
        async with batcher.session() as session:
            for _ in range(3):
                result = await session.run({x: np.ones((1, length), np.float32)})
            return float(result[y][0])

    async def main() -> None:
        async with graph.batched(pad=pad, buckets=[8], max_rows=8, fixed={factor: 2}) as batcher:
            assert await asyncio.gather(*[client(batcher, n) for n in (1, 5, 2)]) == [6, 30, 12]
            figures = batcher.statistics()
            assert (figures.frames, figures.padded_rows) == (3, 15)
        await graph.aclose()

    on_virtual_time(main)


async def test_a_session_goes_on_from_what_another_one_kept() -> None:
    sums = Sums()
    async with sums.graph, sums.graph.batched() as batcher:
        async with batcher.session() as session:
            await sums.step(session, 5)
        kept = pickle.loads(pickle.dumps(session.state_dict()))
        async with batcher.session(state=kept) as other:
            assert await sums.step(other, 1) == 106
        assert session.state_dict()["total"] == kept["total"] == 105
        with pytest.raises(af.FeedError, match="no state 'totl'; did you mean 'total'"):
            batcher.session(state={"totl": 1})
        with pytest.raises(af.FeedError, match=r"no value for state 'last' float32\[2\]"):
            batcher.session(state={"total": 1})
        with pytest.raises(af.ShapeError, match="state 'total' of a session"):
            batcher.session(state=kept | {"total": [1, 2]})


# -- slots ------------------------------------------------------------------------------------------------------------


async def test_a_session_too_many_is_refused_with_the_figures_or_waits_in_order() -> None:
    sums = Sums()
    got = []

    async def client(batcher: Any, number: int) -> None:
        async with batcher.session(timeout=None):
            got.append(number)

    async with sums.graph, sums.graph.batched(max_sessions=2) as batcher:
        async with batcher.session() as first, batcher.session() as second:
            clients = [asyncio.ensure_future(client(batcher, number)) for number in range(3)]
            await settle()
            with pytest.raises(af.SessionsFullError, match="2 are open, as many as max_sessions=2, and 3 wait") as full:
                await batcher.session().__aenter__()
            assert (full.value.sessions, full.value.waiting) == (2, 3)
            assert attrgetter("sessions", "max_sessions")(batcher.statistics()) == (2, 2)
            clients.pop(1).cancel()
            await settle()
            assert got == []
            first.close()
            second.close()
            first.close()  # idempotent
            await asyncio.gather(*clients)
        assert got == [0, 2]
        assert batcher.statistics().sessions == 0


def test_a_session_waits_for_a_slot_as_long_as_it_says() -> None:
    async def main() -> None:
        sums = Sums()
        async with sums.graph, sums.graph.batched(max_sessions=1) as batcher:
            async with batcher.session():
                with pytest.raises(af.SessionsFullError, match="0 wait"):
                    await batcher.session(timeout=2).__aenter__()
                assert asyncio.get_running_loop().time() == pytest.approx(2)
            async with batcher.session() as session:
                assert session.is_open

    on_virtual_time(main)


async def test_a_slot_that_is_given_in_the_turn_of_a_cancellation_goes_to_the_next_one() -> None:
    sums = Sums()
    async with sums.graph, sums.graph.batched(max_sessions=1) as batcher:
        first, *others = (batcher.session(timeout=None) for _ in range(3))
        await first.__aenter__()
        waiting = [asyncio.ensure_future(each.__aenter__()) for each in others]
        await settle()
        first.close()
        waiting[0].cancel()
        await waiting[1]
        assert [each.is_open for each in others] == [False, True]
        others[1].close()


async def test_a_slot_is_free_at_once_though_a_frame_computes_a_step_of_its_session() -> None:
    sums = Sums()
    async with sums.graph, sums.graph.batched(max_sessions=1) as batcher:
        session = batcher.session()
        await session.__aenter__()
        sums.gate.clear()
        steps = [asyncio.ensure_future(sums.step(session, n)) for n in (1, 2)]
        await sums.entered.acquire()
        session.close()
        async with batcher.session() as other:
            sums.gate.set()
            assert await sums.step(other, 7) == 107
        errors = await asyncio.gather(*steps, return_exceptions=True)
        assert [type(error) for error in errors] == [af.SessionClosedError] * 2
        assert [str(error).splitlines()[0][-35:] for error in errors] == [
            "was closed before the end of its step"[-35:],
            "a session of graph 'sums' was closed"[-35:],
        ]
        assert session.state_dict()["total"] == 100
        with pytest.raises(af.GraphError, match="entered already"):
            await session.__aenter__()


def test_an_idle_session_expires_and_a_step_is_no_idleness() -> None:
    async def main() -> None:
        sums = Sums()
        now = asyncio.get_running_loop().time
        async with sums.graph, sums.graph.batched(max_sessions=1) as batcher, batcher.session(ttl=3) as session:
            for _ in range(4):
                await asyncio.sleep(2)
                await sums.step(session, 1)
            sums.gate.clear()
            step = asyncio.ensure_future(sums.step(session, 1))
            await asyncio.sleep(100)
            sums.gate.set()
            assert await step == 105
            began_s = now()
            async with batcher.session(timeout=None):
                assert now() - began_s == pytest.approx(3)
            with pytest.raises(af.SessionClosedError, match="was closed after 3 s without a step"):
                await sums.step(session, 1)
            assert session.state_dict()["total"] == 105

    on_virtual_time(main)


# -- ends -------------------------------------------------------------------------------------------------------------


async def test_a_batcher_that_is_closed_ends_its_sessions_and_those_that_wait_for_a_slot() -> None:
    sums = Sums()
    async with sums.graph:
        batcher = sums.graph.batched(max_sessions=1)
        with pytest.raises(af.BatcherClosedError, match="not entered"):
            await batcher.session().__aenter__()
        async with batcher:
            session = batcher.session()
            with pytest.raises(af.SessionClosedError, match="not entered"):
                await sums.step(session, 1)
            await session.__aenter__()
            waiting = asyncio.ensure_future(batcher.session(timeout=None).__aenter__())
            sums.gate.clear()
            steps = [asyncio.ensure_future(sums.step(session, n)) for n in (1, 2)]
            await sums.entered.acquire()
            await batcher.aclose()
            for each in (*steps, waiting):
                with pytest.raises(af.BatcherClosedError, match="was closed"):
                    await each
        assert not session.is_open
        sums.gate.set()
        async with batcher, batcher.session(state=session.state_dict()) as again:  # the slot is there
            assert await sums.step(again, 1) == 101
            with pytest.raises(af.SessionClosedError, match="was closed: its batcher was closed"):
                await sums.step(session, 1)


def test_sessions_of_a_loop_that_was_closed_are_over() -> None:
    sums = Sums()
    batcher = sums.graph.batched(max_sessions=1)

    async def leave() -> Any:
        await batcher.__aenter__()
        session = batcher.session(ttl=100)
        await session.__aenter__()
        return session

    async def again() -> float:
        async with batcher, batcher.session() as session:
            return await sums.step(session, 1)

    session = asyncio.run(leave())
    assert asyncio.run(again()) == 101
    assert not session.is_open
    asyncio.run(sums.graph.aclose())


# -- what is wrong ----------------------------------------------------------------------------------------------------


async def test_steps_that_are_no_steps_are_refused() -> None:
    sums = Sums()
    async with sums.graph, sums.graph.batched() as batcher, batcher.session(priority=2) as session:
        with pytest.raises(af.GraphError, match=r"keeps 'total', 'last' per session: async with batcher.session"):
            await batcher.run({"x": [[1]]})
        with pytest.raises(af.ShapeError, match="has 1 row, got 2"):
            await session.run({"x": [[1], [2]]})
        with pytest.raises(af.FeedError, match="cannot feed 'total' of graph 'sums': its sessions keep it"):
            await session.run({"x": [[1]], "total": [1]})
        with pytest.raises(TypeError, match="priority"):
            batcher.session(priority="high")  # type: ignore[arg-type]
        with pytest.raises(af.GraphError, match="ttl"):
            batcher.session(ttl=0)
        assert await sums.step(session, 1) == 101
        assert batcher.statistics().frames == 1


def test_states_that_cannot_be_kept_are_refused() -> None:
    graph = af.Graph("g")
    x, h = graph.blob("x", ["row", 2]), graph.state("h", ["row", 2])
    other, wide = graph.blob("other", [2, "col"]), graph.blob("wide", ["row", 3])
    y = x + h
    with pytest.raises(af.GraphError, match=r"state 'h' has no next value, h.assign\(y\); created at .*test_sessions"):
        graph.batched(fetch=y)
    with pytest.raises(af.ShapeError, match=r"state 'h' is float32\[row, 2\], and blob 'wide' is float32\[row, 3\]"):
        h.assign(wide)
    with pytest.raises(af.DTypeError, match="state 'h'"):
        h.assign(af.ops.cast(y, "float64"))
    with pytest.raises(af.GraphError, match="must be assigned a blob"):
        h.assign(y.producers[0])  # type: ignore[arg-type]
    h.assign(y)
    with pytest.raises(af.GraphError, match="assigned 'sum/out' already"):
        h.assign(y)
    z = af.ops.sum(wide, 1) + af.ops.sum(x, 1)
    for state, why in (
        ({other: wide}, "'other' cannot be a state: it is no source that the results need"),
        ({wide: y}, r"'wide' is float32\[row, 3\], and its next value 'sum/out' is float32\[row, 2\]"),
        ({wide: "sum"}, "a state is a blob with a blob"),
    ):
        with pytest.raises(af.GraphError, match=why):
            graph.batched(fetch=z, state=state)
    square = af.ops.sum(other, 0)
    with pytest.raises(af.GraphError, match=r"state 'other' float32\[2, col\] must have the axis of the rows, 'row'"):
        graph.batched(fetch=[y], state={other: other * 2})
    for fixed, why in (({x: 1}, "has an open axis"), ({square: 1}, "no source that the results need")):
        with pytest.raises(af.GraphError, match=why):
            graph.batched(fetch=y, fixed=fixed)
    for shape in ([2], ["row", "row"], ["row", "time"]):
        with pytest.raises(af.ShapeError, match="expected one open axis, that of the rows"):
            graph.state("bad", shape)
    with pytest.raises(af.ShapeError, match="init of state 'bad'"):
        graph.state("bad", ["row", 2], init=[1, 2, 3])
    assert "bad" not in graph


# -- graphs and models ------------------------------------------------------------------------------------------------


def chained() -> tuple[af.Graph, Any, Any]:
    """A state that only another one needs, and an op that nothing needs."""
    graph = af.Graph("chained")
    x = graph.blob("x", ["row"])
    first, second = graph.state("first", ["row"], init=1), graph.state("second", ["row"])
    y = af.ops.multiply(x, second, name="y")
    first.assign(af.ops.multiply(first, 2.0, name="twice"))
    second.assign(second + first)
    af.ops.exp(x, name="unneeded")
    return graph, x, y


def run_chained(graph: af.Graph) -> list[float]:
    async def main() -> list[float]:
        async with graph, graph.batched(fetch="y/out") as batcher, batcher.session() as session:
            return [float((await session.run({"x": [1]}))["y/out"][0]) for _ in range(4)]

    return asyncio.run(main())


def test_states_go_through_files_and_pruning(tmp_path: Path) -> None:
    graph, _, y = chained()
    assert run_chained(graph) == [0, 1, 3, 7]
    graph.save_sync(tmp_path / "whole.af")
    af.Model(graph, {"x": graph["x"]}, {"y": y}).save_sync(tmp_path / "part.af")
    whole, part = af.load_sync(tmp_path / "whole.af"), af.load_sync(tmp_path / "part.af")
    assert "unneeded" in whole
    assert "unneeded" not in part
    graph.prune([y])
    assert "unneeded" not in graph
    for each in (whole, part, graph):
        assert run_chained(each) == [0, 1, 3, 7]
    model = af.Model.of(part)
    assert ([*model.inputs], [*model.outputs]) == (["x"], ["y"])


async def test_a_run_by_itself_has_its_states_fed() -> None:
    graph, x, y = chained()
    async with graph:
        assert (await graph.run({x: [2], "second": [3]}, fetch=y))[y].tolist() == [6]
        with pytest.raises(af.FeedError, match="second"):
            await graph.run({x: [2]}, fetch=y)


def test_states_go_through_files_of_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    graph = af.Graph("g")
    x, h = graph.blob("x", ["batch", 2]), graph.state("h", [1, "batch", 2])
    h.assign(af.ops.add(h, af.ops.reshape(x, (1, *x.shape)), name="next"))
    y = af.ops.add(x, af.ops.sum(h, 0), name="y")
    af.onnx.save(graph, tmp_path / "g.onnx", fetch=y)
    model = af.onnx.load(tmp_path / "g.onnx")
    assert ([*model.inputs], [*model.outputs]) == (["x", "h"], ["y/out", "next/out"])

    async def main() -> Any:
        async with model.graph, model.sessions({"h": "next/out"}) as batcher, batcher.session() as session:
            for _ in range(3):
                result = await session.run({"x": [[1, 2]]})
            return result["y/out"].tolist()

    assert asyncio.run(main()) == [[3, 6]]


async def test_states_on_a_device_and_in_a_branch() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ["row", 2])
    with graph.at("sim:0"):
        h = graph.state("h", [2, "row"], init=1)
        after = af.ops.scale(h, 3.0)
    level = graph.state("level", ["row"])
    flag = graph.blob("flag", [], "bool")
    y = af.cond(flag, lambda value: value + level, lambda value: value - level, af.ops.sum(x, 1))
    h.assign(after)
    level.assign(y)
    with graph.at("cpu"):
        total = af.ops.sum(h, 0)
    async with graph, graph.batched(fetch=[y, total], fixed={flag: True}) as batcher:
        async with batcher.session() as one, batcher.session() as two:
            for _ in range(3):
                results = await asyncio.gather(one.run({x: [[1, 0]]}), two.run({x: [[2, 3]]}))
            assert [result[y].tolist() for result in results] == [[3], [15]]
            assert [result[total].tolist() for result in results] == [[18], [18]]
            assert two.state_dict()["h"].tolist() == [27, 27]


async def test_an_op_cannot_wait_for_a_step_of_its_own_graph() -> None:
    graph = af.Graph("g")
    x, total = graph.blob("x", ["row"]), graph.state("total", ["row"])
    sessions: list[Any] = []

    @graph.function(outputs=x.spec)
    async def ask(values: Any) -> Any:
        await sessions[0].run({x: [1]})

    y = ask(x) + total
    total.assign(y)
    async with graph, graph.batched(fetch=y) as batcher, batcher.session() as session:
        sessions.append(session)
        with pytest.raises(af.OpError, match="cannot await a batched run of its own graph"):
            await session.run({x: [1]})


async def test_models_pair_inputs_and_outputs_by_name() -> None:
    graph = af.Graph("net")
    x, h, scale = graph.blob("x", ["batch", 2]), graph.blob("h", [1, "batch", 2]), graph.blob("scale", [])
    after = h * scale + af.ops.reshape(x, (1, *x.shape))
    model = af.Model(graph, {"x": x, "h0": h, "s": scale}, {"y": af.ops.sum(after, (0, 2)), "hn": after})
    with pytest.raises(af.GraphError, match="no output 'hm'"):
        model.sessions({"h0": "hm"})
    with pytest.raises(af.GraphError, match="no input 'h1'"):
        model.sessions({"h1": "hn"})
    async with graph, model.sessions({"h0": "hn"}, fixed={"s": 0.5}, max_rows=4) as batcher:
        async with batcher.session() as session:
            for values in ([2, 4], [0, 0], [1, 1]):
                result = await session.run({"x": [values]})
            assert list(result) == ["y"]
            assert result["y"].tolist() == result[model.outputs["y"]].tolist() == [3.5]


def test_a_variable_is_assigned_a_blob() -> None:
    graph = af.Graph("g")
    total, x = graph.variable("total", [2]), graph.blob("x", [2])
    with pytest.raises(af.ShapeError):
        total.assign(graph.blob("wide", [3]))
    revision = len(graph.ops)
    op = total.assign(total + x)
    assert total.producers == [op]
    assert len(graph.ops) == revision + 2
    graph.run_sync({x: [1, 2]}, fetch=[op])
    graph.run_sync({x: [1, 2]}, fetch=[op])
    assert total.value.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        ({"next": "nothing"}, "there is no 'nothing'"),
        ({"next": "x"}, r"state 'first' is float32\[row\], and blob 'x' is float32\[row, 2\]"),
        ({"shape": [3]}, "expected one open axis"),
        ({"next": 7}, "next"),
    ],
)
def test_a_file_whose_states_are_wrong_is_refused(tmp_path: Path, edit: dict[str, Any], why: str) -> None:
    graph = af.Graph("g")
    x, first = graph.blob("x", ["row", 2]), graph.state("first", ["row"])
    first.assign(first + af.ops.sum(x, 1))
    graph.save_sync(tmp_path / "g.af")

    def change(structure: dict[str, Any]) -> None:
        node(structure, "first").update(edit)

    check_refused(tmp_path / "g.af", edited((tmp_path / "g.af").read_bytes(), change), why)


# -- iterations -------------------------------------------------------------------------------------------------------


def counting() -> tuple[af.Graph, Any, Any, Any]:
    """Numbers that go down by one from what is fed first, and their sums, which are kept."""
    graph = af.Graph("counting")
    x, step = graph.blob("x", ["row"], "int64"), graph.blob("step", ["row"], "int64")
    total = graph.state("total", ["row"], "int64")
    following = x - step
    total.assign(af.ops.add(total, x, name="sum"))
    return graph, x, step, following


async def test_iterations_share_frames_and_end_each_by_itself() -> None:
    graph, x, step, following = counting()
    done = af.ops.equal(following, 0)

    async def count(batcher: Any, first: int, limit: int | None) -> list[int]:
        steps = batcher.iterate({"x": [first], step: [1]}, feedback={x: following.name}, until=done, limit=limit)
        return [int(each[following][0]) async for each in steps]

    async with graph, graph.batched(fetch=[following, done]) as batcher:
        counts = await asyncio.gather(count(batcher, 3, None), count(batcher, 5, None), count(batcher, 9, 2))
        assert counts == [[2, 1, 0], [4, 3, 2, 1, 0], [8, 7]]
        figures = batcher.statistics()
        assert (figures.frames, figures.finished, figures.sessions) == (5, 10, 0)


async def test_an_iteration_whose_caller_leaves_frees_its_slot_and_computes_nothing_more() -> None:
    graph, x, step, following = counting()
    async with graph, graph.batched(fetch=[following, "sum/out"], max_sessions=1) as batcher:
        async for result in batcher.iterate({x: [3], step: [1]}, feedback={x: following}):
            if result[following] == [-2]:
                break
        await settle()
        assert attrgetter("sessions", "max_sessions")(batcher.statistics()) == (0, 1)
        assert batcher.statistics().finished == 5  # the steps that were read
        async with batcher.session() as session:
            async for result in session.iterate({x: [3], step: [1]}, feedback={x: following}, limit=2):
                result[following][:] = 100  # the caller's own, which is not fed
            assert session.state_dict()["total"] == 5


async def test_steps_ahead_of_a_slow_caller_are_few_and_another_step_forgets_them() -> None:
    graph, x, step, following = counting()
    async with graph, graph.batched(fetch=[following, "sum/out"]) as batcher, batcher.session() as session:
        steps = session.iterate({x: [30], step: [1]}, feedback={x: following}, limit=6)
        assert (await anext(steps))[following] == [29]
        while (figures := batcher.statistics()).in_flight or figures.waiting_rows:
            await asyncio.sleep(0)
        assert figures.frames == 5
        assert session.state_dict()["total"] == 30
        assert [int((await anext(steps))[following][0]) for _ in range(2)] == [28, 27]
        total = 30 + 29 + 28 + 100
        await session.run({x: [100], step: [1]})
        assert session.state_dict()["total"] == total
        waiting = asyncio.ensure_future(anext(steps))
        await asyncio.sleep(0)
        await session.run({x: [1000], step: [1]})
        assert (await waiting)[following] == [26]
        assert session.state_dict()["total"] == total + 27 + 1000
        assert [int(each[following][0]) async for each in steps] == [25, 24]
        assert session.state_dict()["total"] == total + 27 + 1000 + 26 + 25


class Timers:
    """A loop that remembers its timers, so that they can be rung."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.set: list[Callable[[], Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_later(self, delay_s: float, callback: Callable[..., Any], *given: Any) -> asyncio.TimerHandle:
        self.set.append(partial(callback, *given))
        return self._loop.call_later(delay_s, callback, *given)


@pytest.mark.parametrize(("most_bytes", "ahead"), [(1 << 20, 4), (65, 3), (64, 2), (1, 1)])
async def test_what_waits_for_a_slow_caller_is_bounded_by_bytes(
    most_bytes: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ahead, "MOST_BYTES", most_bytes)
    graph, x, step, following = counting()
    async with graph, graph.batched(fetch=[following, "sum/out"]) as batcher:
        steps = batcher.iterate({x: [30], step: [1]}, feedback={x: following}, limit=9)  # frames of 32 bytes
        assert (await anext(steps))[following] == [29]
        while (figures := batcher.statistics()).in_flight or figures.waiting_rows:
            await asyncio.sleep(0)
        assert figures.frames == 1 + ahead
        assert [int(each[following][0]) async for each in steps] == [*range(28, 20, -1)]


async def test_the_time_of_a_step_that_was_computed_does_not_end_the_one_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its timer may ring in the turn of the loop in which its frame ends, before its caller is woken."""
    graph, x, step, following = counting()
    async with graph, graph.batched(fetch=following) as batcher, batcher.session() as session:
        deliver, timers = batcher._deliver, Timers(batcher._loop)

        def delivered(*given: Any) -> None:
            deliver(*given)
            while timers.set:
                timers.set.pop()()

        monkeypatch.setattr(batcher, "_deliver", delivered)
        monkeypatch.setattr(batcher, "_loop", timers)
        steps = session.iterate({x: [30], step: [1]}, feedback={x: following}, limit=3, timeout=1000)
        assert [int(each[following][0]) async for each in steps] == [29, 28, 27]


async def test_a_frame_that_still_computes_a_forgotten_step_changes_nothing_of_its_iteration() -> None:
    sums = Sums()
    held = {2: asyncio.Event(), 4: asyncio.Event()}

    async def wait() -> Any:
        if len(sums.frames) in held:
            await held[len(sums.frames)].wait()

    sums.gate.wait = wait  # type: ignore[method-assign]
    async with sums.graph, sums.graph.batched(in_flight=3, max_wait=0) as batcher:
        async with batcher.session() as session, batcher.session() as other:
            steps, beside = (each.iterate({sums.x: [[1]]}, feedback={}, limit=2) for each in (session, other))
            first = await asyncio.gather(anext(steps), anext(beside))
            assert [each[sums.y] for each in first] == [101, 101]
            await settle()
            assert await sums.step(session, 10) == 111
            again = asyncio.ensure_future(anext(steps))
            await settle()
            assert sums.frames == [[1, 1], [1, 1], [10], [1]]
            held[2].set()
            assert (await anext(beside))[sums.y] == 102
            held[4].set()
            assert (await again)[sums.y] == 112


async def test_steps_that_update_a_variable_are_not_computed_before_they_are_asked_for() -> None:
    graph, x, step, following = counting()
    frames = graph.variable("frames", (), "int64", init=0)
    counted = frames.assign(frames + 1)
    async with graph, graph.batched(fetch=[following, counted]) as batcher, batcher.session() as session:
        steps = session.iterate({x: [9], step: [1]}, feedback={x: following})
        for count in (1, 2):
            await anext(steps)
            await settle()
            assert frames.value == count


async def test_steps_ahead_of_their_caller_take_no_blocks_from_others() -> None:
    graph = af.Graph("blocks")
    x = graph.blob("x", ["row", 1, 1])
    cache = graph.cache("cache", most=8, blocks=2, block=2)
    y = af.ops.add(cache.attention(x, x, x, heads=1), 1.0, name="y")
    async with graph, graph.batched(fetch=y) as batcher, batcher.session() as slow, batcher.session() as other:
        steps = slow.iterate({x: [[[1]]]}, feedback={x: y}, limit=4)
        await anext(steps)
        await settle()
        assert batcher.statistics().blocks == 1
        await other.run({x: [[[1]]]})
        await anext(steps)
        with pytest.raises(af.CacheFullError):
            await anext(steps)
        other.close()
    assert batcher.statistics().blocks == 0


@pytest.mark.parametrize("is_read_late", [False, True])
async def test_an_error_comes_behind_the_steps_before_it_and_spares_others(is_read_late: bool) -> None:
    graph = af.Graph("failing")
    x, y = graph.blob("x", ["row"], "int64"), graph.blob("y", ["row"], "int64")

    def following(x: Any) -> Any:
        if 3 in x:
            raise ValueError("three")
        return x + 1

    [x] >> graph.function("following", following) >> [y]

    async def values(batcher: Any, first: int) -> list[int]:
        found = []
        steps = batcher.iterate({x: [first]}, feedback={x: y}, limit=6, timeout=None)
        with contextlib.suppress(af.OpError):
            async for each in steps:
                found.append(int(each[y][0]))
                if is_read_late:
                    await settle()
        return found

    async with graph, graph.batched() as batcher:
        assert await asyncio.gather(values(batcher, 0), values(batcher, 10)) == [[1, 2, 3], [*range(11, 17)]]
        assert (batcher.statistics().failed, batcher.statistics().sessions) == (1, 0)


async def test_who_is_closed_in_the_turn_in_which_a_frame_ends_is_told_and_others_go_on() -> None:
    graph = af.Graph("closing")
    x, y = graph.blob("x", ["row"], "int64"), graph.blob("y", ["row"], "int64")
    sessions: list[Any] = []

    def following(x: Any) -> Any:
        if 2 in x:
            sessions[0].close()
        return x + 1

    [x] >> graph.function("following", following) >> [y]

    async def values(batcher: Any, first: int) -> list[int]:
        async with batcher.session() as session:
            sessions.append(session)
            return [int(each[y][0]) async for each in session.iterate({x: [first]}, feedback={x: y}, limit=4)]

    async with graph, graph.batched() as batcher:
        told = await asyncio.gather(*[values(batcher, first) for first in (0, 10, 20)], return_exceptions=True)
        assert [type(told[0]), *told[1:]] == [af.SessionClosedError, [11, 12, 13, 14], [21, 22, 23, 24]]


async def test_what_steps_feed_each_other_must_fit() -> None:
    graph = af.Graph("wider")
    x = graph.blob("x", ["row"], "int64")
    y = af.ops.expand_dims(x, 1, name="y")
    async with graph, graph.batched(fetch=y) as batcher:
        steps = batcher.iterate({x: [3]}, feedback={x: y})
        assert (await anext(steps))[y].tolist() == [[3]]
        with pytest.raises(af.ShapeError, match=r"feed for blob 'x': expected shape"):
            await anext(steps)


async def test_iterations_of_what_is_not_there_are_refused() -> None:
    graph, x, step, following = counting()
    async with graph, graph.batched(fetch=[following, "sum/out"]) as batcher, batcher.session() as session:
        feeds = {x: [3], step: [1]}
        for wrong, why in (
            ({"feedback": {"y": following}}, "cannot feed 'y'"),
            ({"feedback": {"total": following}}, "its sessions keep it"),
            ({"feedback": {x: step}}, "'step' is not fetched"),
            ({"feedback": {}, "until": "total"}, "'total' is not fetched"),
            ({"feedback": {}, "limit": 0}, "limit"),
            ({"feedback": {}, "limit": 1.5}, "limit"),
            ({"feedback": [x]}, "feedback must be a mapping"),
            ({"feedback": {}, "feeds": 1}, "feeds must be a mapping"),
        ):
            with pytest.raises((af.ActorflowError, TypeError), match=why):
                await anext(session.iterate(**{"feeds": feeds, **wrong}))
        assert batcher.statistics().frames == 0


def test_statistics_tell_what_sessions_do_and_how_long_steps_take() -> None:
    async def main() -> None:
        graph = af.Graph("told")
        x, total = graph.blob("x", ("row",)), graph.state("total", ("row",))

        async def slow(x: Any) -> Any:
            await asyncio.sleep(0.02)
            return x

        passed = graph.blob("passed", ("row",))
        [x] >> graph.function("slow", slow) >> [passed]
        y = total + passed
        total.assign(y)
        async with graph, graph.batched(fetch=y, max_rows=1, in_flight=1, max_sessions=9) as batcher:
            async with batcher.session() as first, batcher.session() as second, batcher.session():
                await asyncio.sleep(0.5)
                steps = [asyncio.create_task(each.run({x: [1]})) for each in (first, second)]
                await asyncio.sleep(0.0125)
                told = batcher.statistics()
                assert [each[:3] for each in told.longest] == [(0, 0, "computes"), (1, 0, "waits"), (2, 0, "idle")]
                assert [round(each.for_s, 6) for each in told.longest] == [0.0125, 0.0125, 0.5125]
                await asyncio.gather(*steps)
                await first.run({x: [1]})
                told = batcher.statistics()
                assert (told.sessions, told.max_sessions, told.steps) == (3, 9, 3)
                assert [each[:3] for each in told.longest] == [(2, 0, "idle"), (1, 1, "idle"), (0, 2, "idle")]
                assert round(told.first_step_s.total, 6) == 0.52 + 0.54
                assert round(told.between_steps_s.total, 6) == 0.04
                many = [batcher.session() for _ in range(6)]
                for each in many:
                    await each.__aenter__()
                assert len(batcher.statistics().longest) == 8
                for each in many:
                    each.close()

    on_virtual_time(main)
