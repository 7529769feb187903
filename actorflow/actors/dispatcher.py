"""Runs ready actors in slices of the loop's time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from threading import get_ident
from typing import Any

import numpy as np

from actorflow.core import Ready, clock_ns

#: Errors that end a program wherever they are raised.
ENDS_PROGRAM = (KeyboardInterrupt, SystemExit)


def leave_loop(error: BaseException | None) -> None:
    """End the program for an error that ends programs (`ENDS_PROGRAM`), as a task that raises one does.

    On the loop's thread, before the task that awaits the work is told: the loop raises the error as soon as it can. So
    it does not matter whether the code that has raised it ran on the loop, in a thread or as a task.
    """
    if isinstance(error, ENDS_PROGRAM):
        asyncio.get_running_loop().call_soon(_raise, error)


def _raise(error: BaseException) -> None:
    raise error


class Dispatcher:
    """Fires actors whose mailbox count has been met, then gives the loop back.

    It knows no graph: an actor that is ready, an op of a program or a stage of a pipeline, has been appended to
    ``ready`` with its work, a frame or a run. Its ``fire(work)`` does all it can now, and returns the time at the
    end; an error ends the work, by ``work.fail(actor, error)``. Code that appends from outside a slice calls `wake`.

    Args:
        loop: The loop whose thread all actors run on.
        slice_ns: Time in nanoseconds after which the application gets its turn, when the actor that runs has ended.

    Attributes:
        ready: Actors that are ready, with the frame that they are ready in.
        claims: Number of claims that keep a graph on the loop: each run, from before its frame starts until its result
            has been taken.
        is_open: Whether it can be claimed: not while the graph moves here from another loop, or once it has left.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, slice_ns: int = 1_000_000) -> None:
        self.loop = loop
        self.slice_ns = slice_ns
        self.ready = Ready()
        self.take: Callable[[], tuple[Any, Any]] | None = None  # picks the next one, where a test wants another order
        self.claims = 0
        self.is_open = True
        self._thread = get_ident()
        self._scheduled = False
        self._due_ns = 0  # when the loop is to have its turn
        self._had_turn = True  # whether it has had one since that was set
        # Slices have one of their own: what kernels do must not depend on whose run has woken the loop.
        self._context = Context()
        self._context.run(np.seterr, all="ignore")

    def claim(self) -> bool:
        """Keep the graph on this loop until `release`; returns False if it is not here, or this loop does not run."""
        is_kept = asyncio.get_running_loop() is self.loop and self.is_open
        if is_kept:
            self.claims += 1
            is_kept = self.is_open
            if not is_kept:  # it is being moved, and the thread that does so may not have seen this
                self.claims -= 1
        return is_kept

    def release(self) -> None:
        """Keep the graph no longer; once for each claim, on the loop's thread."""
        self.claims -= 1

    def wake(self) -> None:
        """Have the loop run a slice if something is ready. Any thread may call it."""
        if self.ready and not self._scheduled:
            self._scheduled = True  # of what is added from here on, the end of that slice takes note
            is_here = get_ident() == self._thread
            call_soon = self.loop.call_soon if is_here else self.loop.call_soon_threadsafe
            try:
                call_soon(self._run_slice)
            except RuntimeError:
                # Frames were left behind when the loop was closed: the ends of their threads are told in another one.
                if not self.loop.is_closed():
                    raise

    def run_now(self) -> bool:
        """Run a slice at once: for a task that can do nothing until all ready actors have been fired.

        Returns whether it did. That saves it two turns of the loop. The loop has its turn all the same when such slices
        have taken a quarter of the time of one of its own.
        """
        if self._scheduled:  # or a slice runs
            return False
        now_ns = clock_ns()
        if self._had_turn:
            self._had_turn = False
            self._due_ns = now_ns + self.slice_ns // 4  # a slice of the loop may have been right before
            self.loop.call_soon(self._turn)
        if now_ns > self._due_ns:
            self.wake()
            return False
        self._scheduled = True
        self._run_slice(self._due_ns)
        return True

    def _turn(self) -> None:
        self._had_turn = True

    def _run_slice(self, due_ns: int = 0) -> None:
        ready = self.ready
        try:
            due_ns = due_ns or clock_ns() + self.slice_ns
            if self.take is None:
                ready.run(due_ns, self._context)
            else:
                self._context.run(self._run_in_order, self.take, due_ns)
        except BaseException as error:
            leave_loop(error)
            if ready.at is None:
                raise
            (actor, frame), ready.at = ready.at, None
            frame.fail(actor, error)
        finally:
            self._scheduled = False
            if ready:
                self.wake()

    def _run_in_order(self, take: Callable[[], tuple[Any, Any]], due_ns: int) -> None:
        """As `Ready.run`."""
        ready = self.ready
        ready.begun_ns = clock_ns()
        while ready:
            ready.at = actor, work = take()
            if actor.fire(work) > due_ns:
                break
        ready.at = None
