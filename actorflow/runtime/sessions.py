"""Sessions: callers of batched runs that come again, each with its own state, of which there is a bounded number.

A session owns its state: one row per state of the graph. A step brings it as a feed, and takes the next one from the
result, in the turn of the loop in which the caller gets that. So a step that raises, for whatever reason, leaves the
session where the last step left it, and a frame holds nothing of a session.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from heapq import nsmallest
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import numpy.typing as npt

from actorflow.errors import (
    BatcherClosedError,
    FeedError,
    GraphError,
    SessionClosedError,
    SessionsFullError,
    ShapeError,
    did_you_mean,
    mapping,
    real,
    time_limit,
    whole,
)
from actorflow.interchange import as_array
from actorflow.loop import waits
from actorflow.runtime.blocks import Held
from actorflow.runtime.rows import Ahead, Request
from actorflow.trace.batches import BatchCounters, SessionStatistics

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob
    from actorflow.runtime.batched import Batcher
    from actorflow.runtime.program import Result
    from actorflow.runtime.rows import Rows


#: Sessions that statistics tell of.
_MOST_TOLD = 8


class Slots:
    """Places for sessions; those that find none wait, first come, first served.

    Args:
        name: Name of the graph.
        most: Number of places.

    Attributes:
        sessions: Sessions that have one.
    """

    def __init__(self, name: str, most: int) -> None:
        self.sessions: set[Session] = set()
        self._name = name
        self._most = most
        self._waiting: deque[tuple[Session, asyncio.Future[None]]] = deque()
        self.numbers = count()

    async def take(self, session: Session, timeout_s: float | None) -> None:
        """Give a session a place.

        Raises:
            SessionsFullError: if none is free in time. BatcherClosedError: if the batcher is closed meanwhile.
        Cancellation: gives the place to the next one, if there was one.
        """
        if len(self.sessions) < self._most:  # then nobody waits
            self.sessions.add(session)
            return
        if timeout_s == 0:
            raise self._full()
        entry = session, asyncio.get_running_loop().create_future()
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(timeout_s):
                await entry[1]
        except TimeoutError:
            self._leave(entry)
            raise self._full() from None
        except BaseException:
            self._leave(entry)
            raise

    def _full(self) -> SessionsFullError:
        return SessionsFullError(self._name, len(self.sessions), len(self._waiting))

    def _leave(self, entry: tuple[Session, asyncio.Future[None]]) -> None:
        if entry in self._waiting:
            self._waiting.remove(entry)
        self.free(entry[0])  # which may have been given a place in this very turn

    def free(self, session: Session) -> None:
        """Take the place of a session back, for the one that has waited longest; idempotent."""
        if session not in self.sessions:
            return
        self.sessions.remove(session)
        while self._waiting:
            following, future = self._waiting.popleft()
            if waits(future):
                self.sessions.add(following)
                future.set_result(None)
                return

    def longest(self, now_s: float) -> list[SessionStatistics]:
        """The sessions that have done longest what they do, those with a step under way first."""
        told = [session.statistics(now_s) for session in self.sessions]
        return nsmallest(_MOST_TOLD, told, key=lambda each: (each.doing == "idle", -each.for_s, each.number))

    def abort(self, why: str) -> None:
        """End all sessions, and send away those that wait."""
        for _, future in self._waiting:
            if waits(future):
                future.set_exception(BatcherClosedError(f"a session of graph {self._name!r} got no slot: {why}"))
        self.forget(why)

    def forget(self, why: str = "the event loop of its batcher was closed") -> None:
        """Begin anew, on another loop or in the child of a fork."""
        for session in self.sessions:
            session.end(f"was closed: {why}")
        self.sessions.clear()
        self._waiting.clear()


class Session:
    """A caller of batched runs that comes again; made by `Batcher.session`, which says when and how.

    It is an async context manager, and takes steps inside its block, which is entered once. At its end its slot is
    free at once, whatever frame computes a step of it.

    Attributes:
        is_open: Whether it takes steps.

    Example:
        >>> graph = af.Graph("sums")
        >>> x, total = graph.blob("x", ["row"]), graph.state("total", ["row"])
        >>> y = total + x
        >>> total.assign(y)
        >>> async def main():
        ...     async with graph, graph.batched() as batcher, batcher.session() as session:
        ...         for value in 1, 2:
        ...             result = await session.run({x: [value]})
        ...         return session, result[y]
        >>> af.run(main())
        (<Session of graph 'sums', was closed>, array([3.], dtype=float32))
    """

    def __init__(
        self,
        batcher: Batcher,
        rows: Rows,
        slots: Slots,
        key: Hashable,
        weight: float,
        state: Mapping[str, Any] | None,
        priority: float,
        timeout: float | None,
        ttl: float | None,
    ) -> None:
        self._batcher = batcher
        self._rows = rows
        self._slots = slots
        hash(key)
        self._caller, self._weight = key, real("weight", weight, above=0)
        real("priority", priority, finite=False)
        self._priority = priority
        self._slot_timeout_s = time_limit("timeout", timeout)
        self._ttl_s = time_limit("ttl", ttl, positive=True)
        self._why = "was not entered yet"  # takes no steps for this reason, if there is one
        self._is_new = True
        self._states: Sequence[npt.NDArray[Any]] = _restored(rows, state)
        self._held = None if rows.blocks is None else Held(rows.blocks, state)
        self._turn = asyncio.Lock()
        self._request: Request | None = None
        self._calls = 0  # of `run` that have not ended
        self._ahead: Request | None = None  # an iteration, whose steps are computed before it asks for them
        self._number, self._steps = -1, 0
        self._idle_since_s = 0.0  # since it was entered, or its last step has ended
        self._returned_s = 0.0  # likewise, has had its result
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Session of graph {self._rows.name!r}, {self._why or 'open'}>"

    @property
    def is_open(self) -> bool:
        return not self._why

    async def run(
        self, feeds: Mapping[Any, Any], *, priority: float | None = None, timeout: float | None = None
    ) -> Result:
        """Compute a step, in a frame with those of other sessions. Steps of one session are computed in order.

        Args:
            feeds: As for `Batcher.run`, of one row.
            priority: Likewise; that of the session by default.
            timeout: Longest time in seconds until the result is there, from when the step before has ended.
        Returns:
            As `Batcher.run` does.
        Raises:
            SessionClosedError: if the session takes no steps any more, or is closed before the result is there.
            ShapeError: for more rows than one; and what `Batcher.run` raises. The state stays that of the last step
                whose result was returned.
        Cancellation: returns at once, and the state stays likewise.
        """
        self._rows.check_caller()  # before it waits for a step that waits for it
        request: Any = feeds  # of an iteration, what was read already
        self._calls += 1
        try:
            await self._turn.acquire()
            try:
                self._check_open()
                if self._ahead is not None and self._ahead is not request:
                    self._rewind()
                if self._held is not None:
                    request = request if isinstance(request, Request) else self._rows.read(feeds)
                    if self._held.count + request.adds > self._held.room:
                        limits = [each for each in (timeout, self._slot_timeout_s) if each is not None]
                        await self._held.reserve(request.adds, min(limits, default=None))
                        self._check_open()  # it may have been closed when it had just got blocks
                own = self._priority if priority is None else priority
                return await self._batcher._run(request, own, timeout, self)
            finally:
                self._request = self._ahead
                self._turn.release()
        except BaseException:
            if not self._why:
                self._idle_since_s = self._loop.time()
            raise
        finally:
            self._calls -= 1

    def _check_open(self) -> None:
        if self._why:
            self._batcher.check_open()
            raise SessionClosedError(f"a session of graph {self._rows.name!r} {self._why}")

    async def iterate(
        self,
        feeds: Mapping[Any, Any],
        *,
        feedback: Mapping[Any, Any],
        until: Blob | str | None = None,
        limit: int | None = None,
        priority: float | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[Result]:
        """Compute steps, of which each is fed what the one before gave; see `Batcher.iterate`.

        A few steps are computed before the caller asks for them. One that reads slowly holds up nobody, and the state
        is that of the last step that was read.

        Raises:
            FeedError, GraphError, TypeError: if an argument is wrong; and what `run` raises.
        """
        mapping("feeds", feeds)
        mapping("feedback", feedback)
        most = math.inf if limit is None else whole("limit", limit, 1)
        ends = None if until is None else self._rows.result(until)
        request = self._rows.read(feeds)
        request.feedback = tuple([(self._rows.source(key), self._rows.result(of)) for key, of in feedback.items()])
        ahead = request.ahead = Ahead(self, ends, most)
        timeout_s = None if timeout is None else time_limit("timeout", timeout)
        try:
            while ahead.left or ahead.found:
                is_going = request.place is not None or ahead.error is not None
                if self._ahead is request and is_going and not ahead.found:
                    await self._computed(request, ahead, timeout_s)
                if ahead.found:
                    yield self._read(request, ahead)
                elif ahead.left:
                    if request.error is not None:
                        request.fail()
                    yield await self.run(cast(Any, request), priority=priority, timeout=timeout)
        finally:
            if self._ahead is request:
                self._rewind()
            request.error = ahead.last = None  # errors refer to this call by their traceback

    async def _computed(self, request: Request, ahead: Ahead, timeout_s: float | None) -> None:
        """Wait until the step under way is computed, or forgotten for another step of the session."""
        since, timer = perf_counter(), None
        waiter = ahead.waiter = self._loop.create_future()
        if timeout_s is not None:
            timer = self._loop.call_later(timeout_s, self._batcher.expire, [request], [waiter], timeout_s)
        self._calls += 1
        try:
            if ahead.error is None:
                await waiter
            if ahead.error is not None:
                raise ahead.error
        except BaseException as error:
            if not waiter.get_loop().is_closed():
                self._batcher.note_failure(error, since)
            raise
        finally:
            self._calls -= 1
            ahead.waiter = ahead.error = None
            if timer is not None:
                timer.cancel()
            if not self._why:
                self._idle_since_s = self._loop.time()

    def _read(self, request: Request, ahead: Ahead) -> Result:
        self._check_open()
        step = ahead.last = ahead.found.popleft()
        self.commit(step.states, step.used, self._batcher._counters)
        if request.place is None and ahead.error is None:
            self._batcher.go_on([request])
        return step.result

    def goes_on(self, request: Request) -> bool:
        """Return whether an iteration may go on unasked, as nothing else uses the session; for the batcher."""
        may = not self._why and self._ahead in (None, request) and self._request in (None, request)
        if may:
            self._ahead = self._request = request
        return may

    def _rewind(self) -> None:
        request, self._ahead = self._ahead, None
        if request is not None and request.ahead is not None:
            self._batcher.give_up([request])
            request.ahead.rewind(request)
            self._request = None

    def enter(self, request: Request) -> None:
        """Have a request bring the state; for the batcher."""
        if request.rows != 1:
            raise ShapeError(f"a step of a session of graph {self._rows.name!r} has 1 row, got {request.rows}")
        request.states, request.caller, request.weight = self._states, self._caller, self._weight
        request.held, self._request = self._held, request
        if self._held is not None:
            request.used = self._held.count

    def commit(self, states: Sequence[npt.NDArray[Any]], used: int, counters: BatchCounters) -> None:
        """Go on from a step whose result is returned in this turn of the loop; for the batcher."""
        self._states = states
        if self._held is not None:
            self._held.count = used
        now_s = self._loop.time()
        (counters.between_steps_s if self._steps else counters.first_step_s).add(now_s - self._returned_s)
        self._returned_s = self._idle_since_s = now_s
        self._steps += 1
        counters.steps += 1

    def statistics(self, now_s: float) -> SessionStatistics:
        """Statistics of the session at a time of the loop's clock; for the batcher."""
        place = None if self._request is None else self._request.place
        if place is None or self._request is None:
            return SessionStatistics(self._number, self._steps, "idle", now_s - self._idle_since_s)
        doing = "computes" if hasattr(place, "task") else "waits"
        return SessionStatistics(self._number, self._steps, doing, now_s - self._request.since_s)

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of what it keeps, by the names of the states, without the axis of the rows; for `Batcher.session`.

        It is that after the last step whose result was returned, whatever goes on meanwhile.

        Example:
            >>> graph = af.Graph("sums")
            >>> total = graph.state("total", ["row"])
            >>> total.assign(total + graph.blob("x", ["row"]))
            >>> async def main():
            ...     async with graph, graph.batched() as batcher:
            ...         async with batcher.session() as session:
            ...             await session.run({"x": [3]})
            ...         async with batcher.session(state=session.state_dict()) as other:
            ...             await other.run({"x": [4]})
            ...         return other.state_dict()
            >>> af.run(main())
            {'total': array(7., dtype=float32)}
        """
        pairs = zip(self._rows.kept, self._states, strict=True)
        found = {each.source.name: np.squeeze(value, each.axis).copy() for each, value in pairs}
        return found if self._held is None else found | {pool.name: x for pool, x in self._held.state().items()}

    async def __aenter__(self) -> Self:
        if not self._is_new:
            raise GraphError(f"a session of graph {self._rows.name!r} was entered already: make another one")
        self._batcher.check_open()
        self._is_new = False
        self._why = "waits for a slot"
        self._number, self._loop = next(self._slots.numbers), asyncio.get_running_loop()
        self._returned_s = self._loop.time()
        try:
            await self._slots.take(self, self._slot_timeout_s)
        except BaseException:
            self._why = "got no slot"
            raise
        self._why = ""
        self._idle_since_s = self._loop.time()
        if self._ttl_s is not None:
            self._expire_at(self._idle_since_s + self._ttl_s)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _expire_at(self, due_s: float) -> None:
        self._timer = self._loop.call_at(due_s, self._expire, due_s)

    def _expire(self, due_s: float) -> None:
        """Close it if it has been idle for so long; else look again when it may have been."""
        assert self._ttl_s is not None
        now_s = max(due_s, self._loop.time())  # a timer may ring a little too early
        due_s = (now_s if self._calls else self._idle_since_s) + self._ttl_s
        if due_s > now_s:
            self._expire_at(due_s)
        else:
            self._close(f"was closed after {self._ttl_s:g} s without a step")

    def close(self) -> None:
        """Take no more steps, and free the slot; idempotent. A step that is under way gets `SessionClosedError`."""
        self._close("was closed")

    def _close(self, why: str) -> None:
        if self._why:
            return
        self.end(why)
        if self._request is not None:
            error = SessionClosedError(f"a session of graph {self._rows.name!r} {why} before the end of its step")
            self._batcher.give_up([self._request], error)
        self._slots.free(self)

    def end(self, why: str) -> None:
        """Take no more steps; for the one who frees the slot, and gives up the step that is under way."""
        self._why = why
        if self._held is not None:
            self._held.release(why)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _restored(rows: Rows, given: Mapping[str, Any] | None) -> list[npt.NDArray[Any]]:
    if given is None:
        return [each.first for each in rows.kept]
    mapping("state", given)
    found, names = [], rows.states
    for name in given:
        if name not in names:
            raise FeedError(f"graph {rows.name!r} has no state {name!r}{did_you_mean(str(name), names)}")
    for name in names:
        if name not in given:
            raise FeedError(f"graph {rows.name!r}: no value for state {name!r} {names[name]}")
    for each in rows.kept:
        name = each.source.name
        row = as_array(given[name], each.row, f"state {name!r} of a session")
        found.append(np.array(np.expand_dims(row, each.axis)))
    return found
