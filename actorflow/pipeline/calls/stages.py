"""map and filter: stages that call a function for each item, with at most one output."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from actorflow.pipeline.calls.chunks import ChunkActor
from actorflow.pipeline.calls.mapping import AsyncMapActor, MapActor
from actorflow.pipeline.calls.options import Options
from actorflow.pipeline.calls.order import InOrder, Unordered
from actorflow.pipeline.stages.actor import StageActor
from actorflow.pipeline.stages.stage import Build, Stage


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
    def is_direct(self) -> bool:
        """Whether an async function needs nothing but to be awaited."""
        options = self.options
        return options.is_async and options.ordered and options.timeout is None and options.limiter is None

    @property
    def goes_in_chunks(self) -> bool:
        """Whether calls in processes need nothing but the function, so that items need no places of their own."""
        options = self.options
        is_limited = not isinstance(options.on_error, str)
        is_plain = options.ordered and options.timeout is None and options.limiter is None and not options.retries
        return options.executor == "process" and is_plain and not is_limited

    @property
    def one_each(self) -> type[MapActor]:
        """What calls for each item, where there is at most one output for it."""
        return ChunkActor if self.goes_in_chunks else AsyncMapActor if self.is_direct else MapActor

    @property
    def shape(self) -> str:
        limited = "" if isinstance(self.options.on_error, str) else ", limited"
        return f"{self.kind}({'ordered' if self.options.ordered else 'unordered'}{limited})"

    def build(self, build: Build, state: Any) -> StageActor:
        how = build.session.calling(self)
        order = InOrder if how.ordered else Unordered
        source = build.front(self, order.front(how, state))
        return self.actor(build.run, build.stats(self), how, source, state=state)

    def for_processes(self) -> Callable[[Any], Any]:
        """What processes call for each item: something that pickle can send."""
        return self.options.fn

    @abstractmethod
    def actor(self, *args: Any, **kwargs: Any) -> StageActor:
        """The stage's actor; the arguments are those of `CallActor`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Map(Call):
    """`Pipeline.map`."""

    kind = "map"

    def actor(self, *args: Any, **kwargs: Any) -> StageActor:
        return self.one_each(*args, **kwargs, is_filter=False)


@dataclass(frozen=True, eq=False, kw_only=True)
class Filter(Call):
    """`Pipeline.filter`."""

    kind = "filter"

    def for_processes(self) -> Callable[[Any], Any]:
        return _Judged(self.options.fn)

    def actor(self, *args: Any, **kwargs: Any) -> StageActor:
        return self.one_each(*args, **kwargs, is_filter=True)


class _Judged:
    """A function with a bool of what it returns, made where it is called."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self._fn = fn

    def __call__(self, item: Any) -> bool:
        return bool(self._fn(item))
