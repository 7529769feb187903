"""How a stage calls the user's function: where, how many at a time, and what becomes of failures."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

from actorflow.errors import PipelineError, shown
from actorflow.graph.options import Attempts, attempts_of
from actorflow.pipeline.calls.limiter import Limiter
from actorflow.pipeline.calls.policy import Policy, Skips
from actorflow.pipeline.processes.pool import Processes, check_picklable
from actorflow.pipeline.stages.stage import check_at_least

#: Where calls run: "auto" is the loop for calls that turn out to take less than 100 us, else threads.
Executor = Literal["auto", "loop", "thread", "process"]


class CallOptions(TypedDict, total=False):
    """What can be said of the calls of a stage; see `Pipeline.map`."""

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
    """What the user asked for; see `Pipeline.map`.

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
            attempts_of(self.timeout, self.retries, self.backoff)
        except ValueError as error:
            raise PipelineError(str(error)) from None
        Policy.of(self.on_error)
        if self.limiter is not None and not isinstance(self.limiter, Limiter):
            raise PipelineError(f"limiter must be an af.pipeline.Limiter, got {shown(self.limiter)}")
        if self.is_async and self.executor != "auto":
            raise PipelineError(f"an async function runs on the loop as a task, not with executor={self.executor!r}")
        if self.executor == "loop" and (self.timeout is not None or self.concurrency > 1):
            raise PipelineError("calls on the loop run one at a time and cannot be timed out: use executor='thread'")
        if self.executor == "process":
            check_picklable(self.fn)

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function or an async generator function."""
        return is_async_function(self.fn)

    def bind(self, skips: Skips, make_pool: Callable[[], Processes]) -> Calling:
        """How a run calls it."""
        attempts = attempts_of(self.timeout, self.retries, self.backoff) or Attempts(None, 0, 0.0)
        return Calling(
            fn=self.fn,
            concurrency=self.concurrency,
            ordered=self.ordered,
            executor="task" if self.is_async else self.executor,
            is_async=self.is_async,
            timeout_s=attempts.timeout_s,
            attempts=attempts,
            policy=Policy.of(self.on_error),
            limiter=self.limiter,
            buffer=self.concurrency if self.buffer is None else self.buffer,
            expands=self.expands,
            skips=skips,
            pool=make_pool() if self.executor == "process" else None,
        )


@dataclass(frozen=True, kw_only=True)
class Calling:
    """`Options` for one run; seconds in ``_s``.

    Attributes:
        attempts: How often failed calls are repeated, and when.
        buffer: Results that may wait until it is their turn, besides those in calls.
        expands: Whether a call may give any number of outputs.
        skips: Where items that are left out are reported.
        pool: Processes, where calls run there.
    """

    fn: Callable[..., Any]
    concurrency: int
    ordered: bool
    executor: str
    is_async: bool
    timeout_s: float | None
    attempts: Attempts
    policy: Policy
    limiter: Limiter | None
    buffer: int
    expands: bool
    skips: Skips
    pool: Processes | None

    @property
    def is_plain(self) -> bool:
        """Whether calls on the loop need nothing but the function, so that they can be made at once, one by one."""
        return (
            self.ordered
            and self.executor in ("auto", "loop")
            and self.timeout_s is None
            and self.limiter is None
            and not self.policy.is_limited
        )


def is_async_function(fn: Any) -> bool:
    """Whether calling it gives a coroutine or an async generator."""
    call = getattr(fn, "__call__", None)  # noqa: B004  an object with `async def __call__`
    inner = getattr(fn, "func", fn)  # of a functools.partial
    return any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in (fn, inner, call))
