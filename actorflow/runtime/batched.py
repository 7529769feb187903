"""Batched runs: requests of several callers are computed in one frame, and each gets its own rows.

A request is in one place at a time: it waits in the group of those that may share a frame with it, it is computed with
the others of a batch, or it has ended and is nowhere. `Batcher._move` alone brings it from one to the next, and cannot
fail: whatever may raise, such as the user's functions, is called before.

A look at the groups (`Batcher._look`) starts the frames that are due. It happens once in a turn of the loop in which
something has changed: requests have come, a frame has ended, the oldest request has waited long enough. Nothing else
runs between.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from bisect import insort
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from heapq import heapify, heappop, heapreplace
from itertools import islice
from operator import attrgetter
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypedDict, Unpack, cast

from actorflow.errors import (
    BatcherClosedError,
    FeedError,
    GraphError,
    OpError,
    QueueFullError,
    RunTimeoutError,
    flag,
    real,
    seconds,
    shown,
    text_of,
    time_limit,
    whole,
)
from actorflow.loop import end, ended_with, wait_out, waits
from actorflow.runtime.program import Result
from actorflow.runtime.rows import Request, Rows
from actorflow.runtime.sessions import Session, Slots
from actorflow.threads import forget_in_child
from actorflow.trace.batches import BatchCounters, BatchStatistics, Histogram

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob
    from actorflow.runtime.pause import Permit

#: One step of priority counts as much as so many seconds of waiting.
AGE_S = 1.0

_ORDER = attrgetter("order")


class Batching(TypedDict, total=False):
    """Options of `Model.batched` and `Model.sessions`, as `Graph.batched` has them."""

    max_rows: int
    max_wait: float
    buckets: Sequence[int] | None
    queue_rows: int
    key: Callable[[dict[Any, Any]], Hashable] | None
    pad: Callable[[list[dict[Any, Any]]], Sequence[Mapping[Any, Any]]] | None
    in_flight: int
    isolate: bool
    axis: str | None
    max_sessions: int
    max_cells: int | None


class SessionOptions(TypedDict, total=False):
    """Options of `Batcher.session`."""

    key: Hashable
    weight: float
    state: Mapping[str, Any] | None
    priority: float
    timeout: float | None
    ttl: float | None


class BatchOptions(NamedTuple):
    """Settings of a batcher; see `Graph.batched`."""

    max_rows: int = 32
    max_wait_s: float = 0.002
    buckets: Sequence[int] = ()
    queue_rows: int = 1024
    key: Callable[[dict[Any, Any]], Hashable] | None = None
    pad: Callable[[list[dict[Any, Any]]], Sequence[Mapping[Any, Any]]] | None = None
    in_flight: int = 2
    isolate: bool = True
    max_sessions: int = 1024
    max_cells: int | None = None

    def checked(self) -> Self:
        """The same, with plain numbers.

        Raises:
            GraphError: if a number is out of its range.
            TypeError: if something is of another type.
        """
        for name in ("key", "pad"):
            fn = getattr(self, name)
            if fn is not None and not callable(fn):
                raise TypeError(f"{name} must be a function, got {shown(fn)}")
        if not isinstance(cast(object, self.buckets), Iterable):
            raise TypeError(f"buckets must be a list, got {shown(self.buckets)}")
        max_rows, buckets = whole("max_rows", self.max_rows, 1), [whole("buckets", rows) for rows in self.buckets]
        if buckets != sorted(set(buckets)) or (buckets and buckets[0] < 1):
            raise GraphError(f"buckets must be positive and ascending, got {buckets}")
        if buckets and buckets[-1] < max_rows:
            raise GraphError(f"the last bucket must take max_rows={max_rows} rows, got {buckets}")
        return self._replace(
            max_rows=max_rows,
            max_wait_s=seconds("max_wait", self.max_wait_s),
            buckets=tuple(buckets),
            queue_rows=whole("queue_rows", self.queue_rows, 1),
            in_flight=whole("in_flight", self.in_flight, 1),
            isolate=flag("isolate", self.isolate),
            max_sessions=whole("max_sessions", self.max_sessions, 1),
            max_cells=None if self.max_cells is None else whole("max_cells", self.max_cells, 1),
        )


class _State(Enum):
    """State of a batcher: NEW -> OPEN -> CLOSING -> CLOSED -> OPEN -> ...; any of them -> CLOSED."""

    NEW = "not entered yet"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class Group:
    """Requests that wait and may go into one frame, in the order in which they shall.

    Several callers (`Request.caller`) take turns: the one with the fewest rows taken so far, divided by its weight, is
    next. A caller that comes is not behind those that wait, nor before them.

    Args:
        key: Equal for those that may.
        is_full: Whether no other request can come to it.
        most: Most rows of a frame.
    """

    key: Hashable
    is_full: bool
    most: int
    requests: list[Request] = field(default_factory=list)
    rows: int = 0
    takes_turns: bool = False
    taken: dict[Hashable, float] = field(default_factory=dict)  # rows of each caller, by its weight

    def add(self, request: Request) -> None:
        waiting = self.requests
        if not waiting or waiting[-1].order <= request.order:
            waiting.append(request)
        else:
            insort(waiting, request, key=_ORDER)  # behind those of the same order
        self.takes_turns |= request.caller is not None
        self.rows += request.rows

    def remove(self, requests: Sequence[Request]) -> None:
        waiting, count = self.requests, len(requests)
        if waiting[:count] == requests:  # the first ones, as a frame takes them: at once
            del waiting[:count]
        else:
            for request in requests:
                waiting.remove(request)
        self.rows -= sum([request.rows for request in requests])

    def first(self) -> list[Request]:
        """The first requests, as many as have no more rows than a frame takes, one at least; they are to be removed."""
        if self.takes_turns:
            return self._in_turns()
        count, rows = 1, self.requests[0].rows
        for request in self.requests[1:]:
            if rows + request.rows > self.most:
                break
            rows += request.rows
            count += 1
        return self.requests[:count]

    def _in_turns(self) -> list[Request]:
        queues = dict[Hashable, deque[Request]]()
        for request in self.requests:
            queues.setdefault(request.caller, deque()).append(request)
        # A caller that is new, or has not waited for long, begins as the one that has had the least of those that wait.
        least = min([self.taken[caller] for caller in queues if caller in self.taken], default=0.0)
        self.taken = {caller: had for caller, had in self.taken.items() if had > least}
        for caller in queues:
            self.taken.setdefault(caller, least)
        turns = [(self.taken[caller], n, caller) for n, caller in enumerate(queues)]
        heapify(turns)
        found, rows = list[Request](), 0
        while turns:
            had, n, caller = turns[0]
            request = queues[caller][0]
            if found and rows + request.rows > self.most:
                break
            found.append(queues[caller].popleft())
            rows += request.rows
            self.taken[caller] = had = had + request.rows / request.weight
            if queues[caller]:
                heapreplace(turns, (had, n, caller))
            else:
                heappop(turns)
        return found

    @property
    def oldest_s(self) -> float:
        """When the request came that has waited longest."""
        return min([request.since_s for request in self.requests])


@dataclass(slots=True, eq=False)
class Batch:
    """Requests whose rows are computed together, in one frame or, where it fails, in several.

    Attributes:
        requests: The requests that have not ended.
        task: Computes them.
    """

    requests: set[Request] = field(default_factory=set)
    task: asyncio.Task[None] = field(init=False)


class Batcher:
    """Joins requests in frames and gives each caller its rows; returned by `Graph.batched`, which says when and how.

    It is an async context manager, and takes requests inside its block. It may be entered again after its end, on
    another loop too, as the lifespan of an application is by each of its tests.

    Args:
        rows: The part of the graph that is computed.
        options: As for `Graph.batched`.

    Raises:
        GraphError: if a number is out of its range.
        TypeError: if something is of another type.

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
        self._options = options = options.checked()
        self._isolates = options.isolate and rows.repeatable
        self._state = _State.NEW
        self._why = "was not entered yet"  # takes no requests for this reason, if there is one
        self._groups: dict[Hashable, Group] = {}
        self._batches: set[Batch] = set()
        self._waiting_rows = 0
        self._soon: asyncio.Handle | None = None  # of the next look
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = math.inf  # when the timer is
        self._emptied: asyncio.Future[None] | None = None
        self._slots = Slots(rows.name, options.max_sessions)
        self._loop: asyncio.AbstractEventLoop
        self._thread = 0
        self._context: contextvars.Context
        powers = [1 << n for n in range((options.max_rows - 1).bit_length())]
        self._counters = BatchCounters(Histogram([*powers, options.max_rows]))
        forget_in_child(self)

    def _known_by(self, inputs: Mapping[str, Blob], outputs: Mapping[str, Blob]) -> Self:
        """The batcher, which takes feeds by these names, too, and gives results by these; for `Model.batched`."""
        self._rows.known_by(inputs, outputs)
        return self

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
            len(self._slots.sessions),
            self._options.max_sessions,
            counters.steps,
            counters.first_step_s.statistics(),
            counters.between_steps_s.statistics(),
            tuple(self._slots.longest(self._loop.time()) if self._slots.sessions else ()),
            *((0, 0) if (blocks := self._rows.blocks) is None else (blocks.used, blocks.cache.blocks)),
        )

    # -- one request -----------------------------------------------------------------------------------------------

    @property
    def keeps_state(self) -> bool:
        """Whether rows are computed in sessions alone, as they go on from a state.

        Example:
            >>> graph = af.Graph("g")
            >>> y = graph.blob("x", ["row"]) * 2
            >>> graph.batched().keeps_state
            False
        """
        return bool(self._rows.kept) or self._rows.blocks is not None

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
            GraphError, TypeError: if ``priority`` or ``timeout`` is no such number.
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
        self._rows.check_caller()
        if self.keeps_state:
            names = ", ".join(map(repr, self._rows.states))
            raise GraphError(
                f"graph {self._rows.name!r} keeps {names} per session: async with batcher.session() as session: ..."
            )
        return await self._run(feeds, priority, timeout)

    def session(
        self,
        *,
        key: Hashable = None,
        weight: float = 1,
        state: Mapping[str, Any] | None = None,
        priority: float = 0,
        timeout: float | None = 0,
        ttl: float | None = None,
    ) -> Session:
        """A caller that comes again: its steps share frames with those of others, and go on from its own state.

        It is an async context manager, and has a slot inside its block. One that finds ``max_sessions`` open ones waits
        for a slot, those that came before it first.

        Args:
            key: Whose it is. While steps wait, those of different keys take turns, so that each key has its share of
                the rows that are computed, however many sessions it has.
            weight: How large that share is: a key with 3 has three times that of one with 1.
            state: Its first state, as `Session.state_dict` has given it; by default the ``init`` of each state.
            priority: That of its steps among those of its key, see `run`.
            timeout: Longest time in seconds that it waits for a slot, and each step for blocks of a cache; 0 for not at
                all, None for ever.
            ttl: Longest time in seconds that it may be without a step until it is closed; None for ever.
        Raises:
            FeedError, ShapeError, DTypeError: if ``state`` does not fit.
            GraphError, TypeError: if a number is none, or out of its range.

        Example:
            >>> graph = af.Graph("sums")
            >>> x = graph.blob("x", ["row"])
            >>> total = graph.state("total", ["row"])
            >>> y = total + x
            >>> total.assign(y)
            >>> async def client(batcher, value):
            ...     async with batcher.session() as session:
            ...         return [float((await session.run({x: [value]}))[y][0]) for _ in range(3)]
            >>> async def main():
            ...     async with graph, graph.batched() as batcher:
            ...         print(await asyncio.gather(client(batcher, 1), client(batcher, 10)))
            ...         print(batcher.statistics().frames, "frames")
            >>> import asyncio
            >>> asyncio.run(main())
            [[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]
            3 frames
        """
        return Session(self, self._rows, self._slots, key, weight, state, priority, timeout, ttl)

    async def iterate(
        self,
        feeds: Mapping[Any, Any],
        *,
        feedback: Mapping[Any, Any],
        until: Blob | str | None = None,
        limit: int | None = None,
        **options: Unpack[SessionOptions],
    ) -> AsyncIterator[Result]:
        """Compute steps in a session of their own, of which each is fed what the one before gave, until one says so.

        Its rows join those of others at each step. When the caller leaves the loop, it is over, and its slot is free.

        Args:
            feeds: Feeds of the first step, of one row; a source that ``feedback`` does not name keeps its value.
            feedback: Sources, each with the fetched blob that its next value is.
            until: A fetched blob; the step for which it is true, or all of its row is, is the last one.
            limit: Most steps; None for no limit.
            options: As for `session`.
        Returns:
            An async iterator of results, as `run` gives them.
        Raises:
            FeedError, GraphError, TypeError: if an argument is wrong; and what `session` and `Session.run` raise.

        Example:
            >>> graph = af.Graph("collatz")
            >>> n = graph.blob("n", ["row"], "int64")
            >>> following = af.ops.where(af.ops.equal(n % 2, 0), n // 2, 3 * n + 1)
            >>> done = af.ops.equal(following, 1)
            >>> async def main():
            ...     async with graph, graph.batched(fetch=[following, done]) as batcher:
            ...         steps = batcher.iterate({n: [6]}, feedback={n: following}, until=done, limit=100)
            ...         return [int(step[following][0]) async for step in steps]
            >>> af.run(main())
            [3, 10, 5, 16, 8, 4, 2, 1]
        """
        async with self.session(**options) as session:
            async for step in session.iterate(feeds, feedback=feedback, until=until, limit=limit):
                yield step

    async def _run(
        self, feeds: Mapping[Any, Any] | Request, priority: float, timeout: float | None, session: Session | None = None
    ) -> Result:
        since, requests, timer = perf_counter(), list[Request](), None
        try:
            timeout_s = None if timeout is None else time_limit("timeout", timeout)
            requests = self._enter(feeds, priority, session)
            if timeout_s is not None:
                futures = [request.future for request in requests]
                timer = self._loop.call_later(timeout_s, self.expire, requests, futures, timeout_s)
            parts = []
            for request in requests:
                part = await request.future
                parts.append(request.fail() if part is None else part)
            result = parts[0] if len(parts) == 1 else Result.joined(parts)
            if session is not None:
                session.commit(requests[0].states, requests[0].used, self._counters)
        except BaseException as error:
            if requests and requests[0].future.get_loop().is_closed():  # the task was dropped with its loop
                raise
            self.note_failure(error, since)
            for request in requests:
                request.error = None
            self.give_up(requests)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        self._count(since, requests[-1].started, result.frames)
        return result

    def note_failure(self, error: BaseException, since: float) -> None:
        """Count a request that has failed, and came at this time."""
        self._counters.count_failure(error)
        self._rows.trace.add_request(since, perf_counter(), (), type(error).__name__)

    def expire(self, requests: Sequence[Request], ends: Iterable[asyncio.Future[Any]], timeout_s: float) -> None:
        """End requests whose time is over, unless all has ended that their caller awaits, and has not seen yet."""
        if not any(map(waits, ends)):
            return  # those that go on by themselves are further
        error = RunTimeoutError(
            f"a batched run timed out after {timeout_s:g} s; graph {self._rows.name!r} has {self._waiting_rows} rows "
            f"that wait for batched runs, and {len(self._batches)} frames of them in flight"
        )
        self.give_up(requests, error)

    def check_open(self) -> None:
        """Check that requests are taken here and now.

        Raises:
            BatcherClosedError: if none are taken. GraphError: on another loop.
        """
        if self._why:
            raise BatcherClosedError(f"the batcher of graph {self._rows.name!r} {self._why}")
        if get_ident() != self._thread or self._loop.is_closed():  # asyncio.get_running_loop() makes a system call
            raise GraphError(f"the batcher of graph {self._rows.name!r} is in use on another event loop")

    def _enter(self, feeds: Mapping[Any, Any] | Request, priority: float, session: Session | None) -> list[Request]:
        """Let the rows of a request wait; in several parts, if they are too many for one frame."""
        rows, options = self._rows, self._options
        self.check_open()
        since_s, lead_s = self._loop.time(), 0.0
        if type(priority) is not int or priority:  # few say it
            lead_s = real("priority", priority, finite=False) * AGE_S
        request = feeds if isinstance(feeds, Request) else rows.read(feeds)
        if session is not None:
            session.enter(request)
            if request.ahead is not None:
                request.ahead.is_asked = True
        most = options.max_rows if options.max_cells is None else self._most(request)
        parts = [request] if request.rows <= most else rows.split(request, most)
        key: Hashable = request.lengths
        if options.pad is not None:
            # Parts that are padded like others could not be put together again: they get frames of their own.
            key = request if len(parts) > 1 else None
        if options.key is not None and key is not request:
            key = key, options.key(rows.feeds(request))
        group = self._groups.get(key) or Group(key, key is request, most)
        if self._waiting_rows + request.rows > options.queue_rows:
            raise QueueFullError(rows.name, request.rows, self._waiting_rows, options.queue_rows)
        requester, create_future = rows.requester(), self._loop.create_future
        for part in parts:
            part.lead_s, part.order, part.since_s = lead_s, since_s - lead_s, since_s
            part.future, part.requester = create_future(), requester
        self._move(parts, None, group)
        self._look_soon()
        return parts

    def _most(self, request: Request) -> int:
        options = self._options
        if options.max_cells is None or options.pad is not None:
            return options.max_rows
        return min(options.max_rows, max(1, options.max_cells // max(1, math.prod(request.lengths))))

    def go_on(self, requests: Iterable[Request]) -> None:
        """Compute the next steps of iterations, which nobody has asked for yet, as far as that may be."""
        options, now = self._options, perf_counter()
        if self._why or options.key is not None or options.pad is not None or not self._rows.repeatable:
            return
        since_s, groups = self._loop.time(), dict[tuple[int, ...], list[Request]]()
        for request in islice(requests, options.queue_rows - self._waiting_rows):
            ahead, held = request.ahead, request.held
            if (
                ahead is not None
                and ahead.left > 0
                and not ahead.is_full
                and request.error is None
                and ahead.session.goes_on(request)
                and (held is None or request.used + request.adds <= held.room)  # it takes no blocks from others
            ):
                request.since_s, request.order, request.asked = since_s, since_s - request.lead_s, now
                request.future, ahead.is_asked = self._unawaited, False
                groups.setdefault(request.lengths, []).append(request)
        for lengths, rows in groups.items():
            self._move(rows, None, self._groups.get(lengths) or Group(lengths, False, self._most(rows[0])))
        if groups:
            self._look_soon()

    def _move(self, requests: Sequence[Request], origin: Group | Batch | None, to: Group | Batch | None) -> None:
        """Bring requests that are all in one place to another one; None is that of those that come or have ended.

        Where requests are, and what follows from it, changes here alone: the rows that wait, the groups and the batches
        that there are, and whether a closing batcher has become empty.
        """
        if type(to) is Group:
            self._groups[to.key] = to
            before = to.rows
            for request in requests:
                to.add(request)
            self._waiting_rows += to.rows - before
        elif type(to) is Batch:
            self._batches.add(to)
            to.requests.update(requests)
        for request in requests:
            request.place = to
        if type(origin) is Batch:
            origin.requests.difference_update(requests)  # some may have left before
        elif type(origin) is Group:
            before = origin.rows
            origin.remove(requests)
            self._waiting_rows -= before - origin.rows
            if not origin.requests:
                del self._groups[origin.key]
                self._notice_end()

    def give_up(self, requests: Iterable[Request], error: BaseException | None = None) -> None:
        """End requests before they have a result. A frame is cancelled when nobody waits for it any more."""
        for request in requests:
            if error is not None:
                _fail(request, error)
            place = request.place
            if place is not None:
                self._move([request], place, None)
                if isinstance(place, Batch) and not place.requests:
                    end(place.task)

    # -- starts of frames ------------------------------------------------------------------------------------------

    def _look_soon(self) -> None:
        """Look which frames are due when all that happens in this turn of the loop has happened."""
        if self._soon is None:
            self._soon = self._loop.call_soon(self._look, 0.0, context=self._context)

    def _look(self, now_s: float) -> None:
        """Start the frames that are due, and have the timer look again when the next one may be."""
        self._soon = None
        groups, now_s = self._groups, max(now_s, self._loop.time())
        while groups and len(self._batches) < self._options.in_flight:
            due = [group for group in groups.values() if self._is_due(group, now_s)]
            if not due:
                break
            self._start(min(due, key=lambda group: group.requests[0].order))
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
            or group.rows >= group.most
            or group.is_full
            or self._state is _State.CLOSING  # nobody else will come
            or group.oldest_s + options.max_wait_s <= now_s
        )

    def _start(self, group: Group) -> None:
        batch, requests, now = Batch(), group.first(), perf_counter()
        for request in requests:
            request.started = now
        batch.task = self._loop.create_task(self._compute(batch, requests))
        batch.task.add_done_callback(partial(self._ended, batch), context=self._context)
        self._move(requests, group, batch)

    # -- frames ----------------------------------------------------------------------------------------------------

    async def _compute(self, batch: Batch, requests: Sequence[Request]) -> None:
        """Compute the rows of a batch; where that fails, those of each half, until it is known whose fault it is."""
        todo = [requests]
        while todo and batch.requests:
            permit = await self._rows.turn()
            try:
                # A caller that was cancelled has not said so yet, where its future has ended and its request has not.
                requests = [each for each in todo.pop() if each.place is batch and not each.future.done()]
                if requests:
                    self._deliver(batch, requests, *await self._frame(requests, permit))
            except (OpError, FeedError) as error:
                if self._isolates and len(requests) > 1:
                    half = len(requests) // 2
                    todo += requests[half:], requests[:half]
                else:
                    self._fail(batch, requests, error)
            except Exception as error:  # noqa: BLE001  the callers are told
                self._fail(batch, requests, error)
            finally:
                self._rows.give_back(permit)

    def _deliver(self, batch: Batch, requests: Sequence[Request], feeds: Mapping[Blob, Any], result: Result) -> None:
        rows, is_padded = self._rows, self._options.pad is not None
        wanted = [each.place is batch and not each.future.done() for each in requests]
        rows.keep(feeds, result, requests, wanted)
        parts = rows.parts(None if is_padded else feeds, result, requests, wanted)
        ends, unasked, going = dict[int, Sequence[bool]](), Counter[float](), list[Request]()
        start = size_bytes = 0
        for request, part in zip(requests, parts, strict=True):
            ahead = request.ahead
            if ahead is not None and part is not None:
                if not ahead.is_asked:
                    unasked[request.asked] += 1
                if ahead.until is not None and ahead.until not in ends:
                    ends[ahead.until] = rows.ends(ahead.until, result)
                size_bytes = size_bytes or rows.size_bytes(request, result)
                ahead.add(request, part, ahead.until is not None and ends[ahead.until][start], size_bytes)
                going.append(request)
            if part is not None and (ahead is None or ahead.is_asked):
                request.future.set_result(part)
            start += request.rows
        self._move([each for each in requests if each.place is batch], batch, None)
        if going:
            for since, count in unasked.items():
                self._count(since, requests[0].started, result.frames, count)
            self.go_on(going)

    def _count(self, since: float, started: float, frames: Sequence[int], count: int = 1) -> None:
        """Count requests that have got their result."""
        counters, now = self._counters, perf_counter()
        counters.finished += count
        counters.wait_s.add(started - since, count)
        counters.latency_s.add(now - since, count)
        self._rows.trace.add_request(since, now, frames, "finished", count)

    def _fail(self, batch: Batch, requests: Iterable[Request], error: BaseException) -> None:
        left = [request for request in requests if request.place is batch]
        for request in left:
            _fail(request, error)
        self._move(left, batch, None)

    async def _frame(self, requests: Sequence[Request], permit: Permit | None) -> tuple[dict[Blob, Any], Result]:
        parts = requests if self._options.pad is None else self._padded(self._options.pad, requests)
        rows = sum([part.rows for part in parts])
        length = next((bucket for bucket in self._options.buckets if bucket >= rows), rows)
        counters = self._counters
        counters.frames += 1
        counters.rows.add(rows)
        counters.padded_rows += length - rows
        requesters = dict.fromkeys([request.requester for request in requests if request.requester is not None])
        feeds = self._rows.joined(parts, length - rows)
        return feeds, await self._rows.run(feeds, [*requesters], permit)

    def _padded(self, pad: Callable[..., Any], requests: Sequence[Request]) -> list[Request]:
        try:
            padded = [self._rows.read(feeds) for feeds in pad([self._rows.feeds(request) for request in requests])]
            before, after = [request.rows for request in requests], [request.rows for request in padded]
            if before != after or len({request.lengths for request in padded}) > 1:
                lengths = [request.lengths for request in padded]
                raise ValueError(f"of {before} rows it made {after}, with {lengths} in the other open axes")
            for request, made in zip(requests, padded, strict=True):
                made.states, made.held, made.used = request.states, request.held, request.used
        except Exception as error:
            raise FeedError(f"pad of batched runs of graph {self._rows.name!r} failed: {text_of(error)}") from error
        return padded

    def _ended(self, batch: Batch, task: asyncio.Task[None]) -> None:
        failure = ended_with(task)
        if task.cancelled():
            failure = None
        if batch.requests:
            name = self._rows.name
            why = "its graph was closed" if failure is None else f"of a fault of actorflow: {text_of(failure)}"
            closed = BatcherClosedError(f"a batched run of graph {name!r} was given up, since {why}")
            closed.__cause__ = failure
            self._fail(batch, [*batch.requests], closed)
        if batch in self._batches:  # else it is of a loop that was closed
            self._batches.remove(batch)
            self._notice_end()
            self._look_soon()

    # -- the end ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._rows.are_kept and not self._loop.is_closed():
            raise GraphError(f"the batcher of graph {self._rows.name!r} is entered already: its block has not ended")
        self._forget()
        self._rows.enter(self)
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self._context, self._unawaited = contextvars.copy_context(), self._loop.create_future()
        self._state, self._why = _State.OPEN, ""
        return self

    def _forget(self) -> None:
        """Forget the requests and frames of a loop that was closed, or of the parent process."""
        self._rows.leave()
        self._slots.forget()
        for request in self._requests():
            request.place = None
        self._groups.clear()
        self._batches.clear()
        self._waiting_rows = 0
        self._soon = self._timer = self._emptied = None
        self._due_s = math.inf

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
        if self._rows.are_kept and self._loop.is_closed():  # nobody is left to be told
            self._forget()
            return
        error = BatcherClosedError(f"a batched run of graph {self._rows.name!r} was given up: its batcher {why}")
        self._slots.abort(f"its batcher {why}")
        self.give_up(self._requests(), error)
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        self._soon, self._timer, self._due_s = None, None, math.inf
        self._notice_end()

    def _requests(self) -> list[Request]:
        places: list[Group | Batch] = [*self._groups.values(), *self._batches]
        return [request for place in places for request in place.requests]

    def _notice_end(self) -> None:
        if self._emptied is not None and not self._groups and not self._batches and waits(self._emptied):
            self._emptied.set_result(None)

    def forget_parent(self) -> None:
        """Take no requests in the child of a fork until it enters it: those that wait are the parent's."""
        self._state, self._why = _State.CLOSED, "was made in the parent process of a fork"
        self._forget()


def _fail(request: Request, error: BaseException) -> None:
    if request.ahead is not None and not request.ahead.is_asked:
        request.ahead.error = error
        request.ahead.tell()
    elif waits(request.future):
        request.error = error
        request.future.set_result(None)
