"""Threads that take calls of one stage from a common queue, and tell the loop of many ends at once."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter_ns
from typing import TYPE_CHECKING

from actorflow.errors import DeviceError
from actorflow.threads import start_thread

if TYPE_CHECKING:
    from actorflow.pipeline.calls.job import Job


class Crew:
    """Like a `actorflow.devices.WorkerLane`, but with several threads, which take the oldest call each.

    Args:
        name: Of the stage, for the threads' names.
        size: How many calls run at once, at most; threads are started as they are needed.
        loop: The loop that is told.
        context: Whose variables the calls see.
        ended: Called on the loop for each job whose call has ended.
    """

    def __init__(
        self,
        name: str,
        size: int,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        ended: Callable[[Job], None],
    ) -> None:
        self.name = name
        self.outstanding = 0
        self._size = size
        self._loop = loop
        self._context = context
        self._ended = ended
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._finished: deque[Job] = deque()
        self._woken = False
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._idle = asyncio.Event()

    def submit(self, job: Job) -> None:
        """Have ``job.work()`` called. Only from the loop's thread.

        Raises:
            DeviceError: if there is no thread, and none can be started; the job is not taken then.
        """
        if len(self._threads) < min(self._size, self.outstanding + 1):
            try:
                self._threads.append(start_thread(self._work, f"actorflow-{self.name}-{len(self._threads)}"))
            except DeviceError:
                if not self._threads:  # else those that are there must do
                    raise
        self.outstanding += 1
        self._queue.put(job)

    def grow(self) -> None:
        """A call takes too long, and nobody waits for it any more: another thread may run in its place."""
        self._size += 1

    def close(self) -> None:
        """Stop after the calls that run. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            for _ in self._threads:
                self._queue.put(None)

    @property
    def has_threads(self) -> bool:
        """Whether there are threads that have not ended."""
        return any(thread.is_alive() for thread in self._threads)

    async def closed(self) -> None:
        """After `close`: wait until all threads have ended."""
        if asyncio.get_running_loop() is self._loop:  # else nobody will tell
            while self.outstanding:
                self._idle.clear()
                await self._idle.wait()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        queue, finished = self._queue, self._finished
        while (job := queue.get()) is not None:
            if not job.is_dead:
                start = perf_counter_ns()
                # A copy: a context cannot be entered by two threads at a time.
                self._context.copy().run(job.work)
                job.elapsed_ns = perf_counter_ns() - start
            finished.append(job)
            self._wake()
            del job  # while the queue is empty, nothing of the last call may be kept alive

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._tell)
            except RuntimeError:  # the loop was closed while the call was running: nobody is left to tell
                self._woken = False

    def _tell(self) -> None:
        self._woken = False
        finished = self._finished
        while finished:
            job = finished.popleft()
            self.outstanding -= 1
            self._ended(job)
        if not self.outstanding:
            self._idle.set()
