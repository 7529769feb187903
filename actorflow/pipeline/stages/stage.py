"""Stages: a tree of plain data, and the common part of the actors that each iteration builds of it.

Sequence of one item, for ``source.map(f)`` with f too long for the loop::

    Dispatcher      source           inbox of f      f: CallActor      thread        outlet        application
      |--- fire ----->|                  |                |              |             |               | awaits
      |               |--- (item, at) -->|                |              |             |               |
      |               |--- wake ------------------------->|              |             |               |
      |--- fire ----------------------------------------->|-- submit --->|             |               |
      |               |<-- wake: there is room -----------|              |             |               |
      |               |                  |                |<-- one wake-up of the loop |               |
      |--- fire ----------------------------------------->|--- (result, at) ---------->|--- wake ----->|

An item travels with a position: where its stream is to be taken up again to get the items after it. Positions
are cheap and opaque; only the stage that made one knows its meaning, and makes plain data of it when asked.

The user's code may raise anything wherever it is called, even to end loops and tasks. So it is caught there, as
BaseException, and becomes the stage's `StageError`; KeyboardInterrupt and SystemExit leave the loop besides, as they do
where a task raises them. Other errors in a stage end the run as well: otherwise they would be lost.
"""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, ParamSpec, Protocol, TypeVar, dataclass_transform

from actorflow.actors.dispatcher import leave_loop
from actorflow.core import clock_ns
from actorflow.errors import UNMADE, PipelineError, StageError, whole
from actorflow.graph.nodes import PACKAGE, Site

if TYPE_CHECKING:
    from actorflow.pipeline.loader import LoaderResources
    from actorflow.pipeline.run import Run
    from actorflow.pipeline.stats import StageStats


@dataclass_transform(frozen_default=True, eq_default=False, kw_only_default=True)
@dataclass(frozen=True, eq=False, kw_only=True)
class Stage:
    """One stage of a pipeline; a subclass is made a dataclass like this one."""

    kind: ClassVar[str]  # name of the method that adds it
    keeps_marks: ClassVar[bool] = False  # True if it may stand in a branch
    actor_type: ClassVar[type[Any]]  # class of its actors, unless it overrides `build`

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False, kw_only=True)(cls)

    name: str  # for messages and statistics
    site: Site  # the line of user code that added it
    upstream: tuple[Stage, ...] = ()  # stages that its items come from

    @property
    def concurrency(self) -> int:
        """Calls that may run at once."""
        return 1

    @property
    def executor(self) -> str:
        """The executor of its calls; empty if it calls nothing of the user."""
        return ""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds that its items follow from."""
        return ()

    @property
    def shape(self) -> str:
        """Text that a saved position must agree with, besides that of the stages in front."""
        return self.kind

    def build(self, build: Build, state: Any) -> StageActor:
        """An actor for this stage, and for those in front of it."""
        actor: StageActor = self.actor_type(self, build, state)
        return actor

    def on(self, *upstream: Stage) -> Stage:
        """The same stage behind other ones."""
        return replace(self, upstream=upstream)

    def within(self, again: Callable[[Stage], Stage]) -> Stage:
        """The same stage where the others that it refers to are made again."""
        return self


@dataclass(frozen=True)
class Build:
    """Settings that actors are built with."""

    run: Run
    resources: LoaderResources
    epoch: int  # number of the epoch; seeds of shuffles depend on it
    ports: Mapping[Stage, StageActor] = field(default_factory=dict)  # beginnings of branches

    def stats(self, stage: Stage) -> StageStats:
        return self.resources.stats[stage]

    def front(self, stage: Stage, state: Any) -> StageActor:
        """The actors of the stage in front of one that has one."""
        (upstream,) = stage.upstream
        return upstream.build(self, state)


def calling_site() -> Site:
    """The innermost line outside this package."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def walk(stage: Stage) -> list[Stage]:
    """A stage and all in front of it, in the order of the data."""
    found: dict[Stage, None] = {}
    for upstream in stage.upstream:
        found |= dict.fromkeys(walk(upstream))
    return [*found, stage]


def seeds_of(stage: Stage) -> list[int]:
    """The place of a stage in its pipeline, and the seeds of those in front of it."""
    front = walk(stage)
    return [len(front), *[seed for part in front for seed in part.seeds]]


def signature(stage: Stage) -> str:
    """Text that a saved position must agree with."""
    return " -> ".join(part.shape for part in walk(stage))


#: `whole` for arguments of stages.
whole_number = partial(whole, error=PipelineError)


_Actor = TypeVar("_Actor", bound="StageActor")
_Arguments = ParamSpec("_Arguments")


class Named(Protocol):
    """A stage as errors name it."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def site(self) -> Site: ...


def stage_error(stage: Named, error: BaseException, number: int | None = None, item: Any = UNMADE) -> StageError:
    """The error of a stage for an exception in it."""
    return StageError.of(stage.name, stage.kind, stage.site, number, item, error)


def caught(stage: Named, error: BaseException, number: int | None = None, item: Any = UNMADE) -> StageError:
    """The stage's error for an exception of the user's code; one that ends programs leaves the loop."""
    leave_loop(error)
    return stage_error(stage, error, number, item)


def ends_task(error: BaseException, task: asyncio.Task[Any]) -> bool:
    """Return whether an error in a task means the task itself, rather than a call that it awaits.

    It does if the task has been cancelled, or its coroutine is being closed: then the task does not run.
    """
    if isinstance(error, asyncio.CancelledError):
        return task.cancelling() > 0
    if isinstance(error, GeneratorExit):
        try:
            return asyncio.current_task() is not task
        except RuntimeError:  # no loop runs
            return True
    return False


def guarded(
    method: Callable[Concatenate[_Actor, _Arguments], None],
) -> Callable[Concatenate[_Actor, _Arguments], None]:
    """A method that the loop, a thread or a process calls, not `step`: an error in it ends the run."""

    @wraps(method)
    def call(actor: _Actor, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        try:
            method(actor, *args, **kwargs)
        except BaseException as error:  # noqa: BLE001  see above
            actor.crash(error)

    return call


#: How long a stage goes on within one turn, in nanoseconds; as long as the dispatcher's slice.
SLICE_NS = 1_000_000


_NO_TIME_NS = 10_000  # an item that takes less to make, in nanoseconds, has hardly any bytes of its own
#: How many of these may wait for a stage, so that firing it pays.
BURST = 16


#: Follows each item within a branch, so that the place where branches join knows that it has passed.
MARK: Final = object()


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


class Inbox:
    """Items that wait for a stage."""

    __slots__ = ("capacity", "end", "items", "least", "owner", "source")

    source: StageActor  # the stage in front, which is woken when there is room

    def __init__(self, owner: StageActor | Run, capacity: int) -> None:
        self.items: deque[tuple[Any, Any]] = deque()  # items with their positions
        self.capacity = capacity  # most items: the credit of the stage in front
        self.least: int | None = capacity  # the capacity where items take long to make; None if it never changes
        self.end: End | None = None  # the end of the stream, once it has come
        self.owner = owner  # the stage, or the application, which is woken when an item or the end has come

    def connect(self, source: StageActor) -> None:
        """Name the stage in front; there is room for the items it may give at once."""
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

    def wake(self) -> None:
        """Something has changed: an item came, there is room, a call has ended."""
        if not self._is_ready and not self.is_over:
            self._is_ready = True
            self.run.post(self)

    def fire(self, run: Run) -> int:
        """Do all that can be done; an error ends the run; returns the time at the end."""
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
        """Take items and give items for at most `SLICE_NS`; says which wait follows.

        A stage that stops because its time slice is over must wake itself.
        """

    def finish(self, error: BaseException | None = None) -> Wait:
        """Nothing more comes out of this stage; the stages in front stop. The first end counts."""
        if not self.is_over:
            self.out.end = End(error)
            self.stop()
            self.out.owner.wake()
        return Wait.NOTHING

    def caught(self, error: BaseException, number: int | None = None, item: Any = UNMADE) -> StageError:
        """The error of a failed call of this stage; see `caught`."""
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
        """Cancel calls under way."""

    def freeze(self, position: Any) -> Any:
        """A position that this stage has given, as plain data: JSON can hold it, if it can the source's."""
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


class FollowingActor(StageActor):
    """A stage with another one in front of it."""

    def __init__(self, stage: Stage, build: Build, front: Any, capacity: int = 2) -> None:
        source = build.front(stage, front)
        super().__init__(build.run, build.stats(stage), capacity=capacity)
        self.reads(source)
        self.start = source.start
        self._stage: Any = stage
