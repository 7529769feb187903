"""Stages as they are defined: a tree of plain data, which each iteration builds its actors from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

from actorflow.errors import PipelineError, whole
from actorflow.graph.nodes import PACKAGE, Site

if TYPE_CHECKING:
    from actorflow.pipeline.resources import LoaderResources
    from actorflow.pipeline.run import Run
    from actorflow.pipeline.stages.actor import StageActor
    from actorflow.pipeline.stats import StageStats


@dataclass_transform(frozen_default=True, eq_default=False, kw_only_default=True)
@dataclass(frozen=True, eq=False, kw_only=True)
class Stage:
    """One stage of a pipeline; a subclass is made a dataclass like this one.

    Class attributes:
        kind: Name of the method that adds it.
        keeps_marks: True if it may stand in a branch.
        actor_type: Class of its actors, unless it overrides `build`.
    """

    kind: ClassVar[str]
    keeps_marks: ClassVar[bool] = False
    actor_type: ClassVar[type[Any]]

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
        """An actor for this stage, and for those in front of it.

        Args:
            build: The run, epoch and so on.
            state: The position to go on at, as `StageActor.freeze` gave it; None for the beginning.
        """
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
