"""map and filter: one call for each item, and at most one output."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, ClassVar

from actorflow.actors.op import INLINE_NS
from actorflow.pipeline.call import CallActor
from actorflow.pipeline.calling import Options
from actorflow.pipeline.definition import Build, Stage
from actorflow.pipeline.job import Slot, SlotState
from actorflow.pipeline.order import InOrder, Unordered
from actorflow.pipeline.stage import MARK, SLICE_NS, StageActor, Wait

__all__ = ["Call", "Filter", "Map", "MapActor"]


class MapActor(CallActor):
    """One output for each item: what the function returns, or the item if the function says so.

    Attributes:
        is_filter: Whether the function says which items to keep.
    """

    def __init__(self, *args: Any, is_filter: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_filter = is_filter
        self._current: _Current | None = None

    def call(self, slot: Slot) -> Any:
        return self.how.fn(slot.value)

    def take(self, slot: Slot, result: Any) -> None:
        if not self.is_filter:
            slot.outputs.append(result)
        elif result:
            slot.outputs.append(slot.value)
        slot.state = SlotState.DONE
        self.order.gained(slot)

    def step(self, now: int) -> Wait:
        if not self._is_plain or not (self.how.is_async or self._is_inline()):
            return super().step(now)
        if self._current is not None:
            self._make_slot(self._current)
        if self.order.slots:  # these go first
            wait = super().step(now)
            if self.is_over or self.order.slots:
                return wait
        inbox, out = self.inboxes[0], self.out
        if not self.how.is_async:
            self._pass_through(now)
        elif inbox.items and len(out.items) < out.capacity:
            self.make_workers().kick()
        if self.order.slots or (inbox.end is not None and not inbox.items):
            return super().step(now)
        return Wait.PUT if inbox.items else Wait.GET

    def _has_room(self) -> bool:
        return not (self._is_plain and not self.how.is_async and self._is_inline()) and super()._has_room()

    # -- async calls that do not wait ---------------------------------------------------------------------------

    async def burst(self) -> bool:
        """Await call after call. One that has to wait gets a slot when the stage is fired, and others run beside it."""
        inbox, out, order, stats, fn = self.inboxes[0], self.out, self.order, self.stats, self.how.fn
        items, outputs = inbox.items, out.items
        if not self._is_plain or order.slots or self._current is not None or self.is_over:
            return False
        start = perf_counter_ns()
        deadline = start + SLICE_NS
        calls = given = busy_ns = 0
        while items and len(outputs) < out.capacity:
            value, at = items.popleft()
            if value is MARK:
                outputs.append((value, at))
                self._last = at
                continue
            if items:
                self.wake()
            current = self._current = _Current(value, at)
            error: BaseException | None = None
            try:
                result = await fn(value)
            except asyncio.CancelledError as failure:
                if self.is_over:
                    raise
                error = failure
            except Exception as failure:  # noqa: BLE001  it becomes the item's
                error = failure
            end = perf_counter_ns()
            if current.slot is not None or error is not None or self.is_over:
                break
            self._current = None
            self._last = at
            stats.durations.append(end - start)
            busy_ns += end - start
            calls += 1
            start = end
            if not self.is_filter:
                outputs.append((result, at))
            elif result:
                outputs.append((value, at))
            else:
                continue
            given += 1
            if end > deadline:
                break
        else:
            current = None
        return False

    def _pass_through(self, now: int) -> None:
        """Call for item after item, on the loop; what all short functions do nearly always."""
        inbox, out, stats = self.inboxes[0], self.out, self.stats
        items, outputs, room, fn, is_filter = inbox.items, out.items, out.capacity, self.how.fn, self.is_filter
        busy_ns, calls, given, marks = 0, 0, len(outputs), 0
        last_ns, start, after = self._last_ns, now, self._last
        failure: tuple[Any, Exception] | None = None
        while items and len(outputs) < room:
            value, at = items.popleft()
            if value is MARK:
                outputs.append((value, at))
                after = at
                marks += 1
                continue
            try:
                result = fn(value)
            except Exception as error:  # noqa: BLE001  it becomes the item's, below
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
        if items and len(outputs) < room or failure is not None:
            self.wake()


@dataclass(frozen=True, eq=False, kw_only=True)
class Call(Stage):
    """A stage that calls a function.

    Attributes:
        options: How.
    """

    keeps_marks: ClassVar[bool] = True

    options: Options

    @property
    def concurrency(self) -> int:
        return self.options.concurrency

    @property
    def executor(self) -> str:
        if self.options.is_async:
            return "task"
        return "thread" if self.options.executor == "auto" else self.options.executor

    @property
    def shape(self) -> str:
        limited = "" if isinstance(self.options.on_error, str) else ", limited"
        return f"{self.kind}({'ordered' if self.options.ordered else 'unordered'}{limited})"

    def build(self, build: Build, state: Any) -> StageActor:
        how = build.session.calling(self)
        order = InOrder if how.ordered else Unordered
        source = build.front(self, order.front(how, state))
        return self.actor(build.run, build.stats(self), how, source, state=state)

    @abstractmethod
    def actor(self, *args: Any, **kwargs: Any) -> StageActor:
        """The stage's actor; the arguments are those of `CallActor`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Map(Call):
    """`Pipeline.map`."""

    kind = "map"

    def actor(self, *args: Any, **kwargs: Any) -> StageActor:
        return MapActor(*args, **kwargs, is_filter=False)


@dataclass(frozen=True, eq=False, kw_only=True)
class Filter(Call):
    """`Pipeline.filter`."""

    kind = "filter"

    def actor(self, *args: Any, **kwargs: Any) -> StageActor:
        return MapActor(*args, **kwargs, is_filter=True)
