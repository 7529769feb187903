"""How lanes share cores: who takes part in whose work, and how many threads BLAS has.

A lane's thread spreads pieces of work that do not depend on each other (`Team.spread`): it takes one after the other,
and so do threads of a pool, one for the whole process, as many as cores have nothing to do. Which thread computes a
piece is chance; the pieces are the caller's, so that results do not depend on it. The word is OpenMP's.

Linux may wake a thread on the core of the thread that wakes it, and move it to an idle one only some ms later, when
short work is over. So those who help are told to stay off the core of the thread that invites them, before they wake.

There is no telling whether other programs use a core. So the team measures the gain from help, for each kind of
work: where it brought nothing, such work is spread no more for a while (`Worth`).

BLAS keeps one pool of threads for the whole process: lanes that there is work for have an equal share of the cores
each, and pieces that call BLAS are computed by one thread each. Where lanes compute nothing but kernels, which are cut
into pieces, BLAS has one thread: its own would wait for more work in a loop, on cores that pieces need.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from math import inf
from operator import itemgetter
from queue import SimpleQueue
from time import perf_counter_ns, thread_time_ns
from typing import Any, TypeVar

from actorflow.errors import DeviceError
from actorflow.threads import cores, forget_in_child, held_at_fork, start_thread

_P = TypeVar("_P")

#: Work that takes less is not spread: it would be over before another thread has begun.
WORTH_NS = 200_000
_GAIN = 1.1  # spread work must be faster than one thread by this factor to be worth the processor's time that it costs
_MOST_KINDS = 4096  # kinds of work whose worth is known at a time


class Member:
    """A lane's thread in the team."""

    __slots__ = ("at_work",)

    def __init__(self) -> None:
        self.at_work = 0  # cores that are at its work. Its own thread alone sets it


def _current_core_function() -> Callable[[], int | None]:
    if hasattr(os, "sched_setaffinity"):  # not on macOS and Windows
        from ctypes import CDLL

        found: Callable[[], int] | None = getattr(CDLL(None), "sched_getcpu", None)
        if found is not None:
            return found
    return lambda: None


_current_core = _current_core_function()


class Worth:
    """Whether help makes work of one kind faster.

    Args:
        longest_pause: How many calls at most are not spread after one whose spreading brought nothing.
    """

    __slots__ = ("_is_doubtful", "_longest_pause", "_pause", "_skips")

    def __init__(self, longest_pause: int) -> None:
        self._longest_pause = longest_pause
        self._pause = 0  # how many calls are not spread after the last one whose spreading brought nothing
        self._skips = 0  # how many of them are left
        self._is_doubtful = False  # whether the last one that was spread was such a call: one may be an accident

    def may_spread(self) -> bool:
        """Return whether the next call may be spread, and count it."""
        if self._skips <= 0:
            return True
        self._skips -= 1
        return False

    def judge(self, elapsed_ns: int, alone_ns: float) -> None:
        """Take note of how long spread work took, and how long it takes one thread.

        Where that is less, the second time in a row begins a pause, and each further one begins one twice as long.
        """
        if not alone_ns or elapsed_ns * _GAIN < alone_ns:  # or the clock of the thread is too coarse to tell
            self._pause = self._skips = 0
            self._is_doubtful = False
        elif not self._is_doubtful:
            self._is_doubtful = True
        else:
            self._pause = self._skips = min(self._longest_pause, 2 * self._pause + 1)


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

    @property
    def left(self) -> int:
        """Number of pieces that nobody has taken yet."""
        return len(self._pieces)

    def help(self, run: Callable[[Callable[[], int]], int]) -> None:
        with self._lock:
            is_late = self._ended
            self._working += not is_late
        if is_late:
            return
        try:
            run(self.work_off)
        finally:
            with self._lock:
                self._working -= 1
                if self._ended and not self._working:
                    self._done.release()

    def work_off(self) -> int:
        """Take pieces until none are left; returns how many."""
        taken = 0
        while self.take():
            taken += 1
        return taken

    def take(self) -> bool:
        """Take a piece; False if none is left."""
        assert self._work is not None
        try:
            index, piece = self._pieces.popleft()
        except IndexError:
            return False
        try:
            self._work(piece)
        except BaseException as error:  # noqa: BLE001  the caller raises it
            self._errors.append((index, error))
            self._pieces.clear()
        return True

    def end(self) -> None:
        """Wait for those who still are at a piece; raise the exception of one of them.

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
            raise min(errors, key=itemgetter(0))[1]


class _Blas:
    """The number of threads of BLAS: as set before, or fewer."""

    def __init__(self) -> None:
        self._libraries: list[Any] = []
        self._modules = 0  # how many were loaded when libraries were looked for
        #: Libraries that have a limit, by their files, and their former limits.
        self._before: dict[str, tuple[Any, int]] = {}

    def look(self) -> None:
        """Look for libraries that came with modules since the last time; all that is loaded takes some ms."""
        from threadpoolctl import ThreadpoolController

        modules = len(sys.modules)
        if self._modules != modules:
            self._libraries = ThreadpoolController().select(user_api="blas").lib_controllers
            self._modules = modules  # it is looked for again if that fails

    def limit(self, most: int | None) -> None:
        """Have at most so many threads, or None: as many as before."""
        if most is None:
            before, self._before = self._before, {}
            for library, count in before.values():
                library.set_num_threads(count)
            return
        self.look()
        for library in self._libraries:
            if library.filepath not in self._before:
                self._before[library.filepath] = library, library.get_num_threads()
        for library, count in self._before.values():
            library.set_num_threads(min(count, most))


class Team:
    """The lanes, their threads, and those that help: at most one less than there are cores, and none without lanes."""

    def __init__(self, longest_pause: int = 63) -> None:
        self._longest_pause = longest_pause
        self._lock = held_at_fork(threading.Lock())
        self._setting = held_at_fork(threading.Lock())  # for the limits of BLAS
        self._blas = _Blas()
        self.forget_parent()
        forget_in_child(self)

    def forget_parent(self) -> None:
        """Begin: at first, and in the child of a fork, which has none of these threads. BLAS hears of it later."""
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._members: tuple[Member, ...] = ()
        self._here = threading.local()
        self._threads = 0
        self._helpers: list[int] = []  # native ids of these threads
        self._avoided: int | None = None  # the core that they stay off
        self._invited = 0
        self._worths: dict[Hashable, Worth] = {}
        # A lane may be closed by the garbage collector at any moment, while BLAS is set, too: changes are only noted,
        # and the thread that sets it takes them up.
        self._changes: deque[tuple[int, int, int, int]] = deque()  # of the four numbers below
        self._lanes = 0  # that there is work for
        self._in_pieces = 0  # lanes of them whose work is in pieces, or needs no BLAS
        self._keepers = 0  # calls of `keep_single` that have not ended
        self._singles = 0  # calls within `single`

    @property
    def share(self) -> int:
        """Threads that one lane may use now, for libraries whose threads are not set here."""
        return self._share(max(1, self._lanes))

    @property
    def next_share(self) -> int:
        """Threads that each lane may use once there is one more."""
        return self._share(self._lanes + 1)

    def prepare(self) -> None:
        """Look for libraries of BLAS now, on this thread, and not when the first lane starts."""
        with self._setting:
            self._blas.look()
        self._change()  # changes that others have noted meanwhile

    def lane_started(self, in_pieces: bool = False) -> None:
        """There is one more lane with work; with ``in_pieces``, it needs no threads of BLAS."""
        self._change(lanes=1, in_pieces=int(in_pieces))

    def lane_stopped(self, in_pieces: bool = False) -> None:
        """There is one lane less, which was started so. May be called by the garbage collector."""
        self._change(lanes=-1, in_pieces=-int(in_pieces))

    def keep_single(self) -> None:
        """Keep BLAS on one thread until `release_single`."""
        self._change(keepers=1)

    def release_single(self) -> None:
        """End an interval begun by `keep_single`. May be called by the garbage collector."""
        self._change(keepers=-1)

    @contextmanager
    def single(self) -> Iterator[None]:
        """Products of matrices, within the block, on the thread that calls for them alone.

        For work that is spread over threads piece by piece: BLAS takes one product at a time if each has several
        threads. It is so for the whole process, since BLAS knows no other way.
        """
        if self.share == 1:
            yield
            return
        self._change(singles=1)
        try:
            yield
        finally:
            self._change(singles=-1)

    def _share(self, lanes: int) -> int:
        return 1 if self._keepers else max(1, cores() // lanes)

    def _change(self, lanes: int = 0, in_pieces: int = 0, keepers: int = 0, singles: int = 0) -> None:
        self._changes.append((lanes, in_pieces, keepers, singles))
        while self._changes and self._setting.acquire(blocking=False):
            try:
                while self._changes:
                    lanes, in_pieces, keepers, singles = self._changes.popleft()
                    self._lanes += lanes
                    self._in_pieces += in_pieces
                    self._keepers += keepers
                    self._singles += singles
                if self._singles or 0 < self._lanes == self._in_pieces:
                    most: int | None = 1
                else:
                    most = self.share if self._lanes > 1 or self._keepers else None
                self._blas.limit(most)
            finally:
                self._setting.release()

    def join(self) -> Member:
        """The calling thread is a lane's from here on."""
        member = Member()
        with self._lock:
            self._members = (*self._members, member)
        self._here.member = member
        return member

    def leave(self, member: Member) -> None:
        """End an interval begun by `join`, on the same thread. The helping threads end with the last lane's."""
        self._here.member = None
        with self._lock:
            self._members = tuple(other for other in self._members if other is not member)
            ending, self._threads = (0 if self._members else self._threads), self._threads if self._members else 0
            if ending:
                self._helpers, self._avoided = [], None
        for _ in range(ending):
            self._calls.put(None)

    @property
    def threads(self) -> int:
        """Threads that may compute for the calling one, itself among them: for a lane's, those of idle cores, too.

        It is all cores, or half of them, or a third, ...: a library has a form of its work for each number of threads.
        """
        idle = self.idle if getattr(self._here, "member", None) is not None else 0
        return cores() // -(-cores() // (1 + max(0, idle)))

    @contextmanager
    def at_work(self, count: int) -> Iterator[None]:
        """Count some cores as at the work of the calling thread, which is a lane's, within the block."""
        self._here.member.at_work = count
        try:
            yield
        finally:
            self._here.member.at_work = 1

    @property
    def idle(self) -> int:
        """Number of cores that have nothing to do, as far as this process knows."""
        at_work = sum([member.at_work for member in self._members])
        return cores() - at_work - self._invited

    def spread(
        self, pieces: Sequence[_P], work: Callable[[_P], None], work_ns: float = inf, multiplies: bool = False
    ) -> None:
        """Call ``work(piece)`` for all pieces, in no order; on a lane's thread, beside others that are idle.

        A core that becomes idle meanwhile takes part in the pieces left. Elsewhere (as on the loop, in ``sequential``
        graphs), and as long as no core is idle, pieces are worked off in order.

        Args:
            pieces: Can be computed in any order, and at once.
            work: Computes one piece.
            work_ns: Estimated time of one thread for all of them.
            multiplies: It calls BLAS, which a lane's thread keeps to one thread meanwhile.
        Raises:
            BaseException: of a piece; of the first one, if several raise. Pieces that were left are dropped.
        """
        is_here = getattr(self._here, "member", None) is not None
        with self.single() if multiplies and len(pieces) > 1 and is_here else nullcontext():
            if len(pieces) > 1 and work_ns >= WORTH_NS and is_here:
                worth = self._worth((getattr(work, "__code__", None), len(pieces), work_ns))
                if worth.may_spread():
                    self._work_together(_Call(pieces, work), len(pieces), worth)
                    return
            for piece in pieces:
                work(piece)

    def _worth(self, kind: Hashable) -> Worth:
        found = self._worths.get(kind)
        if found is None:
            if len(self._worths) >= _MOST_KINDS:
                self._worths.clear()
            found = self._worths[kind] = Worth(self._longest_pause)
        return found

    def _invite(self, call: _Call) -> int:
        """Ask idle cores to help with the pieces that are left but one; returns how many."""
        count = min(call.left - 1, self.idle)
        if count <= 0:
            return 0
        with self._lock:
            count = min(count, self.idle)
            while self._threads < self._invited + count:
                try:
                    thread = start_thread(self._help, "actorflow-team")
                except DeviceError:  # none to be had: those that are there must do
                    count = self._threads - self._invited
                    break
                self._threads += 1
                self._helpers.append(thread.native_id or 0)
                self._avoided = None
            count = max(0, count)
            self._invited += count
            core = _current_core()
            if core is not None and core != self._avoided:
                self._avoid(core)
        for _ in range(count):
            # Settings of a context (such as NumPy's treatment of overflows) hold for helpers, too.
            self._calls.put(partial(call.help, copy_context().run))
        return count

    def _avoid(self, core: int) -> None:
        """Have those who help stay off the core of the calling thread."""
        self._avoided = core
        others = os.sched_getaffinity(0) - {core}
        for thread in self._helpers if others else ():
            with suppress(OSError):  # the cores of the process have been changed meanwhile
                os.sched_setaffinity(thread, others)

    def _work_together(self, call: _Call, pieces: int, worth: Worth) -> None:
        start, busy = perf_counter_ns(), thread_time_ns()
        taken = 0
        try:
            helpers = self._invite(call)
            while call.take():
                taken += 1
                self._invite(call)
        finally:
            call.end()
        if helpers:  # else those who came late, if any, say little
            worth.judge(perf_counter_ns() - start, (thread_time_ns() - busy) * pieces / max(1, taken))

    def _help(self) -> None:
        calls = self._calls
        while (work := calls.get()) is not None:
            work()
            del work  # while nothing is to do, nothing of the last call may be kept alive
            with self._lock:
                self._invited -= 1


team = Team()
