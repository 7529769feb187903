"""Programs that the calling thread runs by itself: without a loop, a lane, or a lock."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from actorflow.actors.dispatcher import Dispatcher
from actorflow.actors.frame import Frame, FrameStart
from actorflow.actors.op import OpActor
from actorflow.core import FOREVER_NS, FrameState, Ready
from actorflow.devices.base import IdleLane, Lane
from actorflow.devices.cpu import CPU
from actorflow.devices.memory import POOLED_BYTES, Bucket
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Op
from actorflow.loop import at_once
from actorflow.ops.operation import Operation
from actorflow.place import Place
from actorflow.plan.plan import Plan, PlannedOp, Slot
from actorflow.plan.planner import planning
from actorflow.runtime.build import Builder
from actorflow.runtime.program import Program
from actorflow.runtime.quiet import quiet
from actorflow.runtime.resources import Resources
from actorflow.trace.counters import OpProfile


class CallError(Exception):
    """Raised by a program from an op's exception.

    Attributes:
        op: The op.
    """

    def __init__(self, op: Op) -> None:
        super().__init__(f"op {op.name!r} failed")
        self.op = op


class CallersProgram:
    """Some blobs of a graph, computed by the thread that calls it.

    Args:
        graph: The graph, which nothing else runs.
        given: Sources of it.
        fetched: The blobs that are computed.
        owned: Of these, values whose buffers are used again once the application drops them, if they are large.

    Attributes:
        ops: The actors of its ops.
        profiles: By the number of their ops.
    """

    def __init__(self, graph: Graph, given: Sequence[Blob], fetched: Sequence[Blob], owned: Container[Blob]) -> None:
        resources = Resources(graph, shared_device=lambda _: callers_device())
        resources.run_on(_Caller())
        plan = at_once(planning(graph, fetched))
        built = _Builder(plan, resources)
        at_once(built.make_actors())
        self._program = program = Program(plan, built, resources)
        self.ops = program.ops
        self._idle: list[FrameStart] = []  # those that no thread uses now: each has a queue
        self._values, fed = program.layout(given)
        self._fed = [(i, slot) for i, slot in enumerate(fed) if slot is not None]
        self._fetched = [plan.fetches[blob] for blob in fetched]
        buckets = [built.blobs[slot].bucket for slot in self._fetched]
        self._lent = [
            (i, bucket)
            for i, bucket in enumerate(buckets)
            if fetched[i] in owned and isinstance(bucket, _Results) and bucket.spec.size_bytes >= POOLED_BYTES
        ]
        self.profiles: Mapping[int, OpProfile] = resources.profile
        self._number = 0

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """The values of the fetched blobs. Several threads may ask at once, and a call may be made within another one.

        An interrupt leaves nothing behind: its results are dropped.

        Args:
            values: Of the given blobs.
        Raises:
            CallError: if an op fails.
        """
        slots = self._values.copy()
        for position, slot in self._fed:
            slots[slot] = values[position]
        self._number += 1
        try:
            start = self._idle.pop()  # atomic, unlike a test before it
        except IndexError:
            start = self._program.beginning(_Caller(), _Nobody())
        frame = _Frame(start, self._number, slots, None)
        frame.begin()
        frame.close_end()
        quiet.call(start.ready.run, (FOREVER_NS,))
        if frame.failure is not None:
            op, cause = frame.failure
            raise CallError(op) from cause
        self._idle.append(start)
        callers_device().runs += 1
        found = [slots[i] for i in self._fetched]
        frame.values = []
        for i, bucket in self._lent:
            if found[i].base is None:
                bucket.lend(found[i])
        return found


class _CallersDevice(CPU):
    """The host, where the thread that asks computes all by itself; one for all programs.

    Attributes:
        runs: How many have ended. By it, memory that no program has used for a while is given up.
    """

    def __init__(self) -> None:
        super().__init__(Place())
        self.runs = 0
        self.memory.clock = lambda: (self.runs + 1, self.runs)

    def _make_lane(self, name: str) -> Lane:
        return IdleLane(name)


@cache
def callers_device() -> _CallersDevice:
    """The device of all programs that their callers run."""
    return _CallersDevice()


class _Caller(Dispatcher):
    """The thread that asks, in the place of a loop: it fires all that is ready by itself."""

    def __init__(self) -> None:
        self.ready = Ready()

    def wake(self) -> None:
        """Nothing to do: no thread sleeps while ops are ready."""


class _Frame(Frame):
    """A frame whose failure is for the thread that runs it."""

    failure: tuple[Op, BaseException] | None = None

    def op_failed(self, actor: OpActor, cause: BaseException, node: Op | None = None) -> None:
        if self.failure is None:
            self.failure = node or actor.node, cause
            self.state, self.halted = FrameState.FAILED, True

    def leave_loop(self, error: BaseException) -> None:
        """The thread that runs it raises it by itself."""


class _Nobody:
    """In the place of an observer: the thread that runs a frame sees its end."""

    def ended(self, frame: Frame) -> None:
        """Nothing to do."""

    def abandoned(self, frame: Frame) -> None:
        """Nothing to do: there are no other threads to wait for."""

    def fault(self, frame: Frame, error: BaseException) -> None:
        """Raise it in the thread that runs the frame."""
        raise error


class _Builder(Builder):
    """Makes ops that all run on the thread that asks, into memory that the application keeps."""

    def __init__(self, plan: Plan, resources: Resources) -> None:
        super().__init__(plan, resources)
        self._results = {slot.index for slot in plan.slots if slot.is_fetched}  # and what they may be written over
        for op in reversed(plan.ops):
            if op.outputs and op.inputs and op.kernel is not None and op.kernel.inplace:
                to, read = plan.slots[op.outputs[0]], plan.slots[op.inputs[0]]
                if to.index in self._results and read.spec == to.spec:
                    self._results.add(read.index)

    def _inline_ns(self, operation: Operation) -> int:
        return FOREVER_NS

    def _bucket(self, slot: Slot, writer: PlannedOp) -> Bucket:
        bucket = super()._bucket(slot, writer)
        return _Results(bucket.pool, bucket.spec) if slot.index in self._results else bucket


class _Results(Bucket):
    """Source of the buffers of results, which are the application's; large ones are used again once it drops them."""

    __slots__ = ()

    def take(self) -> Any:
        found = self._returned() if self._lent else None
        return np.empty(*self.spec) if found is None else found

    def give_back(self, buffer: Any) -> None:
        """Results are not given back."""
