"""Options of calls of the user's function: where, how many at a time, and what becomes of failures."""

from __future__ import annotations

import inspect
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypedDict, get_args

from actorflow.errors import PipelineError, shown, text_of
from actorflow.graph.options import Attempts, attempts_of
from actorflow.pipeline.calls.limiter import Limiter
from actorflow.pipeline.processes.workers import check_picklable
from actorflow.pipeline.stages.stage import check_at_least

_log = logging.getLogger("actorflow")
#: Items after which a share of failures means something.
_FEW = 100
#: Skips of which a record is kept.
_KEPT = 1000
#: Where calls run: "auto" is the loop for calls that turn out to take less than 100 us, else threads.
Executor = Literal["auto", "loop", "thread", "process"]


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
    """A function and the settings of its calls, as the user gave them; see `Pipeline.map`.

    Attributes:
        expands: Whether a call may give any number of outputs.

    Raises:
        PipelineError: if something is out of range or does not go together.
    """

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
    expands: bool = False

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise PipelineError(f"expected a function, got {shown(self.fn)}")
        check_at_least("concurrency", self.concurrency, 1)
        if self.buffer is not None:
            check_at_least("buffer", self.buffer, 0)
        if self.executor not in get_args(Executor):
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
        return gives_awaitable(self.fn)

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


def gives_awaitable(fn: Any) -> bool:
    """Return whether calling a function gives a coroutine or an async generator."""
    return gives_coroutine(fn) or _is_any(inspect.isasyncgenfunction, fn)


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
    def of(cls, on_error: str | float) -> Policy:
        """The policy that ``on_error=`` asks for.

        Raises:
            PipelineError: if it asks for none.
        """
        if on_error == "raise":
            return cls()
        if on_error == "skip":
            return cls(None)
        if isinstance(on_error, int) and not isinstance(on_error, bool) and on_error >= 0:
            return cls(on_error)
        if isinstance(on_error, float) and 0 < on_error < 1:
            return cls(None, on_error)
        raise PipelineError(
            f"on_error must be 'raise', 'skip', a number of items, or a share between 0 and 1, got {shown(on_error)}"
        )

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
