"""Function ops take their frames in order."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actorflow.actors.frame import Frame
    from actorflow.actors.op import OpActor


class Turnstile:
    """Lets the frames of one op start in the order in which they were started, ``limit`` at a time.

    A function may keep state from call to call, so its frames neither overtake nor overlap each other unless that was
    asked for. Kernels keep none and need no turnstile.

    Args:
        limit: Number of frames that may run the op at once; None where the lane's order sees to that.

    Attributes:
        limit: Number of frames that may run the op at once; more than there can be where nothing limits that.
    """

    __slots__ = ("_later", "_next", "limit", "parked", "running")

    def __init__(self, limit: int | None) -> None:
        self.running = 0  # frames that have entered and not left
        self.limit = sys.maxsize if limit is None else limit
        # Mostly one frame at most is expected, and there is a turnstile per op: an empty deque takes over 600 bytes.
        self._next: Frame | None = None
        self._later: deque[Frame] | None = None
        self.parked: dict[Frame, OpActor] | None = None  # actors that wait until their frame may enter

    def expect(self, frame: Frame) -> None:
        """A frame has started that will run the op."""
        if self._next is None:
            self._next = frame
        else:
            if self._later is None:
                self._later = deque()
            self._later.append(frame)

    @property
    def expected(self) -> list[Frame]:
        """The frames that have yet to enter, in their order."""
        return [] if self._next is None else [self._next, *(self._later or ())]

    def enter(self, frame: Frame, actor: OpActor) -> bool:
        """Return whether the frame may run the op now; otherwise its actor becomes ready again when it may."""
        if self._next is frame and self.running < self.limit:
            self.running += 1
            if self._later:
                self._next = self._later.popleft()
                if self.parked:
                    self.admit()
            else:
                self._next = None
            return True
        self.park(frame, actor)
        return False

    def park(self, frame: Frame, actor: OpActor) -> None:
        """Make an actor ready again when its frame may enter, or another one has left."""
        if self.parked is None:
            self.parked = {}
        self.parked[frame] = actor

    def leave(self) -> None:
        """A frame that had entered is done with the op."""
        self.running -= 1
        if self.parked:
            self.admit()

    def skip(self, frame: Frame) -> None:
        """The frame has stopped and will not enter."""
        if self.parked:
            self.parked.pop(frame, None)
        if self._next is frame:
            self._next = self._later.popleft() if self._later else None
            self.admit()
        elif self._later is not None and frame in self._later:
            self._later.remove(frame)

    def admit(self) -> None:
        """Make the next frame's actor ready if it is parked and may enter."""
        frame = self._next
        if frame is not None and self.running < self.limit:
            actor = self.parked.pop(frame, None) if self.parked else None
            if actor is not None:
                frame.ready.append((actor, frame))
                frame.wake()


class Turnstiles(Turnstile):
    """Those of functions that are called one behind the other: a frame enters all of them together.

    Args:
        each: Those that it enters; none of them has a limit.
        alone: Whether it waits until no other frame is in one of them.

    Attributes:
        running: The most frames that are in one of them, after `enter`.
    """

    __slots__ = ("_alone", "_each")

    def __init__(self, each: Sequence[Turnstile], *, alone: bool) -> None:
        super().__init__(None)
        self._each = tuple(each)
        self._alone = alone

    def enter(self, frame: Frame, actor: OpActor) -> bool:
        """As that of each of them."""
        each = self._each
        self.running = 1
        for turnstile in each:
            if turnstile._next is not frame:
                turnstile.park(frame, actor)
                return False
            if turnstile.running:
                if self._alone:
                    turnstile.park(frame, actor)
                    return False
                self.running = max(self.running, turnstile.running + 1)
        for turnstile in each:
            if turnstile._later:
                turnstile.enter(frame, actor)
            else:  # as `enter` would, at a third of the price
                turnstile._next = None
                turnstile.running += 1
        return True

    def leave(self) -> None:
        """As that of each of them."""
        for turnstile in self._each:
            turnstile.running -= 1
            if turnstile.parked:
                turnstile.admit()
