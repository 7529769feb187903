"""Calls of the user's functions: an item's place in the stage, and one attempt to compute what becomes of it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actorflow.pipeline.processes.process import Task


class SlotState(Enum):
    """Where an item is: WAITING -> RUNNING -> DONE; RESTING before a repeated call, PAUSED if more will come of it."""

    WAITING = "waiting"
    RUNNING = "running"
    RESTING = "resting"
    PAUSED = "paused"
    DONE = "done"


class Slot:
    """An item in a stage, from its arrival until all that becomes of it has gone out.

    Attributes:
        number: Items of a run are numbered in the order of their arrival.
        value: The item.
        before: Position before it.
        after: Position behind it.
        state: Where it is.
        outputs: What became of it and has not gone out yet.
        emitted: How much has gone out, in earlier runs too.
        skip: How much is still to be dropped, since it went out before.
        iterator: Gives further outputs.
        error: Why there are none.
        attempt: Calls that have failed.
        job: The call that runs.
        timer: Ends a rest.
        is_gone: Whether nothing more will come of it.
        is_alone: Whether it is sent to a process without others, since something was wrong with some of them.
    """

    __slots__ = (
        "after",
        "attempt",
        "before",
        "emitted",
        "error",
        "is_alone",
        "is_gone",
        "iterator",
        "job",
        "number",
        "outputs",
        "skip",
        "state",
        "timer",
        "value",
    )

    def __init__(self, number: int, value: Any, before: Any, after: Any) -> None:
        self.number = number
        self.value = value
        self.before = before
        self.after = after
        self.state = SlotState.WAITING
        self.outputs: deque[Any] = deque()
        self.emitted = 0
        self.skip = 0
        self.iterator: Any = None
        self.error: BaseException | None = None
        self.attempt = 0
        self.job: Job | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.is_gone = False
        self.is_alone = False


class Job:
    """One call for one item, or in another process for several.

    Attributes:
        slots: The items.
        is_dead: Whether nobody waits for it any more.
        is_expired: Whether it has been cancelled since it took too long.
        has_limit: Whether it counts in the stage's limiter.
        elapsed_ns: How long the call ran.
        results: What it gave, for each item.
        error: What it raised.
        errors: What was raised in another process, by index of the item.
        task: What another process has got of it.
        timer: Ends it when it takes too long.
    """

    __slots__ = (
        "call",
        "elapsed_ns",
        "error",
        "errors",
        "has_limit",
        "is_dead",
        "is_expired",
        "results",
        "slots",
        "task",
        "timer",
    )

    def __init__(self, slots: list[Slot], call: Callable[[Slot], Any]) -> None:
        self.slots = slots
        self.call = call
        self.is_dead = False
        self.is_expired = False
        self.has_limit = False
        self.elapsed_ns = 0
        self.results: Any = None
        self.error: BaseException | None = None
        self.errors: dict[int, BaseException] = {}
        self.task: Task | None = None
        self.timer: asyncio.TimerHandle | None = None

    def work(self) -> None:
        """Call; what is raised becomes the job's error. In whatever thread."""
        try:
            self.results = self.call(self.slots[0])
        except BaseException as error:  # noqa: BLE001  the loop gets it
            self.error = error
