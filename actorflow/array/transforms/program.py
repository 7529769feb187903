"""Programs of steps: planned as graphs are, and run by the core, on the thread that asks for the values."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from sys import getrefcount
from typing import Any, NamedTuple

import numpy as np

from actorflow.actors.dispatcher import Dispatcher
from actorflow.actors.frame import Frame, FrameStart
from actorflow.actors.op import OpActor
from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import LARGE, PART, Numbered, Value, as_recorded
from actorflow.array.record.record import COPIED_BYTES, HOST, SEVERAL, InterruptedStepError, OpStep, called, quiet
from actorflow.array.transforms.to_graph import as_blob, translate
from actorflow.core import FOREVER_NS, FrameState, Ready
from actorflow.devices.base import Fence, Lane
from actorflow.devices.cpu import CPU
from actorflow.devices.memory import POOLED_BYTES, Bucket
from actorflow.errors import OpError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Op
from actorflow.loop import at_once
from actorflow.ops.operation import Operation
from actorflow.ops.registry import kernel
from actorflow.ops.shaping import Reshape
from actorflow.ops.step import StepError
from actorflow.place import Place
from actorflow.plan.plan import Plan, PlannedOp, Slot
from actorflow.plan.planner import planning
from actorflow.runtime.build import Builder
from actorflow.runtime.program import Program as Run
from actorflow.runtime.resources import Resources
from actorflow.spec import TensorSpec
from actorflow.trace.counters import OpProfile

#: Elements from which on results have memory of the plan's: to allocate it takes no time for fewer.
_LEAST = 1 << 13
#: Elements from which on operations are joined, block by block: fewer are in the cache anyway.
_LEAST_FUSED = 1 << 18
_OBJECT = TensorSpec((), np.dtype(object))


@dataclass(frozen=True, eq=False)
class Recorded(Operation):
    """A step that no operation of a graph stands for: what it was recorded with computes it."""

    arguments = ("*inputs",)
    differentiable = False

    call: Callable[..., Any]
    results: tuple[TensorSpec, ...]

    def check_arity(self, count: int) -> None:
        """Take any number in the place of the one that it was recorded with."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return self.results


@kernel(Recorded, returns=True)
def _recorded(operation: Recorded, inputs: list[Any], _: None) -> list[Any]:
    found = called(operation.call, *inputs)
    return [found] if len(operation.results) == 1 else [*found]


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
    """Makes ops that all run on the thread that asks, into memory that the application keeps."""

    is_alone = True

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

    def take(self) -> Value:
        found: Value | None = self._returned() if self._lent else None
        return np.empty(*self.spec) if found is None else found

    def give_back(self, buffer: Value) -> None:
        """Results are not given back."""


class Program:
    """Some results of steps, computed by the thread that calls it.

    Args:
        steps: In order. Their arguments are positions, first of what is given, then of the steps before; or constants.
        given: Types of what is given; None for what is no array.
        outputs: Positions of the results, which are steps'.

    Attributes:
        profiles: Of the ops, by the position of the step that each was made for.
    Raises:
        GraphError: if there is no such program.
    """

    def __init__(self, steps: Sequence[OpStep], given: Sequence[TensorSpec | None], outputs: Sequence[int]) -> None:
        graph = Graph("arrays", trace_capacity=1)
        made = _Translated(graph, steps, [*map(Given, given)], outputs)
        resources = Resources(graph, shared_device=lambda _: _device())
        resources.run_on(_Caller())
        wanted = [made.blobs[i] for i in outputs]
        targets = [*dict.fromkeys(each for found in wanted for each in _several(found))]
        fuses = any(prod(step.shape) >= _LEAST_FUSED for step in steps)
        plan = at_once(planning(graph, targets, fuse=fuses))
        built = _Builder(plan, resources)
        at_once(built.make_actors())
        self._program = program = Run(plan, built, resources)
        self._idle: list[FrameStart] = []  # those that no thread uses now: each has a queue
        self._values, fed = program.layout([made.blobs[i] for i in range(len(given))])
        self._fed = [(i, slot) for i, slot in enumerate(fed) if slot is not None]
        self._results = [
            tuple([plan.fetches[each] for each in found]) if isinstance(found, tuple) else plan.fetches[found]
            for found in wanted
        ]
        self._owned = [_owns(steps[i - len(given)]) for i in outputs]
        buckets = [None if isinstance(slot, tuple) else built.blobs[slot].bucket for slot in self._results]
        self._lent = [
            (i, bucket)
            for i, bucket in enumerate(buckets)
            if self._owned[i] and isinstance(bucket, _Results) and bucket.spec.size_bytes >= POOLED_BYTES
        ]
        self._step_of = made.step_of
        self.profiles: dict[int, list[OpProfile]] = {}
        for op in graph.ops:
            profile = resources.profile.get(op.id)
            if profile is not None:
                self.profiles.setdefault(made.step_of(op), []).append(profile)
        self._number = 0

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """The results. Several threads may ask for some at a time, and a call may be made within another one.

        An interrupt leaves nothing behind: what it has computed is dropped.

        Args:
            values: What is given.
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
        frame.begin()
        frame.close_end()
        quiet.call(start.ready.run, (FOREVER_NS,))
        if frame.failure is not None:
            op, cause = frame.failure
            if isinstance(cause, InterruptedStepError) and cause.__cause__ is not None:
                raise cause.__cause__
            raise StepError(self._step_of(op)) from cause
        self._idle.append(start)
        _device().runs += 1
        found: list[Any] = [tuple([slots[k] for k in i]) if isinstance(i, tuple) else slots[i] for i in self._results]
        frame.values = []
        del slots
        for i, is_owned in enumerate(self._owned):
            if not is_owned:
                found[i] = _compact(found[i])
        for i, bucket in self._lent:
            if found[i].base is None:
                bucket.lend(found[i])
        return found


class Given(NamedTuple):
    """What a graph is given.

    Attributes:
        spec: Its type; None for what is no array.
        place: Where it lives.
        number: Its value, if that is part of the graph.
    """

    spec: TensorSpec | None
    place: Place = HOST
    number: Value | None = None


class Compiled:
    """Some results of steps, as a graph that a service runs.

    Args:
        steps: In order, as for `Program`.
        places: Where the result of each lives.
        given: What is given.
        outputs: Positions of the results, which are steps'.
        capture: As for `actorflow.Graph`.

    Attributes:
        graph: The graph.
        feeds: Its sources, with their positions among what is given.
        fetches: A blob for each result, or a tuple of them for one of several values.
    """

    def __init__(
        self,
        steps: Sequence[OpStep],
        places: Sequence[Place],
        given: Sequence[Given],
        outputs: Sequence[int],
        capture: bool,
    ) -> None:
        self.graph = graph = Graph("arrays", capture=capture)
        made = _Translated(graph, steps, given, outputs, places)
        self.feeds = [(i, blob) for i, blob in enumerate(made.blobs[: len(given)]) if isinstance(blob, Blob)]
        self.fetches = [made.result(i) for i in outputs]
        self._step_of = made.step_of

    @property
    def fetched(self) -> list[Blob]:
        """All blobs that are fetched."""
        return [*dict.fromkeys(blob for each in self.fetches for blob in _several(each))]

    @property
    def profiles(self) -> dict[int, list[OpProfile]]:
        """Profiles of the ops, by the position of the step that each was made for."""
        found: dict[int, list[OpProfile]] = {}
        for op in self.graph.ops:
            profile = self.graph.engine.profile.get(op.id)
            if profile is not None:
                found.setdefault(self._step_of(op), []).append(profile)
        return found

    def step_of(self, error: OpError) -> int:
        """The position of the step whose op has failed."""
        op = next((op for op in self.graph.ops if op.name == error.op.name), None)
        return self._step_of(op) if op is not None else -1


class _Translated:
    """Steps, as ops of a graph.

    Args:
        graph: The graph.
        steps, outputs: As for `Program`.
        given: What is given.
        places: Where the result of each step lives; None where all is on the host.

    Attributes:
        blobs: Of what is given, and of the results of steps that the outputs need, by position.
    """

    def __init__(
        self,
        graph: Graph,
        steps: Sequence[OpStep],
        given: Sequence[Given],
        outputs: Sequence[int],
        places: Sequence[Place] | None = None,
    ) -> None:
        self._graph = graph
        self.blobs: list[Any] = [
            each.number if each.number is not None else graph.blob(f"x{i}", *(each.spec or _OBJECT), each.place)
            for i, each in enumerate(given)
        ]
        self._given = len(given)
        self._places = places
        self._ends: list[int] = []  # nodes made for a step have lower ids
        needed = _needed(steps, len(given), outputs)
        known: dict[Any, Any] = {}
        for i, step in enumerate(steps):
            place = HOST if places is None else places[i]
            self.blobs.append(self._blob(step, place, known) if i + len(given) in needed else None)
            self._ends.append(graph.size)

    def step_of(self, op: Op) -> int:
        """The position of the step that an op was made for."""
        return min(bisect_right(self._ends, op.id), len(self._ends) - 1)

    def result(self, i: int) -> Any:
        """A result by its position, as a blob that the graph computes, where its value is to live; of several, all."""
        assert self._places is not None
        found, place = self.blobs[i], self._places[i - self._given]
        if isinstance(found, tuple):
            return tuple([self._at_place(each, place) for each in found])
        return self._at_place(found, place)

    def _at_place(self, value: Any, place: Place) -> Blob:
        with self._graph.at(place):
            blob = as_blob(self._graph, value)  # numbers are part of the graph
            if blob.producers and blob.place == place:
                return blob  # a fed blob is never fetched as it was fed
            moved: Blob = self._graph.apply(Reshape(blob.shape), blob)
        return moved

    def _blob(self, step: OpStep, place: Place, known: dict[Any, Any]) -> Any:
        inputs = [self.blobs[each] if type(each) is int else each for each in step.arguments]
        if not step.op.pure:
            return self._made(step, place, inputs)
        key = (step.op, step.params, step.shape, step.dtype, place, *map(_key, inputs))
        found = known.get(key)
        if found is None:
            found = known[key] = self._made(step, place, inputs)
        return found

    def _made(self, step: OpStep, place: Place, inputs: list[Any]) -> Any:
        if step.op is PART and isinstance(inputs[0], tuple):
            return inputs[0][step.params[0]]
        if step.op is PART and self._places is not None and inputs[0].dtype != _OBJECT.dtype:
            return inputs[0]
        if step.op is TRANSFER and self._places is not None:
            return self._at_place(inputs[0], place)
        with self._graph.at(place):
            return self._computed(step, place, inputs)

    def _computed(self, step: OpStep, place: Place, inputs: list[Any]) -> Any:
        if place is not HOST:
            return translate(self._graph, step, inputs)
        spec = TensorSpec(step.shape, step.dtype)
        if step.op.operation is not None and step.op is not TRANSFER and not _is_called(step, inputs):
            found = translate(self._graph, step, inputs)
            if isinstance(found, tuple) or (found.spec == spec and found.producers and found not in self.blobs):
                return found
        results: tuple[TensorSpec, ...] = (spec,)
        if isinstance(step.op, Numbered) and step.dtype == SEVERAL:
            results = step.op.numbered.infer(*[TensorSpec(x.shape, x.dtype) for x in inputs[1:]])
        operation = Recorded(_call_of(step), results)
        return self._graph.apply(operation, *[as_blob(self._graph, each) for each in inputs], name=step.name)


def _is_called(step: OpStep, inputs: Sequence[Any]) -> bool:
    """Return whether a step is a call of NumPy's function: where to join it gains nothing, or adds up otherwise."""
    if not (step.op.reduction or step.op.elementwise):  # a view stays one: products of it with what it shows differ
        return step.op.bound(step.params, step.shape) is not None
    most = max([prod(step.shape), *[each.spec.size if isinstance(each, Blob) else each.size for each in inputs]])
    return most < (LARGE if step.op.reduction else _LEAST)


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
