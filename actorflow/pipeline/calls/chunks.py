"""Items that go to processes, and come back, several at a time, without a place in the stage for each.

This is what nearly all calls in processes need. When a whole chunk has failed, or the stage is in a branch, where marks
follow the items, they get their places, and go on as all calls do.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import islice
from time import perf_counter_ns
from typing import Any

from actorflow.actors.dispatcher import leave_loop
from actorflow.pipeline.calls.boundary import guarded
from actorflow.pipeline.calls.job import Job, Slot, SlotState
from actorflow.pipeline.calls.mapping import MapActor
from actorflow.pipeline.processes.process import Task
from actorflow.pipeline.processes.remote import Answer
from actorflow.pipeline.stages.actor import MARK, SLICE_NS, Wait


class _Chunk:
    """Items that were sent together.

    Attributes:
        values: The items.
        ats: Positions behind them.
        before: Position before them.
        results: What became of them, once they are back.
        errors: What was raised instead, by index.
        given: How many of them have gone out, or have been left out.
        task: What the process has got, while it has not answered.
        job: The call that this has become, if the items have got their places meanwhile.
    """

    __slots__ = ("ats", "before", "errors", "given", "job", "results", "task", "values")

    def __init__(self, items: list[tuple[Any, Any]], before: Any) -> None:
        self.values = [value for value, _ in items]
        self.ats = [at for _, at in items]
        self.before = before
        self.results: list[Any] | None = None
        self.errors: dict[int, BaseException] = {}
        self.given = 0
        self.task: Task | None = None
        self.job: Job | None = None


class ChunkActor(MapActor):
    """Sends items to processes in chunks, in order."""

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
            if perf_counter_ns() > deadline:
                self.wake()
                return Wait.NOTHING
        chunks = self._chunks
        if not chunks and not inbox.items and inbox.end is not None:
            self.finish(inbox.end.error)
            return Wait.NOTHING
        if chunks and chunks[0].results is not None:
            return Wait.PUT
        return Wait.CALLS if chunks else Wait.GET

    def _is_placed(self) -> bool:
        """Whether there are items with places of their own, or there always will be."""
        return self._has_marks or bool(self.order.slots)

    def _has_room(self) -> bool:
        return self._has_marks and super()._has_room()

    # -- what goes to processes ---------------------------------------------------------------------------------

    def _send(self) -> bool:
        """Send what there is to be sent; whether there was any."""
        inbox, how = self.inboxes[0], self.how
        items, began = inbox.items, False
        while items and self.running < self._limit() and self._open < self._limit() * self._share + how.buffer:
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
        assert self.how.pool is not None
        try:
            chunk.task = self.how.pool.submit(chunk.values, None, loop, partial(self._came, chunk))
        except BaseException as error:  # noqa: BLE001  pickle's, for instance; it becomes the items' error
            loop.call_soon(self._came, chunk, Answer(0, [], {}, error))

    # -- what comes back ----------------------------------------------------------------------------------------

    @guarded
    def _came(self, chunk: _Chunk, answer: Answer) -> None:
        if chunk.job is None and answer.error is not None and not self.is_over:
            self._place()
        if chunk.job is not None:
            self._answered(chunk.job, answer)
            return
        chunk.task = None
        self._leave()
        if self.is_over:
            return
        chunk.results, chunk.errors = answer.results, answer.errors
        for error in answer.errors.values():
            leave_loop(error)
        self._timed(answer.elapsed_ns, len(answer.results))
        out = self.out
        if out.least is not None and out.least < self._share:  # what is here anyway goes on at once
            out.least = out.capacity = self._share
        self.wake()

    def _emit(self) -> int:
        """Give what is there and whose turn it is; says how many items that was."""
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
        """It is the turn of an item whose call has failed."""
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
                chunk.job.task = chunk.task
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
        assert self.how.pool is not None
        tasks = [chunk.task for chunk in self._chunks if chunk.task is not None]
        for _ in tasks:
            self._leave()
        self._chunks.clear()
        self._open = 0
        self.how.pool.forget(tasks)
        super().halt()

    @property
    def held(self) -> int:
        return super().held + self._open
