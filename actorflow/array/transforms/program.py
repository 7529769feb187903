"""Programs of steps: planned as graphs are, and run by the core, on the thread that asks for the values."""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, prod
from sys import getrefcount
from typing import Any

import numpy as np

from actorflow.actors.dispatcher import Dispatcher
from actorflow.actors.frame import Frame, FrameStart
from actorflow.actors.op import OpActor
from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import PART, Value, as_recorded
from actorflow.array.record.record import COPIED_BYTES, OpStep, StepError, quiet
from actorflow.array.transforms.to_graph import as_blob, translate
from actorflow.core import FOREVER_NS, FrameState, Ready
from actorflow.devices.base import Fence, Lane
from actorflow.devices.cpu import CPU
from actorflow.devices.memory import Bucket
from actorflow.errors import GraphError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Op
from actorflow.loop import at_once
from actorflow.ops.fused import Fused
from actorflow.ops.operation import Operation
from actorflow.ops.registry import kernel
from actorflow.ops.step import Step
from actorflow.place import Place
from actorflow.plan.plan import Plan, PlannedOp, Slot
from actorflow.plan.planner import planning
from actorflow.runtime.build import Builder, building
from actorflow.runtime.resources import Resources
from actorflow.spec import TensorSpec
from actorflow.trace.counters import OpProfile

#: Elements from which on operations are joined: NumPy's functions are as quick for fewer.
_LEAST = 1 << 13
_OBJECT = TensorSpec((), np.dtype(object))


@dataclass(frozen=True, eq=False)
class Recorded(Operation):
    """A step that no operation of a graph stands for: what it was recorded with computes it."""

    arguments = ("*inputs",)
    differentiable = False

    call: Callable[..., Any]
    result: TensorSpec

    def check_arity(self, count: int) -> None:
        """What it was recorded with takes any number."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (self.result,)


@kernel(Recorded, returns=True)
def _recorded(operation: Recorded, inputs: list[Any], _: None) -> list[Any]:
    return [operation.call(*inputs)]


class _CallersLane(Lane):
    """The thread that asks, as a lane: nothing is handed over to it, as all is called there anyway."""

    def submit(
        self, work: Callable[[Any], None], argument: Any, passed: Callable[[Fence], None], urgent: bool
    ) -> Fence:
        raise NotImplementedError

    def wait(self, fence: Fence) -> bool:
        return True

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nobody is told of anything."""

    def close(self) -> None:
        """There is nothing to end."""

    def join(self) -> None:
        """There is nothing to wait for."""

    def forget_parent(self) -> None:
        """There is nothing of the parent's."""


class _CallersDevice(CPU):
    """The host, where the thread that asks computes all by itself; one for all programs.

    Attributes:
        runs: How many have ended. What no program has used for a while is given up by it.
    """

    def __init__(self) -> None:
        super().__init__(Place())
        self.runs = 0
        self.memory.clock = lambda: (self.runs + 1, self.runs)

    def _make_lane(self, name: str) -> Lane:
        return _CallersLane(name)


@cache
def _device() -> _CallersDevice:
    return _CallersDevice()


class _Caller(Dispatcher):
    """The thread that asks, in the place of a loop: it fires all that is ready by itself."""

    def __init__(self) -> None:
        self.ready = Ready()

    def wake(self) -> None:
        """Nobody sleeps: what is ready is fired until nothing is."""


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
        """It has."""

    def abandoned(self, frame: Frame) -> None:
        """Nobody waits for threads."""

    def fault(self, frame: Frame, error: BaseException) -> None:
        """Raise it in the thread that runs the frame."""
        raise error


class _Builder(Builder):
    """Makes ops that all run on the thread that asks, into memory that it brings."""

    is_alone = True

    def __init__(self, plan: Plan, resources: Resources) -> None:
        super().__init__(plan, resources)
        self._result: dict[int, int] = {}  # for slots whose memory a result may be written over: the result's
        for op in reversed(plan.ops):
            if op.outputs and op.inputs and op.kernel is not None and op.kernel.inplace:
                to, read = plan.slots[op.outputs[0]], plan.slots[op.inputs[0]]
                if (to.is_fetched or to.index in self._result) and read.spec == to.spec and not read.is_fetched:
                    self._result[read.index] = self._result.get(to.index, to.index)

    def _inline_ns(self, operation: Operation) -> int:
        return FOREVER_NS

    def _bucket(self, slot: Slot, writer: PlannedOp) -> Bucket:
        bucket = super()._bucket(slot, writer)
        index = slot.index if slot.is_fetched else self._result.get(slot.index)
        return bucket if index is None else _Results(bucket, index)


class _Brought(threading.local):
    """Memory for the results of the program that a thread runs, by slot."""

    def __init__(self) -> None:
        self.rooms: dict[int, Value] = {}


_brought = _Brought()


class _Results(Bucket):
    """Source of the buffers of results: what the caller has brought, else new ones, which are the application's."""

    __slots__ = ("_slot",)

    def __init__(self, bucket: Bucket, slot: int) -> None:
        super().__init__(bucket.pool, bucket.spec)
        self._slot = slot

    def take(self) -> Value:
        found = _brought.rooms.pop(self._slot, None)
        return np.empty(*self.spec) if found is None else found

    def give_back(self, buffer: Value) -> None:
        """Results are not given back."""


class Program:
    """Some results of steps, computed by the thread that calls it.

    Args:
        steps: In order. Their arguments are positions, first of what is given, then of the steps before; or constants.
        given: Types of what is given; None for what is no array.
        outputs: Positions of the results, which are steps'.
        most_bytes: Size from which on memory for results is given to each call, instead of being made by it.

    Attributes:
        rooms: Types of the memory that is given to each call.
        owned: For each result, whether it has memory of its own.
        profiles: Of the ops, by the position of the step that each was made for.
    Raises:
        GraphError: if there is no such program.
    """

    def __init__(
        self,
        steps: Sequence[OpStep],
        given: Sequence[TensorSpec | None],
        outputs: Sequence[int],
        most_bytes: float = inf,
    ) -> None:
        graph = Graph("arrays", trace_capacity=1)
        made = _Translated(graph, steps, given, outputs)
        resources = Resources(graph, shared_device=lambda _: _device())
        resources.run_on(_Caller())
        wanted = [made.blobs[i] for i in outputs]
        plan = at_once(planning(graph, [*dict.fromkeys(each for found in wanted for each in _several(found))]))
        self._program = program = at_once(building(plan, resources, _Builder))
        self._idle: list[FrameStart] = []  # those that no thread uses now: each has a queue
        self._values, fed = program.layout([made.blobs[i] for i in range(len(given))])
        self._fed = [(i, slot) for i, slot in enumerate(fed) if slot is not None]
        self._results = [
            tuple([plan.fetches[each] for each in found]) if isinstance(found, tuple) else plan.fetches[found]
            for found in wanted
        ]
        self.owned = [_owns(steps[i - len(given)]) for i in outputs]
        large = {
            slot: plan.slots[slot].spec
            for slot, is_owned in zip(self._results, self.owned, strict=True)
            if is_owned and type(slot) is int and plan.slots[slot].spec.size_bytes >= most_bytes
        }
        self.rooms, self._places = [*large.values()], [*large]
        self._step_of = made.step_of
        self.profiles: dict[int, list[OpProfile]] = {}
        for op in graph.ops:
            profile = resources.profile.get(op.id)
            if profile is not None:
                self.profiles.setdefault(made.step_of(op), []).append(profile)
        self._number = 0

    def __call__(self, values: Sequence[Any], rooms: Sequence[Value] = ()) -> list[Any]:
        """The results. Several threads may ask for some at a time, and a call may be made within another one.

        An interrupt leaves nothing behind: what it has computed is dropped.

        Args:
            values: What is given.
            rooms: Memory for results, see ``rooms``; what is not used of it is as it was.
        Raises:
            StepError: if a step fails.
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
        around, _brought.rooms = _brought.rooms, dict(zip(self._places, rooms, strict=False))
        try:
            frame.begin()
            frame.close_end()
            quiet.call(start.ready.run, (FOREVER_NS,))
        finally:
            _brought.rooms = around
        if frame.failure is not None:
            op, cause = frame.failure
            if not isinstance(cause, Exception):
                raise cause
            raise StepError(self._step_of(op)) from cause
        self._idle.append(start)
        _device().runs += 1
        found = [tuple([slots[k] for k in i]) if isinstance(i, tuple) else slots[i] for i in self._results]
        frame.values = []
        del slots
        for i, is_owned in enumerate(self.owned):
            if not is_owned:
                found[i] = _compact(found[i])
        return found


class _Translated:
    """Steps, as ops of a graph.

    Args:
        graph: The graph.
        steps, given, outputs: As for `Program`.

    Attributes:
        blobs: Of what is given, and of the results of steps that the outputs need, by position.
    """

    def __init__(
        self, graph: Graph, steps: Sequence[OpStep], given: Sequence[TensorSpec | None], outputs: Sequence[int]
    ) -> None:
        self._graph = graph
        self.blobs: list[Any] = [graph.blob(f"x{i}", *(spec or _OBJECT)) for i, spec in enumerate(given)]
        self._ends: list[int] = []  # nodes made for a step have lower ids
        needed = _needed(steps, len(given), outputs)
        known: dict[Any, Any] = {}
        self._alone = _alone(steps, len(given), needed)
        for i, step in enumerate(steps, len(given)):
            self.blobs.append(self._blob(step, known) if i in needed else None)
            self._ends.append(graph.size)

    def step_of(self, op: Op) -> int:
        """The position of the step that an op was made for."""
        return min(bisect_right(self._ends, op.id), len(self._ends) - 1)

    def _blob(self, step: OpStep, known: dict[Any, Any]) -> Any:
        inputs = [self.blobs[each] if type(each) is int else each for each in step.arguments]
        if not step.op.pure:
            return self._made(step, inputs)
        key = (step.op, step.params, step.shape, step.dtype, *map(_key, inputs))
        found = known.get(key)
        if found is None:
            found = known[key] = self._made(step, inputs)
        return found

    def _made(self, step: OpStep, inputs: list[Any]) -> Any:
        spec = TensorSpec(step.shape, step.dtype)
        if step.op is PART and isinstance(inputs[0], tuple):
            return inputs[0][step.params[0]]
        if step.op.operation is not None and step.op is not TRANSFER and not _is_called(step, inputs):
            if id(step) in self._alone:
                loop = self._loop(step, spec, inputs)
                if loop is not None:
                    return loop
            found = translate(self._graph, step, inputs)
            if isinstance(found, tuple) or (found.spec == spec and found.producers and found not in self.blobs):
                return found
        call = _call_of(step)
        return self._graph.apply(Recorded(call, spec), *[as_blob(self._graph, each) for each in inputs], name=step.name)

    def _loop(self, step: OpStep, spec: TensorSpec, inputs: Sequence[Any]) -> Any:
        """An elementwise step as one loop; None if it cannot be one."""
        operation = Fused((Step(step.op.operation, tuple(range(len(inputs)))),), (0,))
        try:
            if operation.infer(*[TensorSpec(each.shape, each.dtype) for each in inputs]) != (spec,):
                return None
        except GraphError:
            return None
        return self._graph.apply(operation, *[as_blob(self._graph, each) for each in inputs], name=step.name)


def _alone(steps: Sequence[OpStep], given: int, needed: set[int]) -> set[int]:
    """Identities of the steps whose kernels take several passes over memory, and that the plan joins with no others."""
    readers: dict[int, list[OpStep]] = {}
    for i, step in enumerate(steps, given):
        for each in {each for each in step.arguments if type(each) is int and i in needed}:
            readers.setdefault(each, []).append(step)
    found = set()
    for i, step in enumerate(steps, given):
        operation = step.op.operation
        if step.op.elementwise and operation is not None and operation.function is None and prod(step.shape) >= _LEAST:
            only = [each for each in step.arguments if type(each) is int and each >= given and len(readers[each]) == 1]
            before = [steps[each - given] for each in only]
            if not any(_is_alike(other, step) for other in before) and not any(
                _is_alike(other, step) for other in readers.get(i, ())
            ):
                found.add(id(step))
    return found


def _is_alike(one: OpStep, other: OpStep) -> bool:
    return one.op.elementwise and one.shape == other.shape


def _is_called(step: OpStep, inputs: Sequence[Any]) -> bool:
    """Return whether a step is a call of NumPy's function: where to join it gains nothing, or adds up otherwise."""
    if step.op.reduction:
        return True
    if not step.op.elementwise and step.op.bound(step.params, step.shape) is None:
        return False
    most = max([prod(step.shape), *[each.spec.size if isinstance(each, Blob) else each.size for each in inputs]])
    return most < _LEAST


def _call_of(step: OpStep) -> Callable[..., Any]:
    """What computes a step from its inputs."""
    op, params, shape, dtype = step.op, step.params, step.shape, step.dtype
    bound = op.bound(params, shape)
    if bound is not None:
        return bound
    if op.elementwise or op.into:

        def into(*inputs: Any) -> Any:
            out = np.empty(shape, dtype)
            op.compute(*inputs, *params, out=out)
            return out

        return into
    more = {"owned": False} if op.owns else {}
    return lambda *inputs: as_recorded(op.compute(*inputs, *params, **more), shape, dtype)


def _several(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _key(each: Any) -> Any:
    return (each.dtype, each.shape, each.tobytes()) if isinstance(each, np.ndarray) else id(each)


def _needed(steps: Sequence[OpStep], given: int, outputs: Sequence[int]) -> set[int]:
    needed = {*outputs}
    for i in range(given + len(steps) - 1, given - 1, -1):
        if i in needed:
            needed.update([each for each in steps[i - given].arguments if type(each) is int])
    return needed


def _owns(step: OpStep) -> bool:
    return step.op.elementwise or step.op.into


def _calibrate() -> int:
    view = np.empty(2)[:1]
    base = view.base
    return getrefcount(base)


_IN_VIEW = _calibrate()


def _compact(value: Any) -> Any:
    """A value; of a view that alone keeps more than twice its memory, or of a small part of an array, a copy."""
    base = value.base if type(value) is np.ndarray else None
    if base is None or value.nbytes * 2 >= getattr(base, "nbytes", 0):
        return value
    return value.copy() if value.nbytes < COPIED_BYTES or getrefcount(base) <= _IN_VIEW else value
