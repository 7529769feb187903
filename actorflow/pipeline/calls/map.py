"""map and filter, with at most one output for each item; flat_map, and the source, with any number of them."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from actorflow.actors.dispatcher import leave_loop
from actorflow.actors.op import INLINE_NS
from actorflow.core import clock_ns
from actorflow.errors import PipelineError, shown
from actorflow.pipeline.calls.call import Call, CallActor, Job
from actorflow.pipeline.calls.options import Options
from actorflow.pipeline.calls.order import Slot, SlotState
from actorflow.pipeline.processes.remote import Answer
from actorflow.pipeline.processes.workers import Request
from actorflow.pipeline.stages.stage import MARK, SLICE_NS, StageActor, Wait, ends_task, guarded


class MapActor(CallActor):
    """One output for each item: the function's result, or the item if the function says so.

    A result of a filter's function is made a bool where the function runs, as a part of the call: it may fail, too.
    """

    def __init__(self, *args: Any, is_filter: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_filter = is_filter  # whether the function says which items to keep
        self._is_plain = self.how.is_plain and self.how.place in ("auto", "loop")
        self._passes = False  # whether items pass through at the moment: decided once a turn

    def call(self, slot: Slot) -> Any:
        result = self.how.fn(slot.value)
        return bool(result) if self.is_filter else result

    async def call_async(self, slot: Slot) -> Any:
        result = await self.how.fn(slot.value)
        return bool(result) if self.is_filter else result

    def take(self, slot: Slot, result: Any) -> None:
        if not self.is_filter:
            slot.outputs.append(result)
        elif result:
            slot.outputs.append(slot.value)
        slot.state = SlotState.DONE
        self.order.gained(slot)

    def step(self, now: int) -> Wait:
        self._passes = self._is_plain and self._is_inline()
        if not self._passes:
            return super().step(now)
        if self.order.slots:  # these go first
            wait = super().step(now)
            if self.is_over or self.order.slots:
                return wait
        self._pass_through(now)
        inbox = self.inboxes[0]
        if self.order.slots or (inbox.end is not None and not inbox.items):
            return super().step(now)
        return Wait.PUT if inbox.items else Wait.GET

    def _has_room(self) -> bool:
        return not self._passes and super()._has_room()

    def _pass_through(self, now: int) -> None:
        """Call for item after item, on the loop, as for nearly all calls of short functions."""
        inbox, out, stats = self.inboxes[0], self.out, self.stats
        items, outputs, room, fn, is_filter = inbox.items, out.items, out.capacity, self.how.fn, self.is_filter
        busy_ns, calls, given, marks = 0, 0, len(outputs), 0
        last_ns, start, after = self._last_ns, now, self._last
        failure: tuple[Any, BaseException] | None = None
        while items and len(outputs) < room:
            value, at = items.popleft()
            if value is MARK:
                outputs.append((value, at))
                after = at
                marks += 1
                continue
            try:
                result = fn(value)
                if is_filter:
                    result = bool(result)
            except BaseException as error:  # noqa: BLE001  it becomes the item's, below
                failure = value, error
                break
            end = clock_ns()
            if not is_filter:
                outputs.append((result, at))
            elif result:
                outputs.append((value, at))
            after = at
            elapsed_ns, start = end - start, end
            stats.durations.append(elapsed_ns)
            busy_ns += elapsed_ns
            calls += 1
            before_ns, last_ns = last_ns, elapsed_ns
            if elapsed_ns > INLINE_NS and (before_ns > INLINE_NS or start > now + SLICE_NS):
                if self.how.executor == "auto":
                    self.cost_ns = min(before_ns, last_ns)
                break
        if calls:
            out.fit(busy_ns // calls)
        self._last, self._last_ns = after, last_ns
        order = self.order
        order.accepted += calls
        order.seen += calls
        stats.calls += calls
        stats.busy_ns += busy_ns
        stats.items_in += calls
        given = len(outputs) - given
        stats.items_out += given - marks
        if calls or marks or failure:
            inbox.source.wake()
        if given:
            out.owner.wake()
        if failure is not None:
            slot = order.accept(failure[0], after, at)
            self._last = at
            stats.items_in += 1
            self._timed(clock_ns() - start, 1)
            self._failed(slot, failure[1])
            self.wake()
            del failure  # whose traceback refers to this call
        elif items and len(outputs) < room:
            self.wake()


@dataclass(slots=True, eq=False)
class _Current:
    """An item whose call has begun without a place in the stage, since it may end at once."""

    value: Any
    at: Any
    slot: Slot | None = None


class AsyncMapActor(MapActor):
    """Awaits call after call in one task, as long as no call has to wait for anything.

    One that does is found waiting when the stage is fired; then it gets its place, and further calls run beside it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._current: _Current | None = None

    def step(self, now: int) -> Wait:
        current, inbox = self._current, self.inboxes[0]
        if current is not None and current.slot is None:
            current.slot = self._place(current)
            self.running += 1
            self.stats.running += 1
        if inbox.items and not self.order.slots:
            if len(self.out.items) >= self.out.capacity:
                return Wait.PUT
            self.make_tasks().kick()
            return Wait.CALLS
        return super().step(now)

    async def burst(self, task: asyncio.Task[Any]) -> None:
        inbox, out, stats = self.inboxes[0], self.out, self.stats
        items, outputs, fn, order, is_filter = inbox.items, out.items, self.how.fn, self.order, self.is_filter
        start = clock_ns()
        deadline = start + SLICE_NS
        while items and not (self.order.slots or self._current or self.is_over):
            if len(outputs) >= out.capacity or start > deadline:
                self.wake()
                return
            value, at = items.popleft()
            inbox.source.wake()
            if value is MARK:
                self._give(value, at)
                continue
            if items:
                self.wake()  # another call may begin if this one has to wait
            current = self._current = _Current(value, at)
            result = None
            error: BaseException | None = None
            try:
                result = await fn(value)
                if is_filter:
                    result = bool(result)
            except BaseException as failure:
                if ends_task(failure, task):
                    number = order.accepted if current.slot is None else current.slot.number
                    self._abandon(current)
                    self.cut_off(failure, number, value)
                    raise
                error = failure
            end = clock_ns()
            elapsed_ns, start = end - start, end
            if current.slot is not None or error is not None or self.is_over:
                self._conclude(current, result, error, elapsed_ns)
                del error  # whose traceback refers to this call
                return
            self._current = None
            stats.items_in += 1
            stats.calls += 1
            stats.busy_ns += elapsed_ns
            stats.durations.append(elapsed_ns)
            order.accepted += 1
            order.seen += 1
            if not is_filter:
                self._give(result, at)
                stats.items_out += 1
            elif result:
                self._give(value, at)
                stats.items_out += 1
            else:
                self._last = at
            out.fit(elapsed_ns)
        self.wake()  # the end may be there

    def _give(self, value: Any, at: Any) -> None:
        self._last = at
        self.out.items.append((value, at))
        self.out.owner.wake()

    def _place(self, current: _Current) -> Slot:
        slot = self.order.accept(current.value, self._last, current.at)
        slot.state = SlotState.RUNNING
        self._last = current.at
        self.stats.items_in += 1
        return slot

    def _abandon(self, current: _Current) -> None:
        self._current = None
        if current.slot is not None:
            self._leave()

    def _conclude(self, current: _Current, result: Any, error: BaseException | None, elapsed_ns: int) -> None:
        self._abandon(current)
        if not self.is_over:
            self._timed(elapsed_ns, 1)
            self._concluded(current.slot or self._place(current), result, error)
            self.refill()
            self.wake()


class _Chunk:
    """Items that are sent to a process together."""

    def __init__(self, items: list[tuple[Any, Any]], before: Any) -> None:
        self.values = [value for value, _ in items]
        self.ats = [at for _, at in items]  # positions behind them
        self.before = before  # position before them
        self.results: list[Any] | None = None  # once they are back
        self.errors: dict[int, BaseException] = {}  # in place of results, by index
        self.given = 0  # items that have gone out, or have been left out
        self.request: Request | None = None  # while the process has not answered
        self.job: Job | None = None  # made of this, if the items have got their places meanwhile


class ChunkActor(MapActor):
    """Sends items to processes in chunks, in order, without a place in the stage for each.

    Nearly all calls in processes need no more. When a whole chunk has failed, or the stage is in a branch, where
    marks follow the items, the items get their places, and go on as all calls do.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._chunks: deque[_Chunk] = deque()  # oldest first
        self._open = 0  # items in them that have not gone out
        self._has_marks = False

    def step(self, now: int) -> Wait:
        if self._is_placed():  # these go first
            wait = super().step(now)
            if self.is_over or self._is_placed():
                return wait
        inbox, deadline = self.inboxes[0], now + SLICE_NS
        while True:
            given, taken = self._emit(), self._send()
            if self.is_over:
                return Wait.NOTHING
            if self._is_placed():
                return super().step(now)
            if not (given or taken):
                break
            if clock_ns() > deadline:
                self.wake()
                return Wait.NOTHING
        chunks = self._chunks
        if not chunks and not inbox.items and inbox.end is not None:
            return self.finish(inbox.end.error)
        if chunks and chunks[0].results is not None:
            return Wait.PUT
        return Wait.CALLS if chunks else Wait.GET

    def _is_placed(self) -> bool:
        return self._has_marks or bool(self.order.slots)

    def _has_room(self) -> bool:
        return self._has_marks and super()._has_room()

    # -- to processes -------------------------------------------------------------------------------------------

    def _send(self) -> bool:
        inbox, how = self.inboxes[0], self.how
        items, began = inbox.items, False
        while items and self.running < self._limit() and self._open < self._limit() * self._share + how.waiting_results:
            count = min(self._share, len(items))
            taken = list(islice(items, count))
            if any(value is MARK for value, _ in taken):
                self._has_marks = True
                self._place()
                break
            for _ in range(count):
                items.popleft()
            self._begin_chunk(_Chunk(taken, self._last))
            began = True
        if began:
            inbox.source.wake()
            self.stats.holds(self.held)
        return began

    def _begin_chunk(self, chunk: _Chunk) -> None:
        loop, count = self.run.loop, len(chunk.values)
        self._chunks.append(chunk)
        self._last = chunk.ats[-1]
        self._open += count
        self.running += 1
        self.stats.running += 1
        self.stats.items_in += count
        assert self.pool is not None
        try:
            chunk.request = self.pool.submit(chunk.values, None, loop, partial(self._came, chunk))
        except BaseException as error:  # noqa: BLE001  pickle's, for instance; it becomes the items' error
            loop.call_soon(self._came, chunk, Answer(0, [], {}, error))

    # -- answers ------------------------------------------------------------------------------------------------

    @guarded
    def _came(self, chunk: _Chunk, answer: Answer) -> None:
        if chunk.job is None and answer.error is not None and not self.is_over:
            self._place()
        if chunk.job is not None:
            self._answered(chunk.job, answer)
            return
        chunk.request = None
        self._leave()
        if self.is_over:
            return
        chunk.results, chunk.errors = answer.results, answer.errors
        for error in answer.errors.values():
            leave_loop(error)
        self._timed(answer.elapsed_ns, len(answer.results))
        out = self.out
        if out.least is not None and out.least < self._share:  # results that are here anyway go on at once
            out.least = out.capacity = self._share
        self.wake()

    def _emit(self) -> int:
        """Give the results that are there, in order; return for how many items."""
        chunks, out = self._chunks, self.out
        before = self._open
        while chunks and not self.is_over:
            chunk = chunks[0]
            room = out.capacity - len(out.items)
            if chunk.results is None or room <= 0:
                break
            end = min(chunk.given + room, len(chunk.ats))
            failed = min((index for index in chunk.errors if index >= chunk.given), default=end)
            self._give(chunk, min(end, failed))
            if failed < end:
                self._leave_out(chunk, failed)
            if chunk.given == len(chunk.ats):
                chunks.popleft()
        return before - self._open

    def _give(self, chunk: _Chunk, end: int) -> None:
        assert chunk.results is not None
        start, out = chunk.given, self.out.items
        before = len(out)
        if self.is_filter:
            places = zip(chunk.results[start:end], chunk.values[start:end], chunk.ats[start:end], strict=True)
            out.extend([(value, at) for keep, value, at in places if keep])
        else:
            out.extend(zip(chunk.results[start:end], chunk.ats[start:end], strict=True))
            chunk.results[start:end] = [None] * (end - start)  # they are the next stage's now
        self._passed(chunk, end)
        if len(out) > before:
            self.stats.items_out += len(out) - before
            self.out.owner.wake()

    def _leave_out(self, chunk: _Chunk, index: int) -> None:
        order = self.order
        slot = Slot(order.accepted, chunk.values[index], None, chunk.ats[index])
        slot.error = chunk.errors[index]
        order.skipped += 1
        if self.leaves_out(slot):
            self._passed(chunk, index + 1)

    def _passed(self, chunk: _Chunk, end: int) -> None:
        count = end - chunk.given
        chunk.given = end
        self._open -= count
        self.order.accepted += count
        self.order.seen += count

    # -- places -------------------------------------------------------------------------------------------------

    def _place(self) -> None:
        """Let all items that are here have places of their own, as with all other calls."""
        while self._chunks:
            chunk = self._chunks.popleft()
            before = chunk.before if not chunk.given else chunk.ats[chunk.given - 1]
            slots = []
            for value, at in islice(zip(chunk.values, chunk.ats, strict=True), chunk.given, None):
                slots.append(self.order.accept(value, before, at))
                before = at
            if chunk.results is None:
                chunk.job = Job(slots, self.call)
                chunk.job.request = chunk.request
                for slot in slots:
                    slot.state, slot.job = SlotState.RUNNING, chunk.job
                continue
            for index, slot in enumerate(slots, chunk.given):
                if index in chunk.errors:
                    self.gave_up(slot, chunk.errors[index])
                else:
                    self.take(slot, chunk.results[index])
        self._open = 0
        self.wake()

    def halt(self) -> None:
        assert self.pool is not None
        requests = [chunk.request for chunk in self._chunks if chunk.request is not None]
        for _ in requests:
            self._leave()
        self._chunks.clear()
        self._open = 0
        self.pool.forget(requests)
        super().halt()

    @property
    def held(self) -> int:
        return super().held + self._open


class Map(Call):
    """`Pipeline.map`."""

    kind = "map"
    is_filter: ClassVar[bool] = False

    def actor(self, *args: Any, **kwargs: Any) -> StageActor:
        how: Options = args[2]
        if not how.is_plain:
            actor = MapActor
        elif how.is_async:
            actor = AsyncMapActor
        else:
            actor = ChunkActor if how.executor == "process" and not how.retries else MapActor
        return actor(*args, **kwargs, is_filter=self.is_filter)


class Filter(Map):
    """`Pipeline.filter`."""

    kind = "filter"
    is_filter = True

    def for_processes(self) -> Callable[[Any], Any]:
        return partial(_is_kept, self.options.fn)


def _is_kept(fn: Callable[[Any], Any], item: Any) -> bool:
    return bool(fn(item))


def iterated(given: Any) -> Iterator[Any]:
    """An iterator of a result of the user's function; raises PipelineError if it is not an iterable."""
    if isinstance(given, Iterable) or hasattr(given, "__getitem__"):
        return iter(given)
    raise PipelineError(f"expected an iterable from the function, got {shown(given)}")


def _is_async(iterator: Any) -> bool:
    return hasattr(type(iterator), "__anext__")


class _More(NamedTuple):
    """Some outputs of an item, whether these are all, and the exception behind them."""

    outputs: list[Any]
    is_all: bool
    error: BaseException | None = None


class ExpandActor(CallActor):
    """Takes a few items at a time from the function's result, as there is room for them."""

    def open(self, slot: Slot) -> Any:
        """An iterator of the outputs of an item."""
        return iterated(self.how.fn(slot.value))

    def call(self, slot: Slot) -> _More:
        """Take some items, in whatever thread."""
        if slot.iterator is None:
            slot.iterator = self.open(slot)
        iterator, outputs = slot.iterator, []
        deadline = clock_ns() + SLICE_NS
        for _ in range(self.out.capacity + slot.skip):
            try:
                outputs.append(next(iterator))
            except StopIteration:
                slot.iterator = None
                return _More(outputs, True)
            except BaseException as error:  # noqa: BLE001  items before it go out first
                slot.iterator = None
                return _More(outputs, True, error)
            if clock_ns() > deadline:
                break
        return _More(outputs, False)

    async def call_async(self, slot: Slot) -> _More:
        """Take items until as many wait as there is room for; each goes out as soon as it is there."""
        if slot.iterator is None:
            opened = self.open_async(slot)
            given = await opened if inspect.isawaitable(opened) else opened
            slot.iterator = aiter(given) if isinstance(given, AsyncIterable) else iterated(given)
        if not _is_async(slot.iterator):
            return self.call(slot)
        while len(slot.outputs) < self.out.capacity:
            try:
                value = await anext(slot.iterator)
            except StopAsyncIteration:
                slot.iterator = None
                return _More([], True)
            if self._keep(slot, value):
                self.order.gained(slot)
                self.wake()
        return _More([], False)

    def open_async(self, slot: Slot) -> Any:
        """An iterable of the outputs of an item, or an awaitable of one."""
        return self.how.fn(slot.value)

    def take(self, slot: Slot, result: Any) -> None:
        if isinstance(result, _More):
            outputs, is_all = result.outputs, result.is_all
        else:
            outputs, is_all = result, True  # of another process
        for value in outputs:
            self._keep(slot, value)
        if isinstance(result, _More) and result.error is not None:
            self._failed(slot, result.error)
            return
        slot.state = SlotState.DONE if is_all else SlotState.PAUSED
        self.order.gained(slot)

    def _units(self, job: Job) -> int:
        return max(1, len(job.results.outputs)) if isinstance(job.results, _More) else 1

    def _keep(self, slot: Slot, value: Any) -> bool:
        if slot.skip:
            slot.skip -= 1
            return False
        slot.outputs.append(value)
        return True

    def dispose(self, job: Job) -> None:
        for slot in job.slots:
            self.close(slot.iterator)

    def close(self, iterator: Any) -> None:
        try:
            if not _is_async(iterator):
                close = getattr(iterator, "close", None)
                if close is not None:
                    close()
            elif not self.run.loop.is_closed():
                aclose = getattr(iterator, "aclose", None)
                if aclose is not None:
                    self.run.start_task(self._aclose(aclose), self.stats.name)
        except BaseException as error:  # noqa: BLE001  nothing is left to be told
            self.report(error)

    async def _aclose(self, aclose: Callable[[], Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await aclose()
        except BaseException as error:
            if ends_task(error, task):
                raise
            self.report(error)  # as above


class Expand(Call):
    """`Pipeline.flat_map`."""

    kind = "flat_map"

    def for_processes(self) -> Callable[[Any], Any]:
        return partial(_listed, self.options.fn)

    def actor(self, *args: Any, **kwargs: Any) -> StageActor:
        return ExpandActor(*args, **kwargs)


def _listed(fn: Callable[[Any], Any], item: Any) -> list[Any]:
    """The items of a function's result, in a list: an iterator cannot be sent."""
    return list(iterated(fn(item)))
