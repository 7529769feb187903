"""Streams and events of a simulated accelerator."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from actorflow.devices.sim.memory import SimArray
from actorflow.devices.sim.races import StreamClock, Use, host_use, see
from actorflow.devices.sim.timeline import Arrays, Function, Launch, Mark, Timeline, WorkFailure
from actorflow.devices.stream import Event, Stream
from actorflow.errors import DeviceError, RaceError
from actorflow.threads import simulation

if TYPE_CHECKING:
    from actorflow.devices.sim.capture import Captured
    from actorflow.devices.sim.device import SimOptions
    from actorflow.place import Place


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
        has told of it: so the error that comes first is the one that names what is at fault.

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
        timeline: When the device does what.
        clock: What the stream's work comes behind.
        is_polled: Whether all its events are asked.
        free_ns: When the work launched so far ends, and the events waited for have passed, on the model's clock.
        unfinished: How many pieces of work and marks have not ended.
        busy_ns: How long it has worked: by the model, or if nothing takes modelled time, really.
        failures: Of work behind the last mark.
        captured: What takes the launches instead, while they are captured.

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

        It is skipped if work failed that should have written what it reads.

        Args:
            function: Called later, in the device's thread, as ``function(inputs, outputs)`` with NumPy arrays that show
                the contents of ``reads`` and ``writes``. What it raises becomes the next event's error.
            reads: Arrays that it reads; those of NumPy are host memory.
            writes: Arrays that it writes; it writes every element of each.
            cost_ns: Nanoseconds that it takes on the model's clock.
            name: What it is, where the stream has no `label`.
        Returns:
            The launch; None if it was captured.
        Raises:
            DeviceError: if the stream is closed, or the device's thread cannot be started.
            RaceError: if it is not ordered with other work; it is not done then, and what needs its result is skipped.
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
