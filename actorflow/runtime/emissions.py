"""Ops that emit at run time: a generator whose items are computed as frames inside that of the op, some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import coroutine
from typing import Any

import numpy as np

from actorflow.actors.frame import RUNNING, Frame
from actorflow.actors.op import INLINE_NS, OpActor, Wiring, checked
from actorflow.actors.task import within
from actorflow.core import FOREVER_NS, Emitter, Stack, Turnstile, clock_ns, release
from actorflow.devices.base import Fence
from actorflow.errors import GraphError, OpError, ShapeError
from actorflow.graph.emits import Collect
from actorflow.interchange import read_only
from actorflow.loop import end, ended_with, waits
from actorflow.ops.function import NOT_RUN, check_has_run
from actorflow.plan.emitting import Emission
from actorflow.runtime.bodies import BodyActor, InnerFrame, Part, number_of
from actorflow.spec import TensorSpec
from actorflow.trace.counters import NodeState

_RUNNING, _DONE = int(NodeState.RUNNING), int(NodeState.DONE)
#: Entries that a stack begins with.
_FEW = 16


class _Stack(Stack):
    """An array that grows by an entry for each value."""

    __slots__ = ("_length", "_what")

    def __init__(self, spec: TensorSpec, length: int | None, what: str) -> None:
        super().__init__(np.empty((_FEW if length is None else length, *spec.shape), spec.dtype))
        self._length = length
        self._what = what

    def grow(self) -> None:
        if self._length is not None:
            raise ShapeError(f"{self._what} joins {self._length} items, and there are more")
        array, self.array = self.array, np.empty((2 * self.count, *self.array.shape[1:]), self.array.dtype)
        self.array[: self.count] = array

    def joined(self) -> Any:
        """The array of all of them."""
        count, array = self.count, self.array
        if self._length is not None and count != self._length:
            raise ShapeError(f"{self._what} joins {self._length} items, and there are {count}")
        return array if count == len(array) else array[:count].copy()


class _List:
    """A list of values, and what is made of it.

    Attributes:
        add: Adds a value.
    """

    __slots__ = ("_fn", "_values", "add")

    def __init__(self, copies: bool, fn: Callable[[list[Any]], Any] | None) -> None:
        self._fn = fn
        self._values: list[Any] = []
        add = self._values.append
        self.add: Callable[[Any], None] = (lambda value: add(value.copy())) if copies else add

    def joined(self) -> Any:
        """The list, or what the function gives for it."""
        return self._values if self._fn is None else self._fn(self._values)


class EmissionCall(Emitter):
    """A call of an op that emits, as work of its frame.

    Attributes:
        op: The op.
        parent: The frame.
        begun_ns: When it began.
        generator: The generator of the items; None when it has ended, or was closed.
        asynchronous: The same of an async generator, as an iterator: `_items`.
        joined: The object that joins the values, for each output.
        pulled_item: The item that the generator has given on a lane's thread.
        task: Runs an async generator: in slices of its own, in which `iterator` is set, as long as it does not wait.
        room: Resolved when a further item may be asked for, if the task waits for that.
        error: The first exception.
        failed_at: Number of the item that has failed.
    """

    __slots__ = (
        *("asynchronous", "begun_ns", "error", "failed_at", "generator", "joined", "op", "parent", "pulled_item"),
        *("room", "task"),
    )

    #: As of what a lane has to do.
    argument, begun, runs = None, True, True

    def __init__(self, op: EmitActor, parent: Frame) -> None:
        part = op.part
        numbered = partial(number_of, parent, part) if part.is_random else None
        is_async = op.operation.function.is_async
        inline_ns = FOREVER_NS if is_async else INLINE_NS if op.attempts is None else -1
        super().__init__(parent, op.in_flight, inline_ns, *op.into, part.guards, numbered)
        self.op = op
        self.parent = parent
        self.begun_ns = clock_ns()
        self.context = parent.context.copy()
        self.items = parent.items
        if self.items is not None and op.operation.is_streamed:
            self.fetcher = op.part.program.fetcher
        self.recycled = op.recycled
        self.pull_ns = op.pull_ns
        self.generator: Any = None
        self.asynchronous: Any = None
        self.joined: list[Any] = []
        self.pulled_item: Any = None
        self.task: asyncio.Task[None] | None = None
        self.room: asyncio.Future[None] | None = None
        self.error: BaseException | None = None
        self.failed_at = 0

    @property
    def at_work(self) -> list[tuple[OpActor, Any]]:
        """As of a frame, of those of the items."""
        return [found for frame in [*self.frames] for found in frame.at_work]

    @property
    def position(self) -> tuple[Any, ...]:
        """As of a frame."""
        return self.steps, [frame.position for frame in [*self.frames]]

    @property
    def tasks(self) -> set[asyncio.Task[Any]]:
        """As of a frame."""
        own = set() if self.task is None else {self.task}
        return own.union(*[frame.tasks for frame in self.frames])

    def hurry(self) -> None:
        """Say soon that it has ended, which it does anyway."""

    # -- the generator -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Call the function, and prepare what its items go to."""
        op, context = self.op, self.context
        function, count = op.operation.function, len(op.operation.op.inputs)
        values = [*op.read(self.parent.values)]
        if op.part.guards:
            values = [read_only(value) if type(value) is np.ndarray else value for value in values]
        self.begin_with = op.part.values([*[None] * len(op.item_slots), *values[count:]])
        self.joined = [op.joiner(*join) for join in op.joinings]
        at = [op.part.outputs[join.position].slot for join, _ in op.joinings]
        self.joins = [
            (made if isinstance(made, Stack) else made.add, slot) for made, slot in zip(self.joined, at, strict=True)
        ]
        given = [read_only(value) if type(value) is np.ndarray else value for value in values[:count]]
        del values
        context.run(within.set, (self.parent, op))
        self.generator = context.run(function.fn, *given)
        if self.items is not None:
            self.items.room = self.items.least = op.in_flight
        if function.is_async:
            self.box = []
            self.asynchronous = _items(self.generator, self.box)
            # In a context of its own: one cannot be entered twice, and slices enter that of the generator.
            task = self.parent.loop.create_task(self._emit(), name=op.node.name, context=context.copy())
            self.task = task
            task.add_done_callback(self._emitted)
        else:
            self.iterator = self.generator

    def ask(self) -> None:
        if self.task is not None:
            if waits(self.room):
                self.room.set_result(None)
            return
        self.is_pulling = True
        try:
            fence = self.op.lane.submit(_pull_there, self, self._pulled, True)
            if self.op.attempts is not None:
                self.op.attempts.begin(self.parent, fence)
        except BaseException:  # for instance no thread to be had
            self.is_pulling = False
            raise

    def _pulled(self, fence: Fence) -> None:
        self.is_pulling = False
        item, self.pulled_item = self.pulled_item, None
        attempts = self.op.attempts
        try:
            error = fence.error if attempts is None else attempts.end(self.parent, fence.error)
            if self.is_stopped or self.is_exhausted:
                self._close()
            elif error is not None:
                self.failed(error)
            elif item is self:
                self.is_exhausted, self.iterator, self.generator = True, None, None
            else:
                self.pulled(fence.elapsed_ns)
                self.give(item)
        except BaseException as error:  # noqa: BLE001  what it gives does not fit
            self.failed(error)
        self.advance()

    def _goes_on(self) -> bool:
        return not (self.is_stopped or self.is_exhausted)

    async def _emit(self) -> None:
        parent, attempts, is_dropped = self.parent, self.op.attempts, False
        try:
            while self.is_pulling or self._goes_on():
                if self.is_pulling:  # it waits for something
                    if attempts is not None:
                        assert self.task is not None
                        attempts.begin(parent, self.task)
                    await self._proceed()
                    self.is_pulling = False
                    if attempts is not None and (late := attempts.end(parent, None)) is not None:
                        raise late
                    if not self._goes_on():
                        return
                    self.give(self.box.pop())
                self.iterator = self.asynchronous
                parent.ready.append((self, parent))
                if not parent.start.dispatcher.run_now():
                    self.advance()
                self.iterator = None
                if self._goes_on() and not self.is_pulling:
                    self.room = parent.loop.create_future()
                    await self.room
        except GeneratorExit:  # the loop was closed: nothing can be awaited
            is_dropped = True
            raise
        finally:
            if not is_dropped:
                await self._proceed(_ClosedError())

    @coroutine
    def _proceed(self, error: BaseException | None = None) -> Iterator[Any]:
        """Await what an async generator waits for, to its next item or its end; or close it, by an error."""
        steps, run, awaited = self.asynchronous, self.context.run, self.awaited
        self.awaited = None
        try:
            if error is not None:
                awaited = run(steps.throw, error)
            while awaited is not self.box:
                error = None
                try:
                    yield awaited
                except GeneratorExit:
                    raise
                except BaseException as raised:  # noqa: BLE001  it may be cancelled, and tidy up
                    error = raised
                awaited = run(next, steps) if error is None else run(steps.throw, error)
        except (StopIteration, _ClosedError):
            self.is_exhausted = True
        finally:
            del error  # whose traceback refers to this call

    def _emitted(self, task: asyncio.Task[None]) -> None:
        was_told = not self._goes_on()
        self.task = self.generator = self.asynchronous = self.iterator = None
        self.is_exhausted, self.is_pulling = True, False
        error = ended_with(task)
        if self.op.attempts is not None:
            error = self.op.attempts.end(self.parent, error)
        if error is not None and not (was_told and isinstance(error, asyncio.CancelledError)):
            self.failed(error)
        self.advance()

    def _close(self) -> None:
        """Close the generator. One that runs is closed when it has given what it was asked for."""
        generator, task = self.generator, self.task
        if task is not None:
            if self.is_pulling or task is not asyncio.current_task():  # else it sees that before it waits
                end(task)
            return
        if generator is None or self.is_pulling:
            return
        self.generator = self.iterator = None
        try:
            if not self.op.operation.function.is_async:  # else its task was never made: it has not begun
                self.context.run(generator.close)
        except BaseException as error:  # noqa: BLE001
            if self.error is None:
                self.error = error

    # -- items ---------------------------------------------------------------------------------------------------------

    def make(self) -> InnerFrame:
        frame = self.op.part.frame(self, 0, [])
        frame.items, frame.cycle = self.items, self
        return frame

    def enter(self, item: Any, values: list[Any]) -> None:
        operation = self.op.operation
        specs = operation.items
        given = (item,) if len(specs) == 1 else item
        if not specs:
            return
        if type(item) in NOT_RUN:
            check_has_run((item,), specs, is_async=operation.function.is_async)
        if not isinstance(given, tuple | list) or len(given) != len(specs):
            got = f"{len(given)} values" if isinstance(given, tuple | list) else repr(type(given).__name__)
            raise GraphError(f"the generator must yield {len(specs)} values in a tuple or list, got {got}")
        for i, (value, spec) in enumerate(zip(given, specs, strict=True)):
            entered = checked(value, spec, "the item" if len(specs) == 1 else f"value {i} of the item")
            if (slot := self.op.item_slots[i]) is not None:
                values[slot] = entered

    # -- ends ----------------------------------------------------------------------------------------------------------

    def failed(self, error: BaseException, number: int | None = None) -> None:
        """An item has failed, or what comes behind the last one that the generator has given.

        What a frame fails for is what has failed first. A stream gets the results of all items before that one.
        """
        number = self.steps if number is None else number
        is_streamed = self.items is not None
        if self.error is None or (is_streamed and number < self.failed_at):
            self.error, self.failed_at = error, number
        if not is_streamed:
            self._stop()
            return
        self.is_exhausted = True
        self._close()
        for frame in [*self.frames]:
            if frame.item > number:
                self._drop(frame)

    def stop(self) -> None:
        """Ask for no further item, close the generator, and stop the frames, as the frame around it has stopped."""
        self._stop()
        self.parent.ready.append((self, self.parent))  # the code that stops that frame is to end first
        self.parent.wake()

    def _stop(self) -> None:
        """Do nothing further: close the generator, stop the frames. What still runs ends by itself."""
        if self.is_stopped:
            return
        self.is_stopped = True
        self._close()
        for frame in [*self.frames]:
            self._drop(frame)

    def _drop(self, frame: InnerFrame) -> None:
        if frame.state is RUNNING:
            frame.stop()
        elif frame.has_ended:
            self.frames.remove(frame)

    def passed(self, frame: InnerFrame) -> None:
        """A frame has not ended well, or too late."""
        error, frame.error = frame.error, None
        self.frames.remove(frame)
        if self.parent.halted:
            self._stop()
        elif error is not None:
            self.failed(error, frame.item)
        self.advance()

    def conclude(self) -> None:
        if self.task is not None:
            return
        self.done = True
        op, parent = self.op, self.parent
        error, self.error = self.error, None
        op.pull_ns = self.pull_ns
        if error is not None:
            self.steps = self.failed_at
        elif not self.is_stopped:
            try:
                for blob, joiner, spec in zip(op.outputs, self.joined, op.specs, strict=True):
                    parent.values[blob.slot] = checked(self.context.run(joiner.joined), spec, "what is joined")
                self.begin_with = []  # which refers to the inputs
                release(op.freed, parent)
                if parent.monitor is not None:
                    for join, _ in op.joinings:
                        parent.monitor.states[join.node.id] = _DONE
                        parent.monitor.dirty[join.node.id] = 1
            except BaseException as failure:  # noqa: BLE001
                error = failure
        if self.items is not None and self.items.resting is self:
            self.items.resting = None
        for frame in self.idle:
            op.part.rest(frame)
        self.idle, self.joined, self.joins, self.begin_with = [], [], [], []
        op._conclude_call(self, error)
        told = parent.error
        if isinstance(told, OpError) and told.__cause__ is error:  # of the generator itself, and not of what follows
            told.add_note(f"after {self.steps} items")


class EmitActor(BodyActor):
    """An op that emits.

    Attributes:
        part: The plan of the ops that run for each item, built.
        in_flight: Most items that are computed at once.
        item_slots: Where the values of an item go, None for those that are not read.
        into: Of an `Emitter`: where an item goes that is a single array, and what that is like.
        joinings: For each output, how it is made, the position among the part's outputs, and what type that has.
        recycled: Outputs of the part whose buffers go back.
        pull_ns: Expected time of the generator for an item, as `core.Op.cost_ns`.
    """

    __slots__ = ("in_flight", "into", "item_slots", "joinings", "part", "pull_ns", "recycled", "specs")

    operation: Emission

    def __init__(
        self,
        wiring: Wiring,
        operation: Emission,
        part: Part,
        turnstile: Turnstile,
        specs: Sequence[TensorSpec],
        values: Sequence[TensorSpec],
    ) -> None:
        super().__init__(wiring._replace(node=operation.op), operation, [part], turnstile)
        self.part = part
        self.specs = tuple(specs)
        slots, items, self.in_flight = dict(part.inputs), operation.items, operation.function.in_flight
        self.item_slots = [slots.get(i) for i in range(len(items))]
        self.joinings = [(join, values[join.position]) for join in operation.joins]
        self.recycled = tuple([blob for blob in part.outputs if blob.bucket is not None])
        self.pull_ns = FOREVER_NS
        self.into: tuple[int, Any, Any] = -1, None, None
        if len(items) == 1 and not items[0].is_object:
            slot = self.item_slots[0]
            self.into = -1 if slot is None else slot, items[0].dtype, items[0].shape

    def begin(self, frame: Frame) -> int:
        if frame.monitor is not None:
            self.show(frame, _RUNNING)
        frame.outstanding[self] = call = EmissionCall(self, frame)
        try:
            call.begin()
        except BaseException as error:  # noqa: BLE001  for instance arguments that do not fit
            call.failed(error)
        call.advance()
        return clock_ns()

    def joiner(self, join: Any, spec: TensorSpec) -> Any:
        """The object that joins the values for an output of a call."""
        operation: Collect = join.operation
        if operation.fn is None and operation.how == "stack":
            if not spec.is_object:
                return _Stack(spec, operation.length, f"op {join.node.name!r}")
            return _List(False, np.stack)
        copies = not spec.is_object and self.part.outputs[join.position].bucket is None
        return _List(copies, operation.fn)

    def passed(self, frame: InnerFrame) -> None:
        call: Any = frame.call
        call.passed(frame)

    def where(self, call: Any) -> str:
        return f"for item {call.steps}"


class _ClosedError(Exception):
    """Has `_items` close its generator."""


def _items(generator: Any, box: list[Any]) -> Iterator[Any]:
    """Items of an async generator: gives a list with each of them, and in between what the generator waits for."""
    with suppress(StopAsyncIteration, _ClosedError):
        while True:
            box.append((yield from generator.__anext__()))
            yield box
    yield from generator.aclose()


def _pull_there(call: EmissionCall) -> None:
    """Ask a generator for an item on a lane's thread; the call itself stands for its end."""
    call.pulled_item = call.context.run(next, call.generator, call)
