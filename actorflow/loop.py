"""Programs: a coroutine on an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T], *, debug: bool | None = None) -> _T:
    """Run a coroutine on a new event loop, uvloop's when it is installed, and close it, as ``asyncio.run`` does.

    Args:
        main: The program.
        debug: As for ``asyncio.run``.
    Raises:
        RuntimeError: if a loop runs in this thread already, as in a notebook.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        if asyncio.iscoroutine(main):
            main.close()  # it would warn that it was not awaited
        raise RuntimeError("af.run() where an event loop runs already (a notebook, python -m asyncio): await main()")
    try:
        with asyncio.Runner(debug=debug, loop_factory=_loop_factory()) as runner:
            return runner.run(main)
    finally:
        if asyncio.iscoroutine(main):
            main.close()  # as above, if there is no loop to be had


async def wait_out(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Wait until all of some tasks have ended, whatever becomes of the caller.

    A cancellation of the caller is passed on to them, as if it awaited their coroutines itself, and raised when all
    have ended: nothing of them is left behind, however often it is cancelled.
    """
    cancelled: asyncio.CancelledError | None = None
    left = set(tasks)  # also those that are done: what follows from their end comes first
    while left:
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError as error:
            cancelled = error
            for task in left:
                task.cancel()
        left = {task for task in left if not task.done()}
    if cancelled is not None:
        try:
            raise cancelled
        finally:
            del cancelled  # whose traceback refers to this


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on Windows
        return None
    return uvloop.new_event_loop
