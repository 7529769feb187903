"""Ctrl-C while values are computed: it waits until the session's state is consistent.

Python calls the handlers of signals in the main thread, between any two of its instructions. One that raises would
leave records half planned, or an array half updated, for the thread that asks next.
"""

from __future__ import annotations

import threading

# The functions of `signal` look for an enum of each handler, which takes several times as long as all else here.
from _signal import getsignal, signal  # type: ignore[import-not-found]
from collections.abc import Callable, Iterable
from signal import SIGINT
from types import FrameType, TracebackType
from typing import Any, Self

from actorflow.threads import forget_in_child

#: How often a main thread that waits looks whether it has been interrupted.
POLL_S = 0.05


class _State:
    """State of the main thread: the application's handler while it is replaced, and the signal that came since."""

    main = threading.main_thread()
    handler: Any = None
    frame: FrameType | None = None
    is_noted = False
    is_open = False

    @classmethod
    def forget_parent(cls) -> None:
        """Start afresh in the child of a fork, whose main thread is the one that forked, perhaps within a guard."""
        cls.main = threading.main_thread()
        cls.frame, cls.is_noted, cls.is_open = None, False, False
        if cls.handler is not None:
            handler, cls.handler = cls.handler, None
            signal(SIGINT, handler)


forget_in_child(_State)


def _note(signum: int, frame: FrameType | None) -> None:
    if _State.is_open:
        _State.handler(signum, frame)
    else:
        _State.frame = frame
        _State.is_noted = True


def interruptible(function: Callable[..., Any], arguments: Iterable[Any], **options: Any) -> Any:
    """Call a function that may run Python code for long; Ctrl-C interrupts it."""
    if threading.get_ident() != _State.main.ident or _State.is_open:
        return function(*arguments, **options)
    _State.is_open = True
    try:
        check_interrupt()
        return function(*arguments, **options)
    finally:
        _State.is_open = False


def check_interrupt() -> None:
    """Call the application's handler, which usually raises, if Ctrl-C came. Only where the state is consistent."""
    if _State.is_noted and threading.current_thread() is _State.main:
        frame, _State.frame, _State.is_noted = _State.frame, None, False
        _State.handler(SIGINT, frame)


class Guard:
    """Holds a lock and, in the main thread, keeps interrupts back until `check_interrupt` or the end.

    Attributes:
        wait_s: How long a wait may last before `check_interrupt` is due; None for ever.
    """

    __slots__ = ("_holds", "_lock", "_was_open", "wait_s")

    def __init__(self, lock: threading.Condition) -> None:
        self._lock = lock
        self._holds = self._was_open = False
        self.wait_s: float | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is _State.main:
            self.wait_s = POLL_S
            if _State.handler is None and callable(getsignal(SIGINT)):
                _State.handler = signal(SIGINT, _note)
                self._holds = True
            # An operation that is computed may ask for values itself.
            self._was_open, _State.is_open = _State.is_open, False
        self._lock.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()
        if self._was_open:
            _State.is_open = True
        if self._holds and _State.handler is not None:  # None in the child of a fork
            handler, _State.handler = _State.handler, None
            signal(SIGINT, handler)  # before the look at what was noted, so that nothing is missed
            if _State.is_noted:
                frame, _State.frame, _State.is_noted = _State.frame, None, False
                handler(SIGINT, frame)
