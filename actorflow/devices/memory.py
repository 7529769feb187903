"""Buffers that are used again.

A fresh large array costs page faults that take as long as a simple kernel, so buffers go back to a pool, sorted by
type. A buffer is taken back only when nothing else refers to it: a view that a function kept, or an array that the
application fetched, is never overwritten. CPython's reference counts tell. The values fetched last are lent: each is
used again once the application has dropped it, and every view of it.

Large values that only a plan has share memory across types, sizes and plans, the one that was free last first: it is
still in the cache. Other free buffers are given up when the pool grows though no frame has used them of late. So plans
for many lengths, each with buffers of its own sizes, hold little more than the longest one alone.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Callable
from sys import getrefcount
from typing import Any, TypeVar, cast
from weakref import getweakrefcount

import numpy as np

from actorflow import core
from actorflow.core import UNSHARED
from actorflow.errors import OutOfMemoryError
from actorflow.spec import TensorSpec
from actorflow.threads import held_at_fork

_T = TypeVar("_T")


def _count_in_lists(lists: int) -> int:
    holders: list[list[Any]] = [[np.empty(0)]]
    holders += [[holders[0][0]] for _ in range(lists - 1)]
    inputs = holders[0]
    return getrefcount(inputs[0])


#: Value of ``getrefcount(inputs[0])`` for a buffer that is in the list ``inputs`` alone.
IN_ONE_LIST = _count_in_lists(1)
#: The same for a buffer that is in one more list.
IN_TWO_LISTS = _count_in_lists(2)

#: Size from which on values of a plan share memory: below it, to make an array costs more than a cold cache.
SHARED_BYTES = 64 << 10
_LINE_BYTES = 64  # where arrays begin that share memory: where a line of the cache does
#: Size from which on arrays that the application has had are reused; below it, the C library's allocator is as quick.
POOLED_BYTES = 1 << 20
#: Size up to which fetched values are copied: that costs less than another buffer that is counted.
COPIED_BYTES = 16 << 10
_MOST_LENT = 4  # most arrays of one type that are lent: more would keep memory that the application has long dropped
#: Bytes that a pool may hold whatever is used: to make small buffers anew would cost more than they take.
_LITTLE_BYTES = 4 << 20


class Bucket(core.Shelf):
    """Free buffers of one type, for as long as somebody refers to it.

    Attributes:
        pool: Where they come from.
        spec: Their type.

    Example:
        >>> bucket = af.devices.BufferPool().bucket(af.TensorSpec.of([100]))
        >>> buffer = bucket.take()
        >>> bucket.lend(buffer)  # to the application
        >>> bucket.free_bytes
        0
        >>> del buffer
        >>> _ = bucket.take()  # the same memory
        >>> bucket.pool.allocations
        1
    """

    __slots__ = ("__weakref__", "_lent", "_old", "pool", "spec")

    def __init__(self, pool: BufferPool, spec: TensorSpec) -> None:
        super().__init__()
        self.is_plain = type(self) is Bucket
        self.pool = pool
        self.spec = spec
        self._old: list[Any] = []  # not used since `age`
        self._lent: deque[Any] = deque(maxlen=_MOST_LENT)

    def take(self) -> Any:
        """A buffer with undefined contents. Any thread may call it."""
        try:
            return self.free.pop()  # atomic, unlike a test before it
        except IndexError:
            pass
        try:
            return self._old.pop()
        except IndexError:
            buffer = self._returned() if self._lent else None
            return self.pool.new(self.spec) if buffer is None else buffer

    def lend(self, buffer: Any) -> None:
        """Take a buffer back later, when the application refers to it no more, nor to a view. Any thread may call it.

        A few are remembered; values lent before them are the application's for good.
        """
        self._lent.append(buffer)

    def _returned(self) -> Any:
        """A lent buffer that nobody refers to any more, if there is one."""
        for _ in range(len(self._lent)):
            try:
                buffer = self._lent.popleft()
            except IndexError:  # another thread has taken it
                return None
            if getrefcount(buffer) != UNSHARED:
                self._lent.append(buffer)
            # The application may have changed it in place, or may find it again by a weak reference; one is the pool's.
            elif (
                getweakrefcount(buffer) == 1
                and (buffer.shape, buffer.dtype) == self.spec
                and buffer.flags.carray
                and buffer.base is None
            ):
                return buffer
        return None

    def give_back(self, buffer: Any) -> None:
        """Take back a buffer that nothing else refers to; a view's memory is another one's. Any thread may call it."""
        if buffer.base is None:
            self.free.append(buffer)

    @property
    def free_bytes(self) -> int:
        """Bytes of the buffers that wait for use."""
        lent = [*self._lent]
        returned = sum(getrefcount(lent[i]) == IN_TWO_LISTS for i in range(len(lent)))
        return (len(self.free) + len(self._old) + returned) * self.spec.size_bytes

    def age(self) -> None:
        """Give up buffers that have been free since the last call. Any thread may call it."""
        while (buffer := self._returned()) is not None:
            self.free.append(buffer)
        self._old, self.free = self.free, []

    def trim(self) -> None:
        """Give the free buffers back to the system."""
        self.free.clear()
        self._old.clear()
        self._lent.clear()


class Memory(np.ndarray[Any, Any]):
    """Bytes that buffers of several types share, one at a time.

    It is the ``base`` of the buffer, whose views have the buffer as theirs: NumPy looks for an array's owner among
    arrays of the array's own type alone. So references to the buffer are counted as those to any other.
    """


def _count_in_buffer() -> int:
    memory = Memory(1, np.uint8)
    buffer: Any = np.ndarray((1,), np.uint8, memory)
    del memory
    memory = buffer.base
    return getrefcount(memory)


#: Value of ``getrefcount(memory)`` for memory that is held by a buffer and one local variable.
_IN_BUFFER = _count_in_buffer()
#: Types of ``base`` of an array whose memory no other array shows but its views.
OWNERS = frozenset([type(None), Memory])


class _FreeMemory(list[Memory]):
    """Free memory of sizes between two powers of two, for as long as a room refers to it."""

    __slots__ = ("__weakref__",)


class Room:
    """Memory for values of up to one size, which may have more: it is shared with those of all sizes of its order."""

    __slots__ = ("free", "order", "pool", "size_bytes")

    def __init__(self, pool: BufferPool, size_bytes: int, free: _FreeMemory) -> None:
        self.pool = pool  # where it comes from
        self.size_bytes = size_bytes
        self.order = _order(size_bytes)
        self.free = free  # free buffers, in this room and in others

    def take(self) -> Memory:
        """Some memory. Any thread may call it."""
        try:
            memory = self.free.pop()
        except IndexError:
            return self.pool.new_memory(self.size_bytes)
        if memory.size >= self.size_bytes:
            return memory
        del memory  # the larger one will serve both
        return self.pool.new_memory(self.size_bytes)


class RoomBucket(Bucket):
    """Source of buffers of one type in memory that buffers of other types have, too; each buffer is made anew."""

    __slots__ = ("room",)

    def __init__(self, room: Room, spec: TensorSpec) -> None:
        super().__init__(room.pool, spec)
        self.room = room

    def take(self) -> Any:
        return np.ndarray(self.spec.shape, self.spec.dtype, self.room.take())

    def give_back(self, buffer: Any) -> None:
        memory = buffer.base
        if type(memory) is Memory and getrefcount(memory) == _IN_BUFFER:
            room = self.room
            if _order(memory.size) == room.order:
                room.free.append(memory)

    @property
    def free_bytes(self) -> int:
        return _size_of(self.room.free)

    def trim(self) -> None:
        self.room.free.clear()


def _order(size_bytes: int) -> int:
    return (size_bytes - 1).bit_length()


def _size_of(free: _FreeMemory) -> int:
    return sum([memory.size for memory in [*free]])


class BufferPool:
    """All buffers of one device, counted from their allocation until nothing refers to them any more.

    Args:
        allocate: Makes an array of a type, with undefined contents; by default, one in the host's memory.

    Attributes:
        allocations: Buffers allocated since the start; constant once every run finds its buffers in the pool.
        peak_bytes: Highest `held_bytes` so far.
        budget_bytes: Free buffers are given up rather than pass this; None for no limit.
        clock: Gives the numbers of frames that have started and ended. Free buffers that frames do not use any more are
            given up, too, where it is set and more than 4 MiB are held.

    Example:
        >>> pool = af.devices.BufferPool()
        >>> bucket = pool.bucket(af.TensorSpec.of([100]))
        >>> bucket.give_back(bucket.take())  # a buffer that is used again from now on
        >>> pool.held_bytes, pool.used_bytes, pool.allocations
        (400, 0, 1)
        >>> pool.trim()
        >>> pool.held_bytes
        0
    """

    def __init__(self, allocate: Callable[[TensorSpec], Any] | None = None) -> None:
        self._allocate = allocate or (lambda spec: np.empty(spec.shape, spec.dtype))
        self.budget_bytes: int | None = None
        self.allocations = 0
        self.peak_bytes = 0
        self._buckets: weakref.WeakValueDictionary[TensorSpec, Bucket] = weakref.WeakValueDictionary()
        self._rooms: weakref.WeakValueDictionary[int, _FreeMemory] = weakref.WeakValueDictionary()  # of rooms
        self._lock = held_at_fork(threading.Lock())
        self._held_bytes = 0
        self.clock: Callable[[], tuple[int, int]] | None = None
        self._looked_at = 0  # frames that had started when free buffers were last looked at
        self._look_bytes = _LITTLE_BYTES  # look again when so much is held
        self._alive: dict[int, weakref.ref[Any]] = {}
        # A buffer may die in any thread at any moment, within this lock too: its end is only noted, and counted later.
        self._dead: deque[tuple[int, int]] = deque()

    def bucket(self, spec: TensorSpec) -> Bucket:
        """The bucket for buffers of one type; it is kept, with its free buffers, by its users.

        Only from the loop's thread.
        """
        bucket = self._buckets.get(spec)
        if bucket is None:
            bucket = self._buckets[spec] = Bucket(self, spec)
        return bucket

    def room(self, size_bytes: int) -> Room:
        """A room for memory of one size in the host's memory; rooms of its order keep the free buffers.

        Only from the loop's thread.
        """
        order = _order(size_bytes)
        free = self._rooms.get(order)
        if free is None:
            free = self._rooms[order] = _FreeMemory()
        return Room(self, size_bytes, free)

    def new_memory(self, size_bytes: int) -> Memory:
        """Memory that is counted from now on. Any thread may call it.

        Raises:
            OutOfMemoryError: if there is no room for it.
        """
        self.make_room(size_bytes)
        try:
            whole = Memory(size_bytes + _LINE_BYTES, np.uint8)
        except MemoryError as error:
            raise OutOfMemoryError(f"no room for {size_bytes:,} bytes: {error}") from error
        begin = -whole.ctypes.data % _LINE_BYTES
        memory: Any = whole[begin : begin + size_bytes]
        self.adopt(memory)
        return cast(Memory, memory)

    def new(self, spec: TensorSpec) -> Any:
        """A buffer that is counted from now on. Any thread may call it.

        Raises:
            OutOfMemoryError: if there is no room for it.
        """
        self.make_room(spec.size_bytes)
        buffer = self._allocate(spec)
        self.adopt(buffer)
        return buffer

    def make_room(self, size_bytes: int) -> None:
        """Give free buffers up if a new one would pass the budget, or if they are old. Any thread may call it."""
        if self.budget_bytes is not None and self.held_bytes + size_bytes > self.budget_bytes:
            self.trim()
        if self._held_bytes + size_bytes > self._look_bytes and self.clock is not None:
            started, ended = self.clock()
            # A frame that had not ended might use again a buffer that the last look has found.
            if ended >= self._looked_at:
                self._looked_at = started
                self.age()
                held = self.held_bytes + size_bytes
                self._look_bytes = max(held + held // 8, _LITTLE_BYTES)

    def age(self) -> None:
        """Give up the free buffers that nothing has used since the last call. Any thread may call it."""
        for bucket in _alive(self._buckets):
            bucket.age()

    def adopt(self, buffer: Any) -> None:
        """Count a buffer from now on. Any thread may call it."""
        size_bytes, dead = buffer.nbytes, self._dead
        with self._lock:
            self._count_dead()
            number = self.allocations
            self._alive[number] = weakref.ref(buffer, lambda _: dead.append((number, size_bytes)))
            self.allocations += 1
            self._held_bytes += size_bytes
            self.peak_bytes = max(self.peak_bytes, self._held_bytes)

    def retire(self, buffer: Any) -> None:
        """Let go of a buffer once nothing uses it any more: at once, unless work may be under way on a device."""

    @property
    def held_bytes(self) -> int:
        """Bytes of the buffers that are free, in use, or still referred to by the application."""
        with self._lock:
            self._count_dead()
            return self._held_bytes

    @property
    def used_bytes(self) -> int:
        """`held_bytes` without the free ones."""
        free = sum([bucket.free_bytes for bucket in _alive(self._buckets)])
        return self.held_bytes - free - sum([_size_of(free) for free in _alive(self._rooms)])

    def trim(self) -> None:
        """Give all free buffers back to the system."""
        for bucket in _alive(self._buckets):
            bucket.trim()
        for free in _alive(self._rooms):
            free.clear()

    def _count_dead(self) -> None:
        while self._dead:
            number, size_bytes = self._dead.popleft()
            del self._alive[number]
            self._held_bytes -= size_bytes


def give_back_to_system() -> None:
    """Have the C library give free memory back to the system, where it can be asked to: glibc keeps most of it."""
    try:
        give_back = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another library, or Windows, where there is none of all symbols
        return
    give_back(0)


def _alive(known: weakref.WeakValueDictionary[Any, _T]) -> list[_T]:
    """Values that still live, in any thread: the loop's may add to them meanwhile."""
    return [found for each in known.valuerefs() if (found := each()) is not None]
