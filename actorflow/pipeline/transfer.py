"""Items to a device: copies on the lane "inbound", a few items at a time, in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

from actorflow.graph import Graph
from actorflow.pipeline.definition import Build, Stage
from actorflow.pipeline.stage import StageActor, Wait
from actorflow.place import Place

__all__ = ["Transfer"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Transfer(Stage):
    """`Pipeline.to`."""

    kind: ClassVar[str] = "to"

    place: Place
    graph: Graph | None
    in_flight: int

    def build(self, build: Build, state: Any) -> StageActor:
        raise NotImplementedError
