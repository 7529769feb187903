"""Frames that take too long: their time limits, stalls, and calls in threads that outlive them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from actorflow.actors.frame import Frame, FrameState
from actorflow.actors.pending import what_it_waits_for
from actorflow.devices import Fence
from actorflow.errors import RunTimeoutError, StallError
from actorflow.graph.graph import Graph

if TYPE_CHECKING:
    from actorflow.runtime.pause import Admission

_log = logging.getLogger("actorflow")

#: How long a call in a thread may outlive its stopped frame before it is reported.
GRACE_S = 0.5


class Supervisor:
    """Watches the frames of one graph.

    Args:
        graph: Which.
        admission: Knows whether it is paused.

    Attributes:
        late: Stopped frames with a call in a thread, and when that will be reported.
    """

    def __init__(self, graph: Graph, admission: Admission) -> None:
        self.late: dict[Frame, asyncio.TimerHandle] = {}
        self._graph = graph
        self._admission = admission
        self._stall_limit_s = graph.options.stall_limit_s

    def begin(self, frame: Frame, loop: asyncio.AbstractEventLoop) -> None:
        """A frame starts."""
        if self._stall_limit_s is not None:
            self._look(frame, loop, self._stall_limit_s, None)

    def stopped(self, frame: Frame, loop: asyncio.AbstractEventLoop) -> None:
        """A stopped frame may have left a call in a thread, which cannot be stopped: report it unless it ends soon."""
        if frame.outstanding:
            self.late[frame] = loop.call_later(GRACE_S, self._report, frame)

    def ended(self, frame: Frame) -> None:
        """Nothing of a frame runs any more."""
        timer = self.late.pop(frame, None)
        if timer is not None:
            timer.cancel()

    def _look(self, frame: Frame, loop: asyncio.AbstractEventLoop, limit_s: float, before: Any) -> None:
        """Fail a frame that is where it was one limit ago, unless somebody holds the graph."""
        if frame.state is not FrameState.RUNNING:
            return
        if self._admission.is_held:
            loop.call_later(limit_s, frame.guarded, self._look, frame, loop, limit_s, None)
            return
        now = (frame.open, frame.pending.copy(), set(frame.outstanding))
        if now == before and not any(ready is frame for _, ready in frame.ready):
            waits = what_it_waits_for(frame)
            frame.stop_with(
                StallError(f"frame {frame.number} made no progress for {limit_s:g} s; {waits}"), at_once=True
            )
        else:
            loop.call_later(limit_s, frame.guarded, self._look, frame, loop, limit_s, now)

    def _report(self, frame: Frame) -> None:
        for actor, running in frame.outstanding.items():
            if isinstance(running, Fence) and running.begun and not running.done:
                _log.warning(
                    "op %r of frame %d of graph %r still runs in a thread; its buffers are held until it ends",
                    actor.node.name,
                    frame.number,
                    self._graph.name,
                )


def limit_time(frame: Frame, timeout_s: float, left_s: float, loop: asyncio.AbstractEventLoop) -> None:
    """Fail a frame that has not ended in its time, of which so much is left."""
    timer = loop.call_later(left_s, frame.guarded, _time_out, frame, timeout_s)
    frame.ended.add_done_callback(lambda _: timer.cancel())


def _time_out(frame: Frame, timeout_s: float) -> None:
    """Fail a frame that has not ended in its time."""
    if frame.state is FrameState.RUNNING:
        waits = what_it_waits_for(frame)
        frame.stop_with(RunTimeoutError(f"frame {frame.number} timed out after {timeout_s:g} s; {waits}"), at_once=True)
