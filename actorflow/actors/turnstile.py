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
        is_held: Whether none may enter for now, as one has stopped in the middle.
    """

    __slots__ = ("_later", "_next", "is_held", "limit", "parked", "running")

    def __init__(self, limit: int | None) -> None:
        self.running = 0  # frames that have entered and not left
        self.limit = sys.maxsize if limit is None else limit
        self.is_held = False
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
        if self._next is frame and self.running < self.limit and not self.is_held:
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
        if frame is not None and self.running < self.limit and not self.is_held:
            actor = self.parked.pop(frame, None) if self.parked else None
            if actor is not None:
                frame.ready.append((actor, frame))
                frame.wake()


class Turnstiles(Turnstile):
    """Those of functions that are called one behind the other: a frame enters all of them together.

    While a frame is the only one in flight, none of them needs to know of it, but this (`expect_alone`).

    Args:
        each: Those that it enters; none of them has a limit.
        alone: Whether it waits until no other frame is in one of them.

    Attributes:
        running: The most frames that are in one of them, after `enter`.
    """

    __slots__ = ("_alone", "_each", "_is_inside", "_only")

    def __init__(self, each: Sequence[Turnstile], *, alone: bool) -> None:
        super().__init__(None)
        self._each = tuple(each)
        self._alone = alone
        self._only: Frame | None = None  # the frame that they do not know of
        self._is_inside = False  # whether it has entered

    def expect(self, frame: Frame) -> None:
        """As that of each of them."""
        for turnstile in self._each:
            if turnstile._next is None:  # as `expect` would, at a third of the price
                turnstile._next = frame
            else:
                turnstile.expect(frame)

    def expect_alone(self, frame: Frame) -> None:
        """As `expect`, for the only frame in flight: `spread` is called before another one is expected anywhere."""
        self._only, self._is_inside = frame, False

    def spread(self) -> bool:
        """Have each of them know of the frame that has been expected alone; False if there is none any more."""
        frame, self._only = self._only, None
        if frame is None:
            return False
        if not self._is_inside:
            self.expect(frame)
            return True
        for turnstile in self._each:
            turnstile.running += 1
            turnstile.is_held = self.is_held
        return True

    def skip(self, frame: Frame) -> None:
        """As that of each of them."""
        if self._only is not frame:
            for turnstile in self._each:
                turnstile.skip(frame)
        elif not self._is_inside:
            self._only = None

    def enter(self, frame: Frame, actor: OpActor) -> bool:
        """As that of each of them."""
        self.running = 1
        if self._only is frame:
            self._is_inside = True
            return True
        each = self._each
        for turnstile in each:
            if turnstile._next is not frame or turnstile.is_held:
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
        is_held, self.is_held = self.is_held, False
        if self._only is not None:
            self._only = None
            return
        for turnstile in self._each:
            turnstile.running -= 1
            if is_held:
                turnstile.is_held = False
            if turnstile.parked:
                turnstile.admit()

    def hold(self) -> None:
        """Let no other frame enter before the one that is in all of them has left: it has stopped between two.

        By itself a frame that comes while another one is there goes to the lane, where it would overtake.
        """
        self.is_held = True
        if self._only is None:
            for turnstile in self._each:
                turnstile.is_held = True
