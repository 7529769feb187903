"""Pausing: while a graph is paused, or a plan is made, runs and streams wait here, in order, until they may start.

A run has its feed already, and starts its frame when its turn comes. A stream asks for a feed only then, which may take
any time: it keeps a permit meanwhile, and the others in the queue go on.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Self

from actorflow.errors import GraphError
from actorflow.loop import end, ended_with, waits


class Pause(NamedTuple):
    """State of a paused graph.

    Attributes:
        reason: As given to `Graph.pause`.
        since_s: When it was paused, in Unix seconds.
        steps: Number of frames that may still start.
        waiting: Number of runs and streams that wait to start a frame.

    Example:
        >>> import asyncio
        >>> graph = af.Graph("g")
        >>> async def main():
        ...     async with graph:
        ...         graph.pause("maintenance")
        ...         graph.step(2)
        ...         return graph.paused
        >>> pause = asyncio.run(main())
        >>> pause.reason, pause.steps, pause.waiting
        ('maintenance', 2, 0)
    """

    reason: str
    since_s: float
    steps: int
    waiting: int

    def __str__(self) -> str:
        return f"paused ({self.reason})" if self.reason else "paused"


class Permit:
    """Permission to start one frame of a paused graph."""

    __slots__ = ()


class StartQueue:
    """Decides when frames of one graph may start.

    A graph that is not paused pays one look at ``closed`` per frame. Otherwise runs and streams queue, and keep their
    order when the graph is resumed: later ones go behind them.

    Args:
        name: Name of the graph.
    """

    def __init__(self, name: str) -> None:
        self.closed = False  # whether a frame that is to start must queue
        self.paused_ranks: set[int] = set()  # other ranks that have paused the graph: frames here may wait for theirs
        self._name = name
        self._reason: str | None = None
        self._since_s = 0.0
        self._steps = 0
        self._kept: set[Permit] = set()
        self._tickets: deque[Ticket] = deque()
        self._dismissals = 0
        self._tell: Callable[[bool], None] | None = None

    @property
    def pause(self) -> Pause | None:
        """The pause of the graph, if it is paused."""
        if self._reason is None:
            return None
        return Pause(self._reason, self._since_s, self._steps + len(self._kept), len(self._tickets))

    @property
    def is_held(self) -> bool:
        """True if frames may be waiting until the graph is resumed, on this rank or another."""
        return self._reason is not None or bool(self.paused_ranks)

    def has_waiting(self) -> bool:
        """Return whether runs or streams wait to start a frame."""
        return bool(self._tickets)

    def close(self, reason: str) -> None:
        """Start no further frame; also none that `step` has allowed."""
        self._steps, self.closed = 0, True
        self._kept.clear()
        self._set(reason)

    def step(self, frames: int) -> None:
        """Let ``frames`` more frames start.

        Raises:
            GraphError: if the graph is not paused.
        """
        if self._reason is None:
            raise GraphError(f"graph {self._name!r} cannot be stepped: it is not paused")
        self._steps += frames
        self.wake()

    def open(self) -> None:
        """Let all frames start again, waiting ones first."""
        self._kept.clear()
        self._set(None)
        self.wake()

    def _set(self, reason: str | None) -> None:
        before, self._reason = self._reason, reason
        if (before is None) != (reason is None):  # not for another reason of the same pause
            self._since_s = time.time()
            if self._tell is not None:
                self._tell(reason is not None)

    def spend(self, permit: Permit | None = None) -> None:
        """Count a frame that has started, by a permit or as the next step."""
        if permit is not None:
            self._kept.discard(permit)
        elif self._reason is not None:
            self._steps -= 1

    @property
    def admits(self) -> bool:
        """True if the first in the queue may start a frame."""
        return self._reason is None or self._steps > 0

    def wake(self) -> None:
        """Let the first in the queue look whether it may start a frame by now."""
        self.closed = self._reason is not None or bool(self._tickets)
        if self._tickets and self.admits:
            self._tickets[0].wake()

    def enter(self) -> Ticket:
        """Take a place in the queue at once; it is given up as a context manager."""
        ticket = Ticket(self, self._tickets, self._dismissals)
        self._tickets.append(ticket)
        self.closed = True
        return ticket

    async def keep(self) -> Permit | None:
        """Wait until a frame may start; returns a permit, to be spent or given back, if the graph is paused."""
        with self.enter() as ticket:
            await ticket.come()
            if self._reason is None:
                return None
            self._steps -= 1
            permit = Permit()
            self._kept.add(permit)
            return permit

    def holds(self, permit: Permit | None) -> bool:
        """Return whether a permit still counts: the graph is paused, as it was when that was kept."""
        return permit in self._kept

    def give_back(self, permit: Permit | None) -> None:
        """Let the next in the queue have a permit by which no frame has started, if it still counts."""
        if permit in self._kept:
            self._kept.discard(permit)
            self._steps += 1
            self.wake()

    def dismiss(self) -> None:
        """Cancel all that wait; later ones need not."""
        self._dismissals += 1
        self.open()

    def check(self, number: int) -> None:
        """Raise CancelledError if there were more dismissals than ``number``."""
        if number != self._dismissals:
            raise asyncio.CancelledError

    def forget(self) -> None:
        """Forget the frames that wait: their loop was closed."""
        self._tickets.clear()
        self._steps += len(self._kept)
        self._kept.clear()
        self.wake()

    # -- other ranks ---------------------------------------------------------------------------------------------------

    def tell_with(self, tell: Callable[[bool], None]) -> None:
        """Call ``tell`` from now on, and now if it is so, with whether the graph is paused here."""
        self._tell = tell
        if self._reason is not None:
            tell(True)

    def heard(self, rank: int, paused: bool) -> None:
        """Another rank has paused the graph, or has resumed it."""
        (self.paused_ranks.add if paused else self.paused_ranks.discard)(rank)


class Ticket:
    """A place in the queue."""

    __slots__ = ("_dismissals", "_queue", "_tickets", "_woken")

    def __init__(self, queue: StartQueue, tickets: deque[Ticket], dismissals: int) -> None:
        self._queue = queue
        self._tickets = tickets
        self._woken: asyncio.Future[None] | None = None
        self._dismissals = dismissals

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Give up the place, if that was not done before."""
        if self in self._tickets:  # unless it was forgotten
            self._tickets.remove(self)
        self._queue.wake()

    async def come(self) -> None:
        """Wait until this is the first in the queue and may start a frame, which the caller does at once."""
        self._queue.check(self._dismissals)
        # The graph may have been paused again between `wake` and the moment when the loop comes here.
        while not (self._tickets[0] is self and self._queue.admits):
            self._woken = asyncio.get_running_loop().create_future()
            await self._woken
            self._queue.check(self._dismissals)

    async def during(self, work: Coroutine[Any, Any, None]) -> None:
        """Await work that comes before the frame starts; a dismissal does not wait for it."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(ended_with)
        task.add_done_callback(lambda _: self.wake())
        try:
            while not task.done():
                self._woken = asyncio.get_running_loop().create_future()
                await self._woken
                self._queue.check(self._dismissals)
            task.result()
        finally:
            end(task)

    def wake(self) -> None:
        """Look again."""
        if waits(self._woken):
            self._woken.set_result(None)
