"""A bound on the calls of several stages together."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from actorflow.errors import text
from actorflow.pipeline.stages.stage import whole_number
from actorflow.threads import forget_in_child

if TYPE_CHECKING:
    from actorflow.pipeline.stages.actor import StageActor


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
