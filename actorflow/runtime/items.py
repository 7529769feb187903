"""Results of a frame that has one for each item of an op that emits, on their way to a stream."""

from __future__ import annotations

import asyncio

from actorflow import core
from actorflow.actors.frame import Frame
from actorflow.loop import waits


class ItemResults(core.Items):
    """Results of one frame, one for each item, for the stream that takes them.

    Attributes:
        is_nudged: Whether `go_on_soon` has been called, and the loop has not had its turn.
    """

    __slots__ = ("_waiter", "is_nudged")

    def __init__(self) -> None:
        super().__init__()
        self._waiter: asyncio.Future[None] | None = None
        self.is_nudged = False

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
            frame.ended.add_done_callback(self.arrived)
            try:
                await waiter
            finally:
                frame.ended.remove_done_callback(self.arrived)
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

    def arrived(self, _: object = None) -> None:
        if waits(self._waiter):
            self._waiter.set_result(None)
