"""What becomes of items whose calls fail."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from actorflow.errors import PipelineError, shown, text_of

_log = logging.getLogger("actorflow")
#: Items after which a share of failures means something.
_FEW = 100
#: Skips of which a record is kept.
_KEPT = 1000


@dataclass(frozen=True)
class Policy:
    """How many failures a stage goes on with.

    Attributes:
        most: So many; None for any number.
        share: Of all items so far, once there were 100 of them; None for no such limit.
    """

    most: int | None = 0
    share: float | None = None

    @classmethod
    def of(cls, on_error: str | float) -> Policy:
        """What ``on_error=`` says.

        Raises:
            PipelineError: if it says nothing.
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
        """Whether the number of failures so far matters."""
        return bool(self.most) or self.share is not None

    def allows(self, seen: int, skipped: int) -> bool:
        """Whether the latest of ``skipped`` failures among ``seen`` items may be left out."""
        if self.most is not None and skipped > self.most:
            return False
        return self.share is None or skipped <= self.share * max(seen, _FEW)


class Skip(NamedTuple):
    """An item that was left out.

    Attributes:
        time_s: When, in seconds since the epoch.
        stage: Where.
        number: Of the item in the stage, counted from 0 in this iteration.
        item: How it shows, shortened.
        error: What its call raised, as text.
    """

    time_s: float
    stage: str
    number: int
    item: str
    error: str


class Skips:
    """Items left out by all stages of a loader; the newest are kept.

    Attributes:
        records: The newest.
    """

    def __init__(self) -> None:
        self.records: deque[Skip] = deque(maxlen=_KEPT)
        self._told: set[str] = set()

    def add(self, stage: str, number: int, item: Any, error: BaseException) -> None:
        """An item is left out. The first of each stage is logged; the count is in its statistics."""
        record = Skip(time.time(), stage, number, shown(item), f"{type(error).__name__}: {text_of(error)}")
        self.records.append(record)
        if stage not in self._told:
            self._told.add(stage)
            _log.warning("stage %r leaves out item %d (%s): %s", stage, number, record.item, record.error)
