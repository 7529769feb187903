"""Ops that emit at run time: a generator whose items are computed as frames inside that of the op, some at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any

import numpy as np

from actorflow.actors.frame import FINISHED, RUNNING, Frame, InnerWork
from actorflow.actors.op import INLINE_NS, OpActor, Wiring, checked
from actorflow.actors.task import within
from actorflow.core import FOREVER_NS, UNSHARED, Turnstile, clock_ns, release
from actorflow.devices.base import Fence
from actorflow.errors import GraphError, OpError, ShapeError
from actorflow.graph.emits import Collect
from actorflow.interchange import read_only
from actorflow.loop import end, ended_with, waits
from actorflow.ops.function import NOT_RUN, check_has_run
from actorflow.plan.emitting import Emission
from actorflow.runtime.bodies import BodyActor, InnerFrame, Part, _Call, number_of
from actorflow.runtime.items import Items
from actorflow.spec import TensorSpec
from actorflow.trace.counters import NodeState

_RUNNING, _DONE = int(NodeState.RUNNING), int(NodeState.DONE)
#: How long items are gone through of which nothing is computed, one after the other.
_SLICE_NS = 500_000
#: Entries that a stack begins with.
_FEW = 16
#: What stands for the end of a generator.
_END: Any = object()


class _Stack:
    """An array that grows by an entry for each value."""

    __slots__ = ("_array", "_count", "_length", "_what")

    def __init__(self, spec: TensorSpec, length: int | None, what: str) -> None:
        self._array = np.empty((_FEW if length is None else length, *spec.shape), spec.dtype)
        self._count = 0
        self._length = length
        self._what = what

    def add(self, value: Any) -> None:
        """Add a value."""
        count, array = self._count, self._array
        if count == len(array):
            if self._length is not None:
                raise ShapeError(f"{self._what} joins {self._length} items, and there are more")
            self._array = np.empty((2 * count, *array.shape[1:]), array.dtype)
            self._array[:count] = array
            array = self._array
        array[count, ...] = value
        self._count = count + 1

    def joined(self) -> Any:
        """The array of all of them."""
        count, array = self._count, self._array
        if self._length is not None and count != self._length:
            raise ShapeError(f"{self._what} joins {self._length} items, and there are {count}")
        return array if count == len(array) else array[:count].copy()


class _List:
    """A list of values, and what is made of it."""

    __slots__ = ("_copies", "_fn", "_values")

    def __init__(self, copies: bool, fn: Callable[[list[Any]], Any] | None) -> None:
        self._copies = copies  # values are in memory that others write to
        self._fn = fn
        self._values: list[Any] = []

    def add(self, value: Any) -> None:
        """Add a value."""
        self._values.append(value.copy() if self._copies else value)

    def joined(self) -> Any:
        """The list, or what the function gives for it."""
        return self._values if self._fn is None else self._fn(self._values)


class EmissionCall(InnerWork, _Call):
    """A call of an op that emits, as work of its frame.

    Attributes:
        context: In which the generator runs.
        items: Where results go, of a frame that has one for each item.
        generator: The generator; None when it has ended, or was closed.
        template: Values that each frame begins with.
        frames: Those of items that are computed, in their order.
        idle: Frames that have ended.
        joined: What joins the values, for each output.
        joiners: What takes a value for each of these, and the slot of that.
        is_pulling: Whether the generator runs, on this thread or on a lane's.
        pulled: What it has given on a lane's thread.
        task: Runs an async generator.
        room: Resolved when a further item may be asked for, if the task waits for that.
        is_exhausted: Whether no further item will come.
        is_stopped: Whether nothing further is to be done: something has failed, or the frame has stopped.
        error: What has failed first.
        failed_at: Number of the item that has failed.
        done: Whether it has ended.
    """

    __slots__ = (
        "context",
        "done",
        "error",
        "failed_at",
        "frames",
        "generator",
        "idle",
        "is_exhausted",
        "is_pulling",
        "is_stopped",
        "items",
        "joined",
        "joiners",
        "pulled",
        "room",
        "task",
        "template",
    )

    op: EmitActor
    #: As of what a lane has to do.
    argument, begun, runs = None, True, True

    def __init__(self, op: EmitActor, parent: Frame) -> None:
        super().__init__(op, parent)
        self.context = parent.context.copy()
        self.items: Items | None = parent.items
        self.generator: Any = None
        self.template: list[Any] = []
        self.frames: deque[InnerFrame] = deque()
        self.idle: list[InnerFrame] = []
        self.joined: list[Any] = []
        self.joiners: list[tuple[Callable[[Any], None], int]] = []
        self.is_pulling = self.is_exhausted = self.is_stopped = self.done = False
        self.pulled: Any = None
        self.task: asyncio.Task[None] | None = None
        self.room: asyncio.Future[None] | None = None
        self.error: BaseException | None = None
        self.failed_at = 0

    @property
    def at_work(self) -> list[tuple[OpActor, Any]]:
        return [found for frame in [*self.frames] for found in frame.at_work]

    @property
    def position(self) -> tuple[Any, ...]:
        return self.steps, [frame.position for frame in [*self.frames]]

    @property
    def tasks(self) -> set[asyncio.Task[Any]]:
        own = set() if self.task is None else {self.task}
        return own.union(*[frame.tasks for frame in self.frames])

    def is_full(self) -> bool:
        """Return whether no further item is to be asked for now."""
        items, count = self.items, len(self.frames)
        return count >= self.op.in_flight or (items is not None and count + len(items.results) >= items.room)

    def goes_on(self) -> bool:
        """Return whether further items are asked for."""
        return not (self.is_stopped or self.is_exhausted)

    def fire(self, frame: Frame) -> int:
        """Go on, in a slice of the loop's time."""
        self.op.advance(self)
        return clock_ns()

    def stop(self) -> None:
        """Ask for no further item, close the generator, and stop the frames, as the frame around it has stopped."""
        self.op.stop(self)
        self.parent.ready.append((self, self.parent))  # the code that stops that frame is to end first
        self.parent.wake()

    def hurry(self) -> None:
        """Say soon that it has ended, which it does anyway."""


class EmitActor(BodyActor):
    """An op that emits.

    Attributes:
        part: What is computed for each item.
        in_flight: Most items that are computed at once.
        item_slots: Where the values of an item go, None for those that are not read.
        joinings: For each output, how it is made, the position among the part's outputs, and what type that has.
        recycled: Positions of the part's outputs whose buffers go back, and where.
        pull_ns: Expected time of the generator for an item, as `core.Op.cost_ns`.
    """

    __slots__ = (
        "_dtype",
        "_last_ns",
        "_shape",
        "_slot",
        "in_flight",
        "item_slots",
        "joinings",
        "part",
        "pull_ns",
        "recycled",
        "specs",
    )

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
        self.recycled = [(blob.slot, blob.bucket) for blob in part.outputs if blob.bucket is not None]
        self.pull_ns = self._last_ns = FOREVER_NS
        # Of a single array, which is the quickest to check.
        is_array = len(items) == 1 and not items[0].is_object
        self._dtype = items[0].dtype if is_array else None
        self._shape = items[0].shape if is_array else None
        self._slot = self.item_slots[0] if is_array else None

    # -- calls ---------------------------------------------------------------------------------------------------------

    def begin(self, frame: Frame) -> int:
        if frame.monitor is not None:
            self.show(frame, _RUNNING)
        call = EmissionCall(self, frame)
        frame.outstanding[self] = call
        function = self.operation.function
        try:
            values = [*self.read(frame.values)]
            if self.part.guards:
                values = [read_only(value) if type(value) is np.ndarray else value for value in values]
            count = len(self.operation.op.inputs)
            call.template = self.part.values([*[None] * len(self.item_slots), *values[count:]])
            call.joined = [self._joiner(*join) for join in self.joinings]
            at = [self.part.outputs[join.position].slot for join, _ in self.joinings]
            call.joiners = [(joiner.add, slot) for joiner, slot in zip(call.joined, at, strict=True)]
            given = [read_only(value) if type(value) is np.ndarray else value for value in values[:count]]
            del values
            call.context.run(within.set, (frame, self))
            call.generator = call.context.run(function.fn, *given)
            if call.items is not None:
                call.items.room = call.items.least = self.in_flight
            if function.is_async:
                task = asyncio.get_running_loop().create_task(
                    self._emit(call), name=self.node.name, context=call.context
                )
                call.task = task
                task.add_done_callback(lambda task: self._emitted(call, task))
        except BaseException as error:  # noqa: BLE001  for instance arguments that do not fit
            self._fail(call, error)
        self.advance(call)
        return clock_ns()

    def _joiner(self, join: Any, spec: TensorSpec) -> Any:
        operation: Collect = join.operation
        if operation.fn is None and operation.how == "stack":
            if not spec.is_object:
                return _Stack(spec, operation.length, f"op {join.node.name!r}")
            return _List(False, np.stack)
        copies = not spec.is_object and self.part.outputs[join.position].bucket is None
        return _List(copies, operation.fn)

    def advance(self, call: EmissionCall) -> None:
        """Go on: take what is computed, ask for items while there is room, and end when all is done."""
        if call.done:
            return
        try:
            self._go_on(call)
        except BaseException as error:  # noqa: BLE001  of the generator, or a function that joins
            self._fail(call, error)
        if call.frames or call.is_pulling or call.task is not None or not (call.is_stopped or call.is_exhausted):
            if call.parent.ready.at is None:  # no slice of the loop's time is under way, in which what is ready runs
                call.parent.wake()
        else:
            self._emission_ended(call)

    def _go_on(self, call: EmissionCall) -> None:
        frames, items = call.frames, call.items
        begun_ns = now_ns = clock_ns()
        while not call.is_stopped:
            while frames and frames[0].has_ended:
                self._take(call, frames[0])
            count = len(frames)
            if call.is_exhausted or call.is_pulling or count >= self.in_flight:
                return
            if items is not None and count + len(items.results) >= items.room:
                items.resting = call
                return
            if call.task is not None:
                if waits(call.room):
                    call.room.set_result(None)
                return
            if now_ns - begun_ns > _SLICE_NS:  # nothing is to be computed: others have their turn
                call.parent.ready.append((call, call.parent))
                return
            call.is_pulling = True
            if self.pull_ns > INLINE_NS or self.attempts is not None:  # or nobody knows yet
                self._pull_there(call)
                return
            try:
                item = call.context.run(next, call.generator, _END)
            finally:
                call.is_pulling = False
            before_ns, now_ns = now_ns, clock_ns()
            elapsed_ns = now_ns - before_ns
            self.pull_ns = elapsed_ns if elapsed_ns < self._last_ns else self._last_ns  # noqa: FURB136  as `Op.cost_ns`
            self._last_ns = elapsed_ns
            self._start(call, item)

    def _pull_there(self, call: EmissionCall) -> None:
        """Ask a plain generator for an item on the lane."""
        try:
            fence = self.lane.submit(_pull_there, call, self._pulled, True)
            if self.attempts is not None:
                self.attempts.begin(call.parent, fence)
        except BaseException:  # for instance no thread to be had
            call.is_pulling = False
            raise

    def _pulled(self, fence: Fence) -> None:
        """The generator has run on the lane."""
        call: EmissionCall = fence.argument
        call.is_pulling = False
        item, call.pulled = call.pulled, None
        try:
            error = fence.error if self.attempts is None else self.attempts.end(call.parent, fence.error)
            if call.is_stopped or call.is_exhausted:
                self._close(call)
            elif error is not None:
                self._fail(call, error)
            else:
                self.pull_ns, self._last_ns = min(fence.elapsed_ns, self._last_ns), fence.elapsed_ns
                self._start(call, item)
        except BaseException as error:  # noqa: BLE001  what it gives does not fit
            self._fail(call, error)
        self.advance(call)

    async def _emit(self, call: EmissionCall) -> None:
        """Run an async generator; it is closed when the call is stopped."""
        generator, dispatcher, attempts = call.generator, call.parent.start.dispatcher, self.attempts
        is_dropped, begun_ns = False, clock_ns()
        try:
            while call.goes_on():
                if clock_ns() - begun_ns > _SLICE_NS:  # it may never wait: others have their turn
                    await asyncio.sleep(0)
                    begun_ns = clock_ns()
                if call.is_full():
                    self.advance(call)  # which takes what has ended
                    if call.is_full() and call.goes_on():
                        call.room = call.parent.loop.create_future()
                        await call.room
                    continue
                if attempts is not None:
                    assert call.task is not None
                    attempts.begin(call.parent, call.task)
                try:
                    item = await anext(generator)
                except StopAsyncIteration:
                    return
                if attempts is not None and (late := attempts.end(call.parent, None)) is not None:
                    raise late
                if not call.goes_on():
                    return
                self._start(call, item)
                if dispatcher.ready:  # what is short is computed now, and not in the loop's next turn
                    dispatcher.run_now()
                elif call.frames:  # nothing is to be computed
                    self.advance(call)
        except GeneratorExit:  # the loop was closed: nothing can be awaited
            is_dropped = True
            raise
        finally:
            if not is_dropped:
                await generator.aclose()

    def _emitted(self, call: EmissionCall, task: asyncio.Task[None]) -> None:
        """An async generator has ended, or was closed."""
        was_told = call.is_stopped or call.is_exhausted
        call.task = call.generator = None
        call.is_exhausted = True
        error = ended_with(task)
        if self.attempts is not None:
            error = self.attempts.end(call.parent, error)
        if error is not None and not (was_told and isinstance(error, asyncio.CancelledError)):
            self._fail(call, error)
        self.advance(call)

    # -- items ---------------------------------------------------------------------------------------------------------

    def _start(self, call: EmissionCall, item: Any) -> None:
        """Begin with the frame of an item."""
        if item is _END:
            call.is_exhausted, call.generator = True, None
            return
        values = call.template.copy()
        is_plain = type(item) is np.ndarray and item.dtype is self._dtype and item.shape == self._shape
        if is_plain and not self.part.guards:
            if self._slot is not None:
                values[self._slot] = item
        else:
            self._enter(item, values)
        part, item_number = self.part, call.which
        number = number_of(call.parent, part, item_number) if part.is_random else call.parent.number
        if call.idle:
            frame = call.idle.pop()
        else:
            frame = part.frame(call, number, values)
            frame.items = call.items
        frame.item = item_number
        call.which = item_number + 1
        call.frames.append(frame)
        frame.begin_again(number, values)

    def _enter(self, item: Any, values: list[Any]) -> None:
        """Check what the generator has given, and put it where the frame begins."""
        specs = self.operation.items
        given = (item,) if len(specs) == 1 else item
        if not specs:
            return
        if type(item) in NOT_RUN:
            check_has_run((item,), specs, is_async=self.operation.function.is_async)
        if not isinstance(given, tuple | list) or len(given) != len(specs):
            got = f"{len(given)} values" if isinstance(given, tuple | list) else repr(type(given).__name__)
            raise GraphError(f"the generator must yield {len(specs)} values in a tuple or list, got {got}")
        for i, (value, spec) in enumerate(zip(given, specs, strict=True)):
            entered = checked(value, spec, "the item" if len(specs) == 1 else f"value {i} of the item")
            if (slot := self.item_slots[i]) is not None:
                values[slot] = entered

    def _take(self, call: EmissionCall, frame: InnerFrame) -> None:
        """Take the values of the first item: all of it is computed."""
        values = frame.values
        for add, slot in call.joiners:
            add(values[slot])
        items = call.items
        if items is not None and self.operation.is_streamed:
            del values  # which would seem to share them
            result = self.part.program.result(frame)
            if self.part.is_random:  # by another number
                result.frames = (call.parent.number,)
            items.put(result)
        else:
            for slot, bucket in self.recycled:
                buffer, values[slot] = values[slot], None
                if getrefcount(buffer) == UNSHARED:
                    bucket.give_back(buffer)
            frame.values = []
        call.frames.popleft()
        call.idle.append(frame)

    def passed(self, frame: InnerFrame) -> None:
        call: Any = frame.call
        if frame.state is not FINISHED or call.is_stopped or call.parent.halted:
            error, frame.error = frame.error, None
            call.frames.remove(frame)
            if call.parent.halted:
                self.stop(call)
            elif error is not None:
                self._fail(call, error, frame.item)
        self.advance(call)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _fail(self, call: EmissionCall, error: BaseException, number: int | None = None) -> None:
        """An item has failed, or what comes behind the last one that the generator has given.

        What a frame fails for is what has failed first. A stream gets the results of all items before that one.
        """
        number = call.steps if number is None else number
        is_streamed = call.items is not None
        if call.error is None or (is_streamed and number < call.failed_at):
            call.error, call.failed_at = error, number
        if not is_streamed:
            self.stop(call)
            return
        call.is_exhausted = True
        self._close(call)
        for frame in [*call.frames]:
            if frame.item > number:
                self._drop(call, frame)

    def stop(self, call: EmissionCall) -> None:
        """Do nothing further: close the generator, stop the frames. What still runs ends by itself."""
        if call.is_stopped:
            return
        call.is_stopped = True
        self._close(call)
        for frame in [*call.frames]:
            self._drop(call, frame)

    def _drop(self, call: EmissionCall, frame: InnerFrame) -> None:
        if frame.state is RUNNING:
            frame.stop()
        elif frame.has_ended:
            call.frames.remove(frame)

    def _close(self, call: EmissionCall) -> None:
        """Close the generator. One that runs is closed when it has given what it was asked for."""
        generator, task = call.generator, call.task
        if task is not None:
            if task is not asyncio.current_task():  # which looks, and is not to be disturbed as it tidies up
                end(task)
            return
        if generator is None or call.is_pulling:
            return
        call.generator = None
        try:
            if not self.operation.function.is_async:  # else its task was never made: it has not begun
                call.context.run(generator.close)
        except BaseException as error:  # noqa: BLE001
            if call.error is None:
                call.error = error

    def _emission_ended(self, call: EmissionCall) -> None:
        if call.done:  # by what was stopped
            return
        call.done = True
        error, call.error = call.error, None
        parent = call.parent
        if error is not None:
            call.which = call.failed_at
        elif not call.is_stopped:
            try:
                for blob, joiner, spec in zip(self.outputs, call.joined, self.specs, strict=True):
                    parent.values[blob.slot] = checked(call.context.run(joiner.joined), spec, "what is joined")
                call.template = []  # which refers to the inputs
                release(self.freed, parent)
                if parent.monitor is not None:
                    for join, _ in self.joinings:
                        parent.monitor.states[join.node.id] = _DONE
                        parent.monitor.dirty[join.node.id] = 1
            except BaseException as failure:  # noqa: BLE001
                error = failure
        if call.items is not None and call.items.resting is call:
            call.items.resting = None
        for frame in call.idle:
            self.part.rest(frame)
        call.idle, call.joined, call.joiners, call.template = [], [], [], []
        self._conclude_call(call, error)
        told = parent.error
        if isinstance(told, OpError) and told.__cause__ is error:  # of the generator itself, and not of what follows
            told.add_note(f"after {call.steps} items")

    def where(self, call: _Call) -> str:
        return f"for item {call.steps}"


def _pull_there(call: EmissionCall) -> None:
    """Ask a generator for an item on a lane's thread."""
    call.pulled = call.context.run(next, call.generator, _END)
