"""Follows the frames of one graph: how many there are, how they ended, what their ends set free."""

from __future__ import annotations

import asyncio
import logging

from actorflow.actors.frame import FINISHED, Frame
from actorflow.core import FrameState
from actorflow.errors import RunCancelledError, text_of
from actorflow.loop import waits
from actorflow.runtime.limits import FrameLimits
from actorflow.runtime.resources import Resources
from actorflow.threads import forget_in_child

_log = logging.getLogger("actorflow")


class Observer:
    """Observer of each frame of a graph; see `actorflow.actors.frame.FrameObserver`.

    Args:
        resources: The graph's.
    """

    def __init__(self, resources: Resources) -> None:
        self.counts = resources.frames  # how many frames started, finished, failed and were cancelled
        self.limits = FrameLimits(resources.graph, resources.queue)  # ends and reports frames that take too long
        self._resources = resources
        self._idle: asyncio.Future[None] | None = None
        forget_in_child(self)

    def ended(self, frame: Frame) -> None:
        """The frame has ended, and nothing of it runs any more; not called for one that `Frame.ends_quietly`."""
        running = self._resources.running
        running.discard(frame)
        if not running and self._idle is not None:
            self._rested()  # first: whatever fails below, nobody may wait for ever
        state = frame.state
        if frame in self.counts.apart:
            pass
        elif state is FrameState.FAILED:
            self.counts.failed += 1
        elif state is FrameState.CANCELLED:
            self.counts.cancelled += 1
        if state is not FINISHED and frame.monitor is not None and not any(other.ops is frame.ops for other in running):
            frame.monitor.give_up(frame.start.node_ids, [other.start.node_ids for other in running])
        if self.limits.timers:
            self.limits.ended(frame)
        if frame.serial >= 0:
            self._resources.peers.leave(frame)
        if frame.spans is not None:
            frame.spans.end(frame)
        errors = [frame.error] if state is FrameState.FAILED else dict.fromkeys((frame.failures or {}).values())
        for error in errors:
            self._resources.note_failure(frame.number, error)

    def abandoned(self, frame: Frame) -> None:
        """The stopped frame is no longer waited for; calls of it may still run in threads."""
        self.limits.stopped(frame, self._resources.dispatcher.loop)

    def fault(self, frame: Frame, error: BaseException) -> None:
        """Something failed at a frame that is not an op's own code: a fault of this package.

        The order that frames share may be wrong from here on, so that one could wait for ever. All others end, too,
        and the next one finds everything as in the beginning.
        """
        resources = self._resources
        name = resources.graph.name
        what = f"since frame {frame.number} has met a fault of actorflow: {type(error).__name__}: {text_of(error)}"
        _log.error("graph %r: frames in flight end, %s", name, what, exc_info=error)
        resources.begin_order_anew()
        for other in sorted(resources.running, key=lambda other: other.number):
            if other is not frame:
                other.cancel(RunCancelledError(name, other.number, what, other.updated))

    async def rest(self) -> None:
        """Wait until no frame is in flight."""
        if self._resources.running:
            if not waits(self._idle):
                self._idle = asyncio.get_running_loop().create_future()
            self._resources.dispatcher.ready.at_rest = self._rested
            await asyncio.wait([self._idle])

    def _rested(self) -> None:
        self._resources.dispatcher.ready.at_rest = None
        if waits(self._idle):
            self._idle.set_result(None)

    def forget_parent(self) -> None:
        """Wait for no frame in the child of a fork."""
        self.limits.timers.clear()
        self._idle = None
