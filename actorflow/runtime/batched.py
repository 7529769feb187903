"""Batched runs: requests of several callers are computed in one frame, and each gets its own rows.

A request waits in the group of those that may share a frame with it. A look at the groups (`Batcher._look`) starts the
frames that are due. It happens once in a turn of the loop in which something has changed: requests have come, a frame
has ended, the oldest request has waited long enough. Nothing else runs between.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from bisect import insort
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from functools import partial
from operator import attrgetter
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from actorflow.errors import (
    BatcherClosedError,
    FeedError,
    GraphError,
    OpError,
    QueueFullError,
    RunTimeoutError,
    text_of,
)
from actorflow.loop import end, ended_with, wait_out, waits
from actorflow.runtime.program import Result
from actorflow.runtime.rows import Request, Rows
from actorflow.threads import forget_in_child
from actorflow.trace.batches import BatchCounters, BatchStatistics, Histogram
from actorflow.trace.ring import EndedRequest

if TYPE_CHECKING:
    from actorflow.runtime.pause import Permit

#: One step of priority counts as much as so many seconds of waiting.
AGE_S = 1.0

_ORDER = attrgetter("order")


class BatchOptions(NamedTuple):
    """Settings of a batcher; see `Graph.batched`."""

    max_rows: int = 32
    max_wait_s: float = 0.002
    buckets: tuple[int, ...] = ()
    queue_rows: int = 1024
    key: Callable[[dict[Any, Any]], Hashable] | None = None
    pad: Callable[[list[dict[Any, Any]]], Sequence[Mapping[Any, Any]]] | None = None
    in_flight: int = 2
    isolate: bool = True

    def checked(self) -> Self:
        """The same.

        Raises:
            ValueError: if a number is out of its range.
        """
        for name in ("max_rows", "queue_rows", "in_flight"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.max_wait_s < math.inf:
            raise ValueError(f"max_wait must be a time in seconds, got {self.max_wait_s}")
        if self.buckets and (list(self.buckets) != sorted(set(self.buckets)) or self.buckets[0] < 1):
            raise ValueError(f"buckets must be positive and ascending, got {self.buckets}")
        if self.buckets and self.buckets[-1] < self.max_rows:
            raise ValueError(f"the last bucket must take max_rows={self.max_rows} rows, got {self.buckets}")
        return self


class _State(Enum):
    """State of a batcher: NEW -> OPEN -> CLOSING -> CLOSED; any of them -> CLOSED."""

    NEW = "not entered yet"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class Group:
    """Requests that may go into one frame, in the order in which they shall."""

    __slots__ = ("key", "rows", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.waiting: list[Request] = []
        self.rows = 0

    def add(self, request: Request) -> None:
        waiting = self.waiting
        if not waiting or waiting[-1].order <= request.order:
            waiting.append(request)
        else:
            insort(waiting, request, key=_ORDER)  # behind those of the same order
        self.rows += request.rows

    def take(self, most: int) -> list[Request]:
        """Remove the first requests, as many as have no more rows than that together, one at least."""
        count, rows = 1, self.waiting[0].rows
        for request in self.waiting[1:]:
            if rows + request.rows > most:
                break
            rows += request.rows
            count += 1
        taken = self.waiting[:count]
        del self.waiting[:count]
        self.rows -= rows
        return taken

    @property
    def oldest_s(self) -> float:
        """When the request came that has waited longest."""
        return min([request.since_s for request in self.waiting])


class Batch:
    """Requests whose rows are computed together, in one frame or, where it fails, in several."""

    __slots__ = ("requests", "task")

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests
        self.task: asyncio.Task[None]

    @property
    def left(self) -> list[Request]:
        """Requests that somebody waits for."""
        return [request for request in self.requests if not request.future.done()]


class Batcher:
    """Joins requests in frames and gives each caller its rows; returned by `Graph.batched`, which says when and how.

    It is an async context manager, and takes requests inside its block.

    Args:
        rows: What is computed.
        options: As for `Graph.batched`.

    Raises:
        ValueError: if a number is out of its range.

    Example:
        >>> import asyncio
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["batch", 2])
        >>> y = af.ops.sum(x, 1)
        >>> async def main():
        ...     async with graph, graph.batched(fetch=y) as batcher:
        ...         one, two = await asyncio.gather(batcher.run({x: [[1, 2]]}), batcher.run({x: [[3, 4], [5, 6]]}))
        ...     return one[y].tolist(), two[y].tolist()
        >>> asyncio.run(main())
        ([3.0], [7.0, 11.0])
    """

    def __init__(self, rows: Rows, options: BatchOptions) -> None:
        self._rows = rows
        self._options = options.checked()
        self._isolates = options.isolate and rows.repeatable
        self._state = _State.NEW
        self._why = "was not entered yet"  # takes no requests for this reason, if there is one
        self._groups: dict[Hashable, Group] = {}
        self._batches: set[Batch] = set()
        self._waiting_rows = 0
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = math.inf  # when the timer is
        self._emptied: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._thread = 0
        self._context: contextvars.Context
        powers = [1 << n for n in range((options.max_rows - 1).bit_length())]
        self._counters = BatchCounters(Histogram([*powers, options.max_rows]))
        forget_in_child(self)

    def __repr__(self) -> str:
        state = f"{self._waiting_rows} rows wait, {len(self._batches)} frames in flight"
        return f"<Batcher of graph {self._rows.name!r}, {self._state.value}: {state}>"

    def statistics(self) -> BatchStatistics:
        """Figures of this moment; to be called on the thread of the loop that the batcher runs on.

        Example:
            >>> import asyncio
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", ["batch"])
            >>> y = x + 1
            >>> async def main():
            ...     async with graph, graph.batched() as batcher:
            ...         await asyncio.gather(*(batcher.run({x: [i]}) for i in range(3)))
            ...         return batcher.statistics()
            >>> figures = asyncio.run(main())
            >>> figures.frames, figures.finished, figures.refused
            (1, 3, 0)
        """
        counters = self._counters
        return BatchStatistics(
            self._waiting_rows,
            self._options.queue_rows,
            len(self._batches),
            counters.frames,
            counters.padded_rows,
            counters.finished,
            counters.failed,
            counters.cancelled,
            counters.expired,
            counters.refused,
            counters.rows.statistics(),
            counters.wait_s.statistics(),
            counters.latency_s.statistics(),
        )

    # -- one request -----------------------------------------------------------------------------------------------

    async def run(self, feeds: Mapping[Any, Any], *, priority: float = 0, timeout: float | None = None) -> Result:
        """Compute some rows, in a frame with those of others.

        Args:
            feeds: Arrays for the sources, by blob or by name, all with the same number of rows, 1 at least. They are
                used without a copy: do not change them before `run` returns.
            priority: Requests of a higher one go first, those of the same one in the order in which they came. One
                step counts as much as one second of waiting, so that none waits for ever: a request is overtaken
                only by those that come less than a second later per step that they are above it.
            timeout: Longest time in seconds until the result is there.
        Returns:
            The values of the request's own rows. They are views of what the frame has computed: copy what is kept for
            long. ``frames`` has the number of the frame, of several if the request had more than ``max_rows`` rows.
        Raises:
            FeedError, ShapeError, DTypeError: if the feeds do not fit.
            QueueFullError: at once, if too many rows wait.
            BatcherClosedError: if the batcher takes no requests, or is closed before the result is there.
            OpError: if an op fails for the rows of this request.
            RunTimeoutError: after ``timeout``.
            RunCancelledError, StallError, ...: as for `Graph.run`, if the whole frame has failed.
        Cancellation: returns at once. The rows are not computed if their frame has not started; a frame is cancelled
            when nobody waits for it any more.

        Example:
            >>> import asyncio
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", ["batch"])
            >>> y = x + 1
            >>> async def main():
            ...     async with graph, graph.batched(max_rows=4) as batcher:
            ...         result = await batcher.run({x: range(6)}, priority=1, timeout=60)
            ...         return result[y].tolist(), len(result.frames)
            >>> asyncio.run(main())  # more rows than a frame takes: two frames
            ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2)
        """
        counters, since, trace = self._counters, perf_counter(), self._rows.trace
        requests: list[Request] = []
        timer = None
        try:
            requests = self._enter(feeds, priority)
            if timeout is not None:
                timer = self._loop.call_later(timeout, self._expire, requests, timeout)
            parts = []
            for request in requests:
                part = await request.future
                parts.append(request.fail() if part is None else part)
            result = parts[0] if len(parts) == 1 else Result.joined(parts)
        except BaseException as error:
            counters.count_failure(error)
            trace.add_request(_ended_request(since, perf_counter(), (), type(error).__name__))
            for request in requests:
                request.error = None
                if not request.future.done() or request.future.cancelled():
                    self._leave(request)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        counters.finished += 1
        counters.wait_s.add(requests[-1].started - since)
        now = perf_counter()
        counters.latency_s.add(now - since)
        trace.add_request(_ended_request(since, now, result.frames, "finished"))
        return result

    def _expire(self, requests: Sequence[Request], timeout_s: float) -> None:
        """The time of a request is over."""
        error = RunTimeoutError(
            f"a batched run timed out after {timeout_s:g} s; graph {self._rows.name!r} has {self._waiting_rows} rows "
            f"that wait for batched runs, and {len(self._batches)} frames of them in flight"
        )
        left = [request for request in requests if not request.future.done()]
        _fail(left, error)
        for request in left:
            self._leave(request)

    def _enter(self, feeds: Mapping[Any, Any], priority: float) -> list[Request]:
        """Let the rows of a request wait; in several parts, if they are too many for one frame."""
        rows, options = self._rows, self._options
        if self._why:
            raise BatcherClosedError(f"the batcher of graph {rows.name!r} {self._why}")
        if get_ident() != self._thread or self._loop.is_closed():  # asyncio.get_running_loop() makes a system call
            raise GraphError(f"the batcher of graph {rows.name!r} is in use on another event loop")
        request = rows.read(feeds)
        key: Hashable = request.lengths if options.pad is None else None
        if options.key is not None:
            key = key, options.key(rows.feeds(request))
        group = self._groups.get(key)
        if self._waiting_rows + request.rows > options.queue_rows:
            raise QueueFullError(rows.name, request.rows, self._waiting_rows, options.queue_rows)
        if group is None:
            group = self._groups[key] = Group(key)
        since_s, requester = self._loop.time(), rows.requester()
        order = since_s - priority * AGE_S
        parts = [request] if request.rows <= options.max_rows else rows.split(request, options.max_rows)
        for part in parts:
            part.group, part.batch = group, None
            part.order, part.since_s = order, since_s
            part.future, part.requester = self._loop.create_future(), requester
            group.add(part)
        self._waiting_rows += request.rows
        self._look_soon()
        return parts

    def _leave(self, request: Request) -> None:
        """Nobody waits for a request any more."""
        if waits(request.future):
            request.future.cancel()
        batch, group = request.batch, request.group
        if batch is not None:
            if not batch.left:
                end(batch.task)
        elif request in group.waiting:
            group.waiting.remove(request)
            group.rows -= request.rows
            self._taken(group, request.rows)

    def _taken(self, group: Group, rows: int) -> None:
        """Rows of a group wait no longer."""
        self._waiting_rows -= rows
        if not group.waiting:
            del self._groups[group.key]
            self._notice_end()

    # -- starts of frames ------------------------------------------------------------------------------------------

    def _look_soon(self) -> None:
        """Look which frames are due when all that happens in this turn of the loop has happened."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._look, 0.0, context=self._context)

    def _look(self, now_s: float) -> None:
        """Start the frames that are due, and have the timer look again when the next one may be."""
        self._scheduled = False
        groups, now_s = self._groups, max(now_s, self._loop.time())
        while groups and len(self._batches) < self._options.in_flight:
            due = [group for group in groups.values() if self._is_due(group, now_s)]
            if not due:
                break
            self._start(min(due, key=lambda group: group.waiting[0].order))
        due_s = math.inf
        if groups and len(self._batches) < self._options.in_flight:
            due_s = min(group.oldest_s for group in groups.values()) + self._options.max_wait_s
        if due_s != self._due_s:
            if self._timer is not None:
                self._timer.cancel()
            self._due_s, self._timer = due_s, None
            if due_s < math.inf:
                self._timer = self._loop.call_at(due_s, self._ring, due_s, context=self._context)

    def _ring(self, due_s: float) -> None:
        self._timer, self._due_s = None, math.inf
        self._look(due_s)

    def _is_due(self, group: Group, now_s: float) -> bool:
        options = self._options
        return (
            not self._batches
            or group.rows >= options.max_rows
            or self._state is _State.CLOSING  # nobody else will come
            or group.oldest_s + options.max_wait_s <= now_s
        )

    def _start(self, group: Group) -> None:
        batch = Batch(group.take(self._options.max_rows))
        now = perf_counter()
        rows = 0
        for request in batch.requests:
            request.batch, request.started = batch, now
            rows += request.rows
        self._batches.add(batch)
        batch.task = self._loop.create_task(self._compute(batch))
        batch.task.add_done_callback(partial(self._ended, batch), context=self._context)
        self._taken(group, rows)

    # -- frames ----------------------------------------------------------------------------------------------------

    async def _compute(self, batch: Batch) -> None:
        """Compute the rows of a batch; where that fails, those of each half, until it is known whose fault it is."""
        todo = [batch.requests]
        while todo:
            permit = await self._rows.turn()
            try:
                requests = [request for request in todo.pop() if not request.future.done()]
                if requests:
                    _deliver(requests, await self._frame(requests, permit))
            except (OpError, FeedError) as error:
                if self._isolates and len(requests) > 1:
                    half = len(requests) // 2
                    todo += requests[half:], requests[:half]
                else:
                    _fail(requests, error)
            except Exception as error:  # noqa: BLE001  the callers are told
                _fail(requests, error)
            finally:
                self._rows.give_back(permit)

    async def _frame(self, requests: Sequence[Request], permit: Permit | None) -> Result:
        parts = requests if self._options.pad is None else self._padded(self._options.pad, requests)
        rows = sum([part.rows for part in parts])
        length = next((bucket for bucket in self._options.buckets if bucket >= rows), rows)
        counters = self._counters
        counters.frames += 1
        counters.rows.add(rows)
        counters.padded_rows += length - rows
        requesters = dict.fromkeys([request.requester for request in requests if request.requester is not None])
        return await self._rows.run(self._rows.joined(parts, length), [*requesters], permit)

    def _padded(self, pad: Callable[..., Any], requests: Sequence[Request]) -> list[Request]:
        try:
            padded = [self._rows.read(feeds) for feeds in pad([self._rows.feeds(request) for request in requests])]
            before, after = [request.rows for request in requests], [request.rows for request in padded]
            if before != after or len({request.lengths for request in padded}) > 1:
                lengths = [request.lengths for request in padded]
                raise ValueError(f"of {before} rows it made {after}, with {lengths} in the other open axes")
        except Exception as error:
            raise FeedError(f"pad of batched runs of graph {self._rows.name!r} failed: {text_of(error)}") from error
        return padded

    def _ended(self, batch: Batch, task: asyncio.Task[None]) -> None:
        """No frame of the batch runs any more."""
        self._batches.discard(batch)
        failure = ended_with(task)
        if task.cancelled():
            failure = None
        if batch.left:
            name = self._rows.name
            why = "its graph was closed" if failure is None else f"of a fault of actorflow: {text_of(failure)}"
            closed = BatcherClosedError(f"a batched run of graph {name!r} was given up, since {why}")
            closed.__cause__ = failure
            _fail(batch.left, closed)
        batch.requests.clear()  # which refer to it: nobody should wait for the garbage collector
        self._notice_end()
        self._look_soon()

    # -- the end ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._state is not _State.NEW:
            raise GraphError(f"the batcher of graph {self._rows.name!r} was entered before: make another one")
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._context = contextvars.copy_context()
        self._rows.enter(self)
        self._state, self._why = _State.OPEN, ""
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._state is _State.OPEN:
            self._state, self._why = _State.CLOSING, "is closing"
            self._emptied = self._loop.create_future()
            self._notice_end()
            self._look_soon()
            try:
                await self._emptied
            except BaseException:
                await self.aclose()
                raise
        await self.aclose()

    async def aclose(self) -> None:
        """Refuse further requests and cancel the frames in flight; idempotent.

        Callers that wait get `BatcherClosedError`, not a cancellation: nobody has cancelled their tasks. It returns
        when no frame runs any more. Leaving the ``async with`` block without an error does the same, but lets all that
        waits be computed first.
        """
        self.abort("was closed")
        try:
            await wait_out([batch.task for batch in self._batches])
        finally:
            self._rows.leave()

    def abort(self, why: str) -> None:
        """Do what `aclose` does, and wait for nothing."""
        if self._state is _State.CLOSED:
            return
        self._state, self._why = _State.CLOSED, why
        error = BatcherClosedError(f"a batched run of graph {self._rows.name!r} was given up: its batcher {why}")
        for group in self._groups.values():
            _fail(group.waiting, error)
        self._groups.clear()
        self._waiting_rows = 0
        for batch in self._batches:
            _fail(batch.left, error)
            end(batch.task)
        if self._timer is not None:
            self._timer.cancel()
        self._notice_end()

    def _notice_end(self) -> None:
        if self._emptied is not None and not self._groups and not self._batches and waits(self._emptied):
            self._emptied.set_result(None)

    def forget_parent(self) -> None:
        """Take no requests in the child of a fork: those that wait are the parent's."""
        self._state, self._why = _State.CLOSED, "was made in the parent process of a fork"
        self._groups.clear()
        self._batches.clear()
        self._waiting_rows = 0


def _deliver(requests: Sequence[Request], result: Result) -> None:
    """Give each request its rows of a frame."""
    start = 0
    for request in requests:
        stop = start + request.rows
        if not request.future.done():
            request.future.set_result(result.rows(start, stop))
        start = stop


def _fail(requests: Sequence[Request], error: BaseException) -> None:
    for request in requests:
        if waits(request.future):
            request.error = error
            request.future.set_result(None)


def _ended_request(since_s: float, until_s: float, frames: Sequence[int], outcome: str) -> EndedRequest:
    return EndedRequest(int(since_s * 1e9), int(until_s * 1e9), frames, outcome)
