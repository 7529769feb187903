"""The CPU: a lane is a worker thread, its fences are positions in the thread's queue."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.core import clock_ns
from actorflow.devices.base import Device, Fence, Lane, Stopped
from actorflow.devices.team import Member, team
from actorflow.errors import DeviceError, OutOfMemoryError
from actorflow.spec import TensorSpec
from actorflow.threads import cores, held_at_fork, simulation, start_thread

_HANDOVER_NS = 100_000  # the time to wake a thread and be woken by it, until it has been measured


class _WorkerFence(Fence):
    __slots__ = ("is_stopped", "passed", "stops", "submitted_ns", "told", "urgent", "waiters", "work")

    lane: WorkerLane

    def __init__(
        self,
        lane: WorkerLane,
        work: Callable[[Any], object],
        argument: Any,
        passed: Callable[[Fence], None],
        urgent: bool,
    ) -> None:
        super().__init__(lane, argument)
        self.work: Callable[[Any], object] | None = work
        self.passed = passed
        self.urgent = urgent
        self.submitted_ns = clock_ns()
        self.told = False
        self.waiters: list[Callable[[], None]] = []
        self.is_stopped = False
        self.stops: Callable[[], None] | None = None  # stops the work that runs; see `stoppable`

    def do(self, begun_ns: int) -> bool:
        """Do the work, which has begun then; return whether the loop must be told of its end without delay."""
        _here.fence = self
        try:
            assert self.work is not None
            if self.work(self.argument) is True:
                self.urgent = True
        except BaseException as error:  # noqa: BLE001  the fence carries it to the loop
            self.error = error
        self.ended_ns = clock_ns()
        _here.fence = None
        self.elapsed_ns = self.ended_ns - begun_ns
        self.work = None
        self.done = True  # before the loop can see it, for those who then ask for a call at its end
        is_urgent = self.urgent or self.error is not None
        del self  # the error refers to this call by its traceback: they are not to be a cycle
        return is_urgent

    def add_waiter(self, waiter: Callable[[], None]) -> None:
        if self.told:
            self.lane.call_soon(waiter)
            return
        self.waiters.append(waiter)
        self.hurry()

    def hurry(self) -> None:
        # The worker sets `done` and then looks at `urgent`; this sets `urgent` and then looks at `done`: one of the two
        # sees the other, so the loop is always woken.
        self.urgent = True
        if self.done:
            self.lane.wake()

    def stop(self) -> None:
        # As above: one of the two threads sees the other's flag.
        self.is_stopped = True
        stops = self.stops
        if stops is not None:
            stops()


class _Here(threading.local):
    """The work that a lane's thread is at; None in other threads."""

    fence: _WorkerFence | None = None


_here = _Here()


def on_lane() -> bool:
    """Return whether the calling thread is at work for a lane."""
    return _here.fence is not None


class stoppable:  # noqa: N801  a context manager that is called as a function would be, at a fifth of its price
    """Let the code in the block be stopped when nobody waits for it any more: its frame was cancelled, has failed or
    timed out.

    On the loop itself, where short calls run, there is nothing that could stop it.

    Args:
        stop: Called by the loop's thread, at most once, at any moment from the begin of the block on, which it may even
            outlast.
    Raises:
        Stopped: instead of an exception that the block raises after that.
    """

    __slots__ = ("_fence", "_stop")

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._fence = _here.fence

    def __enter__(self) -> None:
        fence = self._fence
        if fence is not None:
            fence.stops = self._stop
            if fence.is_stopped:
                fence.stops = None
                raise Stopped

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        fence = self._fence
        if fence is not None:
            fence.stops = None
            if isinstance(error, Exception) and fence.is_stopped:
                raise Stopped from error


class WorkerLane(Lane):
    """A queue of work with threads that work it off, and tell the loop of many ends at once; other devices may use it.

    A thread that waits for the loop costs some 90 us, a queue entry 0.5 us. So the loop is woken only for a fence
    that is waited for, or when the queue has run empty.

    Args:
        name: For the threads' names.
        threads: Most threads, which are started as work needs them. With several the lane is not a FIFO: each takes
            the oldest work there is.
        computes: Whether the work is that of kernels: BLAS and the team of threads then reckon with the lane.

    Attributes:
        outstanding: Works submitted of whose end the loop has not been told.
        handover_ns: Time to wake the thread for work and then the loop for its end, by the last times that the
            thread had nothing else to do.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     loop = asyncio.get_running_loop()
        ...     lane, passed, done = af.devices.WorkerLane("example"), loop.create_future(), []
        ...     lane.bind(loop)
        ...     lane.submit(done.append, "work", passed.set_result, True)
        ...     await passed
        ...     lane.close()
        ...     await lane.ended()
        ...     return done, lane.outstanding, lane.is_alive
        >>> af.run(main())
        (['work'], 0, False)
    """

    def __init__(self, name: str, threads: int = 1, *, computes: bool = True) -> None:
        super().__init__(name)
        self.outstanding = 0
        self.handover_ns = _HANDOVER_NS
        self._woken_ns = 0
        self._submitting = held_at_fork(threading.Lock())
        self._queue: SimpleQueue[_WorkerFence | None] = SimpleQueue()
        self._finished: deque[_WorkerFence] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = False
        self._limit = threads
        self._threads: list[threading.Thread] = []
        self._computes = self._is_counted = computes
        self._in_pieces = False
        self._closed = False
        self._idle: asyncio.Event | None = None
        if computes:
            # From here on, not from the first work: a sum must not depend on how soon a thread has started.
            team.lane_started()

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._woken = False
        if self._finished:  # ended after an earlier loop was closed
            self.wake()

    def expect(self, work: bool, in_pieces: bool = False) -> None:
        """See `Lane.expect`. BLAS shares the cores out among the lanes that there is work for."""
        if self._computes and not self._closed and (work, in_pieces) != (self._is_counted, self._in_pieces):
            if work:  # first, so that BLAS does not have all cores in between
                team.lane_started(in_pieces)
            if self._is_counted:
                team.lane_stopped(self._in_pieces)
            self._is_counted, self._in_pieces = work, in_pieces

    def submit(
        self, work: Callable[[Any], None], argument: Any, passed: Callable[[Fence], None], urgent: bool
    ) -> Fence:
        """See `Lane.submit`; also raises DeviceError if there is no thread and none can be started."""
        fence = self.fence(work, argument, passed, urgent)
        self.put(fence)
        return fence

    def fence(
        self, work: Callable[[Any], object], argument: Any, passed: Callable[[Fence], None], urgent: bool
    ) -> Fence:
        """A fence of work that is not submitted yet (`put`), as `submit` would return it.

        If the work returns True, the loop is told of its end without delay, as if it were urgent.
        """
        return _WorkerFence(self, work, argument, passed, urgent)

    def put(self, fence: Fence) -> None:
        """Submit work. Any thread may call it, unlike `submit`.

        Raises:
            DeviceError: if the lane is closed, or there is no thread and none can be started.
        """
        assert isinstance(fence, _WorkerFence)
        if self._closed:
            raise DeviceError(f"lane {self.name!r} is closed")
        simulated = simulation.work
        if simulated is not None:
            simulated(self)
        with self._submitting:
            if simulated is None and len(self._threads) < self._limit and self.outstanding >= len(self._threads):
                self._start_thread()
            self.outstanding += 1
            self._queue.put(fence)

    def _start_thread(self) -> None:
        number = f"-{len(self._threads)}" if self._limit > 1 else ""
        try:
            self._threads.append(start_thread(self._work, f"actorflow-{self.name}{number}"))
        except DeviceError:
            if not self._threads:  # else those that are there must do
                raise

    @property
    def limit(self) -> int:
        """Most threads."""
        return self._limit

    def add_thread(self) -> None:
        """Allow one thread more: the work of one of them is no longer waited for."""
        self._limit += 1

    def wait(self, fence: Fence) -> bool:
        return False  # blocking a thread for another one would waste it; the loop waits instead

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._is_counted:
                team.lane_stopped(self._in_pieces)
            for _ in self._threads:
                self._queue.put(None)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    @property
    def is_alive(self) -> bool:
        """True if a thread of the lane has not ended."""
        return any(thread.is_alive() for thread in self._threads)

    async def ended(self) -> None:
        """After `close`: wait until all work and the threads have ended.

        Cancellation: the threads end by themselves.
        """
        if asyncio.get_running_loop() is self._loop:  # else nothing will tell
            while self.outstanding:
                self._idle = self._idle or asyncio.Event()
                self._idle.clear()
                await self._idle.wait()
        self.join()

    def forget_parent(self) -> None:
        self._closed = True  # the count of threads has forgotten it, too
        self._threads = []
        self.outstanding = 0
        self._queue, self._finished = SimpleQueue(), deque()

    def wake(self) -> None:
        """Have the loop look at the finished work. Any thread may call it."""
        if not self._woken:
            self._woken = True
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._tell)
            except RuntimeError:  # the loop was closed while work was running: nothing is left to tell
                self._woken = False

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Have the loop call something. Only from the loop's thread."""
        assert self._loop is not None
        self._loop.call_soon(callback)

    def _work(self) -> None:
        queue, finished = self._queue, self._finished
        member = Member()
        if self._computes:
            np.seterr(all="ignore")  # of this thread: as on the loop, where kernels run, too
            member = team.join()
        is_last = True
        while (fence := queue.get()) is not None:
            member.at_work = 1
            fence.begun = True
            start = clock_ns()
            if fence.urgent and is_last:
                self._woken_ns = start - fence.submitted_ns
            is_urgent = fence.do(start)
            # Once the loop can see it, this thread keeps nothing of the run alive: it may be held up anywhere, and who
            # drops a graph waits for its threads.
            handed_over = [fence]
            del fence
            finished.append(handed_over.pop())
            is_last = queue.empty()
            if is_last:
                member.at_work = 0
            if is_urgent or is_last:
                self.wake()
        if self._computes:
            team.leave(member)
        if finished:  # work that ended in front of the mark that ends the queue
            self.wake()

    def take(self) -> _WorkerFence | None:
        """In a simulation: the oldest work that has not begun, which begins now."""
        if self._queue.empty():
            return None
        fence = self._queue.get()
        if fence is not None:
            fence.begun = True
        return fence

    def end(self, fence: _WorkerFence, begun_ns: int) -> None:
        """In a simulation: do work that has begun, as a thread of the lane."""
        fence.do(begun_ns)
        self._finished.append(fence)
        self.wake()

    def _tell(self) -> None:
        self._woken = False
        finished = self._finished
        if finished and self._woken_ns and self.outstanding == 1:
            took_ns = self._woken_ns + clock_ns() - finished[0].ended_ns
            self._woken_ns = 0
            # A step towards it, and not the mean: a thread that was late for once says little.
            self.handover_ns += self.handover_ns // 16 if took_ns > self.handover_ns else -self.handover_ns // 16
        try:
            while finished:
                fence = finished[0]  # it stays there if a waiter raises: the other waiters and its end are told next
                if not fence.told:
                    fence.told = True
                    with self._submitting:
                        self.outstanding -= 1
                while fence.waiters:
                    fence.waiters.pop(0)()
                finished.popleft()
                fence.passed(fence)
        finally:
            if finished:  # the exception is the loop's, and the others must be told all the same
                self.wake()
            elif self._idle is not None and not self.outstanding:
                self._idle.set()


class CPU(Device):
    """The host's processors: NumPy arrays, and worker threads as lanes.

    Example:
        >>> device = af.devices.open_device("cpu")
        >>> device.allocate(af.TensorSpec.of([2, 3])).shape
        (2, 3)
        >>> device.is_host, device.is_array(np.zeros(3))
        (True, True)
    """

    libraries = ("onednn", "numpy")
    is_host = True
    runs_functions = True
    shares_memory = True

    @classmethod
    def parallel_lanes(cls) -> int:
        return cores()

    def _make_lane(self, name: str) -> Lane:
        return WorkerLane(name)

    def allocate(self, spec: TensorSpec) -> npt.NDArray[Any]:
        try:
            return np.empty(spec.shape, spec.dtype)
        except MemoryError as error:
            raise OutOfMemoryError(f"place {str(self.place)!r} has no room for {spec}: {error}") from error

    def is_array(self, value: Any) -> bool:
        return isinstance(value, np.ndarray)

    def copy_in(self, source: npt.NDArray[Any], target: npt.NDArray[Any]) -> None:
        np.copyto(target, source)

    copy_out = copy_in
    copy_peer = copy_in

    def upload(self, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return value.copy()
