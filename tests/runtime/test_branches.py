"""Whether branches run side by side: by calculation, and where that says yes, by trial."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import loop
from actorflow.core import FOREVER_NS
from actorflow.devices.cpu import CPU, WorkerLane
from actorflow.devices.team import team
from actorflow.errors import DeviceError
from actorflow.ops import Operation, kernel
from actorflow.runtime import branches
from actorflow.runtime.branches import Branches
from actorflow.trace.ring import Trace

LANES = [WorkerLane("main", computes=False), WorkerLane("main.1", computes=False)]


class _Op:
    joins = True
    inline_ns = 100_000

    def __init__(self, cost_ns: int, lane: WorkerLane, named: str | None = None) -> None:
        self.cost_ns, self.lane, self.node = cost_ns, lane, SimpleNamespace(lane=named)
        self.followers: tuple[_Op, ...] = ()


def diamond(cost_ns: int) -> Any:
    """A program of two branches on two lanes, with what is before and behind them, and its trace."""
    main, other = LANES
    begin, left, right, end = ops = [_Op(cost_ns, lane) for lane in (main, main, other, main)]
    begin.followers, left.followers, right.followers = (left, right), (end,), (end,)
    return SimpleNamespace(ops=ops, trace=Trace(1024))


def run(program: Any, frames: range, spans_ns: int) -> None:
    for frame in frames:
        program.trace.add((frame + 1) * 1_000_000_000, spans_ns, program.trace.key(1), frame)


def test_one_lane_where_waking_threads_costs_more() -> None:
    program = diamond(100_000)
    assert Branches(program.ops, program.trace, lambda lane: (lane, *LANES)).lanes() == dict.fromkeys(
        program.ops, LANES[0]
    )


@pytest.mark.parametrize("one_lane_ns", [1_000_000, 100_000_000])
def test_both_are_tried_where_it_may_pay(one_lane_ns: int) -> None:
    program = diamond(50_000_000)
    choice, as_planned = (
        Branches(program.ops, program.trace, lambda lane: (lane, *LANES)),
        {op: op.lane for op in program.ops},
    )
    run(program, range(5), 1)
    assert choice.lanes() == as_planned, "the first frames do not count"
    run(program, range(5, 10), 50_000_000)
    one_lane = dict.fromkeys(program.ops, LANES[0])
    assert choice.lanes() == one_lane
    run(program, range(10, 15), one_lane_ns)
    for _ in range(3):  # it stays so
        assert choice.lanes() == (one_lane if one_lane_ns < 50_000_000 else as_planned)


def test_lanes_that_are_named_stay() -> None:
    program = diamond(100_000)
    for op in program.ops:
        op.node.lane = op.lane.name
    assert Branches(program.ops, program.trace, lambda lane: (lane, *LANES)).left == FOREVER_NS


class Witnessed(Operation):
    """Its input, and the name of the thread that was there."""

    arguments = ("*x",)

    def infer(self, *inputs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return inputs[:1]


seen: list[str] = []


@kernel(Witnessed)
def _witnessed(_operation: Witnessed, inputs: Any, outputs: Any) -> None:
    seen.append(threading.current_thread().name)
    np.add(inputs[0], 1, out=outputs[0])


async def test_branches_on_one_lane_are_one_piece_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches, "_FRAMES", 1)
    monkeypatch.setattr(branches, "_GAIN", 1e9)  # however long a call is kept waiting by other programs
    monkeypatch.setattr(CPU, "parallel_lanes", classmethod(lambda _cls: 2))
    graph = af.Graph("branches")
    x = y = graph.blob("x", (2,), "float64")
    y = graph.op("begin", Witnessed())(y)
    sides = [graph.op(f"side{i}", Witnessed())(y) for i in range(2)]
    graph.op("end", Witnessed())(*sides)
    counted = team._lanes
    async with graph:
        await graph.run({x: [0.0, 1.0]})
        assert team._lanes == counted + 2
        for _ in range(2):
            result = await graph.run({x: [0.0, 1.0]})
        np.testing.assert_array_equal(result["end/out"], [3.0, 4.0])
        (program,) = graph.engine._programs.values()
        assert len({op.lane for op in program.ops}) == 1
        assert team._lanes == counted + 1, "the lane that has lost its ops takes no core from BLAS"
        tracks = graph.engine.trace.tracks
        calls = graph.engine.trace.since(8)
        assert {tracks[track] for track in calls.track.tolist()} <= {"loop", "cpu main"}
        seen.clear()
        for op in program.ops:
            op.inline_ns = -1
        await graph.run({x: [0.0, 1.0]})
        assert seen == ["actorflow-main"] * 4
        await graph.run({x: [0.0, 1.0]}, fetch=sides)
        assert team._lanes == counted + 2, "another plan has ops on both"
    assert team._lanes == counted


class Meeting(Witnessed):
    """The same, when as many have come as are to meet."""


meeting = threading.Barrier(1)


@kernel(Meeting)
def _meeting(_operation: Meeting, inputs: Any, outputs: Any) -> None:
    meeting.wait(60)
    seen.append(threading.current_thread().name)
    np.add(inputs[0], 1, out=outputs[0])


async def test_frames_in_flight_are_computed_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CPU, "parallel_lanes", classmethod(lambda _cls: 2))
    graph = af.Graph("frames")
    x = graph.blob("x", (2,), "float64")
    y = graph.op("free", Witnessed())(graph.op("meeting", Meeting())(x))
    graph.op("named", Witnessed(), lane="main")(y)
    counted = team._lanes
    async with graph:
        await graph.run({x: [0.0, 1.0]})
        assert team._lanes == counted + 1, "BLAS reckons with one"
        (program,) = graph.engine._programs.values()
        for op in program.ops:
            op.inline_ns = -1
        seen.clear()
        monkeypatch.setitem(globals(), "meeting", threading.Barrier(2))
        first, second = await asyncio.gather(graph.run({x: [0.0, 1.0]}), graph.run({x: [2.0, 3.0]}))
        np.testing.assert_array_equal([first["named/out"], second["named/out"]], [[3.0, 4.0], [5.0, 6.0]])
        assert sorted(seen) == ["actorflow-main"] * 4 + ["actorflow-main.1"] * 2
        tracks = graph.engine.trace.tracks
        calls = graph.engine.trace.since(3)
        assert sorted(tracks[track] for track in calls.track.tolist()) == ["cpu main"] * 4 + ["cpu main.1"] * 2


async def test_frames_share_a_lane_where_others_get_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(lane: WorkerLane) -> None:
        if lane.name != "main":
            raise DeviceError("no thread")
        start(lane)

    start = WorkerLane._start_thread
    monkeypatch.setattr(WorkerLane, "_start_thread", refuse)
    monkeypatch.setattr(CPU, "parallel_lanes", classmethod(lambda _cls: 2))
    graph = af.Graph("frames")
    x = graph.blob("x", (2,), "float64")
    y = graph.op("free", Witnessed())(x)
    async with graph:
        await graph.run({x: [0.0, 0.0]})
        (program,) = graph.engine._programs.values()
        program.ops[0].inline_ns = -1
        seen.clear()
        results = await asyncio.gather(*[graph.run({x: [n, 0.0]}) for n in range(3)])
    assert [result[y][0] for result in results] == [1, 2, 3]
    assert seen == ["actorflow-main"] * 3


async def test_tasks_on_the_loop_take_no_core_from_blas() -> None:
    async def pause(value: Any) -> Any:
        return value

    graph = af.Graph("task")
    x = graph.blob("x", (2,), "float64")
    with graph.at(lane="other"):
        y = graph.op("begin", Witnessed())(x)
    graph.function("pause", pause, y.spec)(y)
    counted = team._lanes
    async with graph:
        for _ in range(3):
            await graph.run({x: [0.0, 1.0]})
            assert team._lanes == counted + 1
    assert team._lanes == counted


async def test_lanes_of_a_program_that_was_not_made_take_no_core_from_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_SLICE_STEPS", 1)
    graph = af.Graph("unmade")
    x = graph.blob("x", (2,), "float64")
    y = graph.op("one", Witnessed())(x)
    with graph.at(lane="other"):
        z = graph.op("two", Witnessed())(y)
    counted = team._lanes
    async with graph:
        await graph.run({x: [0.0, 1.0]}, fetch=y)
        assert team._lanes == counted + 1
        making = asyncio.create_task(graph.run({x: [0.0, 1.0]}, fetch=z))
        while team._lanes == counted + 1:
            await asyncio.sleep(0)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        assert team._lanes == counted + 1
    assert team._lanes == counted


async def test_a_function_has_one_lane_in_all_programs() -> None:
    graph = af.Graph("lanes")
    x = graph.blob("x", (), "int64")
    seen: list[int] = []

    def see(x: Any) -> Any:
        seen.append(int(x))
        return x

    y = graph.function("one", lambda x: x, x.spec)(x)
    far = graph.function("two", lambda x: x, x.spec)(y)
    near = graph.function("see", see, x.spec)(x)
    async with graph:
        await graph.run({x: -2}, fetch=[near])
        await graph.run({x: -1}, fetch=[far, near])  # whose plan, by itself, begins with the longer way
        fetches = ([near], [far, near])
        await asyncio.gather(*[graph.run({x: i}, fetch=fetches[i % 2]) for i in range(20)])
        programs = [*graph.engine._programs.values()]
        lanes = [op.lane for program in programs for op in program.ops if op.what == "see"]
    assert len(lanes) == 2
    assert lanes[0] is lanes[1]
    assert seen == [*range(-2, 20)]
