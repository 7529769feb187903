"""One iteration of a loader: its actors, their driver, and its end."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from actorflow.actors.dispatcher import Dispatcher
from actorflow.core import clock_ns
from actorflow.devices import WorkerLane
from actorflow.errors import PipelineError
from actorflow.loop import ended_with, wait_out, waits
from actorflow.pipeline.stages.stage import SLICE_NS, End, Inbox, StageActor

#: Text on a run that the child of a fork cannot go on with.
IN_PARENT = "runs in the parent process, from which this one was forked: begin another one here"

_log = logging.getLogger("actorflow")
_GRACE_S = 0.5  # how long a call in a thread may outlive its stopped run before it is reported, in seconds
_KEPT = 1024  # number of the last positions that are kept, for callers that lag behind


class _PipelineDispatcher(Dispatcher):
    """Fires stages, in the context of the application that iterates."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: contextvars.Context) -> None:
        super().__init__(loop)
        self._context = context

    def help(self, outlet: Inbox, deadline: int) -> None:
        """Fire ready stages, without a turn of the loop, until there is an item or the time is over."""
        if self.ready:
            self._context.run(self._help, outlet, deadline)

    def _help(self, outlet: Inbox, deadline: int) -> None:
        ready, items = self.ready, outlet.items
        scheduled, self._scheduled = self._scheduled, True  # nothing is to be scheduled meanwhile
        try:
            while ready and not items and outlet.end is None:
                actor, run = ready.popleft()
                if actor.fire(run) > deadline:
                    break
        finally:
            self._scheduled = scheduled
            self.wake()


class Run:
    """One iteration of a loader.

    Attributes:
        taken: Items that have come through to it where it takes them in another thread; else None.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop  # the loop that it runs on
        self.context = contextvars.copy_context()  # copy of the application's, which all stages run in
        self.dispatcher = _PipelineDispatcher(loop, self.context)
        self.actors: list[StageActor] = []  # all stages, also those of earlier epochs
        self.outlet = Inbox(self, 1)  # items that the application has not taken yet
        self.waiter: asyncio.Future[None] | None = None  # future that the application waits on
        self.delivered = 0  # items that it has taken
        self.taken: int | None = None
        self.drained: Callable[[], Awaitable[None]] | None = None  # awaited there until all have come through
        self.thread = threading.get_ident()
        self.recent: deque[Any] = deque(maxlen=_KEPT)  # positions behind the last of them
        self.wait_ns = 0  # time in which it waited
        self.started_ns = clock_ns()
        self.ended_ns: int | None = None
        self.is_lost = False  # true in the child of a fork, where the run is its parent's
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lanes: list[WorkerLane] = []
        self._turn_ns = 0

    def begin(self, last: StageActor) -> None:
        """All actors are there; ``last`` gives the application's items."""
        self.outlet.connect(last)
        self.recent.append(last.start)
        for actor in self.actors:
            actor.wake()

    def wake(self) -> None:
        """An item for the application, or the end, has come."""
        if waits(self.waiter):
            self.waiter.set_result(None)

    def post(self, actor: StageActor) -> None:
        """Have an actor fired."""
        self.dispatcher.ready.append((actor, self))
        self.dispatcher.wake()

    def fail(self, actor: StageActor, error: BaseException) -> None:
        """A stage could not be fired."""
        actor.crash(error)

    def forget_parent(self) -> None:
        """This is the child of a fork: all that runs does in the parent, whose loop nothing here may touch."""
        self.is_lost = True
        self.ended_ns = self.ended_ns or clock_ns()
        self.outlet.items.clear()
        self.dispatcher.ready.clear()
        self._tasks.clear()
        self._lanes.clear()
        for actor in self.actors:
            actor.is_over = True

    def place(self, delivered: int | None = None) -> Any:
        """The position behind n items, by default behind all that have come; raises PipelineError if unknown."""
        recent = self.recent
        first = self.delivered - len(recent) + 1
        if delivered is None:
            delivered = self.delivered if self.taken is None else self.taken
        if not first <= delivered <= self.delivered:
            raise PipelineError(f"expected delivered from {first} to {self.delivered}, got {delivered}")
        return recent[delivered - first]

    async def fill(self) -> bool:
        """Wait until there is an item; False at the end. Cancellation: loses nothing."""
        if self.is_lost:
            raise PipelineError(f"the iteration {IN_PARENT}")
        outlet, loop = self.outlet, self.loop
        start = now = clock_ns()
        try:
            while not outlet.items:
                if outlet.end is not None:
                    return False
                if now > self._turn_ns + SLICE_NS:  # the application may never wait for anything else
                    await asyncio.sleep(0)
                    now = self._turn_ns = clock_ns()
                self.dispatcher.help(outlet, now + SLICE_NS)
                if outlet.items or outlet.end is not None:
                    continue
                if self.dispatcher.ready:
                    self._turn_ns = 0
                    continue
                self.waiter = loop.create_future()
                try:
                    await self.waiter
                finally:
                    self.waiter = None
                now = self._turn_ns = clock_ns()
            return True
        finally:
            self.wait_ns += clock_ns() - start

    def take_error(self) -> BaseException | None:
        """The error that the stream has ended with, if any; not kept, as its traceback refers to the run."""
        end = self.outlet.end
        if end is None or end.error is None:
            return None
        self.outlet.end = End()
        return end.error

    def start_task(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run a coroutine as a task that the run waits for. Its context is a copy of the application's."""
        task = self.loop.create_task(coroutine, name=name, context=self.context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            ended_with(task)

    def make_lane(self, name: str, threads: int) -> WorkerLane:
        """A lane with threads that end with the run."""
        lane = WorkerLane(name, threads, computes=False)
        lane.bind(self.loop)
        self._lanes.append(lane)
        return lane

    def forget_ended(self) -> None:
        """Stages in front of a repeated one have ended, and others have taken their place."""
        self.actors[:] = [actor for actor in self.actors if not actor.is_over]
        self._lanes[:] = [lane for lane in self._lanes if lane.is_alive]

    def stop(self) -> None:
        """Start nothing more, cancel tasks; threads end after the calls that run. Idempotent."""
        if self.ended_ns is not None:
            return
        self.ended_ns = clock_ns()
        self.outlet.end = End()
        self.outlet.items.clear()
        self.wake()
        if self.loop.is_closed():  # in the middle: its tasks never go on
            self._tasks.clear()
        for actor in self.actors:
            actor.stop()
        for lane in self._lanes:
            lane.close()

    @property
    def has_threads(self) -> bool:
        return any(lane.is_alive for lane in self._lanes)

    async def tasks_ended(self) -> None:
        """After `stop`: wait until the tasks have ended."""
        while self._tasks:
            await wait_out([*self._tasks])

    async def closed(self) -> None:
        """After `stop`: wait until nothing runs any more."""
        await self.tasks_ended()
        late = asyncio.get_running_loop().call_later(_GRACE_S, self._report_threads)
        try:
            for lane in self._lanes:
                await lane.ended()
        finally:
            late.cancel()
        await self.tasks_ended()

    def _report_threads(self) -> None:
        for lane in self._lanes:
            if lane.outstanding:
                _log.warning("stage %r: a call still runs in a thread; waiting for its end", lane.name)
