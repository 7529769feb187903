"""Devices with streams and events: their lanes, fences and memory, and how the loop learns that work has ended.

Work is launched at once, on the loop's thread, and runs later in the order of launching; events are recorded only
where one is asked for, and at the end of the dispatcher's turn. Python callbacks on a stream can deadlock with the
GIL, so the loop looks at the first event of each lane, and when that does not pass soon, a thread of the lane blocks
on it.

A buffer comes back when the last work that uses it has been *launched*, which may be long before that work has run. So
it comes back with its uses: per lane, the number of the newest work that may touch it. A lane whose uses alone these
are may take it at once, since its next work runs behind them. Any other lane takes it when they have ended or it has
waited for them anyway, and only if there is no room for another buffer, makes its stream wait for them. Buffers are
taken in a fixed order, so that frames that do the same get the same ones, and a captured segment can be replayed
(`actorflow.actors.segment`).
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary, finalize

from actorflow.devices.base import Device, DeviceOptions, Fence, Lane
from actorflow.devices.memory import Bucket, BufferPool
from actorflow.errors import DeviceError, OutOfMemoryError
from actorflow.place import Place
from actorflow.spec import TensorSpec
from actorflow.threads import start_thread

if TYPE_CHECKING:
    from actorflow.devices.segment import Segment

_MAX_IDLE_POLLS = 200  # number of looks of the loop at an event that does not pass, before a thread waits for it
_POLL_S = 0.001  # seconds between two looks at events that no thread can wait for
_MAX_SIGNATURES = 1 << 13  # most signatures of calls that a device knows; a signature takes some 500 bytes


class Event(ABC):
    """A mark in a stream."""

    __slots__ = ()

    @abstractmethod
    def query(self) -> bool:
        """True if all work in front of the mark has ended.

        Raises:
            DeviceError: if some of it failed on the device; the same from then on.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Block until `query` would say True or raise; releases the GIL. Called by threads of their own."""

    @abstractmethod
    def elapsed_ns(self, before: Event | None) -> int:
        """Nanoseconds of the device's time from ``before``, an earlier mark, or 0 where that is not known.

        Both have passed. Without ``before``: since the stream began the work in front of the mark.
        """


class Stream(ABC):
    """One stream of a device. Everything is called on the loop's thread.

    Attributes:
        label: Name of the work launched now, for messages: of an op.
    """

    label: str = ""

    @abstractmethod
    def current(self) -> AbstractContextManager[Any]:
        """Make this stream current within the ``with`` block, inside which nothing is ever awaited."""

    @abstractmethod
    def record(self) -> Event:
        """A mark behind all that was launched so far."""

    @abstractmethod
    def wait(self, event: Event) -> None:
        """Have work launched from now on wait, on the device, for a mark in another stream of the device."""

    @abstractmethod
    def close(self) -> None:
        """Nothing further is launched. Idempotent."""


class _StreamFence(Fence):
    __slots__ = ("number", "passed", "waiters")

    lane: StreamLane

    def __init__(self, lane: StreamLane, argument: Any, passed: Callable[[Fence], None], number: int) -> None:
        super().__init__(lane, argument)
        self.passed = passed
        self.number = number
        self.waiters: list[Callable[[], None]] = []

    @property
    def runs(self) -> bool:
        return not self.done and self.number == self.lane.completed + 1  # begun means launched

    def add_waiter(self, waiter: Callable[[], None]) -> None:
        if self.done:
            self.lane.call_soon(waiter)
        else:
            self.waiters.append(waiter)
            self.lane.mark(self.number)


class StreamLane(Lane):
    """A stream as a lane.

    Attributes:
        device: Whose lane it is.
        stream: Where its work goes.
        submitted: Number of the newest piece of work.
        completed: Number of the newest piece of work whose end the loop has seen.
        detailed: Whether each piece of work is timed alone; else pieces that pass together share their time equally.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     loop = asyncio.get_running_loop()
        ...     device = af.devices.open_device("sim:0")
        ...     device.bind(loop)
        ...     lane, passed = device.lane("main"), loop.create_future()
        ...     source, target = np.array([1.0, 2.0]), device.allocate(af.TensorSpec.of([2], "float64"))
        ...     lane.submit(lambda _: device.copy_in(source, target), None, passed.set_result, True)
        ...     await passed
        ...     device.close()
        ...     device.join()
        ...     return lane.submitted, lane.completed, target.get()
        >>> af.run(main())
        (1, 1, array([1., 2.]))
    """

    def __init__(self, name: str, device: StreamDevice, stream: Stream) -> None:
        super().__init__(name)
        self.device = device
        self.stream = stream
        self.submitted = 0
        self.completed = 0
        self.detailed = False
        self._open: deque[_StreamFence] = deque()
        self._marks: deque[tuple[int, Event]] = deque()
        self._last_mark: Event | None = None
        self._marked = 0  # number of the newest piece of work in front of a mark
        self._mark_is_planned = False
        self._awaited: dict[StreamLane, int] = {}  # newest work of other lanes that the stream has waited for
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._watcher = _Watcher(self)

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._mark_is_planned = False
        self._watcher.bind(loop)
        if self._open:  # launched before an earlier loop was closed
            self.mark(self.submitted)
            self._watcher.start()  # marked before, perhaps

    def submit(
        self, work: Callable[[Any], None], argument: Any, passed: Callable[[Fence], None], urgent: bool
    ) -> Fence:
        if self._closed:
            raise DeviceError(f"lane {self.name!r} is closed")
        self.submitted += 1
        fence = _StreamFence(self, argument, passed, self.submitted)
        fence.begun = True
        self._open.append(fence)
        try:
            with self.stream.current():
                work(argument)
        except BaseException as error:  # noqa: BLE001  the fence carries it to the loop
            fence.error = error
        if urgent or self.detailed or fence.error is not None:
            self.mark(fence.number)
        elif not self._mark_is_planned:
            # One mark for all that the dispatcher launches in its turn.
            self._mark_is_planned = True
            self.call_soon(self._planned_mark)
        return fence

    def wait(self, fence: Fence) -> bool:
        if fence.done:
            return True
        other = fence.lane
        if not isinstance(other, StreamLane) or other.device is not self.device:
            return False
        if other is not self:
            assert isinstance(fence, _StreamFence)
            self.wait_until(other, fence.number)
        return True

    def wait_until(self, other: StreamLane, number: int) -> None:
        """Have work launched from now on wait, on the device, for the end of work ``number`` of another lane."""
        if not self.comes_behind(other, number):
            self.stream.wait(other.mark(number))
            self._awaited[other] = number

    def comes_behind(self, other: StreamLane, number: int) -> bool:
        """True if work launched from now on runs behind work ``number`` of a lane, without a further wait."""
        return other is self or other.completed >= number or self._awaited.get(other, 0) >= number

    def mark(self, number: int) -> Event:
        """The first mark behind work ``number``."""
        if number > self._marked:
            event = self.stream.record()
            self._marked = self.submitted
            self._marks.append((self.submitted, event))
            self._watcher.start()
        for covered, event in self._marks:
            if covered >= number:
                return event
        assert self._last_mark is not None  # its work has ended
        return self._last_mark

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.stream.close()
            self._watcher.close()

    def join(self) -> None:
        self._watcher.join()
        if self._loop is not None and self._loop.is_closed():
            self._forget_unseen()

    def _forget_unseen(self) -> None:
        """Wait for work whose end the closed loop has not seen, and hold nothing of it any more."""
        while self._marks:
            number, event = self._marks.popleft()
            with suppress(DeviceError):  # nobody is left to be told
                event.synchronize()
                event.query()
            while self._open and self._open[0].number <= number:
                self._open.popleft()

    def forget_parent(self) -> None:
        self._closed = True
        self._open.clear()
        self._marks.clear()
        self._watcher.forget_parent()

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Have the loop call something. Only from the loop's thread."""
        assert self._loop is not None
        self._loop.call_soon(callback)

    @property
    def head(self) -> Event | None:
        """The first mark that has not passed."""
        return self._marks[0][1] if self._marks else None

    def poll(self) -> bool:
        """Tell of all that has ended by now; whether anything has."""
        told = False
        while self._marks:
            number, event = self._marks[0]
            error: BaseException | None = None
            try:
                if not event.query():
                    break
            except DeviceError as failure:
                # Devices keep it, and frames of the loop behind it would keep the graph.
                error = failure.with_traceback(None)
            self._marks.popleft()
            self._tell(number, event, error)
            told = True
        return told

    def _planned_mark(self) -> None:
        self._mark_is_planned = False
        if self.submitted > self._marked and not self._closed:
            self.mark(self.submitted)

    def _tell(self, number: int, event: Event, error: BaseException | None) -> None:
        """All work up to ``number`` has ended."""
        elapsed_ns = 0 if error is not None else event.elapsed_ns(self._last_mark)
        share_ns = elapsed_ns // max(1, number - self.completed)
        self._last_mark = event
        ended = []
        while self._open and self._open[0].number <= number:
            ended.append(self._open.popleft())
        self.completed = number
        for fence in ended:
            fence.elapsed_ns = share_ns
            if fence.error is None:
                # A device does not say which of the work in front of the mark failed: all of it is in doubt.
                fence.error = error
            fence.done = True
        for fence in ended:
            while fence.waiters:  # which would keep the fence's frame alive
                fence.waiters.pop(0)()
            fence.passed(fence)


class _Watcher:
    """Sees a lane's marks pass: by looking, turn by turn of the loop, and when that takes long by a thread."""

    def __init__(self, lane: StreamLane) -> None:
        self._lane = lane
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_watching = False
        self._idle_polls = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._waits: SimpleQueue[Event | None] = SimpleQueue()

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_watching = False

    def start(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._idle_polls = 0
            assert self._loop is not None
            self._loop.call_soon(self._look)

    def close(self) -> None:
        """Stop the thread after the work it waits for."""
        self._is_closed = True
        self._waits.put(None)

    def join(self) -> None:
        """After `close`: block until the thread has stopped."""
        if self._thread is not None:
            self._thread.join()

    def forget_parent(self) -> None:
        """This is the child of a fork, which does not have the thread."""
        self._is_closed = True
        self._thread = None

    def _look(self) -> None:
        lane, loop = self._lane, self._loop
        assert loop is not None
        if lane.poll():
            self._idle_polls = 0
        head = lane.head
        if head is None:
            self._is_watching = False
            return
        self._idle_polls += 1
        if self._idle_polls <= _MAX_IDLE_POLLS:
            loop.call_soon(self._look)
            return
        self._idle_polls = 0
        # A closed lane starts no thread any more: it would outlive `join`.
        if self._is_closed or not self._has_thread():
            loop.call_later(_POLL_S, self._look)
        else:
            self._waits.put(head)

    def _has_thread(self) -> bool:
        if self._thread is None:
            with suppress(DeviceError):  # none to be had now: the loop goes on looking
                self._thread = start_thread(self._wait, f"actorflow-{self._lane.name}-events")
        return self._thread is not None

    def _wait(self) -> None:
        while (event := self._waits.get()) is not None:
            with suppress(DeviceError):  # the loop asks again, and is told
                event.synchronize()
            del event
            loop = self._loop
            assert loop is not None
            try:
                loop.call_soon_threadsafe(self._look)
            except RuntimeError:  # the loop was closed while work was running: nothing is left to tell
                continue


class StreamDevice(Device):
    """A device whose lanes are streams.

    A subclass brings `make_stream`, `allocate`, `is_array` and the copies; if it `captures`, also `make_segment` and
    `whereabouts`; if it `compiles`, also `launch_aside`.

    Class attributes:
        compiles: Whether the first launch of a kernel for types of arrays compiles it, which takes long.

    Attributes:
        compiled: Kernels launched before, where the device `compiles`.
    """

    is_stream: ClassVar[bool] = True
    compiles: ClassVar[bool] = False

    memory: StreamPool
    _is_watched_closely = False

    def __init__(self, place: Place, options: DeviceOptions | None = None) -> None:
        super().__init__(place, options)
        self.compiled = Signatures()

    @abstractmethod
    def make_stream(self, name: str) -> Stream:
        """A new stream for the lane of this name."""

    def launch_aside(
        self, lane: StreamLane, work: Callable[[Any], None], argument: Any, passed: Callable[[Fence], None]
    ) -> Fence:
        """Have a thread launch ``work(argument)`` behind the work ``lane`` has launched, and wait for its end.

        Args:
            lane: Work that it launches meanwhile does not come behind this one.
            work, argument, passed: As in `Lane.submit`; the fence has passed when the work has ended on the device.
        Raises:
            DeviceError: if there is no thread, or the device, which may be one that never `compiles`, has none.
        """
        raise DeviceError(f"devices of kind {self.place.kind!r} compile nothing")

    def make_segment(self, name: str, works: Sequence[Callable[[Any], object]]) -> Segment:
        """Work that is launched as one, where the device `captures`. It has been launched once, piece by piece.

        Args:
            name: Its name, for messages.
            works: Launch the work on the current stream, which is the same every time; see `Segment`.
        """
        raise DeviceError(f"devices of kind {self.place.kind!r} capture nothing")

    def whereabouts(self, array: Any) -> Hashable:
        """The memory that an array shows, where the device `captures`.

        Captured work on one array does the same to any other of its shape and dtype that is at the same place.
        """
        raise DeviceError(f"devices of kind {self.place.kind!r} capture nothing")

    def watch_closely(self, detailed: bool) -> None:
        self._is_watched_closely = detailed
        for lane in self._all_lanes():
            lane.detailed = detailed

    def _make_lane(self, name: str) -> StreamLane:
        lane = StreamLane(name, self, self.make_stream(name))
        lane.detailed = self._is_watched_closely
        return lane

    def _make_pool(self) -> StreamPool:
        return StreamPool(self.allocate, self._all_lanes)

    def _all_lanes(self) -> list[StreamLane]:
        return [lane for lane in self._lanes.values() if isinstance(lane, StreamLane)]


class Signatures(set[Hashable]):
    """Signatures of calls that have compiled their kernels. It begins anew before it gets large."""

    def add(self, signature: Hashable) -> None:
        if len(self) >= _MAX_SIGNATURES:
            self.clear()
        super().add(signature)


#: Lanes, and the number of the newest work of each that may touch a buffer.
Uses = tuple[tuple["StreamLane", int], ...]


class StreamPool(BufferPool):
    """All buffers of one device with streams. Only from the loop's thread."""

    def __init__(self, allocate: Callable[[TensorSpec], Any], lanes: Callable[[], Iterable[StreamLane]]) -> None:
        super().__init__(allocate)
        self.lanes = lanes  # gives all lanes of the device
        self._own: WeakValueDictionary[int, Any] = WeakValueDictionary()  # arrays made here, by their ids
        self._shelves: WeakValueDictionary[TensorSpec, _Shelf] = WeakValueDictionary()
        self._retired: deque[tuple[Any, Uses]] = deque()
        self._aged: Uses = ()

    def bucket(self, spec: TensorSpec, lane: StreamLane | None = None, users: Sequence[StreamLane] = ()) -> Bucket:
        """Bucket from which ``lane`` takes buffers of one type that it and ``users`` will use."""
        assert lane is not None
        return StreamBucket(self, spec, lane, tuple(dict.fromkeys((lane, *users))))

    def bucket_of(self, spec: TensorSpec, users: Iterable[StreamLane]) -> Bucket:
        """Bucket to which buffers of one type go back that ``users`` may use, as many as these are by then."""
        return _CommonBucket(self, spec, users)

    def shelf(self, spec: TensorSpec) -> _Shelf:
        """The free buffers of one type; kept by the buckets that they are for."""
        shelf = self._shelves.get(spec)
        if shelf is None:
            shelf = self._shelves[spec] = _Shelf()
            # Work may be under way that uses free memory when the last bucket goes.
            finalize(shelf, self._retired.extend, shelf.free).atexit = False
        return shelf

    def take(self, spec: TensorSpec, lane: StreamLane) -> Any:
        """A buffer that the work ``lane`` launches next may use; raises OutOfMemoryError if there is no room for it."""
        free = self.shelf(spec).free
        if free:
            buffer = self.find(spec, lane, lambda _: True)
            if buffer is not None:
                return buffer
            if self.budget_bytes is not None and self.held_bytes + spec.size_bytes > self.budget_bytes:
                return _take_behind(free, lane)
        try:
            return self.new(spec)
        except OutOfMemoryError:
            if free:
                return _take_behind(free, lane)
            self.trim()
            return self.new(spec)

    def find(self, spec: TensorSpec, lane: StreamLane, is_wanted: Callable[[Any], bool]) -> Any:
        """As `take`, one of the free buffers that are wanted; None where there is none."""
        free = self.shelf(spec).free
        for at, (buffer, uses) in enumerate(free):
            if is_wanted(buffer) and all(lane.comes_behind(user, number) for user, number in uses):
                del free[at]
                return buffer
        return None

    def give_back(self, spec: TensorSpec, buffer: Any, users: Iterable[StreamLane]) -> None:
        """Take back a buffer that nothing else refers to and that work launched so far on ``users`` may touch."""
        if self._retired:
            self._sweep()
        uses = tuple([(user, user.submitted) for user in users])
        shelf, is_own = None, self._own.get(id(buffer)) is buffer
        if is_own:
            if buffer.shape != spec.shape or buffer.dtype != spec.dtype:  # ``spec`` is that of a view of it
                spec = TensorSpec(buffer.shape, buffer.dtype)
            shelf = self._shelves.get(spec)
        if shelf is None:
            self._retired.append((buffer, uses))
        else:
            insort(shelf.free, (buffer, uses), key=_rank)

    def adopt(self, buffer: Any) -> None:
        super().adopt(buffer)
        self._own[id(buffer)] = buffer

    def retire(self, buffer: Any) -> None:
        self._retired.append((buffer, tuple([(lane, lane.submitted) for lane in self.lanes()])))

    @property
    def used_bytes(self) -> int:
        self._sweep()
        free_bytes = sum(len(shelf.free) * spec.size_bytes for spec, shelf in [*self._shelves.items()])
        return self.held_bytes - free_bytes

    def trim(self) -> None:
        """Give up the free buffers whose uses have ended."""
        self._sweep()
        for shelf in [*self._shelves.values()]:
            keep(shelf.free, lambda uses: not have_ended(uses))

    def age(self) -> None:
        self._sweep()
        for shelf in [*self._shelves.values()]:
            keep(shelf.free, lambda uses: not (have_ended(uses) and are_before(uses, self._aged)))
        self._aged = tuple([(lane, lane.submitted) for lane in self.lanes()])

    def _sweep(self) -> None:
        """Let go of arrays that were not made here, once its uses have ended."""
        while self._retired and have_ended(self._retired[0][1]):
            self._retired.popleft()


class _Shelf:
    """Free buffers of one type, in order."""

    def __init__(self) -> None:
        self.free: deque[tuple[Any, Uses]] = deque()


class _CommonBucket(Bucket):
    """Bucket for the buffers of a variable, which frames of any program may still use."""

    __slots__ = ("_shelf", "_stream_pool", "users")

    def __init__(self, pool: StreamPool, spec: TensorSpec, users: Iterable[StreamLane]) -> None:
        super().__init__(pool, spec)
        self._stream_pool = pool
        self._shelf = pool.shelf(spec)
        self.users = users  # all lanes whose work uses it

    def give_back(self, buffer: Any) -> None:
        self._stream_pool.give_back(self.spec, buffer, self.users)


class StreamBucket(_CommonBucket):
    """Source of the buffers of one slot of a program, to which they are given back."""

    __slots__ = ("lane",)

    def __init__(self, pool: StreamPool, spec: TensorSpec, lane: StreamLane, users: tuple[StreamLane, ...]) -> None:
        super().__init__(pool, spec, users)
        self.lane = lane

    def take(self) -> Any:
        return self._stream_pool.take(self.spec, self.lane)

    def find(self, is_wanted: Callable[[Any], bool]) -> Any:
        """As `take`, one of the free buffers that are wanted; None where there is none."""
        return self._stream_pool.find(self.spec, self.lane, is_wanted)

    def make(self) -> Any:
        """A new buffer where there is room, else as `take`."""
        try:
            return self._stream_pool.new(self.spec)
        except OutOfMemoryError:
            return self.take()


def _take_behind(free: deque[tuple[Any, Uses]], lane: StreamLane) -> Any:
    # The one for which the least work is to be waited for.
    buffer, uses = min(free, key=lambda entry: sum(max(0, number - user.completed) for user, number in entry[1]))
    del free[bisect_left(free, id(buffer), key=_rank)]
    for user, number in uses:
        lane.wait_until(user, number)
    return buffer


def _rank(entry: tuple[Any, Uses]) -> int:
    """Rank of a free buffer: of those that it may take, a lane always takes the same."""
    return id(entry[0])


def keep(free: deque[tuple[Any, Uses]], is_kept: Callable[[Uses], bool]) -> None:
    """Keep the free buffers with some uses; no others."""
    kept = [entry for entry in free if is_kept(entry[1])]
    free.clear()
    free.extend(kept)


def have_ended(uses: Uses) -> bool:
    """Return whether the work that may touch a buffer has ended."""
    return all(user.completed >= number for user, number in uses)


def are_before(uses: Uses, others: Uses) -> bool:
    """Return whether no work that may touch a buffer was launched after the newest of some lanes."""
    newest = dict(others)
    return all(number <= newest.get(user, -1) for user, number in uses)
