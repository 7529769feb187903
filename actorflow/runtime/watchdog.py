"""Names what blocks the event loop."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from functools import partial
from types import FrameType

from actorflow.actors.op import OpActor
from actorflow.errors import DeviceError
from actorflow.threads import forget_in_child, start_thread

_log = logging.getLogger("actorflow")


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
        self._thread: threading.Thread | None = None
        forget_in_child(self)

    def forget_parent(self) -> None:
        """This is the child of a fork, which does not have the thread."""
        self._stopped = threading.Event()
        self._thread = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch the loop that runs now."""
        if self._thread is None or not self._thread.is_alive():
            self._stopped.clear()
            try:
                self._thread = start_thread(partial(self._watch, loop, threading.get_ident()), "actorflow-watchdog")
            except DeviceError as error:  # no reason for a frame to fail; the next one tries again
                _log.warning("nobody watches the event loop of graph %r: %s", self._graph_name, error)

    def stop(self) -> None:
        """Watch no longer. Idempotent."""
        self._stopped.set()
        # The garbage collector may call this from the thread itself.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def _watch(self, loop: asyncio.AbstractEventLoop, loop_thread: int) -> None:
        while not self._stopped.is_set():
            sign = threading.Event()
            try:
                loop.call_soon_threadsafe(sign.set)
            except RuntimeError:  # the loop was closed
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
        elif task is not None:  # one of an async function bears its op's name
            what = f"task {task.get_name()!r}"
        else:
            what = "a callback"
        lines = "".join(traceback.format_stack(stack))
        _log.warning("%s has blocked the event loop for %g s:\n%s", what, self._limit_s, lines)


def _op_on(stack: FrameType | None) -> str | None:
    """Name of the op that is being called on a stack."""
    while stack is not None:
        actor = stack.f_locals.get("self")
        if isinstance(actor, OpActor):
            return actor.node.name
        stack = stack.f_back
    return None
