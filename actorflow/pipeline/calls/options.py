"""Options of calls of the user's function: where, how many at a time, and the treatment of failures."""

from __future__ import annotations

import inspect
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any, Literal, NamedTuple, TypedDict, get_args

from actorflow.errors import PipelineError, flag, real, shown, text, text_of, whole
from actorflow.graph.options import Attempts, attempts_of
from actorflow.pipeline.processes.workers import check_picklable
from actorflow.pipeline.stages.stage import StageActor, whole_number
from actorflow.threads import forget_in_child

_log = logging.getLogger("actorflow")
_FEW = 100  # items after which a share of failures means something
_KEPT = 1000  # skips of which a record is kept
#: Where calls run: "auto" is the loop for calls that turn out to take less than 100 us, else threads.
Executor = Literal["auto", "loop", "thread", "process"]


class Limiter:
    """Bounds the calls that stages make at once, of one loader or of several on one loop.

    Args:
        limit: Calls at once, at least 1.
        name: For messages.

    Attributes:
        running: Calls that run now.

    Raises:
        PipelineError: if the limit is less than 1.

    Example:
        >>> disk = af.pipeline.Limiter(4, "disk")
        >>> images = af.pipeline.source("ab").map(str.upper, concurrency=8, limiter=disk)
        >>> labels = af.pipeline.source("01").map(int, concurrency=8, limiter=disk)
        >>> list(images.zip(labels).iter_sync())  # with at most 4 of these calls at once
        [('A', 0), ('B', 1)]
    """

    def __init__(self, limit: int, name: str = "limiter") -> None:
        self.limit = whole_number("limit", limit, 1)
        self.name = text("name", name)
        self.running = 0
        self._waiting: deque[StageActor] = deque()
        forget_in_child(self)

    def enter(self, stage: StageActor) -> bool:
        """Let a stage begin a call, or return False and wake it when it may try again."""
        if self.running < self.limit:
            self.running += 1
            return True
        if stage not in self._waiting:
            self._waiting.append(stage)
        return False

    def leave(self) -> None:
        """A call has ended."""
        self.running -= 1
        if self._waiting:
            self._waiting.popleft().wake()

    def forget(self, stage: StageActor) -> None:
        """A stage has stopped; those that wait behind it get its turn."""
        if stage in self._waiting:
            self._waiting.remove(stage)
            if self._waiting and self.running < self.limit:
                self._waiting.popleft().wake()

    def forget_parent(self) -> None:
        """This is the child of a fork: the calls run in the parent."""
        self.running = 0
        self._waiting.clear()

    def __repr__(self) -> str:
        return f"<Limiter {self.name!r} {self.running}/{self.limit}>"


class CallOptions(TypedDict, total=False):
    """Settings of the calls of a stage; see `Pipeline.map`."""

    concurrency: int
    ordered: bool
    executor: Executor
    timeout: float | None
    retries: int
    backoff: float
    on_error: str | float
    limiter: Limiter | None
    buffer: int | None


@dataclass(frozen=True, kw_only=True)
class Options:
    """A function and the settings of its calls, as the user gave them; see `Pipeline.map`."""

    fn: Callable[..., Any]
    concurrency: int = 1
    ordered: bool = True
    executor: Executor = "auto"
    timeout: float | None = None
    retries: int = 0
    backoff: float = 0.0
    on_error: str | float = "raise"
    limiter: Limiter | None = None
    buffer: int | None = None
    expands: bool = False  # whether a call may give any number of outputs

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise PipelineError(f"expected a function, got {shown(self.fn)}")
        object.__setattr__(self, "concurrency", whole_number("concurrency", self.concurrency, 1))
        if self.buffer is not None:
            object.__setattr__(self, "buffer", whole_number("buffer", self.buffer, 0))
        object.__setattr__(self, "ordered", flag("ordered", self.ordered))
        if text("executor", self.executor) not in get_args(Executor):
            raise PipelineError(f"executor must be one of {', '.join(get_args(Executor))}, got {self.executor!r}")
        try:
            _ = self.attempts, self.policy
        except ValueError as error:
            raise PipelineError(str(error)) from None
        if self.limiter is not None and not isinstance(self.limiter, Limiter):
            raise PipelineError(f"limiter must be an af.pipeline.Limiter, got {shown(self.limiter)}")
        if self.is_async and self.executor != "auto":
            raise PipelineError(f"an async function runs on the loop as a task, not with executor={self.executor!r}")
        if self.executor == "loop" and (self.timeout is not None or self.concurrency > 1):
            raise PipelineError("calls on the loop run one at a time and cannot be timed out: use executor='thread'")
        if self.executor == "process":
            check_picklable(self.fn)

    @cached_property
    def is_async(self) -> bool:
        """True for coroutine functions and async generator functions."""
        return gives_coroutine(self.fn) or _is_any(inspect.isasyncgenfunction, self.fn)

    @cached_property
    def place(self) -> str:
        """The executor of calls; "task" for async functions."""
        return "task" if self.is_async else self.executor

    @cached_property
    def attempts(self) -> Attempts:
        """Repetitions of failed calls, and the time limit of each call."""
        return attempts_of(self.timeout, self.retries, self.backoff) or Attempts(None, 0, 0.0)

    @cached_property
    def timeout_s(self) -> float | None:
        """Longest time of a call, in seconds."""
        return self.attempts.timeout_s

    @cached_property
    def policy(self) -> Policy:
        return Policy.of(self.on_error)

    @cached_property
    def waiting_results(self) -> int:
        """Results that may wait until it is their turn, besides those in calls."""
        return self.concurrency if self.buffer is None else self.buffer

    @cached_property
    def is_plain(self) -> bool:
        """True if a call needs nothing but the function: no limit of time, number or failures, no other order."""
        return self.ordered and self.timeout_s is None and self.limiter is None and not self.policy.is_limited


def gives_coroutine(fn: Any) -> bool:
    """Return whether calling a function gives a coroutine."""
    return _is_any(inspect.iscoroutinefunction, fn)


def _is_any(test: Callable[[Any], bool], fn: Any) -> bool:
    call = getattr(fn, "__call__", None)  # noqa: B004  an object with `async def __call__`
    inner = getattr(fn, "func", fn)  # of a functools.partial
    return any(test(one) for one in (fn, inner, call))


@dataclass(frozen=True)
class Policy:
    """The failures that a stage goes on with.

    Attributes:
        share: Most failures as a share of all items so far, which count as 100 at least; None for no such limit.
    """

    most: int | None = 0  # most failures; None for any number
    share: float | None = None

    @classmethod
    def of(cls, on_error: Any) -> Policy:
        """The policy that ``on_error=`` asks for; raises PipelineError if it asks for none."""
        if isinstance(on_error, str) and on_error in ("raise", "skip"):
            return cls(0 if on_error == "raise" else None)
        try:
            if isinstance(on_error, Integral):
                return cls(whole("on_error", on_error, 0))
            return cls(None, real("on_error", on_error, above=0, below=1))
        except (TypeError, ValueError):
            expected = "'raise', 'skip', a number of items, or a share between 0 and 1"
            raise PipelineError(f"on_error must be {expected}, got {shown(on_error)}") from None

    @property
    def is_limited(self) -> bool:
        """True if the number of failures so far matters."""
        return bool(self.most) or self.share is not None

    def allows(self, seen: int, skipped: int) -> bool:
        """Return whether the latest of ``skipped`` failures among ``seen`` items may be left out."""
        if self.most is not None and skipped > self.most:
            return False
        return self.share is None or skipped <= self.share * max(seen, _FEW)


class Skip(NamedTuple):
    """An item that was left out.

    Attributes:
        time_s: Time of the failure, in seconds since the epoch.
        stage: Name of the stage.
        number: Number of the item in the stage, counted from 0 in this iteration.
        item: Text of the item, shortened.
        error: Text of the error.

    Example:
        >>> loader = af.pipeline.source(["1", "two"]).map(int, name="parse", on_error="skip")
        >>> _ = list(loader.iter_sync())
        >>> skip = loader.skips[0]
        >>> skip.stage, skip.number, skip.item, skip.error
        ('parse', 1, "'two'", "ValueError: invalid literal for int() with base 10: 'two'")
    """

    time_s: float
    stage: str
    number: int
    item: str
    error: str


class Skips:
    """Items left out by all stages of a loader; the newest are kept."""

    def __init__(self) -> None:
        self.records: deque[Skip] = deque(maxlen=_KEPT)  # the newest
        self._told: set[str] = set()

    def add(self, stage: str, number: int, item: Any, error: BaseException) -> None:
        """An item is left out. The first of each stage is logged; the count is in its statistics."""
        record = Skip(time.time(), stage, number, shown(item), f"{type(error).__name__}: {text_of(error)}")
        self.records.append(record)
        if stage not in self._told:
            self._told.add(stage)
            text = "stage %r leaves out item %d (%s): %s (more: actorflow docs pipelines)"
            _log.warning(text, stage, number, record.item, record.error)
