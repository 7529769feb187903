"""Results of a frame that has one for each item of an op that emits, on their way to a stream."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from actorflow.actors.frame import Frame
from actorflow.core import clock_ns
from actorflow.loop import waits

#: Results of items that follow each other within so many nanoseconds come in bursts, of so many at most: to wait for
#: each of them would take longer than to compute it. Slower ones are held back by the end of a slice.
QUICK_NS, BURST = 50_000, 16


class Items:
    """Results of one frame, one for each item, between the op that emits and the stream that takes them.

    Attributes:
        results: The results that wait to be taken.
        room: Most items that are computed, or whose results wait.
        least: The value of ``room`` while results are slow to come.
        resting: The emission that goes on when one has been taken.
        is_nudged: Whether `go_on_soon` has been called, and the loop has not had its turn.
    """

    __slots__ = ("_last", "_last_ns", "_waiter", "is_nudged", "least", "resting", "results", "room")

    def __init__(self) -> None:
        self.results: deque[Any] = deque()
        self.room = self.least = 1
        self._last_ns, self._last = 0, -1  # when there was none the last time, and the number of the item that came
        self.resting: Any = None
        self._waiter: asyncio.Future[None] | None = None
        self.is_nudged = False

    def put(self, result: Any, number: int) -> None:
        """Add the result of the item of a number."""
        if not self.results:
            now_ns = clock_ns()
            is_quick = now_ns - self._last_ns < QUICK_NS * (number - self._last)
            self.room = BURST if is_quick and self.least < BURST else self.least
            self._last_ns, self._last = now_ns, number
            self._wake()
        self.results.append(result)

    def compute(self, frame: Frame) -> None:
        """Compute further ones now, if they are short and there is room for them, and not in the loop's next turn."""
        if self.resting is not None:
            self._go_on()
            frame.start.dispatcher.run_now()

    async def come(self, frame: Frame) -> bool:
        """Wait until there is one; returns False if the frame has ended, or has stopped, and there will be none."""
        while not self.results:
            if frame.has_ended:
                return False
            self._waiter = waiter = frame.loop.create_future()
            frame.ended.add_done_callback(self._wake)
            try:
                await waiter
            finally:
                frame.ended.remove_done_callback(self._wake)
                self._waiter = None
        return True

    def go_on_soon(self, frame: Frame) -> None:
        """Have the op go on while the caller is busy with a result that it has taken."""
        self.is_nudged = True
        frame.loop.call_soon(frame.guarded, self._nudge, frame)

    def _nudge(self, frame: Frame) -> None:
        self.is_nudged = False
        if self.resting is not None:
            self._go_on()
            frame.wake()

    def _go_on(self) -> None:
        call, self.resting = self.resting, None
        call.parent.ready.append((call, call.parent))

    def _wake(self, _: object = None) -> None:
        if waits(self._waiter):
            self._waiter.set_result(None)
