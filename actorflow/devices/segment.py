"""Work that is launched again and again on the same memory, captured once and replayed as one launch.

A captured segment knows memory by its address alone: it refers to no array, and its caller sees to it that
the same addresses are meant. `actorflow.actors.segment` does, for graphs with ``capture=True``.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from actorflow.errors import DeviceError

_logger = logging.getLogger(__name__)


class CaptureRefusedError(DeviceError):
    """Work that cannot be captured; nothing of it was launched."""


class SegmentState(Enum):
    """State of a segment, which decides its next call.

    ::

        FRESH --launched--> WARM --captured--> CAPTURED: replayed from then on
                              |---refused---> REFUSED: launched piece by piece from then on
    """

    FRESH = "fresh"
    WARM = "warm"
    CAPTURED = "captured"
    REFUSED = "refused"


class Segment(ABC):
    """Work of one stream on fixed memory, captured at its second call and replayed from then on.

    The first call launches the work as it is, so that kernels are compiled; a capture launches nothing by itself and
    is replayed at once. A device brings a subclass; see `StreamDevice.make_segment`.

    Args:
        name: Its name, for messages.
        works: Launch the work, on the current stream, in this order; each gets the argument of the call. They leave
            nothing behind on the host: a refused capture calls them twice.
        is_warm: Whether the work has been launched before, so that the first call captures it.

    Attributes:
        name: As above.
        state: Action of the next call.
        refusal: Why the work cannot be captured; None unless `state` is REFUSED.
        replays: How many calls so far replayed the capture.
    """

    def __init__(self, name: str, works: Sequence[Callable[[Any], object]], is_warm: bool = False) -> None:
        self.name = name
        self.state = SegmentState.WARM if is_warm else SegmentState.FRESH
        self.refusal: str | None = None
        self.replays = 0
        self._works = tuple(works)

    def __call__(self, argument: Any = None) -> None:
        """Launch all work on the current stream, which must be the same every time.

        Args:
            argument: For the works; where it leads them to arrays, these must be at the same addresses every time.
        Raises:
            DeviceError: if it is another stream than before.
            Exception: whatever the work raises.
        """
        self.check_stream()
        if self.state is SegmentState.WARM:
            try:
                self.capture(argument)
            except Exception as error:  # noqa: BLE001  whatever it is, the work can be launched piece by piece
                self.state = SegmentState.REFUSED
                is_said = isinstance(error, CaptureRefusedError)
                self.refusal = str(error) if is_said else f"{type(error).__name__}: {error}"
                _logger.info("segment %r is launched piece by piece: %s", self.name, self.refusal)
            else:
                self.state = SegmentState.CAPTURED
        if self.state is SegmentState.CAPTURED:
            self.replay()
            self.replays += 1
        else:
            self.launch(argument)
            if self.state is SegmentState.FRESH:
                self.state = SegmentState.WARM

    def __repr__(self) -> str:
        return f"<Segment {self.name!r}: {len(self._works)} works, {self.state.value}>"

    def launch(self, argument: Any) -> None:
        """Launch the work as it is."""
        for work in self._works:
            work(argument)

    @abstractmethod
    def check_stream(self) -> None:
        """Check that the current stream is that of the calls before.

        Raises:
            DeviceError: if it is not.
        """

    @abstractmethod
    def capture(self, argument: Any) -> None:
        """Have the work launched into something that `replay` launches; nothing of it is done.

        Raises:
            CaptureRefusedError: if that is impossible, saying why; any other error says so, too.
        """

    @abstractmethod
    def replay(self) -> None:
        """Replay the capture on the current stream."""
