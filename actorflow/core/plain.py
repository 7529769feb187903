"""The core in plain Python: the same steps as in the compiled one; it runs where no compiler was.

It knows nothing of graphs, plans, devices or event loops: callables and numbers. A frame has a mailbox per op, which
counts the messages that the op still waits for, a value per slot, and a count of readers per slot. An op that has been
called accounts for itself, sends its followers a message each, and those whose mailbox is empty then are ready. What
may have to wait (for a device, for memory, for another call) is the business of `Op.fire`, which derived classes have.

Two kinds of threads run ops. The loop's takes ready ops from a queue (`Ready.run`). A lane's is given one op of a
frame, and goes on with its followers there, as far as it may be called on that thread (`Shift`); it tells the loop of
all else. So while there are shifts, counts are guarded by a lock; the compiled core has the interpreter's.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from enum import Enum
from itertools import count
from operator import setitem
from struct import Struct
from sys import getrefcount, maxsize
from time import perf_counter_ns
from typing import Any, TypeAlias
from weakref import getweakrefcount

import numpy as np

#: Size of a row of the trace: end, elapsed time, key and frame of a call.
CALL_BYTES = 32
#: Bytes of a monitor that hold the state of an op; as `actorflow.trace.counters.NodeState`.
RUNNING, DONE = 2, 3
#: How long a lane's thread calls short ops, one after the other. Each may be Python that holds the interpreter's
#: lock: a thread that takes that again and again keeps the loop from it for milliseconds.
PATIENCE_NS = 300_000
#: Results of items that follow each other within so many nanoseconds come in bursts, of so many at most: to wait for
#: each of them would take longer than to compute it. Slower ones are held back by the end of a slice.
QUICK_NS, BURST = 50_000, 16
#: Longer than any call; the expected time of an op that has not run.
FOREVER_NS = 1 << 62
#: Bytes of a part of an array up to which it is copied, so that it does not keep the whole.
MOST_COPIED_BYTES = 1 << 16

_pack_row = Struct("=qqqq").pack_into
#: Arguments of memory that a child of a fork has a copy of, where there are forks.
_OWN = {"flags": mmap.MAP_PRIVATE} if hasattr(mmap, "MAP_PRIVATE") else {}
#: A lock for the counts, once there are threads: `actorflow.threads`, which starts them all, brings it. It is held for
#: some steps of Python. As taking it costs nearly as much as these, the loop's thread leaves it alone where there is no
#: shift: none begins but by a hand of the loop's, or of another shift. It may be taken again by the thread that has it,
#: as a collection of garbage in the middle may run anything.
counting: AbstractContextManager[Any] = nullcontext()


def untouched(size_bytes: int) -> Any:
    """Bytes that are 0 and take no memory, page by page, until they are written to."""
    try:
        return np.frombuffer(mmap.mmap(-1, size_bytes, **_OWN), np.uint8)
    except OSError as error:
        raise MemoryError(f"there is no memory for a trace of {size_bytes:,} bytes, see trace_capacity") from error


def _count_unshared() -> int:
    values: list[Any] = [np.empty(0)]
    buffer = values[0]
    values[0] = None
    return getrefcount(buffer)


#: Value of ``getrefcount(buffer)`` for a buffer held by one local variable only; it differs between Python versions.
UNSHARED = _count_unshared()


_clocks: list[Callable[[], int]] = [perf_counter_ns]


def clock_ns() -> int:
    """The time in nanoseconds: `time.perf_counter_ns`, or that of the clock in its place."""
    return _clocks[0]()


def set_clock(clock: Callable[[], int] | None) -> None:
    """Have the time read from another clock, for all of the process; None for the system's."""
    _clocks[0] = clock or perf_counter_ns


class Profile:
    """Calls and time of one op since its graph was made; always kept.

    Attributes:
        calls: Calls that have ended well.
        failed: Calls that have failed, those that were repeated as well.
        total_ns: Wall time of those that ended well, in nanoseconds: compute on a lane or on the loop, waiting for
            async functions.
        last_ns: Wall time of the latest of them.
    """

    __slots__ = ("calls", "failed", "last_ns", "total_ns")

    def __init__(self, calls: int = 0, failed: int = 0, total_ns: int = 0, last_ns: int = 0) -> None:
        self.calls = calls
        self.failed = failed
        self.total_ns = total_ns
        self.last_ns = last_ns

    def add(self, elapsed_ns: int) -> None:
        """A call has ended well."""
        self.calls += 1
        self.total_ns += elapsed_ns
        self.last_ns = elapsed_ns


class Ring:
    """Rows of the newest calls, in a buffer of fixed size.

    Args:
        capacity: Number of rows, a power of two.

    Attributes:
        buffer: The rows, of `CALL_BYTES` each.
        mask: One less than the capacity.
        total: Rows since the start; the position behind the newest one.
    """

    __slots__ = ("buffer", "mask", "total")

    def __init__(self, capacity: int) -> None:
        self.buffer = untouched(capacity * CALL_BYTES)
        self.mask = capacity - 1
        self.total = 0

    def add(self, end_ns: int, elapsed_ns: int, key: int, frame: int) -> None:
        """Enter a call that has ended."""
        total = self.total
        _pack_row(self.buffer, (total & self.mask) * CALL_BYTES, end_ns, elapsed_ns, key, frame)
        self.total = total + 1


class Turnstile:
    """Lets the frames of one op start in the order in which they were started, ``limit`` at a time.

    A function may keep state from call to call, so its frames neither overtake nor overlap each other unless that was
    asked for. Kernels keep none and need no turnstile.

    Args:
        limit: Number of frames that may run the op at once; None where the lane's order sees to that.

    Attributes:
        limit: Number of frames that may run the op at once; more than there can be where nothing limits that.
        running: Number of frames that have entered and not left.
        is_elsewhere: Whether the one that runs does so on another lane than the op's: no other may enter meanwhile.
        parked: Actors that wait until their frame may enter.
    """

    __slots__ = ("_later", "_next", "is_elsewhere", "limit", "parked", "running")

    def __init__(self, limit: int | None) -> None:
        self.running = 0
        self.is_elsewhere = False
        self.limit = maxsize if limit is None else limit
        # Mostly one frame at most is expected, and there is a turnstile per op: an empty deque takes over 600 bytes.
        self._next: Any = None
        self._later: deque[Any] | None = None
        self.parked: dict[Any, Any] | None = None

    def expect(self, frame: Any) -> None:
        """A frame has started that will run the op."""
        if self._next is None:  # no thread of a lane sets it
            self._next = frame
            return
        with counting:
            if self._next is None:
                self._next = frame
                return
            if self._later is None:
                self._later = deque()
            self._later.append(frame)

    @property
    def expected(self) -> list[Any]:
        """The frames that have yet to enter, in their order."""
        return [] if self._next is None else [self._next, *(self._later or ())]

    def enter(self, frame: Any, actor: Any) -> bool:
        """Return whether the frame may run the op now; otherwise its actor becomes ready again when it may."""
        if frame.ready.shifts:
            with counting:
                return self._enter(frame, actor)
        return self._enter(frame, actor)

    def _enter(self, frame: Any, actor: Any) -> bool:
        if self._next is frame and self.running < self.limit and not self.is_elsewhere:
            self.running += 1
            if self._later:
                self._next = self._later.popleft()
                if self.parked:
                    self.admit()
            else:
                self._next = None
            return True
        if self.parked is None:
            self.parked = {}
        self.parked[frame] = actor
        return False

    def enter_alone(self, frame: Any, actor: Any, elsewhere: bool = False) -> bool:
        """Return whether the frame may run the op now, and no other one does; otherwise nothing has happened."""
        with counting:
            is_alone = self._next is frame and not self.running and self._enter(frame, actor)
            self.is_elsewhere |= is_alone and elsewhere
        return is_alone

    def leave(self) -> None:
        """A frame that had entered is done with the op."""
        with counting:
            self.running -= 1
            self.is_elsewhere = False
            if self.parked:
                self.admit()

    def skip(self, frame: Any) -> None:
        """The frame has stopped and will not enter."""
        with counting:
            if self.parked:
                self.parked.pop(frame, None)
            if self._next is frame:
                self._next = self._later.popleft() if self._later else None
                self.admit()
            elif self._later is not None and frame in self._later:
                self._later.remove(frame)

    def admit(self) -> None:
        """Make the next frame's actor ready if it is parked and may enter."""
        frame = self._next
        if frame is not None and self.running < self.limit and not self.is_elsewhere:
            actor = self.parked.pop(frame, None) if self.parked else None
            if actor is not None:
                frame.ready.append((actor, frame))
                frame.wake()


class Blob:
    """One tensor slot of a program.

    The plan gives every slot exactly one producer (it sums the terms of a blob that has several), so the producer tells
    the slot's readers itself; they are counted, and the last one gives the buffer back.

    Attributes:
        bucket: Where its buffer goes back to; None for values that did not come from there, or it would grow.
    """

    __slots__ = ("bucket", "slot")

    #: Whether the compiled core drops it by itself.
    is_usual = True

    def __init__(self, slot: int, bucket: Any) -> None:
        self.slot = slot  # index of its value in a frame
        self.bucket = bucket

    def drop(self, frame: Any) -> None:
        """Give the buffer back: the last reader is done. May be called from a lane's thread."""
        values = frame.values
        buffer = values[self.slot]
        values[self.slot] = None
        bucket = self.bucket
        if bucket is not None and getrefcount(buffer) == UNSHARED:
            bucket.give_back(buffer)
        if frame.budget is not None:
            frame.budget.freed.append((frame, self.slot))


class View(Blob):
    """A slot whose value is a view of another slot's: the viewed buffer goes back to the bucket."""

    __slots__ = ()

    def drop(self, frame: Any) -> None:
        values = frame.values
        buffer = values[self.slot].base
        values[self.slot] = None
        bucket = self.bucket
        # The viewed array need not be the bucket's: a kernel may return one of its own, or a view of that. What the
        # pool has made is in memory of the pool's, or the pool refers to it weakly.
        if (
            bucket is not None
            and buffer is not None
            and getrefcount(buffer) == UNSHARED
            and (buffer.shape, buffer.dtype) == bucket.spec
            and (buffer.base is not None or getweakrefcount(buffer))
        ):
            bucket.give_back(buffer)
        if frame.budget is not None:
            frame.budget.freed.append((frame, self.slot))


class Shelf:
    """Free buffers of one type; a derived class takes and gives back.

    Attributes:
        free: The buffers.
        is_plain: Whether any of them will do for who takes one, and any that owns its memory may be added.
    """

    __slots__ = ("free", "is_plain")

    def __init__(self) -> None:
        self.free: list[Any] = []
        self.is_plain = False


class Start:
    """Counts, queue and callbacks that all frames of a program begin with, and share.

    Args:
        pending: Number of messages that each mailbox waits for.
        readers: Number of readers of each slot; 1 where none is counted.
        open_ends: Number of ends that a frame waits for.
        ready: Queue for actors of a frame that are ready.
        wake: Has the loop look there; to be called afterwards, unless an actor appends as it fires on the loop.
        budget: Memory that ops must be admitted to, if there is a limit.
        monitor: States of nodes, while they are watched.
        trace: Where calls are entered.
        turnstiles: The turnstiles of its ops that take frames in order.
        first: Ops that wait for a message that the frame has begun.
        ends_quietly: Whether nobody has to be told of the end of a frame, as far as is known before it begins.
    """

    def __init__(
        self,
        pending: Sequence[int],
        readers: Sequence[int],
        open_ends: int,
        ready: Ready,
        wake: Callable[[], None],
        budget: Any,
        monitor: Any,
        trace: Any,
        turnstiles: tuple[Turnstile, ...] = (),
        first: tuple[Any, ...] = (),
        ends_quietly: bool = False,
    ) -> None:
        self.pending = [*pending]
        self.shared = [(slot, b"\x01" + bytes(count - 1)) for slot, count in enumerate(readers) if count > 1]
        self.unshared: list[bytearray | None] = [None] * len(readers)
        self.open_ends = open_ends
        self.ready = ready
        self.wake = wake
        self.budget = budget
        self.monitor = monitor
        self.trace = trace
        self.turnstiles = turnstiles
        self.first = first
        self.ends_quietly = ends_quietly


class FrameState(Enum):
    """State of a frame: RUNNING -> FINISHED, or RUNNING -> FAILED | CANCELLED."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: In Python 3.11 to look a member up takes as long as a call.
_RUNNING, _FINISHED = FrameState.RUNNING, FrameState.FINISHED


class Frame:
    """Counts and values of one activation of a program.

    Args:
        start: The start that frames of its program share.
        number: Its number.
        values: Value of each slot; None before it is written and after its last reader.
        context: In which its functions are called, each in a copy.

    Attributes:
        ready, wake, budget, monitor, trace: As of its start.
        state: Its `FrameState`.
        open: Number of ends that the frame still waits for.
        halted: Whether nothing more of it may be started: it has stopped, or an op has failed on a lane's thread and
            the loop has not been told yet.
        has_ended: Whether it has ended, in whatever way, and nothing of it runs any more.
        ends_quietly: Whether nobody has to be told of its end when that comes, and nothing is to be done then.
        cycle: Has it begin once more when it has ended; None for most.
        fences: Fences that have not passed and came with the messages to an op.
        item: Number of the item that it has begun on, if an `Emitter` had it begin.
        outstanding: Work on a lane, or tasks, by the op that it has begun with, whose end the loop has not seen.
    """

    __slots__ = (
        "__weakref__",
        "_pending",
        "_readers",
        "budget",
        "context",
        "cycle",
        "ends_quietly",
        "fences",
        "halted",
        "has_ended",
        "item",
        "monitor",
        "number",
        "open",
        "outstanding",
        "ready",
        "start",
        "state",
        "trace",
        "values",
        "wake",
    )

    start: Any
    trace: Any

    def __init__(self, start: Start, number: int, values: list[Any], context: Any) -> None:
        self.start = start
        self._pending = start.pending.copy()
        # Per slot with several readers, a token per reader; the one that pops the first, the only one that is not 0, is
        # the last: a pop is atomic, counting down is not. None for slots with one reader.
        self._readers = start.unshared.copy()
        for slot, tokens in start.shared:
            self._readers[slot] = bytearray(tokens)
        self.number = number
        self.values = values
        self.context = context
        self.open = start.open_ends
        self.ready = start.ready
        self.wake = start.wake
        self.budget = start.budget
        self.monitor = start.monitor
        self.trace = start.trace
        self.state = _RUNNING
        self.halted = self.has_ended = False
        self.ends_quietly = start.ends_quietly
        self.cycle: Repeater | None = None
        self.item = 0
        self.fences: dict[Any, list[Any]] = {}
        self.outstanding: dict[Any, Any] = {}

    @property
    def pending(self) -> list[int]:
        """A copy of the numbers of messages that the mailboxes wait for."""
        return self._pending.copy()

    def waits(self, index: int) -> int:
        """Number of messages that a mailbox waits for."""
        return self._pending[index]

    def expect_messages(self, index: int, count: int) -> None:
        """Have a mailbox that was empty wait for messages."""
        self._pending[index] = count

    def count(self, index: int) -> bool:
        """A message comes to a mailbox; return whether it was the last one."""
        with counting:
            left = self._pending[index] - 1
            self._pending[index] = left
        return not left

    def send(self, followers: Iterable[Op]) -> None:
        """A message comes to each of some ops: a value that it reads is there, or announced."""
        pending, ready = self._pending, self.ready
        with counting:
            for op in followers:
                index = op.index
                left = pending[index] - 1
                pending[index] = left
                if not left:
                    ready.append((op, self))

    def read(self, slot: int) -> bool:
        """A reader of a slot is done; return whether it was the last one. May be called from a lane's thread."""
        tokens = self._readers[slot]
        return tokens is None or bool(tokens.pop())

    def close_end(self) -> None:
        """Close one of the frame's open ends; the last one finishes it."""
        self.open -= 1
        if self.open or self.halted:
            return
        if self.cycle is not None and not self.outstanding and self.cycle.turn(self):
            return
        if not self.ends_quietly or self.outstanding:
            self.finish()
            return
        self.state, self.halted, self.has_ended = _FINISHED, True, True
        self.ready.leave(self)

    def begin(self) -> None:
        """Put it in flight: its turn comes behind earlier frames', and ops that wait for its start are ready."""
        self.ready.running.add(self)
        for turnstile in self.start.turnstiles:
            turnstile.expect(self)
        self.send(self.start.first)

    def begin_again(self, number: int, values: list[Any]) -> bool:
        """Begin once more, on other values, when it has ended and nothing of it runs; not a frame in flight by itself.

        Returns:
            Whether there is anything to wait for.
        """
        start = self.start
        self._pending = start.pending.copy()
        self._readers = start.unshared.copy()
        for slot, tokens in start.shared:
            self._readers[slot] = bytearray(tokens)
        self.number, self.values = number, values
        self.open = start.open_ends - 1
        if not self.open:
            self.state, self.halted, self.has_ended = _FINISHED, True, True
            return False
        self.state, self.halted, self.has_ended = _RUNNING, False, False
        for turnstile in start.turnstiles:
            turnstile.expect(self)
        self.send(start.first)
        return True

    def finish(self) -> None:
        """All ends are closed, and somebody has to be told, or work goes on; a derived class defines this."""
        raise NotImplementedError


class Repeater:
    """Is told when a frame has ended well, and may have it begin once more.

    Attributes:
        steps: How often that was.
    """

    __slots__ = ("_guards", "_numbered", "_owner", "steps")

    def __init__(self, owner: Any, guards: bool, numbered: Callable[[int], int] | None) -> None:
        self._owner = owner
        self._guards = guards
        self._numbered = numbered
        self.steps = 0

    def turn(self, frame: Any) -> bool:
        """The frame has ended well; returns whether more follows, so that nobody is to be told of its end."""
        raise NotImplementedError


class Cycle(Repeater):
    """Has a frame begin again and again, each time on its last results and the next entries of arrays.

    Args:
        owner: The frame that this is work of: nothing begins once that has stopped.
        begin: Values that the frame begins with, but for those that are carried and the entries.
        carried: The carried values of the first time.
        into: Slots that these go to; negative for those that the frame does not read.
        made: Its results: the values carried on, then values taken each time, and at last, with ``tests``, whether to
            go on. With the bucket of a blob goes its buffer, when it has been read.
        length: How often it runs at most; negative where only its results say that.
        tests: See ``made``.
        is_backward: Whether entries are given and taken from the last to the first.
        guards: Whether arrays are given as read-only views.
        scanned: Arrays whose entries it is given, each with the slot.
        taken: Arrays for the results taken, each with its position in ``made``.
        kept: Arrays for the values carried, before each time, each with the position.
        numbered: Gives the number of the frame by that of the times before; None where it has but one.

    Attributes:
        steps: How often the frame has ended.
        carried: The newest carried values.
        error: An exception raised between two times.
    """

    def __init__(
        self,
        owner: Any,
        begin: list[Any],
        carried: list[Any],
        into: Sequence[int],
        made: Sequence[Any],
        length: int,
        *,
        tests: bool = False,
        is_backward: bool = False,
        guards: bool = False,
        scanned: Sequence[tuple[Any, int]] = (),
        taken: Sequence[tuple[Any, int]] = (),
        kept: Sequence[tuple[Any, int]] = (),
        numbered: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__(owner, guards, numbered)
        self._begin = begin
        self.carried = carried
        self._into = into
        self._made = made
        self._length = length
        self._tests = tests
        self._is_backward = is_backward
        self._scanned = scanned
        self._taken = taken
        self._kept = kept
        self._frame: Any = None
        self.error: BaseException | None = None

    @property
    def _entry(self) -> tuple[Any, ...]:
        at = self._length - 1 - self.steps if self._is_backward else self.steps
        return (at, ...)  # an array, also where it has no axes

    def begin(self, frame: Any, number: int) -> bool:
        """Have the frame begin, as this number; returns whether there is anything to wait for."""
        self._frame = frame
        return self._begin_at(frame, number) or self.turn(frame)

    def _begin_at(self, frame: Any, number: int) -> bool:
        values = self._begin.copy()
        for slot, value in zip(self._into, self.carried):  # noqa: B905  the lengths are equal, and it costs time
            if slot >= 0:
                values[slot] = _shown(value) if self._guards and type(value) is np.ndarray else value
        if self._scanned:
            entry = self._entry
            for array, slot in self._scanned:
                values[slot] = array[entry]
        begun: bool = frame.begin_again(number, values)
        return begun

    def turn(self, frame: Any) -> bool:
        """Take its results, and have it begin once more unless that was the last time.

        Returns:
            Whether it has begun, or will when the loop has had its turn; else all is done, or has failed.
        """
        try:
            begun_ns = clock_ns()
            while not self._owner.halted and self._goes_on(frame):
                number = frame.number if self._numbered is None else self._numbered(self.steps)
                if self._begin_at(frame, number):
                    if frame.ready.at is None:  # no slice runs
                        frame.wake()
                    return True
                if clock_ns() - begun_ns > PATIENCE_NS:  # it has nothing to compute: others have their turn
                    frame.ready.append((self, self._owner))
                    frame.wake()
                    return True
        except BaseException as error:  # noqa: BLE001  who waits for the end is told
            self.error = error
        return False

    def fire(self, owner: Any) -> int:
        """Go on after a turn of the loop."""
        frame = self._frame
        if not self.turn(frame):
            frame.finish()
        return clock_ns()

    def _goes_on(self, frame: Any) -> bool:
        """Take the results; return whether to begin once more."""
        values, given = frame.values, self.carried
        outputs = [values[blob.slot] for blob in self._made]
        values.clear()
        if self._taken or self._kept:
            entry = self._entry
            for array, position in self._taken:
                array[entry] = outputs[position]
            for array, position in self._kept:
                array[entry] = given[position]
        goes_on = not self._tests or bool(outputs[-1])
        count = len(given)
        self.carried = outputs[:count]
        outputs[:count] = given if self.steps else [None] * count  # its first values are another's
        del given
        self.steps += 1
        for position, blob in enumerate(self._made):
            buffer, outputs[position] = outputs[position], None
            if blob.bucket is not None and getrefcount(buffer) == UNSHARED:
                blob.bucket.give_back(buffer)
        return goes_on and self.steps != self._length


class Stack:
    """An array that is filled with an entry for each value.

    Args:
        array: The array, of at least one axis.

    Attributes:
        array: The array as it is now.
        count: Number of its entries that have been set.
    """

    __slots__ = ("array", "count")

    def __init__(self, array: Any) -> None:
        self.array = array
        self.count = 0

    def grow(self) -> None:
        """Make the array longer, as there is a value that has no place in it."""
        raise NotImplementedError

    def add(self, value: Any) -> None:
        """Set the next entry."""
        if self.count == len(self.array):
            self.grow()
        self.array[self.count, ...] = value
        self.count += 1


class Emitter(Repeater):
    """Has frames begin, each on the next item of an iterator, some at a time, and takes their results in that order.

    Args:
        owner: The frame that this is work of.
        in_flight: Number of frames that may run at once.
        inline_ns: Longest expected time of the iterator for an item that is asked for on the loop's thread.
        into: Slot that an item goes to as it is, if it is an array of this dtype and shape; negative if none does.
        dtype, shape: See ``into``; None where all items are to be looked at.
        guards, numbered: As of a `Cycle`.

    Attributes:
        begin_with: Values that each frame begins with, but for the item.
        context: In which the iterator runs.
        iterator: The iterator of items; None where it has ended, or `ask` asks for them.
        box: The list that it gives with an item, if it may give something else, too; None if it gives items themselves.
        awaited: Such a thing, which comes before an item that is not yet there: then `is_pulling` stays set.
        frames: The frames that have begun and were not taken, in the order of their items.
        idle: The frames that have been taken.
        joins: Pairs: a `Stack` or a function, which takes a value of each frame, and the slot of the value.
        recycled: Blobs whose buffers go back when all has been taken.
        items: Where results of frames go, in whose `room` these have to fit; None where they are joined.
        fetcher: Makes these results; None where those of other frames go there.
        pull_ns: Expected time of the iterator for an item, as `Op.cost_ns`.
        is_pulling: Whether it runs now.
        is_exhausted: Whether no further item will come.
        is_stopped: Whether nothing further is to be done.
        done: Whether it has ended.
    """

    def __init__(
        self,
        owner: Any,
        in_flight: int,
        inline_ns: int,
        into: int,
        dtype: Any,
        shape: Any,
        guards: bool,
        numbered: Callable[[int], int] | None,
    ) -> None:
        super().__init__(owner, guards, numbered)
        self._in_flight, self._inline_ns = in_flight, inline_ns
        self._slot, self._dtype, self._shape = into, dtype, shape
        self.begin_with: list[Any] = []
        self.context: Any = None
        self.iterator: Any = None
        self.box: Any = None
        self.awaited: Any = None
        self.frames: list[Any] = []
        self.idle: list[Any] = []
        self.joins: list[tuple[Any, int]] = []
        self.recycled: tuple[Blob, ...] = ()
        self.items: Items | None = None
        self.fetcher: Fetcher | None = None
        self.pull_ns = self._last_ns = FOREVER_NS
        self.is_pulling = self.is_exhausted = self.is_stopped = self.done = False

    def make(self) -> Any:
        """A frame that has not begun."""
        raise NotImplementedError

    def ask(self) -> None:
        """Have an item come that takes longer, or that is not to be had from the iterator."""
        raise NotImplementedError

    def enter(self, item: Any, values: list[Any]) -> None:
        """Convert values that are no arrays of the right type for the values that a frame begins with."""
        raise NotImplementedError

    def failed(self, error: BaseException) -> None:
        """Something of it has failed."""
        raise NotImplementedError

    def conclude(self) -> None:
        """All has been taken, or the frames left have ended."""
        raise NotImplementedError

    def turn(self, frame: Any) -> bool:
        """Take its results, in its turn, and have frames begin on further items."""
        if self.is_stopped or self._owner.halted:
            return False
        frame.state, frame.halted, frame.has_ended = _FINISHED, True, True
        self.advance()
        return True

    def fire(self, owner: Any) -> int:
        """Go on, in a slice of the loop's time."""
        self.advance()
        return clock_ns()

    def pulled(self, elapsed_ns: int) -> None:
        """The iterator has taken so long for an item."""
        self.pull_ns = elapsed_ns if elapsed_ns < self._last_ns else self._last_ns  # noqa: FURB136  as `Op.cost_ns`
        self._last_ns = elapsed_ns

    def _has_room(self) -> bool:
        """Return whether a further item may be asked for now; if results are to be taken first, it goes on then."""
        count, items = len(self.frames), self.items
        if count >= self._in_flight or self.is_pulling or self.is_exhausted or self.is_stopped:
            return False
        if items is not None and count + len(items.results) >= items.room:
            items.resting = self
            return False
        return True

    def advance(self) -> None:
        """Take the results, ask for items while there is room, and conclude when all is done."""
        if self.done:
            return
        try:
            self._go_on()
        except BaseException as error:  # noqa: BLE001  of the iterator, or of the taker of values
            self.failed(error)
        if self.frames or self.is_pulling or not (self.is_stopped or self.is_exhausted):
            if self._owner.ready.at is None:  # no slice runs
                self._owner.wake()
        elif not self.done:
            self.conclude()

    def _go_on(self) -> None:
        begun_ns = 0
        while True:
            while self.frames and self.frames[0].has_ended and not self.is_stopped:
                self._take(self.frames.pop(0))
            if not self._has_room():
                return
            if self.iterator is None or self.pull_ns > self._inline_ns:
                self.ask()
                return
            before_ns = clock_ns()
            if before_ns - (begun_ns := begun_ns or before_ns) > PATIENCE_NS:  # nothing is to be computed
                self._owner.ready.append((self, self._owner))
                return
            self.is_pulling = True
            try:
                item = self.context.run(next, self.iterator, self)  # which stands for the end
            finally:
                self.is_pulling = False
            if item is self:
                self.is_exhausted, self.iterator = True, None
                continue
            if self.box is not None:
                if item is not self.box:
                    self.awaited, self.is_pulling = item, True
                    return
                item = self.box.pop()
            self.pulled(clock_ns() - before_ns)
            self.give(item)

    def give(self, item: Any) -> None:
        """Have a frame begin on an item."""
        values = self.begin_with.copy()
        if type(item) is np.ndarray and item.dtype is self._dtype and item.shape == self._shape:
            if self._slot >= 0:
                values[self._slot] = _shown(item) if self._guards else item
        else:
            self.enter(item, values)
        steps = self.steps
        number = self._owner.number if self._numbered is None else self._numbered(steps)
        frame = self.idle.pop() if self.idle else self.make()
        frame.item = steps
        self.steps = steps + 1
        self.frames.append(frame)
        frame.begin_again(number, values)

    def _take(self, frame: Any) -> None:
        for join, slot in self.joins:
            (join.add if isinstance(join, Stack) else join)(frame.values[slot])
        if self.fetcher is not None and self.items is not None:
            self.items.put(self.fetcher.result(frame, self._owner.number), frame.item)
        else:
            for blob in self.recycled:
                blob.drop(frame)
        frame.values = []
        self.idle.append(frame)


def _shown(array: Any) -> Any:
    view = array.view()
    view.setflags(False)
    return view


def release(blobs: Iterable[Blob], frame: Any) -> None:
    """One reader of each is done. May be called from a lane's thread."""
    values, read = frame.values, frame.read
    counted = frame.budget is not None
    for blob in blobs:
        if read(blob.slot):
            if counted or blob.bucket is not None:
                blob.drop(frame)
            else:  # as `drop` would, at half the price
                values[blob.slot] = None


class Fetched:
    """The fetched values of a frame that has ended; derived classes show them.

    Attributes:
        _blobs, _by_name: The position of a value by its blob, and by the name of that.
        _values: The values.
        _lengths: Length of each open axis.
        frames: Numbers of the frames that computed them.
        errors: Errors in place of what is not there, by name.
    """

    __slots__ = ("_blobs", "_by_name", "_lengths", "_values", "errors", "frames")

    def __init__(
        self, blobs: Mapping[Any, int], by_name: Any, values: list[Any], frames: Any, lengths: Any, errors: Any
    ) -> None:
        self._blobs, self._lengths, self.errors = blobs, lengths, errors
        self._by_name: Mapping[str, int] = by_name
        self._values, self.frames = values, frames


class Fetcher:
    """Takes the values of some blobs out of frames that have ended.

    Args:
        kind: The class of the results, derived from `Fetched`; its constructor is not called.
        blobs: The blobs.
        copied: Positions of those whose values are copied; their buffers go back.
        hand_out: Makes of the list of values what the caller may keep; None if they are that.
        shared: Its ``blobs``, ``by_name`` and ``lengths``.
    """

    __slots__ = ("_copied", "_hand_out", "_kind", "_shared", "blobs")

    def __init__(
        self, kind: Any, blobs: Sequence[Blob], copied: Sequence[int], hand_out: Any, shared: tuple[Any, ...]
    ) -> None:
        self._kind, self.blobs, self._copied, self._hand_out, self._shared = kind, blobs, copied, hand_out, shared

    def values(self, frame: Any) -> list[Any]:
        """Take the values, and forget the frame's others."""
        values, frame.values = frame.values, []
        found = [values[blob.slot] for blob in self.blobs]
        values.clear()
        for i in self._copied:
            buffer, bucket = found[i], self.blobs[i].bucket
            found[i] = buffer.copy()
            if bucket is not None and getrefcount(buffer) == UNSHARED:
                bucket.give_back(buffer)
        if self._hand_out is not None:
            self._hand_out(found)
        return found

    def result(self, frame: Any, number: int) -> Any:
        """Take them as the result of the frame of a number."""
        by_blob, by_name, lengths = self._shared
        made = self._kind.__new__(self._kind)
        Fetched.__init__(made, by_blob, by_name, self.values(frame), (number,), lengths, {})
        return made


class Items:
    """Results of one frame, one for each item, between the op that emits and the stream that takes them.

    Attributes:
        results: The results that wait to be taken.
        room: Most items that are computed, or whose results wait.
        least: The value of ``room`` while results are slow to come.
        resting: The emission that goes on when one has been taken.
    """

    __slots__ = ("_last", "_last_ns", "least", "resting", "results", "room")

    def __init__(self) -> None:
        self.results: deque[Any] = deque()
        self.room = self.least = 1
        self._last_ns, self._last = 0, -1  # when there was none the last time, and the number of the item that came
        self.resting: Any = None

    def arrived(self) -> None:
        """There is a result, and there was none."""
        raise NotImplementedError

    def put(self, result: Any, number: int) -> None:
        """Add the result of the item of a number."""
        if not self.results:
            now_ns = clock_ns()
            is_quick = now_ns - self._last_ns < QUICK_NS * (number - self._last)
            self.room = BURST if is_quick and self.least < BURST else self.least
            self._last_ns, self._last = now_ns, number
            self.arrived()
        self.results.append(result)


def fill(
    values: list[Any], feeds: Any, sources: Mapping[Any, tuple[int, Any, Any]], count: int, missing: object
) -> bool:
    """Put feeds into their slots, arrays as read-only views, if all of it is as it should be.

    Args:
        values: Value of each slot.
        feeds: The fed values by key.
        sources: By key, the slot, and the shape and the dtype of the array; None for values of any type.
        count: Number of slots that are fed.
        missing: Their value so far.
    Returns:
        Whether that was so; if not, some may have been filled.
    """
    if type(feeds) is not dict or len(feeds) != count:
        return False
    for key, value in feeds.items():
        source = sources.get(key)
        if source is None or values[source[0]] is not missing:
            return False
        slot, shape, dtype = source
        if dtype is not None:
            if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
                return False
            value = value.view()
            value.setflags(write=False)
        values[slot] = value
    return True


#: Description of an op, for the compiled core to call it by itself: whether it is a "kernel" or a "function", what is
#: called, the first argument of a kernel, and how it is called; None where it has to call `Op.compute`. Part of the
#: latter is the function of NumPy that a kernel consists of, if there is one: for an element of each input it gives one
#: of the output, or, if it takes two and the kernel one, it reduces all elements to one.
Described: TypeAlias = tuple[str, Callable[..., Any], Any, tuple[Any, ...]] | None


class Op:
    """One op of a program.

    Attributes:
        index: Index of its mailbox in a frame.
        node_id: Its number in the trace and in monitors.
        key: The same with the track of its lane; see `actorflow.trace.ring.Trace.key`.
        inputs, outputs: Blobs that it reads and writes.
        freed: Blobs that a call gives back when it has ended: inputs, and the outputs that nothing reads.
        followers: Ops that read the outputs, once per argument.
        updates: Outputs that are new values of variables.
        ends: Whether the frame waits for its end: nothing in the frame follows it, or it updates a variable, as what
            follows an update on another stream may be seen to end before the update is.
        lane: Where it runs when it is not short.
        lanes: Where it may run, too, in a frame that is at work nowhere else: ``lane`` and others that are alike.
        profile: Counts its calls.
        turnstile: Keeps the frames of a function in order; None for kernels.
        attempts: Keeps the op's timeout and retries; None without.
        delivery: An actor that delivers ``updates`` on the loop; None without any.
        inline_ns: Longest expected time of a call that runs on the loop; less than 0 where none does.
        cost_ns: Expected time of a call. The smaller one of the last two times: one slow call (a page fault, another
            thread's turn) does not send an op to a lane, and two do.
        last_ns: The last time.
        goes_on: Whether a lane's thread may call it behind its producer there.
        parts: The ops that it stands for, if it stands for several; they are never fired.
        shares: When each of them ends in a call, as a part of its time.
    """

    __slots__ = (
        "_accounted",
        "attempts",
        "cost_ns",
        "delivery",
        "ends",
        "followers",
        "freed",
        "goes_on",
        "index",
        "inline_ns",
        "inputs",
        "key",
        "lane",
        "lanes",
        "last_ns",
        "node_id",
        "outputs",
        "parts",
        "profile",
        "shares",
        "turnstile",
        "updates",
    )

    index: int
    node_id: int
    key: int
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    freed: tuple[Any, ...]
    followers: tuple[Any, ...]
    updates: tuple[Any, ...]
    ends: bool
    lane: Any
    lanes: tuple[Any, ...]
    profile: Profile
    turnstile: Turnstile | None
    attempts: Any
    delivery: Any
    inline_ns: int
    goes_on: bool
    parts: tuple[Any, ...]

    def __init__(self) -> None:
        self.cost_ns = self.last_ns = FOREVER_NS
        self.parts = self.lanes = ()
        self.shares: Sequence[float] = ()
        self._accounted = 0

    def fire(self, frame: Any) -> int:
        """Run now, go to a lane, or wait as it must: all inputs are announced.

        Returns:
            The time, `clock_ns`, at the end.
        """
        raise NotImplementedError

    def compute(self, frame: Any) -> None:
        """Read the inputs' values, write the outputs', release the inputs. On the loop's or the lane's thread."""
        raise NotImplementedError

    def hand_over(self, frame: Any) -> None:
        """Have its lane's thread call it, and go on from there. On the loop's thread, or on that of a lane."""
        raise NotImplementedError

    def measure(self) -> None:
        """Look anew at which share of a call's time each of the ops has that it stands for: set `shares`."""
        raise NotImplementedError

    def described(self) -> Described:
        """Description by which the compiled core calls it by itself, as `compute` does."""
        return None

    def failed(self, frame: Any, error: BaseException, elapsed_ns: int, end_ns: int, key: int) -> None:
        """A call has raised an error."""
        raise NotImplementedError

    def announce(self, frame: Any) -> None:
        """Say that the outputs are there: messages to followers, new values of variables, the end in the frame."""
        raise NotImplementedError

    def call(self, frame: Any) -> int:
        """Compute on the loop's thread, which nothing speaks against, and send messages to those that follow.

        Returns:
            The time, `clock_ns`, at the end of the call.
        """
        start = clock_ns()
        try:
            self.compute(frame)
        except BaseException as error:  # noqa: BLE001
            # Any exception becomes the frame's error, as on a lane.
            end = clock_ns()
            self.failed(frame, error, end - start, end, self.node_id)
            if self.turnstile is not None:
                self.turnstile.leave()
            return clock_ns()
        end = clock_ns()
        if frame.ready.shifts:
            with counting:
                self._end(frame, end - start, end)
        else:
            self._end(frame, end - start, end)
        if self.updates or frame.budget is not None:
            self.announce(frame)
        elif self.ends:
            frame.close_end()
        return end

    def _end(self, frame: Any, elapsed_ns: int, end_ns: int) -> None:
        """Account for a call on the loop's thread that has ended well, leave the turnstile, send the messages."""
        self._note(frame, elapsed_ns, end_ns, self.node_id)
        turnstile = self.turnstile
        if turnstile is not None:
            turnstile.running -= 1
            if turnstile.parked:
                turnstile.admit()
        if not self.updates and frame.budget is None:
            pending = frame._pending
            for op in self.followers:
                index = op.index
                left = pending[index] - 1
                pending[index] = left
                if not left:
                    frame.ready.append((op, frame))

    def account(self, frame: Any, elapsed_ns: int, end_ns: int, key: int) -> None:
        """A call has ended well: note it in profile, trace and monitor. May be called from a lane's thread.

        Args:
            frame: Of the call.
            elapsed_ns: How long it took.
            end_ns: When it ended, `clock_ns`.
            key: Of the op and its track, in the trace.
        """
        with counting:
            self._note(frame, elapsed_ns, end_ns, key)

    def _note(self, frame: Any, elapsed_ns: int, end_ns: int, key: int) -> None:
        if self.parts:
            self._note_parts(frame, elapsed_ns, end_ns, key)
            return
        last = self.last_ns
        self.cost_ns = elapsed_ns if elapsed_ns < last else last  # noqa: FURB136  min() costs twice as much
        self.last_ns = elapsed_ns
        profile = self.profile
        profile.calls += 1
        profile.total_ns += elapsed_ns
        profile.last_ns = elapsed_ns
        # `Ring.add`, spelt out: a call would cost as much again.
        trace = frame.trace
        total = trace.total
        _pack_row(trace.buffer, (total & trace.mask) * CALL_BYTES, end_ns, elapsed_ns, key, frame.number)
        trace.total = total + 1
        if frame.monitor is not None:
            self.show(frame, DONE)

    def _note_parts(self, frame: Any, elapsed_ns: int, end_ns: int, key: int) -> None:
        self.cost_ns, self.last_ns = min(elapsed_ns, self.last_ns), elapsed_ns
        self._accounted += 1
        if self._accounted & (self._accounted - 1) == 0:  # seldom: the mean changes little
            self.measure()
        track, begin_ns, begun_ns = key - self.node_id, end_ns - elapsed_ns, 0
        for part, share in zip(self.parts, self.shares):  # noqa: B905  the lengths are equal, and it costs time
            ended_ns = int(elapsed_ns * share)
            part._note(frame, ended_ns - begun_ns, begin_ns + ended_ns, track + part.node_id)
            begun_ns = ended_ns

    def show(self, frame: Any, state: int) -> None:
        """Let a monitor know of its state, or of that of all its parts."""
        if self.parts:
            for part in self.parts:
                part.show(frame, state)
            return
        monitor = frame.monitor
        monitor.states[self.node_id] = state
        monitor.dirty[self.node_id] = 1


class Shift:
    """Ops of one frame that a lane's thread calls one after the other: one that it was given, and its followers.

    It goes on with ops of its lane, unless others of the frame wait there, and with short ones of others: to hand them
    over would take longer. It begins others on their lanes, and has the loop fire those that may have to wait for
    something, and short ones when it has called some for a while.

    Args:
        first: The op that it begins with; its turn, if it has one, is taken.
        frame: The frame.

    Attributes:
        at: The op that runs now, or has run last.
        begun_ns: When that was called, `clock_ns`; 0 before the first call, and when one has ended well.
        ends: Number of ends of the frame that were closed, which the loop has to count.
        patience_ns: How long it calls short ops, one behind the other.
    """

    __slots__ = ("_short_ns", "_track", "at", "begun_ns", "ends", "first", "frame", "lane", "patience_ns")

    def __init__(self, first: Any, frame: Any) -> None:
        self.first: Any = first
        self.at: Any = first
        self.frame = frame
        self.lane = first.lane
        self.begun_ns = self.ends = self._short_ns = 0
        self.patience_ns = PATIENCE_NS
        self._track = first.key - first.node_id

    def go_to(self, lane: Any, key: int) -> None:
        """Be run on another lane than that of the first op, which has this key in the trace there."""
        self.lane, self._track = lane, key - self.first.node_id

    def key_of(self, op: Op) -> int:
        """Key of a call of an op in the trace."""
        key: int = self._track + op.node_id
        return key

    def run(self) -> bool:
        """Call them, on the lane's thread; whatever an op raises ends that.

        Returns:
            Whether the loop must be told of the end without delay.
        """
        frame = self.frame
        ready: deque[Op] = deque([self.first])
        while ready and not frame.halted:
            op = ready.popleft()
            turnstile = op.turnstile
            is_away = op.lane is not self.lane
            if turnstile is not None and op is not self.first and not turnstile.enter_alone(frame, op, is_away):
                self._tell(op)
                continue
            self.at = op
            if frame.monitor is not None:
                op.show(frame, RUNNING)
            self.begun_ns = clock_ns()
            try:
                op.compute(frame)
            except BaseException:
                frame.halted = True  # nothing is to run on missing inputs
                raise
            end_ns = clock_ns()
            elapsed_ns = end_ns - self.begun_ns
            op.account(frame, elapsed_ns, end_ns, self._track + op.node_id)
            self._short_ns = self._short_ns + elapsed_ns if elapsed_ns <= op.inline_ns else 0
            self.begun_ns = 0
            if turnstile is not None:
                turnstile.leave()
            if op.delivery is not None:
                self._tell(op.delivery)
            elif op.ends:
                self.ends += 1
            for follower in op.followers:
                if frame.count(follower.index):
                    self._dispatch(follower, ready)
        return self.ends > 0

    def _dispatch(self, op: Op, ready: deque[Op]) -> None:
        """Have an op called that is ready: here, on another lane, or by the loop."""
        frame = self.frame
        if op.goes_on and op not in frame.fences:
            is_short = op.cost_ns <= op.inline_ns
            is_here = op.lane is self.lane or self.lane in op.lanes
            if self._short_ns <= self.patience_ns if is_short else is_here and not self._is_awaited():
                ready.append(op)
                return
            if not is_short and op.turnstile is None:
                self.at, self.begun_ns = op, clock_ns()  # if no thread is to be had
                op.hand_over(frame)
                return
        self._tell(op)

    def _is_awaited(self) -> bool:
        """Return whether other work of the frame waits for this thread, which was ready before the next op.

        Other frames wait: one that is begun ends soonest so, and few frames have buffers at a time.
        """
        frame = self.frame
        ready, outstanding = frame.ready, frame.outstanding
        at = ready.at  # which may be the op that this has begun with: the loop has handed it over
        if at is not None and at[1] is frame and at[0] is not self.first:
            return True
        if any(work is frame for _, work in tuple(ready)):
            return True
        if len(outstanding) == 1:
            return False
        return any(getattr(work, "lane", None) is self.lane and not work.begun for work in tuple(outstanding.values()))

    def _tell(self, actor: Any) -> None:
        """Have the loop fire an actor."""
        self.frame.ready.append((actor, self.frame))
        self.frame.wake()


class Ready(deque[tuple[Any, Any]]):
    """Actors that are ready, with the owner of the work that they are ready for, the oldest first.

    Attributes:
        running: The frames in flight that use it.
        at_rest: Called when there is none any more, if anybody waits for that.
        shifts: Shifts whose end the loop has not seen.
        begun_ns: When the slice began that runs now, `clock_ns`.
        at: The work fired last, with its owner, for as long as a slice runs.
    """

    __slots__ = ("at", "at_rest", "begun_ns", "running", "shifts")

    def __init__(self) -> None:
        super().__init__()
        self.running: set[Any] = set()
        self.at_rest: Callable[[], None] | None = None
        self.begun_ns = 0
        self.at: tuple[Any, Any] | None = None
        self.shifts: set[Shift] = set()

    def leave(self, frame: Any) -> None:
        """A frame is in flight no longer."""
        self.running.discard(frame)
        if self.at_rest is not None and not self.running:
            self.at_rest()

    def run(self, due_ns: int, context: Context | None = None) -> None:
        """Fire ready actors, until none is, or the time is over when an actor has ended.

        Args:
            due_ns: When the time is over, `clock_ns`.
            context: In which it is fired, unless that is the current one.
        Raises:
            BaseException: of an actor's `fire`; ``at`` says whose.
        """
        if context is not None:
            context.run(self.run, due_ns)
            return
        self.begun_ns = clock_ns()
        take = self.popleft
        while self:
            self.at = actor, work = take()
            if actor.fire(work) > due_ns:
                break
        self.at = None


# -- array code: operations that are computed in their line --------------------------------------------------------


class Node:
    """A record of array code; `actorflow.array.record.record.Record` has the words.

    The compiled form makes one with a value, and its array, without a call of Python.
    """

    __slots__ = (
        *("__weakref__", "_code", "_instruction", "dtype", "error", "evaluator", "handle", "inputs", "number"),
        *("op", "params", "place", "shape", "size", "unit", "value"),
    )

    op: Any
    inputs: tuple[Any, ...]
    params: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: Any
    size: int
    place: Any
    evaluator: Any
    number: int
    value: Any
    error: Any
    unit: Any
    handle: Any
    _code: Any
    _instruction: Any

    def __new__(cls, *_: Any, **__: Any) -> Any:
        node = object.__new__(cls)
        node.op = node.value = node.error = node.unit = node.handle = None
        node.inputs = node.params = ()
        node.number = _next_number()
        return node


_next_number = count().__next__


class Holder:
    """An object that shows a record: the base of arrays."""

    __slots__ = ("__weakref__", "_node")

    _node: Any

    def __getitem__(self, key: Any, /) -> Any:
        found = desk.part(self, key)
        return self._read(key) if found is None else found

    def _read(self, key: Any) -> Any:
        """``x[key]``, where that is not computed at once."""
        raise NotImplementedError


class Desk:
    """Computes operations of array code in their line: where their operands are there, and they take little time.

    All methods give None, or False, where that is not so, or fails: the operation is recorded then, which says why.

    Attributes:
        array_type, node_type: The classes of the objects made, a `Holder` and a `Node`.
        place: Where it lives.
        placing: Not None once arrays may live elsewhere: nothing is computed at once then.
        dry_runs: Number of dry runs there are: nor while there are any.
    """

    array_type: Any
    node_type: Any
    place: Any
    placing: Any

    def __init__(self) -> None:
        self.array_type = self.node_type = self.place = self.placing = None
        self.dry_runs = 0

    def show(self, value: Any, evaluator: Any) -> Any:
        """An array with a value that is there."""
        node, array = Node.__new__(self.node_type), Holder.__new__(self.array_type)
        node.value, node.evaluator, node.place = value, evaluator, self.place
        node.shape, node.dtype, node.size = value.shape, value.dtype, value.size
        array._node = node
        return array

    def hand(self, value: Any, evaluator: Any) -> Any:
        """An array with a value that may be a view: a small part of a larger one is copied."""
        base = value.base
        if base is not None and value.nbytes < MOST_COPIED_BYTES and value.nbytes * 2 < getattr(base, "nbytes", 0):
            value = value.copy("A")
        return self.show(value, evaluator)

    def there(self, x: Any) -> Any:
        """The record of an array whose value is there, if operations may be computed at once."""
        if type(x) is not self.array_type or self.dry_runs or self.placing is not None:
            return None
        return x._node if type(x._node.value) is np.ndarray else None

    def call(self, function: Callable[[Any], Any] | None, x: Any, is_view: bool) -> Any:
        """The result of a function of an array's value.

        Args:
            function: Gives an array; None for a value that is not computed so.
            x: The array.
            is_view: Whether it does not look at its elements.
        """
        node = self.there(x)
        if node is None or function is None:
            return None
        limit = node.evaluator.at_once
        if not limit or (not is_view and node.value.size > limit):
            return None
        try:
            found = _quietly(function, node.value)
        except Exception:  # noqa: BLE001  it is raised where the value is asked for
            return None
        return self.hand(np.asarray(found), node.evaluator) if isinstance(found, np.ndarray | np.generic) else None

    def part(self, x: Any, key: Any) -> Any:
        """``x[key]``, for a key of integers, slices, ``...`` and None."""
        node = self.there(x)
        if node is None or not node.evaluator.at_once or not _is_basic(key):
            return None
        try:
            return self.hand(np.asarray(node.value[key]), node.evaluator)
        except IndexError:
            return None

    def write(self, x: Any, key: Any, value: Any) -> bool:
        """Do ``x[key] = value``: over the value where nothing else can see it, else a small one is copied."""
        node = self.there(x)
        if node is None or not _is_basic(key) or not node.evaluator.at_once:
            return False
        limit, found = node.evaluator.at_once, node.value
        if type(value) is self.array_type:
            other = self.there(value)
            if other is None:
                return False
            value = other.value
        if type(value) is np.ndarray:
            if value.dtype is not node.dtype and not np.can_cast(value.dtype, node.dtype, "same_kind"):
                return False
        elif type(value) is not float and type(value) is not int:
            return False
        try:
            if node.size > limit and found[key].size > limit:
                return False
            is_own = found.base is None and found.flags.writeable
            if not is_own or _references(x) != _alone():
                if node.size > limit:
                    return False
                found = found.copy()
            _quietly(setitem, found, key, value)
        except (IndexError, ValueError):
            return False
        if found is not node.value:
            x._node = self.show(found, node.evaluator)._node
        return True

    def product(self, x1: Any, x2: Any, turn1: bool = False, turn2: bool = False) -> Any:
        """The product of two matrices, each turned or not, or of a matrix and a vector, by BLAS."""
        left, right = self.there(x1), self.there(x2)
        if left is None or right is None:
            return None
        a, b = left.value, right.value
        if a.ndim != 2 or not 1 + turn2 <= b.ndim <= 2 or a.dtype != b.dtype or a.dtype.char not in "fdFD":
            return None
        a, b = a.T if turn1 else a, b.T if turn2 else b
        if not a.size or not b.size or a.shape[1] != b.shape[0] or not (_is_flat(a) and _is_flat(b)):
            return None
        # As an elementwise operation that takes as long: few products are made from the cache, more from memory.
        work = max(a.size * b.shape[1] >> 6 if b.ndim == 2 else 0, a.size + b.size)
        return None if work > left.evaluator.at_once else self.show(_quietly(np.matmul, a, b), left.evaluator)


#: The desk of all array code.
desk = Desk()


class Loop:
    """A function of NumPy on each element, at the desk. The compiled form calls its loop for exactly these types.

    Args:
        function: The function; None for an operation that is not one: nothing is computed then.
    """

    def __init__(self, function: np.ufunc | None) -> None:
        self._function = function

    def of_one(self, x: Any) -> Any:
        """The result for an array."""
        node = desk.there(x)
        return None if node is None else self._result(node, node.value)

    def of_two(self, x1: Any, x2: Any) -> Any:
        """The result for two arrays, one of which may be a number or an array of NumPy's."""
        left, right = desk.there(x1), desk.there(x2)
        if (left is None and (right is None or not _is_plain(x1))) or (right is None and not _is_plain(x2)):
            return None
        return self._result(left or right, x1 if left is None else left.value, x2 if right is None else right.value)

    def onto(self, x: Any, other: Any) -> bool:
        """Do an operator like ``x += other``, over the value of ``x``, where nothing else can see that."""
        node, right = desk.there(x), desk.there(other)
        if self._function is None or node is None or (right is None and not _is_plain(other)):
            return False
        found, value = node.value, other if right is None else right.value
        if not 1 < node.size <= node.evaluator.at_once or found.base is not None or not found.flags.writeable:
            return False
        if _references(x) != _alone():
            return False
        try:
            types = found.dtype, getattr(value, "dtype", type(value)), None
            if self._function.resolve_dtypes(types)[-1] != found.dtype:
                return False
            _quietly(self._function, found, value, found)
        except (TypeError, ValueError, OverflowError):  # of another type or shape
            return False
        return True

    def _result(self, node: Any, *values: Any) -> Any:
        if self._function is None:
            return None
        try:
            size = np.broadcast(*values).size if len(values) > 1 else node.size
            if not node.evaluator.at_once or size > node.evaluator.at_once:
                return None
            found = np.ascontiguousarray(_quietly(self._function, *values))
            return desk.show(found if node.shape or found.size != 1 else found.reshape(()), node.evaluator)
        except Exception:  # noqa: BLE001  it is raised where the value is asked for
            return None


def _quietly(function: Callable[..., Any], *arguments: Any) -> Any:
    with np.errstate(all="ignore"):
        return function(*arguments)


def _is_flat(x: Any) -> bool:
    return bool(x.flags.behaved or x.flags.aligned) and (x.flags.c_contiguous or x.flags.f_contiguous)


def _is_plain(x: Any) -> bool:
    """Return whether an operand beside an array is one that NumPy's functions take as array code does."""
    kind = type(x)
    return kind is float or kind is int or (isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "biufc")


def _is_basic(key: Any) -> bool:
    """Return whether NumPy takes a key, if it is right, without a look at elements, and as array code means it."""
    for part in key if type(key) is tuple else (key,):
        ends = (part.start, part.stop, part.step) if type(part) is slice else (part,)
        if not all(end is None or type(end) is int or (end is ... and end is part) for end in ends):
            return False
    return True


def _references(x: Any) -> tuple[int, int]:
    """Numbers of references to the record and to the value of an array, those of the caller counted."""
    return getrefcount(x._node), getrefcount(x._node.value)


def _alone() -> tuple[int, int]:
    """The same, as `Desk.write` sees them, for an array whose record and value nothing else refers to."""
    x = Holder()
    x._node = Node()
    node, found = x._node, np.empty(2)
    node.value = found
    return _references(x)
