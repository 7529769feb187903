"""Runs ready actors in slices of the loop's time."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np

#: Errors that end a program wherever they are raised.
ENDS_PROGRAM = (KeyboardInterrupt, SystemExit)


class Actor(Protocol):
    """Fired by the dispatcher: an op of a program, a stage of a pipeline."""

    def fire(self, work: Any, /) -> int:
        """Do what can be done now; returns the time, `perf_counter_ns`, at the end."""


class Owner(Protocol):
    """Owner of the work that an actor is fired for: a frame, a run of a pipeline."""

    def fail(self, actor: Any, error: BaseException, /) -> None:
        """End, as an actor has raised an error."""


def leave_loop(error: BaseException | None) -> None:
    """End the program for an error that ends programs (`ENDS_PROGRAM`), as a task that raises one does.

    On the loop's thread, before the task that awaits the work is told: the loop raises the error as soon as it can. So
    it does not matter whether the code that has raised it ran on the loop, in a thread or as a task.
    """
    if isinstance(error, ENDS_PROGRAM):
        asyncio.get_running_loop().call_soon(_raise, error)


def _raise(error: BaseException) -> None:
    raise error


class Ready(deque[tuple[Any, Any]]):
    """Actors that are ready, with the owner of the work that they are ready for, the oldest first.

    Attributes:
        due_ns: The time, `perf_counter_ns`, at which the slice that runs ends: what takes long may stop there, and go
            on when it is ready again.
    """

    __slots__ = ("due_ns",)

    def __init__(self) -> None:
        super().__init__()
        self.due_ns = 0


class Dispatcher:
    """Fires actors whose mailbox count has been met, then gives the loop back.

    It knows no graph: an actor that is ready, of whatever program and frame, has been appended to ``ready``. Code that
    appends from outside a slice calls `wake` afterwards.

    Args:
        loop: The loop whose thread all actors run on.
        slice_ns: Time in nanoseconds after which the application gets its turn, when the actor that runs has ended.

    Attributes:
        ready: Actors that are ready, with the frame that they are ready in.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, slice_ns: int = 1_000_000) -> None:
        self.loop = loop
        self.slice_ns = slice_ns
        self.ready = Ready()
        self.take = self.ready.popleft  # picks the next one; the oldest first, unless a test wants other orders
        self._scheduled = False
        self._running = False
        self._due_ns = 0  # when the loop is to have its turn
        self._had_turn = True  # whether it has had one since that was set
        # Slices have one of their own: what kernels do must not depend on whose run has woken the loop.
        self._context = Context()
        self._context.run(np.seterr, all="ignore")

    def wake(self) -> None:
        """Have the loop run a slice if something is ready."""
        if self.ready and not self._scheduled:
            self._scheduled = True
            try:
                self.loop.call_soon(self._run_slice, context=self._context)
            except RuntimeError:
                # Frames were left behind when the loop was closed: the ends of their threads are told in another one.
                if not self.loop.is_closed():
                    raise

    def run_now(self) -> None:
        """Run a slice at once: for a task that can do nothing until what is ready has been done.

        That saves it two turns of the loop. The loop has its turn all the same when such slices have taken a quarter of
        the time of one of its own.
        """
        if self._scheduled or self._running:
            return
        now_ns = perf_counter_ns()
        if self._had_turn:
            self._had_turn = False
            self._due_ns = now_ns + self.slice_ns // 4  # a slice of the loop may have been right before
            self.loop.call_soon(self._turn, context=self._context)
        if now_ns > self._due_ns:
            self.wake()
        else:
            self._context.run(self._run_slice, self._due_ns)

    def _turn(self) -> None:
        self._had_turn = True

    def _run_slice(self, due_ns: int = 0) -> None:
        ready = self.ready
        take = self.take
        ready.due_ns = deadline = due_ns or perf_counter_ns() + self.slice_ns
        self._running = True
        try:
            while ready:
                actor, frame = take()
                if actor.fire(frame) > deadline:
                    break
        except BaseException as error:  # noqa: BLE001  what goes wrong outside the op itself must not hang its frame
            leave_loop(error)
            frame.fail(actor, error)
        finally:
            self._running = self._scheduled = False
            if ready:
                self.wake()
