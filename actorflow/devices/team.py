"""Threads that take part in the work of lanes while cores are idle.

A lane's thread spreads pieces of work that do not depend on each other (`Team.spread`): it takes one after the other,
and so do threads of a pool, one for the whole process, as many as cores have nothing to do. Who computes a piece is
chance; the pieces are the caller's, so that results do not depend on it. The word is OpenMP's.

Linux may wake a thread on the core of the thread that wakes it, and move it to an idle one only some ms later, when short
work is over. So a thread that begins to work where another one of the team is at work moves away (`Member.begin`).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

from actorflow.devices.blas import cores

__all__ = ["Member", "Team", "team"]

_P = TypeVar("_P")


class Member:
    """A thread of the team.

    Attributes:
        at_work: Whether it has something to do. Its own thread alone sets it.
        core: Where it was when it began; None where that is not known.
    """

    __slots__ = ("_team", "at_work", "core")

    def __init__(self, crew: Team) -> None:
        self._team = crew
        self.at_work = False
        self.core: int | None = None

    def begin(self) -> None:
        """The thread, which had nothing to do, begins to work: on a core of its own if there is one."""
        self.look()
        if self.core is not None:
            taken = self._team.taken_from(self)
            if self.core in taken:
                _leave(taken)
                self.look()
        self.at_work = True

    def look(self) -> None:
        """Note the core on which the thread runs."""
        self.core = None if _current_core is None else _current_core()


def _find_current_core() -> Callable[[], int] | None:
    if not hasattr(os, "sched_setaffinity"):  # macOS and Windows
        return None
    from ctypes import CDLL

    found: Callable[[], int] | None = getattr(CDLL(None), "sched_getcpu", None)
    return found


_current_core = _find_current_core()


def _leave(taken: set[int]) -> None:
    """Move the calling thread to another core than those; it may be moved again, by Linux, anywhere."""
    allowed = os.sched_getaffinity(0)
    if allowed - taken:
        with suppress(OSError):  # the cores of the process have been changed meanwhile
            os.sched_setaffinity(0, allowed - taken)
            os.sched_setaffinity(0, allowed)


class _Call:
    """Pieces of work, and the threads that are at it."""

    __slots__ = ("_done", "_ended", "_errors", "_lock", "_pieces", "_work", "_working")

    def __init__(self, pieces: Sequence[Any], work: Callable[[Any], None]) -> None:
        self._pieces = deque(enumerate(pieces))
        self._work: Callable[[Any], None] | None = work
        self._errors: list[tuple[int, BaseException]] = []
        self._lock = threading.Lock()
        self._working = 0
        self._ended = False
        self._done = threading.Lock()
        self._done.acquire()

    def help(self, run: Callable[[Callable[[], None]], None]) -> None:
        """Take part, unless it is over."""
        with self._lock:
            if self._ended:
                return
            self._working += 1
        try:
            run(self.work_off)
        finally:
            with self._lock:
                self._working -= 1
                if self._ended and not self._working:
                    self._done.release()

    def work_off(self) -> None:
        """Take pieces until none are left."""
        pieces, work = self._pieces, self._work
        assert work is not None
        while True:
            try:
                index, piece = pieces.popleft()
            except IndexError:
                return
            try:
                work(piece)
            except BaseException as error:  # noqa: BLE001  the caller raises it
                self._errors.append((index, error))
                pieces.clear()

    def end(self) -> None:
        """Wait for those who still are at a piece; raise what one of them raised.

        From then on no thread but the caller's knows the arrays: buffers that others know are not used again.
        """
        with self._lock:
            self._ended = True
            is_waited_for = self._working > 0
        if is_waited_for:
            self._done.acquire()
        self._work = None
        if self._errors:
            errors, self._errors = self._errors, []
            raise min(errors, key=_index)[1]


def _index(failed: tuple[int, BaseException]) -> int:
    return failed[0]


class Team:
    """The lanes' threads, and those that help them: at most one less than there are cores, and none without lanes."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._calls: SimpleQueue[tuple[_Call, Callable[..., Any]] | None] = SimpleQueue()
        self._members: tuple[Member, ...] = ()
        self._helpers: tuple[Member, ...] = ()
        self._here = threading.local()
        self._threads = 0
        self._invited = 0

    def forget(self) -> None:
        """After a fork, in the child, which has none of these threads."""
        self._reset()

    def join(self) -> Member:
        """The calling thread is a lane's from here on."""
        member = Member(self)
        with self._lock:
            self._members = (*self._members, member)
        self._here.member = member
        return member

    def taken_from(self, member: Member) -> set[int]:
        """The cores that others of the team work on."""
        everybody = (*self._members, *self._helpers)
        return {other.core for other in everybody if other.at_work and other is not member and other.core is not None}

    def leave(self, member: Member) -> None:
        """End what `join` began, on the same thread. With the last lane's thread, those that help end, too."""
        self._here.member = None
        with self._lock:
            self._members = tuple(other for other in self._members if other is not member)
            ending, self._threads = (0 if self._members else self._threads), self._threads if self._members else 0
        for _ in range(ending):
            self._calls.put(None)

    @property
    def idle(self) -> int:
        """How many cores have nothing to do, as far as this process knows."""
        at_work = sum([member.at_work for member in self._members])
        return cores() - at_work - self._invited

    def spread(self, pieces: Sequence[_P], work: Callable[[_P], None]) -> None:
        """Call ``work(piece)`` for all pieces, in no order; on a lane's thread, beside others that are idle.

        Elsewhere (on the loop, say, in ``sequential`` graphs), and if no core is idle, they are worked off in order.

        Raises:
            BaseException: what a piece raised; that of the first one of several. Pieces that were left are dropped.
        """
        if len(pieces) > 1 and getattr(self._here, "member", None) is not None:
            count = self._invite(len(pieces) - 1)
            if count > 0:
                self._work_together(_Call(pieces, work), count)
                return
        for piece in pieces:
            work(piece)

    def _invite(self, most: int) -> int:
        """How many threads will help, at most so many; they are there then."""
        with self._lock:
            count = min(most, self.idle)
            while self._threads < self._invited + count:
                try:  # a daemon, as the lanes' threads are
                    threading.Thread(target=self._help, name="actorflow-team", daemon=True).start()
                except RuntimeError:  # no thread to be had: those that are there must do
                    count = self._threads - self._invited
                    break
                self._threads += 1
            if count > 0:
                self._invited += count
            return count

    def _work_together(self, call: _Call, count: int) -> None:
        self._here.member.look()
        for _ in range(count):
            # What a context holds (how NumPy treats overflows, say) holds for helpers, too.
            self._calls.put((call, copy_context().run))
        try:
            call.work_off()
        finally:
            call.end()

    def _help(self) -> None:
        calls = self._calls
        member = Member(self)
        with self._lock:
            self._helpers = (*self._helpers, member)
        while (invitation := calls.get()) is not None:
            member.begin()
            invitation[0].help(invitation[1])
            member.at_work = False
            del invitation  # while nothing is to do, nothing of the last call may be kept alive
            with self._lock:
                self._invited -= 1
        with self._lock:
            self._helpers = tuple(other for other in self._helpers if other is not member)


team = Team()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=team.forget)
