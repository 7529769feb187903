"""Tasks that await the calls of one async stage, one call after the other each."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from actorflow.core import clock_ns
from actorflow.loop import end
from actorflow.pipeline.calls.boundary import ends_task

if TYPE_CHECKING:
    from actorflow.pipeline.calls.call import CallActor, Job


class CallTasks:
    """The tasks of a stage, one for each call that runs at once: one for each item would cost more than a short call.

    Args:
        actor: The stage; each task takes its jobs, and awaits its bursts when there are none.
    """

    def __init__(self, actor: CallActor) -> None:
        self._actor = actor
        self._jobs: deque[Job] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._limits: set[asyncio.Timeout] = set()  # those of the calls that run
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
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        if len(self._tasks) < self._actor.how.concurrency:
            self._tasks.append(self._actor.run.start_task(self._work(), self._actor.stats.name))

    def close(self) -> None:
        """Cancel the calls that run, and end. Idempotent."""
        self._is_closed = True
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(None)  # it would cut off the clean-up
        for task in self._tasks:
            end(task)
        while self._jobs:
            self._actor.ended(self._jobs.popleft())

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await self._calls(task)
        except BaseException as error:
            is_meant = ends_task(error, task)
            if not (is_meant and (self._is_closed or isinstance(error, GeneratorExit))):
                self._actor.crash(error)
            if is_meant:
                raise

    async def _calls(self, task: asyncio.Task[Any]) -> None:
        jobs, actor = self._jobs, self._actor
        timeout_s = actor.how.timeout_s
        while self._goes_on():
            if not jobs:
                await actor.burst(task)
                await self._job()
                continue
            job = jobs.popleft()
            slot = job.slots[0]
            start = clock_ns()
            try:
                if timeout_s is None:
                    job.results = await actor.call_async(slot)
                else:
                    await self._call_in_time(job, timeout_s)
            except BaseException as error:
                if ends_task(error, task):
                    actor.cut_off(error, slot.number, slot.value)
                    if isinstance(error, asyncio.CancelledError):
                        actor.ended(job)
                    raise
                job.error = error
            job.elapsed_ns = clock_ns() - start
            self._is_between = True
            actor.ended(job)
            self._is_between = False

    def _goes_on(self) -> bool:
        return not self._is_closed

    async def _job(self) -> None:
        """Wait until there may be a job, if there is none."""
        if self._jobs or self._is_closed:
            return
        waiter = self._actor.run.loop.create_future()
        self._idle.append(waiter)
        await waiter

    async def _call_in_time(self, job: Job, timeout_s: float) -> None:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                self._limits.add(limit)
                try:
                    job.results = await self._actor.call_async(job.slots[0])
                finally:
                    self._limits.discard(limit)
        except TimeoutError as error:
            job.is_expired = limit.expired()
            job.error = error
