"""Function ops take their frames in order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actorflow.actors.frame import Frame
    from actorflow.actors.op import OpActor

__all__ = ["Turnstile"]


class Turnstile:
    """Lets the frames of one op start in the order in which they were started, ``limit`` at a time.

    A function may keep state from call to call, so its frames neither overtake nor overlap each other unless that was
    asked for. Kernels keep none and need no turnstile.

    Args:
        limit: How many frames may run the op at once; None where the lane's order sees to that.

    Attributes:
        running: Frames that have entered and not left.
    """

    __slots__ = ("_later", "_limit", "_next", "_parked", "running")

    def __init__(self, limit: int | None) -> None:
        self.running = 0
        self._limit = limit
        # Mostly one frame at most is expected; an empty deque takes over 600 bytes, and there is a turnstile per op.
        self._next: Frame | None = None
        self._later: deque[Frame] | None = None
        self._parked: dict[Frame, OpActor] = {}

    def expect(self, frame: Frame) -> None:
        """A frame has started that will run the op."""
        if self._next is None:
            self._next = frame
        else:
            if self._later is None:
                self._later = deque()
            self._later.append(frame)

    def enter(self, frame: Frame, actor: OpActor) -> bool:
        """Whether the frame may run the op now; otherwise its actor becomes ready again when it may."""
        if self._next is frame and (self._limit is None or self.running < self._limit):
            self._next = self._later.popleft() if self._later else None
            self.running += 1
            if self._parked:
                self._admit()
            return True
        self._parked[frame] = actor
        return False

    def leave(self) -> None:
        """A frame that had entered is done with the op."""
        self.running -= 1
        if self._parked:
            self._admit()

    def skip(self, frame: Frame) -> None:
        """The frame has stopped and will not enter."""
        self._parked.pop(frame, None)
        if self._next is frame:
            self._next = self._later.popleft() if self._later else None
            self._admit()
        elif self._later is not None and frame in self._later:
            self._later.remove(frame)

    def _admit(self) -> None:
        frame = self._next
        if frame is not None and (self._limit is None or self.running < self._limit):
            actor = self._parked.pop(frame, None)
            if actor is not None:
                frame.ready.append((actor, frame))
                frame.wake()
