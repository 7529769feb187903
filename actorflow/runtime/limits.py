"""Limits of time: frames past their time limit, frames that stall, calls in threads, a blocked event loop."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
import weakref
from functools import partial
from types import FrameType
from typing import Any

from actorflow.actors.frame import Frame, what_it_waits_for
from actorflow.actors.op import OpActor
from actorflow.actors.under_way import UnderWay
from actorflow.core import FrameState
from actorflow.devices import Fence
from actorflow.errors import DeviceError, RunTimeoutError, StallError
from actorflow.graph.graph import Graph
from actorflow.runtime.pause import StartQueue
from actorflow.threads import forget_in_child, start_thread

_log = logging.getLogger("actorflow")

#: How long a call in a thread may outlive its stopped frame before it is reported.
GRACE_S = 0.5


class FrameLimits:
    """Ends or reports frames of one graph that take too long, and watches the loop if that is wanted.

    Args:
        graph: A root graph.
        queue: Knows whether the graph is paused.

    Attributes:
        timers: By frame: the timer that looks whether it stalls, or, once it has stopped, reports its calls in threads.
        are_set: Whether it is to be told of frames that start.
    """

    def __init__(self, graph: Graph, queue: StartQueue) -> None:
        self.timers: dict[Frame, asyncio.TimerHandle] = {}
        self._graph = graph
        self._queue = queue
        self._stall_limit_s = graph.options.stall_limit_s
        self._watchdog: LoopWatchdog | None = None
        if graph.options.block_limit_s is not None:
            self._watchdog = LoopWatchdog(graph.name, graph.options.block_limit_s)
            weakref.finalize(self, self._watchdog.stop)  # a graph that is dropped without aclose() leaves no thread

        self.are_set = self._watchdog is not None or self._stall_limit_s is not None

    def begin(self, frame: Frame, loop: asyncio.AbstractEventLoop) -> None:
        """A frame starts."""
        if self._watchdog is not None:
            self._watchdog.start(loop)
        if self._stall_limit_s is not None:
            self._look(frame, loop, self._stall_limit_s, None)

    def stopped(self, frame: Frame, loop: asyncio.AbstractEventLoop) -> None:
        """A stopped frame may have left a call in a thread, which cannot be stopped: report it unless it ends soon."""
        if frame.outstanding:
            self.ended(frame)
            self.timers[frame] = loop.call_later(GRACE_S, self._report, frame)

    def ended(self, frame: Frame) -> None:
        """Nothing of a frame runs any more."""
        timer = self.timers.pop(frame, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Watch the loop no longer, until the next frame starts."""
        if self._watchdog is not None:
            self._watchdog.stop()

    def _look(self, frame: Frame, loop: asyncio.AbstractEventLoop, limit_s: float, before: Any) -> None:
        """Fail a frame that is where it was one limit ago, unless the graph is paused."""
        if frame.state is not FrameState.RUNNING:
            return
        # A lane tells the loop of many ends at once: what has ended is looked up.
        now = None if self._queue.is_held else (frame.position, UnderWay.of([frame]).states)
        if now is not None and now == before and not any(ready is frame for _, ready in frame.ready):
            waits = what_it_waits_for(frame)
            frame.stop_with(
                StallError(f"frame {frame.number} made no progress for {limit_s:g} s; {waits}"), at_once=True
            )
        else:
            frame.ends_quietly = False
            self.timers[frame] = loop.call_later(limit_s, frame.guarded, self._look, frame, loop, limit_s, now)

    def _report(self, frame: Frame) -> None:
        for actor, running in frame.at_work:
            if isinstance(running, Fence) and running.begun and not running.done:
                _log.warning(
                    "op %r of frame %d of graph %r still runs in a thread; its buffers are held until it ends "
                    "(more: actorflow docs stalls)",
                    actor.node.name,
                    frame.number,
                    self._graph.name,
                )


def limit_time(frame: Frame, timeout_s: float, left_s: float) -> None:
    """Fail a frame that has not ended in its time, of which ``left_s`` are left."""
    timer = asyncio.get_running_loop().call_later(left_s, frame.guarded, _time_out, frame, timeout_s)
    frame.ended.add_done_callback(lambda _: timer.cancel())


def _time_out(frame: Frame, timeout_s: float) -> None:
    if frame.state is FrameState.RUNNING:
        waits = what_it_waits_for(frame)
        frame.stop_with(RunTimeoutError(f"frame {frame.number} timed out after {timeout_s:g} s; {waits}"), at_once=True)


class LoopWatchdog:
    """A thread that asks the loop for a sign of life again and again, and reports where it is when none comes.

    It costs the ops nothing: the op is found on the stack of the loop's thread.

    Args:
        graph_name: For the log.
        limit_s: Seconds without a sign of life.
    """

    def __init__(self, graph_name: str, limit_s: float) -> None:
        self._graph_name = graph_name
        self._limit_s = limit_s
        self._stopped = threading.Event()
        self._sign = threading.Event()  # that the loop has run what it was asked to
        self._loop: asyncio.AbstractEventLoop | None = None  # the one that is watched
        self._thread: threading.Thread | None = None
        forget_in_child(self)

    def forget_parent(self) -> None:
        """Forget the thread, which the child of a fork does not have."""
        self._stopped, self._sign = threading.Event(), threading.Event()
        self._thread = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch the loop that runs now, and no other one any longer."""
        if self._loop is not loop or self._thread is None or not self._thread.is_alive():
            self.stop()
            self._stopped.clear()
            try:
                self._thread = start_thread(partial(self._watch, loop, threading.get_ident()), "actorflow-watchdog")
                self._loop = loop
            except DeviceError as error:  # no reason for a frame to fail; the next one tries again
                _log.warning("nobody watches the event loop of graph %r: %s", self._graph_name, error)

    def stop(self) -> None:
        """Watch no longer. Idempotent."""
        self._stopped.set()
        self._sign.set()
        self._loop = None
        # The garbage collector may call this from the thread itself.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def _watch(self, loop: asyncio.AbstractEventLoop, loop_thread: int) -> None:
        while not self._stopped.is_set():
            sign = self._sign = threading.Event()
            try:
                loop.call_soon_threadsafe(sign.set)
            except RuntimeError:  # the loop was closed
                return
            if self._stopped.is_set():  # and what stops it may have set the sign before this one
                return
            if not sign.wait(self._limit_s) and not self._stopped.is_set():
                stack = sys._current_frames().get(loop_thread)
                if stack is not None:
                    self._report(stack, asyncio.current_task(loop))
                while not sign.wait(self._limit_s) and not self._stopped.is_set():
                    pass
            self._stopped.wait(self._limit_s)

    def _report(self, stack: FrameType, task: asyncio.Task[object] | None) -> None:
        name = _op_on(stack)
        if name is not None:
            what = f"op {name!r} of graph {self._graph_name!r}"
        else:  # the task of an async function has its op's name
            what = "a callback" if task is None else f"task {task.get_name()!r}"
        lines = "".join(traceback.format_stack(stack))
        _log.warning(
            "%s has blocked the event loop for %g s:\n%s(more: actorflow docs slow)", what, self._limit_s, lines
        )


def _op_on(stack: FrameType | None) -> str | None:
    while stack is not None:
        actor = stack.f_locals.get("self")
        frame = stack.f_locals.get("frame")
        if isinstance(actor, OpActor) and isinstance(frame, Frame):
            return actor.node.name
        stack = stack.f_back
    return None
