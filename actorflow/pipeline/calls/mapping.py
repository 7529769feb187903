"""One call for each item, and at most one output: on the loop, in threads, or as tasks."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import Any

from actorflow.actors.op import INLINE_NS
from actorflow.pipeline.calls.boundary import ends_task
from actorflow.pipeline.calls.call import CallActor
from actorflow.pipeline.calls.job import Slot, SlotState
from actorflow.pipeline.stages.actor import MARK, SLICE_NS, Wait


class MapActor(CallActor):
    """One output for each item: what the function returns, or the item if the function says so.

    What a filter's function returns is made a bool where the function runs, as a part of the call: it may fail, too.

    Attributes:
        is_filter: Whether the function says which items to keep.
    """

    def __init__(self, *args: Any, is_filter: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_filter = is_filter
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
        """Call for item after item, on the loop; what all short functions do nearly always."""
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
            end = perf_counter_ns()
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
            self._timed(perf_counter_ns() - start, 1)
            self._failed(slot, failure[1])
        if (items and len(outputs) < room) or failure is not None:
            self.wake()


class _Current:
    """An item whose call has begun without a place in the stage, since it may end at once."""

    __slots__ = ("at", "slot", "value")

    def __init__(self, value: Any, at: Any) -> None:
        self.value = value
        self.at = at
        self.slot: Slot | None = None


class AsyncMapActor(MapActor):
    """Awaits call after call in one task, as long as no call has to wait for anything.

    One that does is found waiting when the stage is fired; then it gets its place, and further calls run beside it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._current: _Current | None = None
        self._is_direct = not self.how.policy.is_limited

    def step(self, now: int) -> Wait:
        current, inbox = self._current, self.inboxes[0]
        if current is not None and current.slot is None:
            current.slot = self._place(current)
            self.running += 1
            self.stats.running += 1
        if self._is_direct and inbox.items and not self.order.slots:
            if len(self.out.items) >= self.out.capacity:
                return Wait.PUT
            self.make_workers().kick()
            return Wait.CALLS
        return super().step(now)

    async def burst(self, task: asyncio.Task[Any]) -> None:
        inbox, out, stats = self.inboxes[0], self.out, self.stats
        items, outputs, fn, order, is_filter = inbox.items, out.items, self.how.fn, self.order, self.is_filter
        start = perf_counter_ns()
        deadline = start + SLICE_NS
        while items and self._may_begin():
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
            end = perf_counter_ns()
            elapsed_ns, start = end - start, end
            if current.slot is not None or error is not None or self.is_over:
                self._conclude(current, result, error, elapsed_ns)
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

    def _may_begin(self) -> bool:
        return self._is_direct and not (self.order.slots or self._current or self.is_over)

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
        """A call has ended that had to wait, or has failed."""
        self._abandon(current)
        if not self.is_over:
            self._timed(elapsed_ns, 1)
            self._concluded(current.slot or self._place(current), result, error)
            self.refill()
            self.wake()
