"""Terminal of the commands: Ctrl-C while an event loop runs, standard output, and counts in words."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console


@contextmanager
def cancel_on_interrupt() -> Iterator[None]:
    """Let Ctrl-C cancel the current task inside the ``with`` block, each time it is pressed.

    The loop is never left in the middle of a callback, as it would be by a KeyboardInterrupt. Whatever handled Ctrl-C
    before is put back at the end. Outside the main thread, which gets no signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def cancel(_signum: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(task.cancel)

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)


#: Width of output that is not a terminal: nothing is cut off or broken there.
_PLAIN_WIDTH = 240


def output() -> Console:
    """Standard output: as wide as the terminal is, and wide enough for anything where there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


def count_text(count: int, what: str) -> str:
    """A number of things: ``1 call``, ``2,000 calls``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
