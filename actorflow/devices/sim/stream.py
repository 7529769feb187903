"""Streams and events of a simulated accelerator, and the thread that does their work at the time of the model."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow.core import clock_ns
from actorflow.devices.sim.memory import Block, HostSource, SimArray, StreamClock, Use, host_use, see
from actorflow.devices.stream import Event, Stream
from actorflow.errors import DeviceError, RaceError
from actorflow.place import Place
from actorflow.threads import held_at_fork, simulation, start_thread

if TYPE_CHECKING:
    from actorflow.devices.sim.device import Captured, SimOptions


_order = count()  # counts the work of all timelines together: work that waits for other work is always the newer one


class Work(ABC):
    """Something that ends at a moment of the model."""

    __slots__ = ("finish_ns", "start_ns")

    def __init__(self, start_ns: int, finish_ns: int) -> None:
        self.start_ns = start_ns  # when it begins, on the model's clock
        self.finish_ns = finish_ns

    @abstractmethod
    def run(self) -> None:
        """Do it. Called by the timeline's thread; raises nothing."""

    @abstractmethod
    def end(self, elapsed_ns: int) -> None:
        """Note that it was done, in this real time. Called with the timeline's lock held."""


class Timeline:
    """Does work in the order in which the model says that it ends.

    The end of a piece of work is settled as it is launched, by the work in front of it; so a thread that is late does
    not make the model late. Work that comes behind other work never ends before it and is launched later, so the order
    of the ends, and among equals that of launching, keeps every order that streams and events ask for.
    """

    def __init__(self, name: str, clock: Callable[[], int]) -> None:
        self.clock = clock  # where the time comes from, in nanoseconds
        # Its lock is one that the garbage collector may take again.
        self.changed = held_at_fork(threading.Condition())  # told whenever work was launched or has ended
        self._name = name
        self._heap: list[tuple[int, int, Work]] = []
        self._thread: threading.Thread | None = None
        self.is_closing = False  # nothing may be launched any more

    def push(self, work: Work) -> None:
        """Launch work, with the lock of ``changed`` held; raises DeviceError if the thread cannot be started."""
        if simulation.call_at is not None:
            simulation.call_at(work.finish_ns, self._do_due)
        elif self._thread is None:
            self._thread = start_thread(self._work, self._name)
        heappush(self._heap, (work.finish_ns, next(_order), work))
        self.changed.notify_all()

    def wake(self) -> None:
        """Have the thread look at the clock again."""
        with self.changed:
            self.changed.notify_all()

    def close(self) -> None:
        """Stop after the work that was launched, which takes no modelled time any more. Idempotent."""
        with self.changed:
            self.is_closing = True
            self.changed.notify_all()

    def join(self) -> None:
        """After `close`: block until the thread has stopped."""
        if self._thread is not None:
            self._thread.join()
        while simulation.call_at is not None and self._heap:
            self.do_next()

    def forget_parent(self) -> None:
        """This is the child of a fork, which does not have the thread: nothing that was launched is done."""
        self.is_closing = True
        self._thread = None
        self._heap.clear()

    def do_next(self) -> None:
        """In a simulation: do the work that ends next, whatever the time."""
        self._do(heappop(self._heap)[2])

    def _do_due(self) -> None:
        while self._heap and self._heap[0][0] <= self.clock():
            self.do_next()

    def _work(self) -> None:
        while (work := self._next()) is not None:
            self._do(work)
            del work  # while there is none, nothing of the last run may be kept alive

    def _do(self, work: Work) -> None:
        begin_ns = clock_ns()
        work.run()
        with self.changed:
            work.end(clock_ns() - begin_ns)
            self.changed.notify_all()

    def _next(self) -> Work | None:
        """The next work, when it is due; None at the end."""
        with self.changed:
            while True:
                if not self._heap:
                    if self.is_closing:
                        return None
                    self.changed.wait()
                    continue
                left_ns = self._heap[0][0] - self.clock()
                if left_ns <= 0 or self.is_closing:
                    return heappop(self._heap)[2]
                self.changed.wait(left_ns / 1e9)


Array = npt.NDArray[Any]
Arrays = Sequence[SimArray | Array]
#: Called by a launch with the contents of the arrays it reads and of those it writes.
Function = Callable[[list[Array], list[Array]], object]


class WorkFailure:
    """Why work on the device did not do what it should.

    Attributes:
        root: The failure for whose sake the work was skipped; itself if it was not skipped.
    """

    __slots__ = ("by", "error", "is_marked", "is_raised", "is_told", "number", "root", "stream")

    def __init__(
        self, stream: SimStream, by: str, error: DeviceError, root: WorkFailure | None = None, is_raised: bool = False
    ) -> None:
        self.stream = stream
        self.by = by
        self.error = error
        self.root = self if root is None else root
        self.number = 0  # of its launch
        self.is_raised = is_raised  # whether it was raised when the work was launched, so that no event needs to
        self.is_marked = False  # whether an event carries it to the host
        self.is_told = False  # whether that event has been asked


class Launch(Work):
    """Work on a stream."""

    def __init__(
        self, stream: SimStream, by: str, cost_ns: int, awaited: list[SimEvent], failure: WorkFailure | None
    ) -> None:
        start_ns = max(stream.free_ns, stream.timeline.clock())
        super().__init__(start_ns, start_ns + cost_ns)
        self._number = next(_order)  # among all launches
        self._stream = stream
        self._label = stream.label
        self._by = by
        self._awaited = awaited
        self._failure = failure
        self._function: Function | None = None
        self._inputs: list[Array] = []
        self._outputs: list[Array] = []
        self._reads: list[Block] = []
        self._writes: list[Block] = []
        self._sources: list[HostSource] = []

    def prepare(self, function: Function, reads: Arrays, writes: Arrays, uses: Iterable[Use]) -> None:
        """Keep the contents for `run`, not the arrays, which may be given back to a pool before."""
        self._function = function
        self._reads = [array.block for array in reads if isinstance(array, SimArray)]
        self._writes = [array.block for array in writes if isinstance(array, SimArray)]
        self._inputs = [array.contents if isinstance(array, SimArray) else array for array in reads]
        self._outputs = [array.contents if isinstance(array, SimArray) else array for array in writes]
        self._sources = [use.source for use in uses if use.source is not None]

    def run(self) -> None:
        for event in self._awaited:
            event.wait_until_passed()
        if self._failure is None:
            self._failure = self._skip() or self._call()
        if self._failure is not None:
            self._failure.number = self._number
        for block in self._writes:
            block.failure = self._failure
        # Before an event can pass: then the host may use its memory again.
        self._function = None
        self._awaited, self._reads, self._writes = [], [], []
        self._inputs, self._outputs, self._sources = [], [], []

    def end(self, elapsed_ns: int) -> None:
        stream = self._stream
        stream.unfinished -= 1
        stream.busy_ns += self.finish_ns - self.start_ns if stream.options.is_timed else elapsed_ns
        if self._failure is not None:
            stream.failures.append(self._failure)

    def _skip(self) -> WorkFailure | None:
        # Work launched later that failed at once, as a race, has not changed the arrays this work reads.
        failures = [block.failure for block in self._reads if block.failure is not None]
        blamed = next((failure for failure in failures if failure.number < self._number), None)
        if blamed is None:
            return None
        root = blamed.root
        error = DeviceError(f"{self._by} was skipped: it needs the result of {root.by}, which failed")
        error.__cause__ = root.error
        error.work = self._label
        return WorkFailure(self._stream, self._by, error, root)

    def _call(self) -> WorkFailure | None:
        assert self._function is not None
        try:
            for source in self._sources:
                if not source.is_whole():
                    raise source.error()
            with np.errstate(all="ignore"):  # devices do not warn
                self._function(self._inputs, self._outputs)
        except DeviceError as error:
            return WorkFailure(self._stream, self._by, error)
        except BaseException as error:  # noqa: BLE001  an event carries it to the host
            failed = DeviceError(f"{self._by} failed with {type(error).__name__}: {error}")
            failed.__cause__ = error
            failed.work = self._label
            return WorkFailure(self._stream, self._by, failed)
        return None


class Mark(Work):
    """The place in a stream where an event passes."""

    __slots__ = ("awaited", "event")

    def __init__(self, event: SimEvent, awaited: list[SimEvent]) -> None:
        super().__init__(event.finish_ns, event.finish_ns)
        self.event = event
        self.awaited = awaited

    def run(self) -> None:
        for event in self.awaited:
            event.wait_until_passed()

    def end(self, elapsed_ns: int) -> None:
        self.event.stream.unfinished -= 1
        self.event.arrive()


class _Currents(threading.local):
    def __init__(self) -> None:
        self.streams: list[SimStream] = []


_currents = _Currents()


def current_stream() -> SimStream:
    """The stream that is current in this thread.

    Raises:
        DeviceError: if none is.

    Example:
        >>> from actorflow.devices.sim import SimDevice, current_stream
        >>> device = SimDevice(af.Place.parse("sim:0"))
        >>> stream = device.make_stream("main")
        >>> with stream.current():
        ...     current_stream() is stream
        True
        >>> device.close()
    """
    if not _currents.streams:
        raise DeviceError("no simulated stream is current: launch work inside `with stream.current():`")
    return _currents.streams[-1]


class SimEvent(Event):
    """A mark in a simulated stream.

    Attributes:
        stream: Where it was recorded.
        passed: Whether all work in front of it has ended.
        behind: All work that it comes behind.
        finish_ns: When it passes, on the model's clock.
        busy_ns: How long the stream has worked in all, once it has passed.

    Example:
        >>> device = af.devices.SimDevice(af.Place.parse("sim:0"))
        >>> first, second = device.make_stream("first"), device.make_stream("second")
        >>> event = first.record()
        >>> second.wait(event)  # on the device
        >>> event.synchronize()  # on the host
        >>> event.query()
        True
        >>> device.close()
    """

    __slots__ = ("_error", "_failures", "_number", "_thread", "behind", "busy_ns", "finish_ns", "passed", "stream")

    def __init__(self, stream: SimStream, behind: Mapping[StreamClock, int], finish_ns: int) -> None:
        self.stream = stream
        self.behind = behind
        self.finish_ns = finish_ns
        self.passed = False
        self.busy_ns = 0
        self._number = behind[stream.clock]
        self._failures: list[WorkFailure] = []
        self._error: DeviceError | None = None
        self._thread = threading.get_ident()

    def query(self) -> bool:
        """True if all work in front of the mark has ended.

        It says no a little longer if that failed for want of something that failed on another lane, until that lane
        has told of it: so the error that comes first is the one that names the fault.

        Raises:
            DeviceError: if some of it failed on the device; the same from then on.
        """
        if not self.passed or self._is_early():
            return False
        self._tell()
        return True

    def synchronize(self) -> None:
        """Block until the mark has passed.

        In the thread that recorded it, the host has then seen that; another thread only waits.

        Raises:
            DeviceError: in that thread, as `query` does.
        """
        self.wait_until_passed()
        if threading.get_ident() == self._thread:
            self._tell()

    def elapsed_ns(self, before: Event | None) -> int:
        """Nanoseconds that the stream has worked from ``before``, an earlier mark of it, or from its start."""
        assert before is None or isinstance(before, SimEvent)
        return self.busy_ns - (0 if before is None else before.busy_ns)

    def wait_until_passed(self) -> None:
        """Block until all work in front of the mark has ended."""
        timeline, changed = self.stream.timeline, self.stream.timeline.changed
        while simulation.call_at is not None and not self.passed:
            timeline.do_next()
        with changed:
            while not self.passed:
                changed.wait()

    def arrive(self) -> None:
        """Let the mark pass. The caller holds the timeline's lock."""
        stream = self.stream
        self._failures, stream.failures = stream.failures, []
        for failure in self._failures:
            failure.is_marked = True
        self.busy_ns = stream.busy_ns
        self.passed = True

    def _is_early(self) -> bool:
        if not self._failures or not self.stream.is_polled:
            return False
        root = self._failures[0].root
        other = root.stream
        return other is not self.stream and other.is_polled and root.is_marked and not root.is_told

    def _tell(self) -> None:
        see(self.behind)
        for failure in self._failures:
            failure.is_told = True
        if self._error is None:
            late = self.stream.clock.take_late(self._number)
            errors = [*(failure.error for failure in self._failures if not failure.is_raised), *late]
            self._error = errors[0] if errors else None
        if self._error is not None:
            raise self._error


class SimStream(Stream):
    """A stream of a simulated accelerator.

    Attributes:
        name: Of its lane.
        place: The device.
        options: How the device behaves.
        timeline: When the device does each piece of work.
        clock: The work that the stream's comes behind.
        is_polled: Whether all its events are asked.
        free_ns: When the work launched so far ends, and the events waited for have passed, on the model's clock.
        unfinished: How many pieces of work and marks have not ended.
        busy_ns: How long it has worked: by the model, or if nothing takes modelled time, really.
        failures: Of work behind the last mark.
        captured: Takes the launches instead, while they are captured.

    Example:
        >>> from actorflow.devices.sim import SimDevice, launch_kernel
        >>> device = SimDevice(af.Place.parse("sim:0"))
        >>> x = device.upload(np.array([1.0, 2.0]))
        >>> first, second = device.make_stream("first"), device.make_stream("second")
        >>> def double(inputs, outputs):
        ...     outputs[0][...] = 2 * inputs[0]
        >>> with first.current():
        ...     launch_kernel(double, [x], [x], "double")
        >>> with second.current():  # nothing orders it behind the first
        ...     launch_kernel(double, [x], [x], "double again")
        Traceback (most recent call last):
            ...
        actorflow.errors.RaceError: double again on lane 'second' of sim:0 reads array float64[2],...
        >>> device.close()
    """

    def __init__(self, name: str, place: Place, options: SimOptions, timeline: Timeline) -> None:
        self.label = ""
        self.name = name
        self.place = place
        self.options = options
        self.timeline = timeline
        self.clock = StreamClock(f"lane {name!r} of {place}")
        self.is_polled = False
        self.free_ns = 0
        self.unfinished = 0
        self.busy_ns = 0
        self.failures: list[WorkFailure] = []
        self.captured: Captured | None = None
        self._awaited: list[SimEvent] = []
        self._is_closed = False

    @contextmanager
    def current(self) -> Iterator[SimStream]:
        _currents.streams.append(self)
        try:
            yield self
        finally:
            _currents.streams.pop()

    def launch(self, function: Function, reads: Arrays, writes: Arrays, *, cost_ns: int, name: str) -> Launch | None:
        """Have the device do something behind all that was launched here before; returns at once.

        It is skipped if the work failed that should have written its inputs.

        Args:
            function: Called later, in the device's thread, as ``function(inputs, outputs)`` with NumPy arrays that show
                the contents of ``reads`` and ``writes``. Its exception becomes the next event's error.
            reads: Arrays that it reads; those of NumPy are host memory.
            writes: Arrays that it writes; it writes every element of each.
            cost_ns: Nanoseconds that it takes on the model's clock.
            name: Its name, where the stream has no `label`.
        Returns:
            The launch; None if it was captured.
        Raises:
            DeviceError: if the stream is closed, or the device's thread cannot be started.
            RaceError: if it is not ordered with other work; it and all that needs its result is skipped.
            CaptureRefusedError: if it is captured and cannot be.
        """
        if self._is_closed or self.timeline.is_closing:
            raise DeviceError(f"{self.clock.where} is closed")
        by = f"{f'op {self.label!r}' if self.label else name} on {self.clock.where}"
        if self.captured is not None:
            self.captured.add(self, function, reads, writes, cost_ns, by)
            return None
        race: RaceError | None = None
        uses = self._uses(reads, writes, by) if self.options.races else []
        try:
            for use in uses:
                use.region.check(self.clock, by, use.low, use.high, use.writes)
        except RaceError as error:
            race = error
        with self.timeline.changed:
            failure = None if race is None else WorkFailure(self, by, race, is_raised=True)
            launch = Launch(self, by, cost_ns, self._awaited, failure)
            launch.prepare(function, reads, writes, uses)
            self.timeline.push(launch)
            self._awaited = []
            self.free_ns = launch.finish_ns
            self.unfinished += 1
            self.clock.launched += 1
        if race is not None:
            raise race
        for use in uses:
            use.region.add(use, self.clock, self.clock.launched, by)
            if use.source is not None:
                self.clock.sources.append((self.clock.launched, use.source))
        return launch

    def record(self) -> SimEvent:
        timeline = self.timeline
        with timeline.changed:
            event = SimEvent(self, self.clock.now(), max(self.free_ns, timeline.clock()))
            awaited = [waited for waited in self._awaited if not waited.passed]
            if not self.unfinished and (not awaited or timeline.is_closing):
                event.arrive()
            else:
                timeline.push(Mark(event, awaited))
                self._awaited = []
                self.unfinished += 1
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, SimEvent)
        self.clock.wait(event.behind)
        if not event.passed:
            self.free_ns = max(self.free_ns, event.finish_ns)
            self._awaited.append(event)

    def close(self) -> None:
        self._is_closed = True

    def _uses(self, reads: Arrays, writes: Arrays, by: str) -> list[Use]:
        uses = []
        for arrays, is_written in ((reads, False), (writes, True)):
            for array in arrays:
                use = array.use(is_written) if isinstance(array, SimArray) else host_use(array, is_written, by)
                if use is not None:
                    uses.append(use)
        return uses
