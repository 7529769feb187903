"""Tasks that await the calls of one async stage, one call after the other each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actorflow.pipeline.job import Job, Slot
    from actorflow.pipeline.run import Run

__all__ = ["Workers"]


class Workers:
    """As many tasks as calls run at once: one for each item would cost more than most of a short call.

    Args:
        name: Of the stage, for the tasks' names.
        size: How many calls run at once, at most; tasks are started as they are needed.
        run: What they are a part of.
        call: Computes what becomes of an item.
        timeout_s: Longest time of a call.
        ended: Called for each job whose call has ended; it may submit another one.
        burst: Awaits calls for items that wait, without jobs, as long as these do not have to wait for anything.
    """

    def __init__(
        self,
        name: str,
        size: int,
        run: Run,
        call: Callable[[Slot], Awaitable[Any]],
        timeout_s: float | None,
        ended: Callable[[Job], None],
        burst: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._name = name
        self._size = size
        self._run = run
        self._call = call
        self._timeout_s = timeout_s
        self._ended = ended
        self._burst = burst
        self._jobs: deque[Job] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_between = False  # a task has ended a call, and takes the next job itself
        self._is_closed = False

    def submit(self, job: Job) -> None:
        """Have a job's call awaited."""
        jobs = self._jobs
        jobs.append(job)
        if not (self._is_between and len(jobs) == 1):
            self.kick()

    def kick(self) -> None:
        """Have a task look for something to do."""
        if self._idle:
            self._idle.popleft().set_result(None)
        elif len(self._tasks) < self._size:
            self._tasks.append(self._run.start_task(self._work(), self._name))

    def close(self) -> None:
        """Cancel the calls that run, and end. Idempotent."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        while self._jobs:
            self._ended(self._jobs.popleft())

    async def _work(self) -> None:
        jobs, loop = self._jobs, self._run.loop
        while not self._is_closed:
            if not jobs:
                if self._burst is not None and await self._burst():
                    continue
                waiter = loop.create_future()
                self._idle.append(waiter)
                await waiter
                continue
            job = jobs.popleft()
            start = perf_counter_ns()
            try:
                if self._timeout_s is None:
                    job.results = await self._call(job.slots[0])
                else:
                    await self._call_in_time(job, self._timeout_s)
            except asyncio.CancelledError as error:
                if self._is_closed:
                    job.elapsed_ns = perf_counter_ns() - start
                    self._ended(job)
                    raise
                job.error = error  # of something that the function waited for
            except Exception as error:  # noqa: BLE001  it becomes the item's
                job.error = error
            job.elapsed_ns = perf_counter_ns() - start
            self._is_between = True
            self._ended(job)
            self._is_between = False

    async def _call_in_time(self, job: Job, timeout_s: float) -> None:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                job.results = await self._call(job.slots[0])
        except TimeoutError as error:
            job.is_expired = limit.expired()
            job.error = error
