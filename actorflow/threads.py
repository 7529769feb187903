"""Threads: the one place that starts them, so that nobody takes one for running that is not."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from actorflow.errors import DeviceError

_T = TypeVar("_T")


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """A thread that runs ``target()``, for its owner to keep: it has started.

    It is a daemon, so that a program that ends in the middle of a call does not hang; its owner ends it properly.

    Raises:
        DeviceError: if the system has no thread to give; nothing is left of the attempt then, and a later one may work.
    """
    may_run: SimpleQueue[bool] = SimpleQueue()

    def run() -> None:
        if may_run.get():
            target()

    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except BaseException as error:
        may_run.put(False)  # Ctrl-C while the caller waits for the thread to begin: nobody would ever end it
        if isinstance(error, RuntimeError | MemoryError):
            raise DeviceError(f"thread {name!r} cannot be started: {error}") from error
        raise
    may_run.put(True)
    return thread


async def in_thread(work: Callable[[], _T]) -> _T:
    """What ``work()`` returns or raises, called in a thread of the loop's executor with the caller's context.

    Raises:
        DeviceError: if the executor has no thread and the system none to give; the work is not done then.
    Cancellation: returns at once; work that has begun goes on to its end.
    """
    context, outcome = contextvars.copy_context(), Future[_T]()

    def call() -> None:
        if outcome.set_running_or_notify_cancel():
            try:
                outcome.set_result(context.run(work))
            except BaseException as error:  # noqa: BLE001  raised where it is awaited
                outcome.set_exception(error)

    try:
        asyncio.get_running_loop().run_in_executor(None, call)
    except (RuntimeError, MemoryError) as error:
        # The executor has queued it all the same: a thread that it has may have taken it, else none ever must.
        if outcome.cancel():
            raise DeviceError(f"a thread of the event loop's executor cannot be started: {error}") from error
    return await asyncio.wrap_future(outcome)
