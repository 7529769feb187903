"""Ctrl-C while an event loop runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["cancel_on_interrupt"]


@contextmanager
def cancel_on_interrupt() -> Iterator[None]:
    """Let Ctrl-C cancel the main task of an event loop that is run inside the ``with`` block.

    ``asyncio.Runner`` does that by itself, but only where Python's own handler is installed; whatever was installed
    before is put back at the end. Outside the main thread, which gets no signals, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
