"""Ctrl-C and other signals while values are computed: they wait until the session's state is consistent.

Python calls the handlers of signals in the main thread, between any two of its instructions. One that raises would
leave records half planned, or an array half updated, for the thread that asks next.
"""

from __future__ import annotations

import signal as signal_module
import sys
import threading

# The functions of `signal` look for an enum of each handler, which takes several times as long as all else here.
from _signal import SIG_DFL, getsignal, signal  # type: ignore[import-not-found]
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Any, ClassVar, Self

from actorflow.threads import forget_in_child

SIGINT = int(signal_module.SIGINT)  # the hash of an enum is slow
#: How often a main thread that waits looks whether it has been interrupted.
POLL_S = 0.05
#: Other signals whose handlers programs have raise; to look at all that there are would take several times as long.
_NAMES = ["SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGTERM", "SIGXCPU", "SIGVTALRM", "SIGPROF"]
_OTHERS = [int(each) for each in signal_module.valid_signals() if getattr(each, "name", "") in _NAMES]
_UNHANDLED = [SIG_DFL for _ in _OTHERS]


class _State:
    """State of the main thread: the application's handlers while they are replaced, and the signals that came since."""

    main = threading.main_thread()
    handlers: ClassVar[dict[int, Any]] = {}
    noted: ClassVar[set[int]] = set()  # without the frames, which would keep what they refer to
    is_open = False

    @classmethod
    def forget_parent(cls) -> None:
        """Start afresh in the child of a fork, whose main thread is the one that forked, perhaps within a guard."""
        cls.main = threading.main_thread()
        cls.is_open = False
        cls.noted.clear()
        _give_back()


forget_in_child(_State)


def _note(signum: int, frame: FrameType | None) -> None:
    if _State.is_open:
        _State.handlers[signum](signum, frame)
    else:
        _State.noted.add(signum)


def _call_noted() -> None:
    """Call the handlers of the signals that came, also if one raises."""
    if _State.noted:
        signum = _State.noted.pop()
        try:
            (_State.handlers.get(signum) or getsignal(signum))(signum, sys._getframe())
        finally:
            _call_noted()


def _give_back() -> None:
    """Put the application's handlers back, also if one that is back raises."""
    handlers = _State.handlers
    try:
        for signum in [*handlers]:
            signal(signum, handlers[signum])
            del handlers[signum]
    finally:
        if handlers:
            _give_back()


def interruptible(function: Callable[..., Any], arguments: Iterable[Any]) -> Any:
    """Call a function that may run Python code for long; Ctrl-C interrupts it."""
    if threading.get_ident() != _State.main.ident or _State.is_open:
        return function(*arguments)
    try:
        try:
            _State.is_open = True
            check_interrupt()
            return function(*arguments)
        finally:
            _State.is_open = False
    finally:  # also if the handler has raised in the line before
        _State.is_open = False


def check_interrupt() -> None:
    """Call the application's handlers, which usually raise, for caught signals. Only where the state is consistent."""
    if _State.noted and threading.current_thread() is _State.main:
        _call_noted()


class Guard:
    """Holds a lock and, in the main thread, keeps interrupts back until `check_interrupt` or the end.

    Attributes:
        wait_s: How long a wait may last before `check_interrupt` is due; None for ever.
    """

    def __init__(self, lock: threading.Condition) -> None:
        self._lock = lock
        self._holds = self._was_open = False
        self.wait_s: float | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is _State.main:
            self.wait_s = POLL_S
            # An operation that is computed may ask for values itself.
            self._was_open, _State.is_open = _State.is_open, False
            if not _State.handlers:
                self._hold()
        self._lock.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()
        if self._was_open:
            _State.is_open = True
        if self._holds:
            _give_back()  # before the look at what was noted, so that nothing is missed
            if _State.noted:
                _call_noted()

    def _hold(self) -> None:
        handler = getsignal(SIGINT)
        handlers = {SIGINT: handler} if callable(handler) else {}
        others = [*map(getsignal, _OTHERS)]
        if others != _UNHANDLED:
            handlers.update({each: handler for each, handler in zip(_OTHERS, others, strict=True) if callable(handler)})
        self._holds = True
        try:
            for signum, handler in handlers.items():
                _State.handlers[signum] = handler  # before its signal can be noted
                signal(signum, _note)
        except BaseException:  # the handler of one that was not held yet
            _give_back()
            raise
