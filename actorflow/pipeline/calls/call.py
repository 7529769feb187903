"""Stages that call the user's function for each item: on the loop, in threads, in processes, or as tasks."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from actorflow.actors.dispatcher import leave_loop
from actorflow.actors.op import INLINE_NS
from actorflow.core import FOREVER_NS, clock_ns
from actorflow.devices import Fence, WorkerLane
from actorflow.errors import DeviceError, StageError, StageTimeoutError
from actorflow.loop import end
from actorflow.pipeline.calls.order import InOrder, Slot, SlotState, Unordered
from actorflow.pipeline.processes.remote import Answer
from actorflow.pipeline.processes.workers import Request, TooLateError
from actorflow.pipeline.stages.stage import (
    BURST,
    MARK,
    SLICE_NS,
    Build,
    Stage,
    StageActor,
    Wait,
    ends_task,
    guarded,
    stage_error,
)

if TYPE_CHECKING:
    from actorflow.pipeline.calls.options import Options


#: Time that calls waiting in a thread's queue should take together, so that no thread waits for the loop.
_AHEAD_NS = 1_000_000
_MOST_AHEAD = 32
_SENT_NS = 4_000_000  # a message to a process should hold work of so long, so that sending it costs little beside
_MOST_SENT = 64


class Call(Stage):
    """A stage that calls a function."""

    keeps_marks = True

    options: Options

    @property
    def concurrency(self) -> int:
        return self.options.concurrency

    @property
    def executor(self) -> str:
        place = self.options.place
        return "thread" if place == "auto" else place

    @property
    def shape(self) -> str:
        limited = "" if isinstance(self.options.on_error, str) else ", limited"
        return f"{self.kind}({'ordered' if self.options.ordered else 'unordered'}{limited})"

    def build(self, build: Build, state: Any) -> StageActor:
        order = InOrder if self.options.ordered else Unordered
        source = build.front(self, order.front(self.options, state))
        return self.actor(build, self, self.options, source, state=state)

    def for_processes(self) -> Callable[[Any], Any]:
        """The function that processes call for each item; pickle can send it."""
        return self.options.fn

    @abstractmethod
    def actor(self, *args: Any, **kwargs: Any) -> StageActor:
        """The stage's actor; the arguments are those of `CallActor`."""


@dataclass(slots=True, eq=False)
class Job:
    """One call for one item, or in another process for several."""

    slots: list[Slot]
    call: Callable[[Slot], Any]
    is_dead: bool = False  # no longer waited for
    is_expired: bool = False  # cancelled since it took too long
    has_limit: bool = False  # counts in the stage's limiter
    elapsed_ns: int = 0
    results: Any = None  # for each item
    error: BaseException | None = None
    errors: dict[int, BaseException] = field(default_factory=dict)  # in another process, by index of the item
    request: Request | None = None  # to another process
    timer: asyncio.TimerHandle | None = None  # ends it when it takes too long

    def work(self) -> None:
        """Call, in whatever thread; an exception becomes the job's error."""
        try:
            self.results = self.call(self.slots[0])
        except BaseException as error:  # noqa: BLE001  the loop gets it
            self.error = error


class CallActor(StageActor):
    """Calls a function for each item. Subclasses treat its results.

    Attributes:
        pool: The processes that call it, if any do.
        cost_ns: Expected time of a call: the smaller one of the last two times, as for ops.
    """

    def __init__(self, build: Build, stage: Stage, how: Options, *sources: StageActor, state: Any) -> None:
        super().__init__(build.run, build.stats(stage), len(sources), max(2, how.concurrency))
        self.how = how  # the function, and the settings of its calls
        self.pool = build.resources.pool(stage) if isinstance(stage, Call) and how.executor == "process" else None
        self.burst_size = BURST if self.pool is not None else min(BURST, how.concurrency)
        self.reads(*sources)
        self.order = self.make_order(state)  # in which order results go out
        self.start = self.order.start
        self.waiting: deque[Slot] = deque()  # items whose call is to begin, or to be repeated
        self.running = 0  # calls that run
        self.cost_ns = self._last_ns = 0 if how.executor == "loop" else FOREVER_NS
        self.lane: WorkerLane | None = None
        self.tasks: CallTasks | None = None
        self._skips = build.resources.skips
        self._last: Any = sources[0].start if sources else None
        self._capacity = max(2, how.concurrency)
        self._share = 1  # items that one job has, in another process

    def make_order(self, state: Any) -> InOrder | Unordered:
        return InOrder(self, state) if self.how.ordered else Unordered(self, state)

    # -- for subclasses -----------------------------------------------------------------------------------------

    @abstractmethod
    def call(self, slot: Slot) -> Any:
        """Call the function; in whatever thread."""

    async def call_async(self, slot: Slot) -> Any:
        """Await the function."""
        return await self.how.fn(slot.value)

    @abstractmethod
    def take(self, slot: Slot, result: Any) -> None:
        """A call has ended well: keep its outputs."""

    # -- one turn -----------------------------------------------------------------------------------------------

    def step(self, now: int) -> Wait:
        inbox, deadline = self.inboxes[0], now + SLICE_NS
        slots = self.order.slots
        while True:
            blocked = self.order.emit()
            if self.is_over:
                return Wait.NOTHING
            self._begin_waiting()
            began = False
            while inbox.items and self._has_room():
                self._accept(*inbox.items.popleft())
                began = True
                if len(self.waiting) >= self._share:
                    self._begin_waiting()
            self._begin_waiting()
            if began:
                inbox.source.wake()
                self.stats.holds(self.held)
            elif not self.order.is_due():
                break
            if clock_ns() > deadline:
                self.wake()
                return Wait.NOTHING
        if not slots and not inbox.items and inbox.end is not None:
            return self.finish(inbox.end.error)
        return Wait.PUT if blocked else Wait.CALLS if slots else Wait.GET

    def refill(self) -> None:
        """A task has ended a call: give it the next one, and leave all else to when the stage is fired."""
        inbox = self.inboxes[0]
        if not self.waiting and inbox.items and self._has_room():
            self._accept(*inbox.items.popleft())
            inbox.source.wake()
        self._begin_waiting()

    def _has_room(self) -> bool:
        return (
            len(self.waiting) < self._share
            and self.running < self._limit()
            and self.order.has_room(self._limit() * self._share)
        )

    def _limit(self) -> int:
        how, cost_ns = self.how, self.cost_ns
        if self.pool is not None:  # no process shall wait for the loop, unless it is killed when it takes too long
            return how.concurrency if how.timeout_s is not None else 2 * how.concurrency
        if self.lane is None or how.timeout_s is not None or not 0 < cost_ns < _AHEAD_NS:
            return how.concurrency
        return how.concurrency + min(_MOST_AHEAD, _AHEAD_NS // cost_ns)

    def _accept(self, value: Any, after: Any) -> None:
        slot = self.order.accept(value, self._last, after)
        self._last = after
        self.stats.items_in += value is not MARK
        if slot.state is SlotState.WAITING:
            self.waiting.append(slot)

    # -- calls --------------------------------------------------------------------------------------------------

    def _begin_waiting(self) -> None:
        waiting = self.waiting
        while waiting and self.running < self._limit():
            limiter = self.how.limiter
            if limiter is not None and not limiter.enter(self):
                return
            count = 1 if waiting[0].is_alone else min(self._share, len(waiting))
            self._begin([waiting.popleft() for _ in range(count)], limiter is not None)

    def _begin(self, slots: list[Slot], has_limit: bool) -> None:
        how = self.how
        job = Job(slots, self.call)
        job.has_limit = has_limit
        for slot in slots:
            slot.state = SlotState.RUNNING
            slot.job = job
        self.running += 1
        self.stats.running += 1
        if how.is_async:
            self.make_tasks().submit(job)
            return
        if self.pool is not None:
            self._begin_elsewhere(job)
            return
        if self._is_inline():
            start = clock_ns()
            job.work()
            job.elapsed_ns = clock_ns() - start
            self.ended(job)
            return
        if self.lane is None:
            self.lane = self.run.make_lane(self.stats.name, how.concurrency)
        try:
            self.lane.submit(self._work, job, self._worked, True)
        except DeviceError as error:  # there is no thread, for which no item is to blame
            self._leave()
            self._leave_limiter(job)
            slots[0].job = None
            self.finish(self._stage_error(slots[0], error))
            return
        if how.timeout_s is not None:
            job.timer = self.run.loop.call_later(how.timeout_s, self._expire, job)

    def _work(self, job: Job) -> None:
        if not job.is_dead:
            self.run.context.copy().run(job.work)  # a copy: two threads cannot be in one context at a time

    def _worked(self, fence: Fence) -> None:
        fence.argument.elapsed_ns = fence.elapsed_ns
        self.ended(fence.argument)

    def make_tasks(self) -> CallTasks:
        """The tasks that await the calls."""
        if self.tasks is None:
            self.tasks = CallTasks(self)
        return self.tasks

    async def burst(self, task: asyncio.Task[Any]) -> None:
        """Await calls of items in the inbox, as long as these do not have to wait for anything."""

    def _is_inline(self) -> bool:
        """Return whether a call now would be on the loop: if it takes less than a hand-over to a thread."""
        executor = self.how.executor
        if executor == "loop":
            return True
        return executor == "auto" and self.cost_ns <= INLINE_NS and self.how.timeout_s is None

    def _begin_elsewhere(self, job: Job) -> None:
        how, loop = self.how, self.run.loop
        assert self.pool is not None
        try:
            items = [slot.value for slot in job.slots]
            job.request = self.pool.submit(items, how.timeout_s, loop, partial(self._answered, job))
        except BaseException as error:  # noqa: BLE001  pickle's, for instance; it becomes the items' error
            loop.call_soon(self._answered, job, Answer(0, [], {}, error))

    @guarded
    def _answered(self, job: Job, answer: Answer) -> None:
        """Calls in another process have ended; or none of them is known to have."""
        job.request = None
        job.elapsed_ns, job.results, job.errors, job.error = answer
        if job.error is not None and len(job.slots) > 1 and not (job.is_dead or self.is_over):
            # Which of the items is to blame is found by sending each alone.
            self._leave()
            self._leave_limiter(job)
            for slot in reversed(job.slots):
                slot.job, slot.is_alone = None, True
                self.again(slot)
            return
        job.is_expired = isinstance(job.error, TooLateError)
        self.ended(job)

    @guarded
    def _expire(self, job: Job) -> None:
        """A call in a thread takes too long: it goes on, and its result is dropped."""
        job.timer = None
        self.stats.timed_out += 1
        job.is_expired = True
        slot = job.slots[0]
        job.is_dead = True
        slot.job = None
        self._leave()  # another call may run in its place
        if self.lane is not None:
            self.lane.add_thread()
        self._failed(slot, TooLateError())
        self.wake()

    @guarded
    def ended(self, job: Job) -> None:
        """A call has ended, in whatever way; on the loop."""
        self._leave_limiter(job)
        if job.timer is not None:
            job.timer.cancel()
            job.timer = None
        if not (job.is_dead and job.is_expired):
            self._leave()
        if job.is_dead or self.is_over:
            leave_loop(job.error)
            job.error = job.results = None
            self.dispose(job)
            return
        error = TooLateError() if job.is_expired else job.error
        job.error = None  # its traceback refers to the job
        self.stats.timed_out += job.is_expired
        if error is None and self.pool is not None:
            self._timed(job.elapsed_ns, len(job.slots))
            for index, (slot, result) in enumerate(zip(job.slots, job.results, strict=True)):
                self._concluded(slot, result, job.errors.get(index))
        else:
            self._timed(job.elapsed_ns, self._units(job))
            for slot in job.slots:
                self._concluded(slot, job.results, error)
        job.results = None
        if self.how.is_async:
            self.refill()
        self.wake()

    def _concluded(self, slot: Slot, result: Any, error: BaseException | None) -> None:
        slot.job = None
        if error is None:
            self.take(slot, result)
        else:
            self._failed(slot, error)

    def _leave_limiter(self, job: Job) -> None:
        if job.has_limit:
            job.has_limit = False
            assert self.how.limiter is not None
            self.how.limiter.leave()

    def _leave(self) -> None:
        self.running -= 1
        self.stats.running -= 1

    def _units(self, job: Job) -> int:
        return 1

    def _timed(self, elapsed_ns: int, count: int) -> None:
        each_ns = elapsed_ns // count
        self.stats.called(each_ns, count)
        last = self._last_ns
        if self.how.executor != "loop":
            self.cost_ns = min(each_ns, last)
        self._last_ns = each_ns
        if self.pool is not None and self.how.timeout_s is None:
            self._share = max(1, min(_MOST_SENT, _SENT_NS // max(1, self.cost_ns)))
            inbox = self.inboxes[0]
            inbox.least = inbox.capacity = max(self._capacity, 2 * self._share)
            inbox.source.wake()

    # -- failures -----------------------------------------------------------------------------------------------

    def _failed(self, slot: Slot, error: BaseException) -> None:
        leave_loop(error)
        attempts = self.how.attempts
        if slot.attempt < attempts.retries and isinstance(error, Exception):
            rest_s = attempts.wait_s(slot.attempt)
            slot.attempt += 1
            slot.skip, slot.iterator = slot.emitted + len(slot.outputs), None
            slot.state = SlotState.RESTING
            self.stats.retried += 1
            if not rest_s:
                self.again(slot)
            else:
                slot.timer = self.run.loop.call_later(rest_s, self.again, slot)
            return
        self.gave_up(slot, error)

    def gave_up(self, slot: Slot, error: BaseException) -> None:
        """An item has failed for good; its treatment is decided in its turn."""
        slot.error = error
        slot.state = SlotState.DONE
        self.order.gained(slot)

    @guarded
    def again(self, slot: Slot) -> None:
        """Call for an item once more, before all that has not begun."""
        slot.timer = None
        if not self.is_over:
            slot.state = SlotState.WAITING
            self.waiting.appendleft(slot)
            self.wake()

    def resume(self, slot: Slot) -> None:
        """There is room for more outputs of an item."""
        slot.state = SlotState.WAITING
        self.waiting.appendleft(slot)

    def leaves_out(self, slot: Slot) -> bool:
        """An item has failed, and it is its turn: whether the stage goes on without it."""
        error, slot.error = slot.error, None  # its traceback refers to the item
        assert error is not None
        is_late = isinstance(error, TooLateError)
        if is_late:
            error = self._timeout_error(slot)
        if isinstance(error, Exception) and self.how.policy.allows(self.order.seen, self.order.skipped):
            self.stats.skipped += 1
            self._skips.add(self.stats.name, slot.number, slot.value, error)
            return True
        self.finish(error if is_late else self._stage_error(slot, error))
        return False

    def cut_off(self, error: BaseException, number: int, item: Any) -> None:
        """The task that awaits a call has been cancelled or closed. If it was not by this stage, the run ends."""
        if isinstance(error, asyncio.CancelledError) and not self.is_over:
            self.finish(stage_error(self.stats, error, number, item))

    def _stage_error(self, slot: Slot, error: BaseException) -> StageError:
        return stage_error(self.stats, error, slot.number, slot.value)

    def _timeout_error(self, slot: Slot) -> StageTimeoutError:
        assert self.how.timeout_s is not None
        stats = self.stats
        return StageTimeoutError(stats.name, stats.kind, stats.site, slot.number, slot.value, self.how.timeout_s)

    # -- the end ------------------------------------------------------------------------------------------------

    def halt(self) -> None:
        self.waiting.clear()
        if self.how.limiter is not None:
            self.how.limiter.forget(self)
        requests = []
        for slot in self.order.slots:
            if slot.timer is not None:
                slot.timer.cancel()
            job, slot.job, slot.error = slot.job, None, None  # both refer to the item
            if job is None:
                self.close(slot.iterator)
                continue
            job.is_dead = True
            if self.run.loop.is_closed():  # its end will not be told
                self._leave_limiter(job)
            if job.timer is not None:
                job.timer.cancel()
                job.timer = None
            if job.request is not None:
                self._leave()
                self._leave_limiter(job)
                requests.append(job.request)
                job.request = None
        self.order.clear()
        if self.pool is not None:
            self.pool.forget(requests)
        if self.lane is not None:
            self.lane.close()
        if self.tasks is not None:
            self.tasks.close()

    def dispose(self, job: Job) -> None:
        """Close the iterator of an ended call that nobody waits for."""

    def close(self, iterator: Any) -> None:
        """Close an iterator whose further items are not wanted. No call of it runs."""

    def freeze(self, position: Any) -> Any:
        return self.order.freeze(position)

    @property
    def held(self) -> int:
        return super().held + self.order.open


class CallTasks:
    """The tasks of a stage, one for each call that runs at once: one per item would cost more than a short call."""

    def __init__(self, actor: CallActor) -> None:
        self._actor = actor  # the stage; each task takes its jobs, and awaits its bursts when there are none
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
