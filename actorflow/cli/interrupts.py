"""Ctrl-C while an event loop runs."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
