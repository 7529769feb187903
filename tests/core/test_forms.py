"""Both forms of the core, part by part: what the plain one does, the compiled one does."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import actorflow as af
from actorflow.core import plain
from actorflow.devices.memory import Bucket, BufferPool

SPEC = af.TensorSpec.of((4, 8))


class Program:
    """Ops of one form, in a chain or as they are connected, and frames of them."""

    def __init__(self, form: Any, compute: Callable[[Any, Any], None], lanes: str = "aaaa") -> None:
        program = self
        self.form, self.trace, self.ready, self.woken = form, form.Ring(64), form.Ready(), 0
        self.failures: list[tuple[int, str]] = []
        self.fired: list[int] = []
        self.finished: list[int] = []

        class Op(form.Op):  # type: ignore[misc]
            def fire(self, frame: Any) -> int:
                program.fired.append(self.index)
                return 0 if frame.halted else int(self.call(frame))

            def compute(self, frame: Any) -> None:
                compute(self, frame)
                form.release(self.freed, frame)

            def failed(self, frame: Any, error: BaseException, elapsed_ns: int, end_ns: int, key: int) -> None:
                program.failures.append((self.index, repr(error)))
                frame.halted = True

            def hand_over(self, frame: Any) -> None:
                program.handed.append(self.index)

        class Frame(form.Frame):  # type: ignore[misc]
            def finish(self) -> None:
                program.finished.append(self.number)

        self.Frame, self.handed = Frame, []
        self.blobs = [form.Blob(slot, None) for slot in range(len(lanes) + 1)]
        self.ops: list[Any] = []
        for index in reversed(range(len(lanes))):
            op = Op()
            op.index = op.node_id = index
            op.key = 5 << 40 | index
            op.inputs = op.freed = (self.blobs[index],)
            op.outputs = (self.blobs[index + 1],)
            op.followers = tuple(self.ops[:1])
            op.ends = not op.followers
            op.updates, op.attempts, op.delivery, op.turnstile, op.goes_on = (), None, None, None, True
            op.lane, op.inline_ns, op.profile = lanes[index], plain.FOREVER_NS, form.Profile()
            self.ops.insert(0, op)

    def frame(self, number: int = 0, readers: dict[int, int] | None = None, monitor: Any = None, **more: Any) -> Any:
        def wake() -> None:
            self.woken += 1

        of_slots = [(readers or {}).get(slot, 1) for slot in range(len(self.blobs))]
        counts = [0] + [1] * (len(self.ops) - 1), of_slots, 1
        start = self.form.Start(*counts, self.ready, wake, None, monitor, self.trace, **more)
        return self.Frame(start, number, [number * 10, *[None] * len(self.ops)], contextvars.copy_context())


def add_one(op: Any, frame: Any) -> None:
    frame.values[op.index + 1] = frame.values[op.index] + 1


def rows(trace: Any) -> list[tuple[int, int]]:
    found = np.frombuffer(trace.buffer, np.int64).reshape(-1, 4)[: trace.total]
    return [(key, frame) for key, frame in found[:, 2:].tolist()]


def test_a_chain_is_called_in_order_and_accounted_for(form: Any) -> None:
    program = Program(form, add_one)
    frame = program.frame(3)
    program.ready.append((program.ops[0], frame))
    program.ready.run(1 << 62)
    assert frame.values == [None, None, None, None, 34], "what was read for the last time is forgotten"
    assert program.finished == [3]
    assert frame.open == 0
    assert rows(program.trace) == [(index, 3) for index in range(4)]
    assert [op.profile.calls for op in program.ops] == [1] * 4
    assert all(op.profile.total_ns == op.profile.last_ns == op.last_ns == op.cost_ns for op in program.ops)
    assert frame.pending == [0] * 4
    assert not program.ready


def test_a_slice_ends_when_its_time_is_over(form: Any) -> None:
    program = Program(form, add_one)
    program.ready.append((program.ops[0], program.frame()))
    for left in (1, 1, 1, 0):
        program.ready.run(0)
        assert len(program.ready) == left
    assert program.finished == [0]


def test_an_error_is_told_and_nothing_follows(form: Any) -> None:
    def compute(op: Any, frame: Any) -> None:
        if op.index == 1:
            raise LookupError("planted")
        add_one(op, frame)

    program = Program(form, compute)
    program.ready.append((program.ops[0], program.frame()))
    program.ready.run(1 << 62)
    assert program.failures == [(1, "LookupError('planted')")]
    assert [op.profile.calls for op in program.ops] == [1, 0, 0, 0]
    assert program.finished == []


def test_a_slice_runs_in_a_context(form: Any) -> None:
    variable = contextvars.ContextVar("variable", default="outside")
    context = contextvars.copy_context()
    context.run(variable.set, "inside")
    seen = []

    class Asked:
        def fire(self, work: Any) -> int:
            seen.append(variable.get())
            if work is None:
                raise ValueError("asked")
            return 0

    ready = form.Ready()
    for work in ("a", None, "b"):
        ready.append((Asked(), work))
    with pytest.raises(ValueError, match="asked"):
        ready.run(1 << 62, context)
    assert variable.get() == "outside"
    ready.run(1 << 62)
    assert seen == ["inside", "inside", "outside"]


class TestBeginAndEnd:
    def frame(self, program: Program, **more: Any) -> Any:
        frame = program.frame(3, **more)
        frame.expect_messages(0, 1)
        return frame

    def test_it_begins_where_nothing_else_is_waited_for(self, form: Any) -> None:
        program = Program(form, add_one)
        turnstile = form.Turnstile(1)
        earlier, frame = (self.frame(program, turnstiles=(turnstile,), first=(program.ops[0],)) for _ in range(2))
        earlier.begin()
        frame.begin()
        assert turnstile.expected == [earlier, frame]
        assert program.ready.running == {earlier, frame}
        assert [*program.ready] == [(program.ops[0], earlier), (program.ops[0], frame)]

    def test_it_ends_by_itself_where_nobody_is_told(self, form: Any) -> None:
        program = Program(form, add_one)
        frame = self.frame(program, first=(program.ops[0],), ends_quietly=True)
        rests: list[int] = []
        program.ready.at_rest = lambda: rests.append(len(program.ready.running))
        frame.begin()
        assert (frame.state, frame.halted, frame.has_ended, rests) == (plain.FrameState.RUNNING, False, False, [])
        program.ready.run(1 << 62)
        assert (frame.state, frame.halted, frame.has_ended, rests) == (plain.FrameState.FINISHED, True, True, [0])
        assert not program.finished

    @pytest.mark.parametrize("why", ["somebody is told", "work goes on"])
    def test_its_end_is_told(self, form: Any, why: str) -> None:
        program = Program(form, add_one)
        frame = self.frame(program, first=(program.ops[0],), ends_quietly=True)
        frame.begin()
        if why == "work goes on":
            frame.outstanding[program.ops[1]] = None
        else:
            frame.ends_quietly = False
        program.ready.run(1 << 62)
        assert program.finished == [3]
        assert (frame.state, frame.has_ended) == (plain.FrameState.RUNNING, False)

    def test_the_last_one_in_flight_is_at_rest(self, form: Any) -> None:
        ready, rests = form.Ready(), []
        ready.at_rest = lambda: rests.append(len(ready.running))
        ready.running = {"a", "b"}
        ready.leave("a")
        assert not rests
        ready.leave("b")
        assert rests == [0]


class TestFill:
    SOURCES: ClassVar[Any] = {"x": (1, (2,), np.dtype("f4")), "y": (2, (), None)}

    def fill(self, form: Any, feeds: Any, count: int = 2) -> list[Any] | None:
        values = [0, "missing", "missing"]
        values[1] = values[2] = self
        return values if form.fill(values, feeds, self.SOURCES, count, self) else None

    def test_arrays_are_shown_read_only_and_objects_are_themselves(self, form: Any) -> None:
        x, y = np.ones(2, np.float32), object()
        filled = self.fill(form, {"y": y, "x": x})
        assert filled is not None
        assert filled[0] == 0
        assert filled[2] is y
        assert filled[1].base is x
        assert not filled[1].flags.writeable
        assert x.flags.writeable

    @pytest.mark.together(
        "feeds",
        [
            {"x": np.ones(2, np.float32)},
            {"x": np.ones(2, np.float32), "z": 1},
            {"x": np.ones(2, np.float64), "y": 1},
            {"x": np.ones(3, np.float32), "y": 1},
            {"x": np.ones((1, 2), np.float32), "y": 1},
            {"x": np.ma.masked_array(np.ones(2, np.float32)), "y": 1},
            {"x": [1, 2], "y": 1},
            [("x", np.ones(2, np.float32)), ("y", 1)],
            None,
        ],
    )
    def test_all_else_is_looked_at_closer(self, form: Any, feeds: Any) -> None:
        assert self.fill(form, feeds) is None

    def test_what_is_fed_twice_is_too(self, form: Any) -> None:
        values: list[Any] = [0, None]
        sources = {"x": (1, (), None), "same": (1, (), None)}
        assert not form.fill(values, {"x": 1, "same": 2}, sources, 2, None)


def test_an_op_that_may_wait_is_asked(form: Any) -> None:
    program = Program(form, add_one)
    frame = program.frame()
    program.ops[1].attempts = object()
    program.ops[2].cost_ns, program.ops[2].inline_ns = 2, 1
    frame.fences[program.ops[3]] = []
    program.ready.append((program.ops[0], frame))
    program.ready.run(1 << 62)
    assert [index for index in program.fired if index] == [1, 2, 3]
    assert program.finished == [0]


def test_what_a_fire_raises_is_said_of_whom(form: Any) -> None:
    class Broken:
        def fire(self, work: Any) -> int:
            raise ZeroDivisionError

    ready, broken, work = form.Ready(), Broken(), object()
    ready.append((broken, work))
    ready.append((broken, None))
    with pytest.raises(ZeroDivisionError):
        ready.run(1 << 62)
    assert ready.at == (broken, work)
    assert len(ready) == 1


def test_the_queue_keeps_its_order_as_it_grows(form: Any) -> None:
    ready = form.Ready()
    expected: list[tuple[int, int]] = []
    taken, number = [], 0
    for count in (50, 100, 300, 10):
        for _ in range(count):
            ready.append((number, -number))
            expected.append((number, -number))
            number += 1
        taken += [ready.popleft() for _ in range(count // 2)]
    assert [*taken, *ready] == expected
    assert len(ready) == len(expected) - len(taken)
    last = [*ready][-1]
    ready.rotate(1)
    assert next(iter(ready)) == last
    assert ready.pop() != last
    ready.clear()
    assert not ready
    with pytest.raises(IndexError):
        ready.popleft()


def test_a_ring_has_the_newest_rows(form: Any) -> None:
    ring = form.Ring(4)
    for row in range(6):
        ring.add(row, 1, 2, 3)
    assert ring.total == 6
    assert np.frombuffer(ring.buffer, np.int64).reshape(-1, 4)[:, 0].tolist() == [4, 5, 2, 3]


def test_readers_are_counted(form: Any) -> None:
    frame = Program(form, add_one).frame(readers={1: 3})
    assert [frame.read(slot) for slot in (0, 1, 1, 1)] == [True, False, False, True]


def test_a_mailbox_waits_again(form: Any) -> None:
    frame = Program(form, add_one).frame()
    frame.expect_messages(2, 2)
    assert frame.waits(2) == 2
    assert [frame.count(2), frame.count(2)] == [False, True]


class TestTurnstile:
    def frames(self, form: Any, count: int) -> list[Any]:
        return [Program(form, add_one).frame(number) for number in range(count)]

    def test_frames_enter_in_their_order(self, form: Any) -> None:
        turnstile, (first, second) = form.Turnstile(1), self.frames(form, 2)
        turnstile.expect(first)
        turnstile.expect(second)
        assert turnstile.expected == [first, second]
        assert not turnstile.enter(second, "second")
        assert turnstile.enter(first, "first")
        assert [*second.ready] == [], "the first one is still there"
        turnstile.leave()
        assert [*second.ready] == [("second", second)]
        assert turnstile.enter(second, "second")
        assert turnstile.expected == []

    def test_a_lane_enters_where_nobody_is(self, form: Any) -> None:
        turnstile, (first, second) = form.Turnstile(None), self.frames(form, 2)
        turnstile.expect(first)
        turnstile.expect(second)
        assert not turnstile.enter_alone(second, "second")
        assert turnstile.enter_alone(first, "first")
        assert not turnstile.enter_alone(second, "second")
        assert not turnstile.parked
        turnstile.leave()
        assert turnstile.enter_alone(second, "second")

    def test_nobody_enters_beside_a_call_on_another_lane(self, form: Any) -> None:
        turnstile, (first, second) = form.Turnstile(None), self.frames(form, 2)
        turnstile.expect(first)
        turnstile.expect(second)
        assert turnstile.enter_alone(first, "first", True)
        assert not turnstile.enter(second, "second"), "its lane would not keep it behind the first"
        assert [*second.ready] == []
        turnstile.leave()
        assert [*second.ready] == [("second", second)]
        assert turnstile.enter(second, "second")

    def test_a_frame_that_stops_lets_the_next_one_come(self, form: Any) -> None:
        turnstile, (first, second, third) = form.Turnstile(1), self.frames(form, 3)
        for frame in (first, second, third):
            turnstile.expect(frame)
        assert not turnstile.enter(third, "third")
        turnstile.skip(second)
        turnstile.skip(first)
        assert [*third.ready] == [("third", third)]


class TestShift:
    def run(self, program: Program, frame: Any) -> Any:
        shift = program.form.Shift(program.ops[0], frame)
        shift.patience_ns = plain.FOREVER_NS  # however busy the machine is
        urgent = []
        thread = threading.Thread(target=lambda: urgent.append(shift.run()))
        thread.start()
        thread.join()
        return shift, *urgent

    def test_it_goes_on_with_what_follows(self, form: Any) -> None:
        program = Program(form, add_one)
        frame = program.frame(1)
        shift, urgent = self.run(program, frame)
        assert urgent is True
        assert (shift.ends, shift.at.index, shift.begun_ns) == (1, 3, 0)
        assert frame.values[4] == 14
        assert rows(program.trace) == [(5 << 40 | index, 1) for index in range(4)]
        assert program.finished == [], "that is the loop's"
        assert program.woken == 0

    def test_what_is_long_elsewhere_is_handed_over(self, form: Any) -> None:
        program = Program(form, add_one, "aaba")
        program.ops[2].inline_ns = 0
        frame = program.frame()
        _, urgent = self.run(program, frame)
        assert urgent is False
        assert program.handed == [2]
        assert frame.values[2] == 2

    def test_what_is_short_elsewhere_is_not(self, form: Any) -> None:
        program = Program(form, add_one, "abcd")
        for op in program.ops:
            op.cost_ns = 5
        frame = program.frame()
        self.run(program, frame)
        assert program.handed == []
        assert frame.values[4] == 4

    def test_what_may_run_elsewhere_does(self, form: Any) -> None:
        program = Program(form, add_one)
        for op in program.ops:
            op.inline_ns, op.lanes = 0, ("a", "b") if op.index < 2 else ()
        shift = form.Shift(program.ops[0], program.frame())
        shift.go_to("b", 6 << 40)
        assert not shift.run()
        assert program.handed == [2]
        assert rows(program.trace) == [(6 << 40, 0), (6 << 40 | 1, 0)]

    @pytest.mark.parametrize("lanes", ["aaaa", "abba"])
    def test_functions_of_other_lanes_are_alone(self, form: Any, lanes: str) -> None:
        elsewhere = []

        def compute(op: Any, frame: Any) -> None:
            elsewhere.append(op.turnstile is not None and op.turnstile.is_elsewhere)
            add_one(op, frame)

        program = Program(form, compute, lanes)
        frame, program.ops[1].turnstile = program.frame(), form.Turnstile(None)
        program.ops[1].turnstile.expect(frame)
        self.run(program, frame)
        assert elsewhere == [False, lanes[1] == "b", False, False]
        assert not program.ops[1].turnstile.is_elsewhere

    def test_other_frames_wait_and_its_own_does_not(self, form: Any) -> None:
        program = Program(form, add_one)
        for op in program.ops:
            op.inline_ns = 0
        frame, other = program.frame(), program.frame(1)
        program.ready.append(("others", other))
        program.ready.at = program.ops[0], frame  # the loop hands it over
        self.run(program, frame)
        assert frame.values[4] == 4
        frame = program.frame()
        program.ready.append(("its own", frame))
        self.run(program, frame)
        assert program.handed == [1], "behind what waits"

    def test_the_loop_has_short_ones_after_a_while(self, form: Any) -> None:
        program = Program(form, add_one)
        for op in program.ops:
            op.cost_ns = 5
        program.ops[1].cost_ns, program.ops[1].inline_ns = 5, 1  # long, so it goes on, and the count begins anew
        frame = program.frame()
        shift = form.Shift(program.ops[0], frame)
        shift.patience_ns = -1
        assert not shift.run()
        assert [*program.ready] == [(program.ops[2], frame)]
        assert frame.values[2] == 2
        assert program.handed == []

    def test_the_loop_fires_what_may_wait(self, form: Any) -> None:
        program = Program(form, add_one)
        program.ops[2].goes_on = False
        frame = program.frame()
        self.run(program, frame)
        assert [*program.ready] == [(program.ops[2], frame)]
        assert program.woken == 1

    def test_a_turn_that_is_not_there_is_the_loops_to_wait_for(self, form: Any) -> None:
        program = Program(form, add_one)
        program.ops[1].turnstile = form.Turnstile(None)
        frame, other = program.frame(1), program.frame(0)
        program.ops[1].turnstile.expect(other)
        program.ops[1].turnstile.expect(frame)
        self.run(program, frame)
        assert [*program.ready] == [(program.ops[1], frame)]
        assert program.ops[1].turnstile.running == 0

    def test_new_values_are_delivered_by_the_loop(self, form: Any) -> None:
        program = Program(form, add_one)
        program.ops[3].delivery, program.ops[3].updates = "delivery", ("w",)
        frame = program.frame()
        shift, urgent = self.run(program, frame)
        assert (shift.ends, urgent) == (0, False)
        assert [*program.ready] == [("delivery", frame)]

    def test_an_error_halts_the_frame(self, form: Any) -> None:
        def compute(op: Any, frame: Any) -> None:
            raise LookupError("planted")

        program = Program(form, compute)
        frame = program.frame()
        shift = form.Shift(program.ops[0], frame)
        with pytest.raises(LookupError, match="planted"):
            shift.run()
        assert frame.halted
        assert shift.at is program.ops[0]
        assert shift.begun_ns > 0
        assert shift.key_of(shift.at) == 5 << 40

    def test_a_watcher_sees_what_runs(self, form: Any) -> None:
        seen = []
        monitor = SimpleNamespace(states=bytearray(8), dirty=bytearray(8))

        def compute(op: Any, frame: Any) -> None:
            seen.append(bytes(monitor.states[:4]))
            add_one(op, frame)

        program = Program(form, compute)
        frame = program.frame(monitor=monitor)
        self.run(program, frame)
        assert seen == [bytes([2, 0, 0, 0]), bytes([3, 2, 0, 0]), bytes([3, 3, 2, 0]), bytes([3, 3, 3, 2])]
        assert bytes(monitor.dirty) == bytes([1, 1, 1, 1, 0, 0, 0, 0])


class TestDrop:
    """Of a form whose buckets are the package's: they are shelves of the form that runs."""

    def frame(self, value: Any) -> Any:
        return SimpleNamespace(values=[value], budget=None)

    def bucket(self) -> Bucket:
        return BufferPool().bucket(SPEC)

    def test_what_nobody_has_goes_back(self, form: Any) -> None:
        bucket = self.bucket()
        form.Blob(0, bucket).drop(self.frame(bucket.take()))
        assert bucket.free_bytes == SPEC.size_bytes

    def test_what_somebody_has_does_not(self, form: Any) -> None:
        bucket = self.bucket()
        kept = bucket.take()
        frame = self.frame(kept)
        form.Blob(0, bucket).drop(frame)
        assert frame.values == [None]
        assert bucket.free_bytes == 0

    def test_a_view_gives_back_what_it_shows(self, form: Any) -> None:
        bucket = self.bucket()
        form.View(0, bucket).drop(self.frame(bucket.take().reshape(-1)))
        assert bucket.free_bytes == SPEC.size_bytes

    @pytest.mark.parametrize("kept", ["view", "buffer"])
    def test_a_view_of_what_somebody_has_does_not(self, form: Any, kept: str) -> None:
        bucket = self.bucket()
        buffer = bucket.take()
        held = buffer if kept == "buffer" else buffer[1:]
        frame = self.frame(buffer.reshape(-1))
        del buffer
        form.View(0, bucket).drop(frame)
        assert bucket.free_bytes == 0
        assert held.base is None or kept == "view"

    def test_an_array_that_is_not_the_pools_does_not(self, form: Any) -> None:
        bucket = self.bucket()
        form.View(0, bucket).drop(self.frame(np.empty(SPEC.shape, SPEC.dtype).reshape(-1)))
        assert bucket.free_bytes == 0

    def test_a_budget_is_told(self, form: Any) -> None:
        frame = self.frame(np.empty(3))
        frame.budget = SimpleNamespace(freed=[])
        form.Blob(0, None).drop(frame)
        assert frame.budget.freed == [(frame, 0)]
