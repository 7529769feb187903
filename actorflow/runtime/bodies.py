"""Branches and loops at run time: each call of a body is a frame inside that of the op."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from actorflow.actors.frame import FINISHED, RUNNING, Frame, FrameStart
from actorflow.actors.op import OpActor, Wiring
from actorflow.core import Blob, Cycle, FrameState, Turnstile, clock_ns, release
from actorflow.devices.base import Fence
from actorflow.devices.memory import Bucket
from actorflow.errors import ActorflowError, GraphError, OpError
from actorflow.graph.flow import Loop, Switch, WithBodies
from actorflow.graph.graph import Graph
from actorflow.interchange import read_only, to_numpy
from actorflow.ops.operation import Operation
from actorflow.plan.plan import Plan
from actorflow.runtime.program import Program
from actorflow.spec import TensorSpec
from actorflow.trace.counters import NodeState

_RUNNING, _FAILED = int(NodeState.RUNNING), int(NodeState.FAILED)
#: Bits of a frame's number that are the number of the run; those above count the calls of a body whose random numbers
#: differ from call to call.
RUN_BITS = 40
_MOST_CALLS = 1 << 22


class InnerFrame(Frame):
    """A frame of a body.

    Attributes:
        part: The plan of the body, built.
        op: Whose call it is a part of.
        parent: The frame of that.
        call: That call.
    """

    part: Part
    op: BodyActor
    parent: Frame
    call: Any
    #: As of what a lane has to do.
    argument, begun, runs = None, True, True

    def finish(self) -> None:
        if self.outstanding:  # whose ends the loop has yet to see
            super().finish()
        else:
            self.state, self.halted, self.has_ended = FINISHED, True, True
            self.op.passed(self)

    def _end(self) -> None:
        self.has_ended = True
        if self.state is not FINISHED or self.cycle is None or not self.cycle.turn(self):
            self.op.passed(self)

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self.has_ended

    @property
    def position(self) -> tuple[Any, ...]:
        return self.call.steps, *super().position

    def stop(self) -> None:
        """Start nothing further, as the frame around it has stopped."""
        self.cancel()

    def hurry(self) -> None:
        """Say soon that it has ended, which it does anyway."""

    def stop_with(self, error: ActorflowError, at_once: bool = False) -> None:
        if self.state is RUNNING:
            self.error = error
            self._stop(FrameState.FAILED)


class _Observer:
    """Observer of inner frames."""

    def ended(self, frame: InnerFrame) -> None:
        """Its op knows."""

    def abandoned(self, frame: InnerFrame) -> None:
        """Only its op waits for it, and ends itself."""

    def fault(self, frame: InnerFrame, error: BaseException) -> None:
        frame.parent.fail(frame.op, error)


_observer: Any = _Observer()


class Part:
    """The program of a body, and where its inputs and outputs are.

    Args:
        operation: The operation.
        which: Which of its bodies.
        plan: Of the body.
        program: Likewise.

    Attributes:
        inputs: Positions among the op's inputs, each with the slot that the value goes to.
        outputs: Slots of the outputs, with where the buffers come from, and can go back to; None where one is another's
            memory.
        is_random: Whether it draws random numbers.
        guards: Whether functions of the user's are called, which must not write into what they are given.
    """

    def __init__(self, operation: WithBodies, which: int, plan: Plan, program: Program) -> None:
        body, first = operation.bodies[which], 1 if isinstance(operation, Switch) else 0
        positions = [*range(first, first + len(body.parameters)), *operation.reads[which]]
        self.program = program
        self._begin, given = program.layout(body.inputs)
        self.inputs = [(i, slot) for i, slot in zip(positions, given, strict=True) if slot is not None]
        self.outputs = tuple([Blob(slot, program.bucket_of(slot)) for slot in plan.results])
        self.is_random: bool = any(op.kernel is not None and op.kernel.random for op in plan.ops) or any(
            isinstance(op, BodyActor) and any(isinstance(part, Part) and part.is_random for part in op.bodies)
            for op in program.ops
        )
        self.guards = any(actor.turnstile is not None for actor in program.ops)
        self._start: FrameStart | None = None
        self._at_rest: list[InnerFrame] = []

    def values(self, given: Sequence[Any]) -> list[Any]:
        """Values that a frame begins with, from those of the op's inputs; None for what is given later."""
        values = self._begin.copy()
        for position, slot in self.inputs:
            values[slot] = given[position]
        return values

    def frame(self, call: Any, number: int, values: list[Any]) -> InnerFrame:
        """A frame that has not begun (`Frame.begin_again`)."""
        parent, program = call.parent, self.program
        start = program.begins_now(_observer, is_inner=True)
        if self._at_rest and start is self._start:
            frame = self._at_rest.pop()
            frame.context = parent.context
        else:
            if start is not self._start:
                self._start, self._at_rest = start, []
            frame = InnerFrame(start, number, values, parent.context)
            frame.ends_quietly = False
        frame.op, frame.part, frame.parent, frame.call = call.op, self, parent, call
        if start.monitor is not None:
            start.monitor.show_all(start.node_ids, NodeState.WAITING)
        frame.cycle = None
        return frame

    def start(self, call: _Call, number: int, values: list[Any], cycle: Cycle | None = None) -> InnerFrame | None:
        """Begin a frame, or have a cycle do so; returns it if it has ended at once, as there is nothing to compute."""
        frame = call.parent.outstanding[call.op] = self.frame(call, number, values)
        frame.cycle = cycle
        begun = frame.begin_again(number, values) if cycle is None else cycle.begin(frame, number)
        return None if begun else frame

    def rest(self, frame: InnerFrame) -> None:
        """Keep a frame that has ended well for another call."""
        frame.values, frame.cycle = [], None
        del frame.op, frame.parent, frame.call
        self._at_rest.append(frame)


class _Call:
    """A call of an op with bodies.

    Attributes:
        which: Number of the branch that is computed; of a loop, -1 as long as that is its condition, then 0; of what
            emits, how many items there are so far.
        cycle: The `core` object that begins a loop's body again and again.
    """

    __slots__ = ("begun_ns", "cycle", "op", "parent", "which")

    def __init__(self, op: BodyActor, parent: Frame) -> None:
        self.op = op
        self.parent = parent
        self.begun_ns = clock_ns()
        self.which = 0
        self.cycle: Cycle | None = None

    @property
    def steps(self) -> int:
        """How far it has come: another number if it has come further."""
        return self.which + (0 if self.cycle is None else self.cycle.steps)


class _Settled:
    """Tells a frame that has stopped of the end of an op's call, when the code that stops it is done."""

    __slots__ = ("_op",)

    def __init__(self, op: BodyActor) -> None:
        self._op = op

    def fire(self, frame: Frame) -> int:
        """Do so."""
        frame.settle(self._op)
        return clock_ns()


class BodyActor(OpActor):
    """An op that computes bodies."""

    uses_lane = False

    __slots__ = ("bodies", "operation")

    def __init__(
        self, wiring: Wiring, operation: WithBodies, bodies: Sequence[Part | GraphError], turnstile: Turnstile | None
    ) -> None:
        super().__init__(wiring._replace(inline_ns=-1), turnstile)
        self.operation = operation
        self.bodies = tuple(bodies)

    def _follows(self, fence: Fence) -> bool:
        return False  # the loop hands the values on

    def begin(self, frame: Frame) -> int:
        if frame.monitor is not None:
            self.show(frame, _RUNNING)
        self._follow(_Call(self, frame), None)
        return clock_ns()

    def first(self, call: _Call, given: list[Any]) -> bool:
        """Begin with the first body; return whether there is one to wait for, else the outputs are written."""
        raise NotImplementedError

    def more(self, call: _Call, frame: InnerFrame) -> bool:
        """A body has been computed: likewise begin with the next one, or write the outputs."""
        raise NotImplementedError

    def passed(self, frame: InnerFrame) -> None:
        """An inner frame has ended, in whatever way."""
        call, error = frame.call, frame.error
        if frame.state is FINISHED and not call.parent.halted:
            self._follow(call, frame)
        else:
            frame.error = frame.cycle = None
            self._conclude_call(call, error)

    def _follow(self, call: _Call, frame: InnerFrame | None) -> None:
        """Begin with what follows an inner frame, or with the first one."""
        parent = call.parent
        try:
            if frame is None:
                goes_on = self.first(call, [*self.read(parent.values)])
            else:
                goes_on = self.more(call, frame)
            if not goes_on:
                release(self.freed, parent)
        except BaseException as error:  # noqa: BLE001
            self._conclude_call(call, error)
            return
        if not goes_on:
            self._conclude_call(call, None)
        elif parent.ready.at is None:  # no slice of the loop's time is under way, in which what is ready would run
            parent.wake()

    def _conclude_call(self, call: Any, error: BaseException | None) -> None:
        frame, end_ns = call.parent, clock_ns()
        elapsed_ns = end_ns - call.begun_ns
        was_halted = frame.halted
        try:
            if error is not None:
                if was_halted:
                    self._account_failed(frame, error, elapsed_ns, end_ns, self.key)
                else:
                    self.failed(frame, self._told(call, error), elapsed_ns, end_ns, self.key)
            elif not was_halted:
                frame.outstanding.pop(self, None)  # so that the frame may end, or begin again, at once
                self.leave()
                self._succeeded(frame, elapsed_ns, end_ns, self.key)
                frame.wake()
                return
            self.leave()
        except BaseException as failure:  # noqa: BLE001  nothing may hang, whatever goes wrong here
            frame.fail(self, failure)
        if was_halted:
            frame.ready.append((_Settled(self), frame))
            frame.wake()
        else:
            frame.settle(self)

    def _told(self, call: Any, error: BaseException) -> BaseException:
        if isinstance(error, OpError):
            error.add_note(f"{self.where(call)} of op {self.node.name!r}, created at {self.node.site}")
        return error

    def where(self, call: Any) -> str:
        """Which of its bodies is computed, for messages."""
        return "in a body"

    def failed(self, frame: Frame, error: BaseException, elapsed_ns: int, end_ns: int, key: int) -> None:
        if not isinstance(error, OpError):
            super().failed(frame, error, elapsed_ns, end_ns, key)
            return
        self._account_failed(frame, error, elapsed_ns, end_ns, key)
        if frame.monitor is not None:
            self.show(frame, _FAILED)
        frame.stop_by(self, error)  # which names the op inside

    def replay(self, inputs: list[Any], number: int) -> Any:
        raise GraphError(f"op {self.node.name!r} computes parts of the graph: it cannot be repeated alone")

    def to_graph(self, inputs: Sequence[Any], number: int) -> Graph:
        raise GraphError(f"op {self.node.name!r} computes parts of the graph: it is no graph alone")

    def compute(self, frame: Frame) -> None:
        raise AssertionError("its bodies are computed, it has nothing to compute itself")


def number_of(parent: Frame, part: Part, calls: int) -> int:
    """Number of an inner frame, before which there were so many calls of bodies."""
    number = parent.number
    if not part.is_random:
        return number
    before = number >> RUN_BITS
    return ((before * 1_000_003 + calls + 1) % _MOST_CALLS) << RUN_BITS | number & (1 << RUN_BITS) - 1


class SwitchActor(BodyActor):
    """An op that computes one of several bodies."""

    __slots__ = ()

    def first(self, call: _Call, given: list[Any]) -> bool:
        index, count = int(to_numpy(given[0])), len(self.bodies)
        if not 0 <= index < count:
            raise IndexError(f"the index is {index}, and there are {count} branches")
        part = self.bodies[index]
        if isinstance(part, GraphError):
            raise part
        call.which = index
        ended = part.start(call, number_of(call.parent, part, index), part.values(given))
        return ended is None or self.more(call, ended)

    def more(self, call: _Call, frame: InnerFrame) -> bool:
        values, inner = call.parent.values, frame.values
        for blob, made in zip(self.outputs, frame.part.outputs, strict=True):
            values[blob.slot] = inner[made.slot]
        del inner
        frame.part.rest(frame)
        return False

    def where(self, call: _Call) -> str:
        return f"in branch {call.which}"


class LoopActor(BodyActor):
    """An op that computes a body again and again.

    Attributes:
        body, condition: The parts that are computed again and again; the condition says whether to go on.
        carry_slots: Slots of the body's inputs that are carried; -1 for what it does not read.
        scan_slots: Positions among the op's inputs of what is scanned, and the slots.
        stacks: Outputs that are read and have an entry for each time, with their types, and the position of the value:
            among the body's outputs for what is taken, among what is carried for what is kept.
    """

    __slots__ = ("body", "carry_slots", "condition", "operation", "scan_slots", "stacks")

    operation: Loop

    def __init__(
        self,
        wiring: Wiring,
        operation: Loop,
        bodies: Sequence[Part],
        turnstile: Turnstile | None,
        specs: Sequence[TensorSpec],
    ) -> None:
        super().__init__(wiring, operation, bodies, turnstile)
        self.body, self.condition = bodies[0], bodies[-1]
        slots = dict(bodies[0].inputs)
        c, s = operation.carries, operation.scanned
        self.carry_slots = [slots.get(i, -1) for i in range(c)]
        self.scan_slots = [(i, slots[i]) for i in range(c, c + s) if i in slots]
        n = len(bodies[0].outputs) - operation.tests
        positions = [*range(c, n), *range(c)]
        self.stacks = [
            (blob, spec, position)
            for blob, spec, position in zip(self.outputs[c:], specs[c:], positions, strict=False)
            if blob not in self.unread
        ]

    def first(self, call: _Call, given: list[Any]) -> bool:
        operation, part = self.operation, self.body
        c, length = operation.carries, operation.length
        taken: list[tuple[Any, int]] = []
        kept: list[tuple[Any, int]] = []
        for blob, spec, position in self.stacks:
            call.parent.values[blob.slot] = array = (np.zeros if operation.tests else np.empty)(*spec)
            (taken if position >= c else kept).append((array, position))
        call.cycle = Cycle(
            call.parent,
            part.values(given),
            [*given[:c]],
            self.carry_slots,
            part.outputs,
            -1 if length is None else length,
            tests=operation.tests,
            is_backward=operation.reverse,
            guards=part.guards,
            scanned=[(read_only(given[i]) if part.guards else given[i], slot) for i, slot in self.scan_slots],
            taken=taken,
            kept=kept,
            numbered=partial(number_of, call.parent, part) if part.is_random else None,
        )
        if length == 0:
            return self._finish(call)
        if not operation.tests:
            return self._begin(call)
        call.which, condition = -1, self.condition
        ended = condition.start(call, number_of(call.parent, condition, -1), condition.values(given))
        return ended is None or self.more(call, ended)

    def _begin(self, call: _Call) -> bool:
        part = self.body
        ended = part.start(call, number_of(call.parent, part, 0), [], call.cycle)
        return ended is None or self.more(call, ended)

    def more(self, call: _Call, frame: InnerFrame) -> bool:
        assert call.cycle is not None
        if call.cycle.error is not None:
            frame.cycle = None
            raise call.cycle.error
        is_first, call.which = call.which < 0, 0
        goes_on = is_first and bool(frame.values[frame.part.outputs[0].slot])
        frame.part.rest(frame)
        return self._begin(call) if goes_on else self._finish(call)

    def _finish(self, call: _Call) -> bool:
        assert call.cycle is not None
        steps = call.cycle.steps
        if self.operation.exact and steps != self.operation.length:
            raise GraphError(
                f"it has ended after {steps} times, and what it gives is of {self.operation.length} entries"
            )
        values, outputs, operation = call.parent.values, self.outputs, self.operation
        for i, blob in enumerate(outputs[: operation.carries]):
            value = call.cycle.carried[i]
            # An array given on the host is not a buffer that can go there.
            if not steps and blob.bucket is not None and type(value) is np.ndarray:
                value, given = blob.bucket.take(), value
                np.copyto(value, given)
            values[blob.slot] = value
        if operation.saved:
            values[outputs[-1].slot] = np.array(steps)
        call.cycle = None  # which refers to the inputs, whose buffers go back now
        return False

    def where(self, call: _Call) -> str:
        return "in the condition" if call.steps < 0 else f"in iteration {call.steps}"


def bucket_of_output(operation: Operation, parts: Sequence[Part | GraphError], position: int) -> Bucket | None:
    """Where the buffers of an output come from, whichever body has given it; None where that differs."""
    if isinstance(operation, Loop) and position >= operation.carries:
        return None
    given = parts[:1] if isinstance(operation, Loop) else parts
    buckets = {part.outputs[position].bucket for part in given if isinstance(part, Part)}
    return buckets.pop() if len(buckets) == 1 else None


def body_actor(
    wiring: Wiring,
    operation: WithBodies,
    parts: Sequence[Part | GraphError],
    turnstile: Turnstile | None,
    specs: Sequence[TensorSpec],
) -> BodyActor:
    """The actor of an op with bodies."""
    if isinstance(operation, Switch):
        return SwitchActor(wiring, operation, parts, turnstile)
    assert isinstance(operation, Loop)
    return LoopActor(wiring, operation, [part for part in parts if isinstance(part, Part)], turnstile, specs)
