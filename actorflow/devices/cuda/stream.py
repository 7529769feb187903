"""Streams and events of CUDA.

Every status is looked at here: CuPy's ``Event.done`` takes an event that failed for one that has not passed. A device
that has failed answers every call with the error; a stream then still gives out marks, which say so when they are
asked, so that the loop is told in the usual way.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from actorflow.devices.stream import Event, Stream
from actorflow.errors import DeviceError

_SUCCESS, _NOT_READY = 0, 600
#: Errors behind which the CUDA runtime cannot be used any more in a process: of memory that cannot be corrected, of
#: addresses, instructions, stacks, asserts and launches. Source: `cudaError_t` in the documentation of CUDA.
_STICKY = frozenset({214, 220, 700, 702, 710, *range(714, 720), 721})


class EventPool:
    """Events of one device that are used again: making one costs as much as a small kernel."""

    def __init__(self, cupy: Any, index: int) -> None:
        self.cupy = cupy
        self.index = index
        # Filled from whatever thread drops the last reference to an event; appending and popping are atomic.
        self._free: dict[bool, list[Any]] = {True: [], False: []}

    def take(self, timed: bool) -> Any:
        """An event of CuPy that nothing waits for; raises CUDARuntimeError if none can be made."""
        try:
            return self._free[timed].pop()
        except IndexError:
            with self.cupy.cuda.Device(self.index):
                return self.cupy.cuda.Event(block=True, disable_timing=not timed)

    def give_back(self, event: Any, timed: bool) -> None:
        """Take back an event that nothing refers to. Any thread may call it."""
        self._free[timed].append(event)


class CudaEvent(Event):
    """A mark in a CUDA stream.

    Args:
        failure: The error of the mark, if there is one.
    """

    __slots__ = ("_begin", "_pool", "failure", "has_passed", "raw")

    def __init__(self, pool: EventPool, raw: Any | None, begin: Any | None, failure: str | None) -> None:
        self._pool = pool  # where its events go when nothing refers to it
        self.raw = raw  # the event that was recorded; None if that failed
        self._begin = begin  # an event recorded in front of the work that the mark ends, if that is timed
        self.failure = failure  # of work in front of the mark, as far as it is known
        self.has_passed = False  # whether `query` has said True before

    def __del__(self) -> None:
        # Work launched behind an event waits for the record that there was then, so it may be recorded anew.
        if self.failure is None and self.raw is not None:
            timed = self._begin is not None
            self._pool.give_back(self.raw, timed)
            if timed:
                self._pool.give_back(self._begin, timed)

    def query(self) -> bool:
        if self.has_passed:
            return True
        self._raise_failure()
        assert self.raw is not None
        runtime = self._pool.cupy.cuda.runtime
        status = runtime.eventQuery(self.raw.ptr)
        if status == _SUCCESS:
            self.has_passed = True
            return True
        error = _clear(runtime, status)
        if status == _NOT_READY:
            return False
        self.failure = _describe(self._pool.index, error)
        raise DeviceError(self.failure) from error

    def synchronize(self) -> None:
        self._raise_failure()
        runtime = self._pool.cupy.cuda.runtime
        assert self.raw is not None
        try:
            runtime.eventSynchronize(self.raw.ptr)
        except runtime.CUDARuntimeError as error:
            self.failure = _describe(self._pool.index, error)
            raise DeviceError(self.failure) from error

    def elapsed_ns(self, before: Event | None) -> int:
        """Nanoseconds of the device's time since the stream began the work in front of the mark; 0 if not timed.

        The time that the stream idled after ``before`` does not count.
        """
        if self._begin is None or self.raw is None:
            return 0
        runtime = self._pool.cupy.cuda.runtime
        try:
            return int(runtime.eventElapsedTime(self._begin.ptr, self.raw.ptr) * 1e6)
        except runtime.CUDARuntimeError:
            return 0  # the next mark tells the error

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise DeviceError(self.failure)


class CudaStream(Stream):
    """A CUDA stream that does not synchronize with the default stream.

    Args:
        priority: Lower numbers go first; CUDA clamps it to the device's range.
        timed: Whether its marks know how long the work in front of them took.
    """

    def __init__(self, events: EventPool, priority: int = 0, timed: bool = False) -> None:
        self._events = events
        self._runtime = events.cupy.cuda.runtime
        with events.cupy.cuda.Device(events.index):
            self.raw = events.cupy.cuda.Stream(non_blocking=True, priority=priority)
        self.timed = timed  # may be changed at any time
        self._begin: Any | None = None
        self._failure: str | None = None
        self._context = _Current(self._runtime, events.index, self)

    def current(self) -> AbstractContextManager[Any]:
        """Make this stream and its device current: CuPy launches and allocates there in the ``with`` block.

        The device and stream that were current before are current again behind it, whatever is raised.
        """
        return self._context

    def begin(self) -> None:
        """Note when the stream begins the work launched now, unless that is noted already."""
        if self._begin is None and self._failure is None:
            try:
                begin = self._events.take(timed=True)
                self._runtime.eventRecord(begin.ptr, self.raw.ptr)
            except self._runtime.CUDARuntimeError as error:
                self._failure = _describe(self._events.index, error)
            else:
                self._begin = begin

    def record(self) -> CudaEvent:
        begin, self._begin = self._begin, None
        if self._failure is None:
            try:
                raw = self._events.take(timed=begin is not None)
                self._runtime.eventRecord(raw.ptr, self.raw.ptr)
                return CudaEvent(self._events, raw, begin, None)
            except self._runtime.CUDARuntimeError as error:
                self._failure = _describe(self._events.index, error)
        return CudaEvent(self._events, None, None, self._failure)

    def wait(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        if event.has_passed:
            return
        if event.raw is None:
            self._failure = self._failure or event.failure
            return
        try:
            self._runtime.streamWaitEvent(self.raw.ptr, event.raw.ptr)
        except self._runtime.CUDARuntimeError as error:
            # Later work would not be ordered: no later mark of this stream may pass.
            self._failure = self._failure or _describe(self._events.index, error)

    def synchronize(self) -> None:
        """Block until all work has ended; releases the GIL; raises DeviceError if some of it failed."""
        try:
            self._runtime.streamSynchronize(self.raw.ptr)
        except self._runtime.CUDARuntimeError as error:
            raise DeviceError(_describe(self._events.index, error)) from error

    def close(self) -> None:
        # CuPy destroys the stream when nothing refers to it; CUDA lets its work end first.
        self._begin = None


class _Current(AbstractContextManager["CudaStream"]):
    """Makes a stream and its device current. One object for all uses: entering must cost next to nothing."""

    __slots__ = ("_before", "_index", "_runtime", "_stream")

    def __init__(self, runtime: Any, index: int, stream: CudaStream) -> None:
        self._runtime = runtime
        self._index = index
        self._stream = stream
        self._before: list[int] = []

    def __enter__(self) -> CudaStream:
        runtime, stream = self._runtime, self._stream
        before = runtime.getDevice()
        if before != self._index:
            runtime.setDevice(self._index)
        try:
            stream.raw.__enter__()
        except BaseException:
            if before != self._index:
                runtime.setDevice(before)
            raise
        self._before.append(before)
        if stream.timed:
            stream.begin()
        return stream

    def __exit__(self, *exception: object) -> None:
        runtime, before = self._runtime, self._before.pop()
        if runtime.getDevice() != self._index:
            runtime.setDevice(self._index)  # the work left another one; CuPy keeps the current stream by device
        try:
            self._stream.raw.__exit__(*exception)
        finally:
            if before != self._index:
                runtime.setDevice(before)


def is_idle(runtime: Any, pointer: int) -> bool:
    """True if all work of a stream has ended well."""
    status = runtime.streamQuery(pointer)
    if status == _SUCCESS:
        return True
    _clear(runtime, status)
    return False


def _clear(runtime: Any, status: int) -> Exception:
    """A status as an error, after the runtime was made to forget it.

    CUDA keeps even "not ready" as the thread's last error, and a library that asks for the last error behind its next
    launch would take it for its own.
    """
    try:
        runtime.check_status(status)
    except runtime.CUDARuntimeError as error:
        found: Exception = error.with_traceback(None)  # which would keep this frame, and this frame the error
        return found
    raise AssertionError(f"status {status} is not an error")


def _describe(index: int, error: Any) -> str:
    advice = "; every later call fails, too: restart the process" if error.status in _STICKY else ""
    return f"device 'cuda:{index}' failed: {error}{advice}"
