"""The common part of all stages of a running pipeline: an inbox with room, an end, and how they are fired.

Sequence of one item, for ``source.map(f)`` with f too long for the loop::

    Dispatcher      source           inbox of f      f: CallActor      thread        outlet        application
      |--- fire ----->|                  |                |              |             |               | awaits
      |               |--- (item, at) -->|                |              |             |               |
      |               |--- wake ------------------------->|              |             |               |
      |--- fire ----------------------------------------->|-- submit --->|             |               |
      |               |<-- wake: there is room -----------|              |             |               |
      |               |                  |                |<-- one wake-up of the loop |               |
      |--- fire ----------------------------------------->|--- (result, at) ---------->|--- wake ----->|

An item travels with a position: where its stream is to be taken up again to get what comes after the item. Positions
are cheap and opaque; only the stage that made one knows what it means, and makes plain data of it when asked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from actorflow.actors.dispatcher import leave_loop
from actorflow.core import clock_ns
from actorflow.errors import UNMADE, StageError
from actorflow.pipeline.calls.boundary import caught

if TYPE_CHECKING:
    from actorflow.pipeline.run import Run
    from actorflow.pipeline.stats import StageStats

#: How long a stage goes on within one turn, in nanoseconds; as long as the dispatcher's slice.
SLICE_NS = 1_000_000


#: An item that takes less to make, in nanoseconds, has hardly any bytes of its own.
_NO_TIME_NS = 10_000
#: How many of these may wait for a stage, so that firing it pays.
BURST = 16


class _Mark(Enum):
    """Within a branch, what follows each item, so that the place where branches join knows that it has passed."""

    MARK = "mark"


MARK = _Mark.MARK


class Wait(Enum):
    """Things that a stage waits for: nothing, an item, room for one, or calls that run."""

    NOTHING = 0
    GET = 1
    PUT = 2
    CALLS = 3


@dataclass(frozen=True)
class End:
    """End of a stream, which comes behind its last item, and why it is early, if it is."""

    error: BaseException | None = None


class Owner(Protocol):
    """A taker of items out of an inbox."""

    def wake(self) -> None:
        """An item, or the end, has come."""


class Inbox:
    """Items that wait for a stage."""

    __slots__ = ("capacity", "end", "items", "least", "owner", "source")

    source: StageActor  # the stage in front, which is woken when there is room

    def __init__(self, owner: Owner, capacity: int) -> None:
        self.items: deque[tuple[Any, Any]] = deque()  # items with their positions
        self.capacity = capacity  # most items: the credit of the stage in front
        self.least: int | None = capacity  # the capacity where items take long to make; None if it never changes
        self.end: End | None = None  # the end of the stream, once it has come
        self.owner = owner  # the stage

    def connect(self, source: StageActor) -> None:
        """Name the stage in front; there is room for what it may give at once."""
        self.source = source
        source.out = self
        if self.least is not None:
            self.least = self.capacity = max(self.capacity, source.burst_size)

    def fit(self, cost_ns: int) -> None:
        """Have room for many items if one takes next to no time to make: such ones are small, and come in bursts."""
        if self.least is not None:
            before, self.capacity = self.capacity, max(self.least, BURST) if cost_ns < _NO_TIME_NS else self.least
            if self.capacity > before:
                self.source.wake()  # which may have stopped for want of room


class StageActor(ABC):
    """One stage of a running pipeline.

    Attributes:
        burst_size: Most items that it gives at once.
    """

    burst_size = 1
    start: Any  # the position before its first item in this run
    out: Inbox  # the inbox that its items go to

    def __init__(self, run: Run, stats: StageStats, inputs: int = 1, capacity: int = 2) -> None:
        self.run = run  # the run that it is a part of
        self.stats = stats  # counts of the stage, over all runs
        self.inboxes = tuple(Inbox(self, capacity) for _ in range(inputs))  # one for each stream that it reads
        self.is_over = False  # true once it has ended or was stopped; it does nothing more
        self._is_ready = False
        stats.actor = self
        run.actors.append(self)

    def reads(self, *sources: StageActor) -> None:
        """Name the stages in front."""
        for inbox, source in zip(self.inboxes, sources, strict=True):
            inbox.connect(source)

    # -- being fired --------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something has changed: an item came, there is room, a call has ended."""
        if not self._is_ready and not self.is_over:
            self._is_ready = True
            self.run.post(self)

    def fire(self, run: Run) -> int:
        """Do what can be done. What goes wrong ends the run.

        Returns:
            The time, `clock_ns`, at the end.
        """
        self._is_ready = False
        now = clock_ns()
        if self.is_over:
            return now
        stats = self.stats
        stats.resume(now)
        try:
            wait = self.step(now)
        except BaseException as error:  # noqa: BLE001  it would be lost otherwise
            self.crash(error)
            wait = Wait.NOTHING
        now = clock_ns()
        stats.pause(wait, now)
        return now

    @abstractmethod
    def step(self, now: int) -> Wait:
        """Take items and give items for at most `SLICE_NS`; says what is waited for then.

        A stage that stops because its time slice is over must wake itself.
        """

    # -- ending -------------------------------------------------------------------------------------------------

    def finish(self, error: BaseException | None = None) -> None:
        """Nothing more comes out of this stage; what is in front of it stops. The first end counts."""
        if not self.is_over:
            self.out.end = End(error)
            self.stop()
            self.out.owner.wake()

    def caught(self, error: BaseException, number: int | None = None, item: Any = UNMADE) -> StageError:
        """As `boundary.caught`."""
        return caught(self.stats, error, number, item)

    def crash(self, error: BaseException) -> None:
        """End the run with an error other than that of a failed call; if the stage is over already, report it."""
        if self.is_over:
            self.report(error)
        else:
            self.finish(error if isinstance(error, StageError) else self.caught(error))

    def report(self, error: BaseException) -> None:
        """Tell the loop of an error that nothing waits for."""
        message = f"stage {self.stats.name!r} has ended, and something went wrong behind that"
        self.run.loop.call_exception_handler({"message": message, "exception": error})
        if not self.run.loop.is_closed():
            leave_loop(error)

    def stop(self) -> None:
        """Do nothing more, nor let the stages in front. Idempotent."""
        if self.is_over:
            return
        self.is_over = True
        try:
            self.stats.left(self)
            self.halt()
        except BaseException as error:  # noqa: BLE001  the others are to stop all the same
            self.report(error)
        for inbox in self.inboxes:
            inbox.items.clear()
            inbox.end = None  # an error's traceback refers to stages, as they refer to each other
            inbox.source.stop()

    def halt(self) -> None:  # noqa: B027  most stages have nothing under way
        """Cancel what is under way."""

    # -- positions and counts -----------------------------------------------------------------------------------

    def freeze(self, position: Any) -> Any:
        """A position that this stage has given, as plain data: what JSON can hold, if the source's is."""
        return self.upstream.freeze(position)

    @property
    def upstream(self) -> StageActor:
        """The stage in front, where there is one."""
        return self.inboxes[0].source

    @property
    def held(self) -> int:
        """Items that the stage holds."""
        return self.queued

    @property
    def queued(self) -> int:
        """Items that wait for the stage."""
        return sum(len(inbox.items) for inbox in self.inboxes)

    @property
    def room(self) -> int:
        """Most items that may wait for the stage."""
        return sum(inbox.capacity for inbox in self.inboxes)
