"""Pieces of a compiled kernel on several threads, handed over without Python and without the GIL.

The calling thread writes down what is to be called and for which pieces, and takes one after the other itself. Threads
of the team that linger look at that place all the time, so they begin a microsecond later, where waking one takes 50.
They linger for 100 us after the last piece, then they park; at once where the last times there was nothing to share for
longer than that. See `actorflow.devices.team`.

All of it is one block of memory: whether there is a call, how many helpers are inside, the next piece. A helper says
that it is inside before it looks whether there is a call, and the caller ends the call before it looks whether somebody
is inside: one of the two sees the other, so that the next call is not written down while somebody reads the last one.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cache
from time import perf_counter_ns, thread_time_ns

import numpy as np

from actorflow.devices.team import Worth, team
from actorflow.ops.cpu import parallel
from actorflow.ops.cpu.buffers import Array
from actorflow.ops.numba.assembly import Text, entry, leave
from actorflow.ops.numba.machine import processor
from actorflow.ops.numba.routine import Routine
from actorflow.threads import forget_in_child, held_at_fork

#: Where what is in the block, counted in words; what different threads write to lies in different lines of the cache.
_OPEN, _INSIDE, _NEXT, _WAITING, _STOP, _TAKEN, _WAITED, _CALL, _GIVEN, _WORDS = 0, 16, 32, 48, 64, 80, 81, 96, 102, 128
#: Arguments of a routine at most.
_ARGUMENTS = 14
#: How often the caller looks for helpers that still are at a piece before it lets other threads have the core.
_LOOKS = 2_000
#: Looks of a helper that measures how long one takes, how often it does, and how long a helper looks for the next call.
_MEASURED, _MEASURINGS, _LINGER_NS = 1_000, 3, 100_000
#: Work that takes less is not worth waking a thread for; threads that linger take part in it. What takes less than the
#: second is over when the thread has come: that is worth it where there will soon be more.
_WORTH_WAKING_NS, _LONG_NS = 100_000, 200_000


def _pause() -> tuple[str, str]:
    """What a thread does between two looks: declaration and call."""
    if "+sse2" in processor().features:
        return "declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"
    return "declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"


def _look(text: Text, state: str, word: int) -> str:
    """A word that other threads write to."""
    return text.let(f"load atomic i64, ptr {text.at('i64', state, word)} seq_cst, align 8")


def _put(text: Text, state: str, word: int, value: str | int) -> None:
    text.do(f"store atomic i64 {value}, ptr {text.at('i64', state, word)} seq_cst, align 8")


def _add(text: Text, state: str, word: int, value: int) -> str:
    """Add to a word; what it was before."""
    return text.let(f"atomicrmw add ptr {text.at('i64', state, word)}, i64 {value} seq_cst")


def _work_off() -> str:
    """The function that takes pieces until none are left, and adds up how many in ``taken``."""
    text = Text("work_off", [("ptr", "state"), ("ptr", "taken")], is_inner=True)
    function, count, table, width, given = [text.load("i64", "%state", _CALL + i) for i in range(5)]
    rows, target = text.let(f"inttoptr i64 {table} to ptr"), text.let(f"inttoptr i64 {function} to ptr")
    arguments = text.room("i64", _ARGUMENTS, 16)
    nowhere = text.room("i64", 4, 16)
    for i in range(_ARGUMENTS):
        text.store("i64", text.load("i64", "%state", _GIVEN + i), text.at("i64", arguments, i))
    index = text.variable("i64", _add(text, "%state", _NEXT, 1))
    text.do("br label %more")
    text.do("more:")
    piece = text.load("i64", index)
    text.do(f"br i1 {text.let(f'icmp slt i64 {piece}, {count}')}, label %take, label %done")
    text.do("take:")
    row, own = text.times(piece, width), text.at("i64", arguments, given)
    with text.loop(0, width) as k:
        text.store("i64", text.load("i64", text.at("i64", rows, text.add(row, k))), text.at("i64", own, k))
    values = ", ".join(f"i64 {text.load('i64', arguments, i)}" for i in range(_ARGUMENTS))
    text.do(f"call i32 {target}(ptr {nowhere}, ptr {text.at('i64', nowhere, 1)}, {values})")
    text.store("i64", text.add(text.load("i64", "%taken"), 1), "%taken")
    text.store("i64", _add(text, "%state", _NEXT, 1), index)
    text.do("br label %more")
    text.do("done:")
    text.do("ret void")
    return str(text)


@cache
def _call() -> Routine:
    """Write down a call, take part in it, and wait for those who do."""
    pause, pauses = _pause()
    names = ["place", "give_way", "function", "count", "table", "width", "fixed", *[f"a{i}" for i in range(_ARGUMENTS)]]
    arguments = [("int64*" if name == "table" else "intp", name) for name in names]
    text = entry("crew_call", arguments)
    state = text.let("inttoptr i64 %place to ptr")
    for i, name in enumerate(names[2:7]):
        value = text.let("ptrtoint ptr %table to i64") if name == "table" else f"%{name}"
        text.store("i64", value, text.at("i64", state, _CALL + i))
    for i in range(_ARGUMENTS):
        text.store("i64", f"%a{i}", text.at("i64", state, _GIVEN + i))
    taken = text.variable("i64", 0)
    _put(text, state, _NEXT, 0)
    _put(text, state, _OPEN, 1)
    text.do(f"call void @work_off(ptr {state}, ptr {taken})")
    _put(text, state, _OPEN, 0)
    left = text.variable("i64", _LOOKS)
    text.do("br label %look")
    text.do("look:")
    is_alone = text.let(f"icmp eq i64 {_look(text, state, _INSIDE)}, 0")
    text.do(f"br i1 {is_alone}, label %out, label %wait")
    text.do("wait:")
    text.do(pauses)
    fewer = text.add(text.load("i64", left), -1)
    text.store("i64", fewer, left)
    is_long = text.let(f"icmp slt i64 {fewer}, 0")
    with text.when(text.let(f"and i1 {is_long}, {text.let('icmp ne i64 %give_way, 0')}")):
        text.do(f"call i32 {text.let('inttoptr i64 %give_way to ptr')}()")
    text.do("br label %look")
    text.do("out:")
    text.store("i64", text.load("i64", taken), text.at("i64", state, _TAKEN))
    text.store("i64", text.let(f"sub i64 {_LOOKS}, {text.load('i64', left)}"), text.at("i64", state, _WAITED))
    source = "\n\n".join([pause, _work_off(), leave(text)])
    return Routine(source, "crew_call", [kind for kind, _ in arguments], is_python=False)


@cache
def _linger() -> Routine:
    """Look for calls so often, and take part in them; the end of each begins the count anew."""
    pause, pauses = _pause()
    arguments = [("intp", "place"), ("intp", "looks")]
    text = entry("crew_linger", arguments)
    state = text.let("inttoptr i64 %place to ptr")
    _add(text, state, _WAITING, 1)
    left, taken, was_open = text.variable("i64", "%looks"), text.variable("i64", 0), text.variable("i64", 0)
    text.do("br label %look")
    text.do("look:")
    fewer = text.add(text.load("i64", left), -1)
    text.store("i64", fewer, left)
    ends = text.let(f"icmp slt i64 {fewer}, 0")
    stops = text.let(f"icmp ne i64 {_look(text, state, _STOP)}, 0")
    text.do(f"br i1 {text.let(f'or i1 {ends}, {stops}')}, label %out, label %stay")
    text.do("stay:")
    opened = _look(text, state, _OPEN)
    with text.when(text.let(f"icmp slt i64 {opened}, {text.load('i64', was_open)}")):
        text.store("i64", "%looks", left)
    text.store("i64", opened, was_open)
    is_open = text.let(f"icmp ne i64 {opened}, 0")
    has_more = text.let(f"icmp slt i64 {_look(text, state, _NEXT)}, {_look(text, state, _CALL + 1)}")
    with text.when(text.let(f"and i1 {is_open}, {has_more}")):
        _add(text, state, _INSIDE, 1)
        with text.when(text.let(f"icmp ne i64 {_look(text, state, _OPEN)}, 0")):
            text.do(f"call void @work_off(ptr {state}, ptr {taken})")
            text.store("i64", "%looks", left)
        _add(text, state, _INSIDE, -1)
    text.do(pauses)
    text.do("br label %look")
    text.do("out:")
    _add(text, state, _WAITING, -1)
    source = "\n\n".join([pause, _work_off(), leave(text)])
    return Routine(source, "crew_linger", [kind for kind, _ in arguments], is_python=False)


class Crew:
    """The block, and the rules by which a call is shared.

    One call is shared at a time. Others, of other lanes, are worked off by their own threads alone, as is what runs on
    the loop, and what is not worth it (`actorflow.devices.team.Worth`).
    """

    def __init__(self) -> None:
        self._turn = held_at_fork(threading.Lock(), is_outer=True)
        self.forget_parent()
        self._looks = 0
        self._give_way = _give_way()
        forget_in_child(self)

    def forget_parent(self) -> None:
        """Begin: at first, and in the child of a fork, in which nobody is inside."""
        self._own = threading.local()
        self._before: Worth | None = None  # of the last call that was shared
        self._ended_ns = 0
        self._block, self._words, self._address = _block()

    @property
    def is_ready(self) -> bool:
        """Whether what shares calls is compiled; else it is asked for."""
        return _call().function is not None

    def may_share(self, routine: Routine, count: int, work_ns: float) -> bool:
        """Return whether others would take part in a call now; else it need not be in pieces, and costs nothing more.

        Not in what runs on the loop.

        Args:
            routine: What is called.
            count: In so many pieces.
            work_ns: Estimated time of one thread.
        """
        worth = team.worth((routine.name, count, work_ns))
        if worth is None or not worth.may_spread():
            return False
        if self._words[_WAITING] or team.is_called or (self._wakes(worth, work_ns) and team.idle > 0):
            return True
        self._begun(perf_counter_ns())
        return False

    def _wakes(self, worth: Worth, work_ns: float) -> bool:
        """Return whether a thread is woken for a call if none lingers."""
        return work_ns >= (_WORTH_WAKING_NS if worth.gap_ns <= _LINGER_NS else _LONG_NS)

    def _begun(self, now_ns: int) -> None:
        """There is work to share again."""
        before, self._before = self._before, None
        if before is not None:
            before.shared_again(now_ns - self._ended_ns)

    def work_off(self, routine: Routine, given: Sequence[int], pieces: Array, work_ns: float) -> None:
        """Call a compiled routine with ``(*given, *piece)`` for all pieces, in no order and on idle cores, too.

        Args:
            routine: All of its arguments are arrays and whole numbers.
            given: What all calls are given, arrays by their ``id``.
            pieces: Whole numbers, (pieces, arguments), `numpy.int64` and in C order.
            work_ns: Estimated time of one thread for all of them.
        """
        count, width = pieces.shape
        told = (routine.address, count, id(pieces), width, len(given), *given)
        told += (0,) * (6 + _ARGUMENTS - 1 - len(told))
        call = _call().function
        assert call is not None
        worth = team.worth((routine.name, count, work_ns))
        if worth is None or not worth.may_spread() or not self._turn.acquire(blocking=False):
            call(self._own_address(), self._give_way, *told)
            return
        try:
            start, busy = perf_counter_ns(), thread_time_ns()
            self._begun(start)
            if not self._words[_WAITING] and self._wakes(worth, work_ns):
                team.call_in(count - 1)  # who comes late, as it may be, lingers
            call(self._address, self._give_way, *told)
            taken, end = self._words[_TAKEN], perf_counter_ns()
            if taken < count:  # else nobody has come, or they have parked just then
                waited_ns = self._words[_WAITED] * _LINGER_NS / max(1, self._looks)
                worth.judge(end - start, (thread_time_ns() - busy - waited_ns) * count / max(1, taken))
            if worth.gap_ns > _LINGER_NS and self._words[_WAITING]:
                self.part()
            self._before, self._ended_ns = worth, end
        finally:
            self._turn.release()

    def _own_address(self) -> int:
        """A block of the calling thread's own."""
        found = getattr(self._own, "block", None)
        if found is None:
            found = self._own.block = _block()
        address: int = found[2]
        return address

    # -- helpers -------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of threads that linger."""
        return int(self._words[_WAITING])

    def linger(self) -> None:
        """Look for calls for a moment, on a thread of the team."""
        wait = _linger().function
        if wait is None or not self.is_ready:
            return
        self._words[_STOP] = 0
        if not self._looks:
            times = []
            for _ in range(_MEASURINGS):  # the first one takes two or three times as long
                start = thread_time_ns()  # other programs may have the core meanwhile
                wait(self._own_address(), _MEASURED)  # where nothing comes that it would take part in
                times.append(thread_time_ns() - start)
            self._looks = max(1, _LINGER_NS * _MEASURED // max(1, min(times)))
        wait(self._address, self._looks)

    def part(self) -> None:
        """Have those who linger come back at once."""
        self._words[_STOP] = 1


def _block() -> tuple[Array, memoryview, int]:
    """Memory of its own lines of the cache, its words, and its address."""
    room = np.zeros(_WORDS + 16, np.int64)
    start = -(room.ctypes.data // 8) % 16
    words = room[start : start + _WORDS]
    return room, words.data, words.ctypes.data


def _give_way() -> int:
    """The address of the C library's function that lets other threads have the core; 0 without."""
    try:
        found = ctypes.CDLL(None).sched_yield
    except (AttributeError, OSError, TypeError):  # not on Windows
        return 0
    return ctypes.cast(found, ctypes.c_void_p).value or 0


crew = Crew()
team.lingering = crew


def may_share(routine: Routine, count: int, work_ns: float) -> bool:
    """See `Crew.may_share`."""
    return crew.may_share(routine, count, work_ns)


def spread(routine: Routine, given: Sequence[int], pieces: Array, work_ns: float) -> None:
    """`Crew.work_off`, or until that is compiled, `parallel.spread`."""
    if crew.is_ready:
        crew.work_off(routine, given, pieces, work_ns)
        return
    function = routine.wait()
    parallel.spread(pieces.tolist(), lambda piece: function(*given, *piece), work_ns)
