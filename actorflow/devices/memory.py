"""Buffers that are used again.

A fresh large array costs page faults that take as long as a simple kernel, so buffers go back to a pool, sorted by
type. A buffer is taken back only when nothing else refers to it: a view that a function kept, or an array that the
application fetched, is then never overwritten. CPython's reference counts tell. What was fetched last is lent: it is
used again once the application has dropped it, and every view of it.

Values that only a plan has share memory across types, the one that was free last first: it is still in the cache.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from sys import getrefcount
from typing import Any, cast
from weakref import getweakrefcount

import numpy as np

from actorflow.errors import OutOfMemoryError
from actorflow.spec import TensorSpec
from actorflow.threads import held_at_fork


def _count_unshared() -> int:
    values: list[Any] = [np.empty(0)]
    buffer = values[0]
    values[0] = None
    return getrefcount(buffer)


def _count_in_lists(lists: int) -> int:
    holders: list[list[Any]] = [[np.empty(0)]]
    holders += [[holders[0][0]] for _ in range(lists - 1)]
    inputs = holders[0]
    return getrefcount(inputs[0])


#: Value of ``getrefcount(inputs[0])`` for a buffer that is in the list ``inputs`` alone.
IN_ONE_LIST = _count_in_lists(1)
#: The same for a buffer that is in one more list.
IN_TWO_LISTS = _count_in_lists(2)
#: Value of ``getrefcount(buffer)`` for a buffer held by one local variable only; it differs between Python versions.
UNSHARED = _count_unshared()

#: Size from which on values of a plan share memory: below it, to make an array costs more than a cold cache.
SHARED_BYTES = 64 << 10
#: Where arrays begin that share memory: where a line of the cache does.
_LINE_BYTES = 64
#: Size from which on arrays that the application has had are reused; below it, the C library's allocator is as quick.
POOLED_BYTES = 1 << 20
#: Size up to which what is fetched is copied: that costs less than another buffer that is counted.
COPIED_BYTES = 16 << 10
#: Most arrays of one type that are lent: more would keep memory that the application has long dropped.
_MOST_LENT = 4


class Bucket:
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

    __slots__ = ("__weakref__", "_free", "_lent", "pool", "spec")

    def __init__(self, pool: BufferPool, spec: TensorSpec) -> None:
        self.pool = pool
        self.spec = spec
        self._free: list[Any] = []
        self._lent: deque[Any] = deque(maxlen=_MOST_LENT)

    def take(self) -> Any:
        """A buffer with undefined contents. Any thread may call it."""
        try:
            return self._free.pop()  # atomic, unlike a test before it
        except IndexError:
            buffer = self._returned() if self._lent else None
            return self.pool.new(self.spec) if buffer is None else buffer

    def lend(self, buffer: Any) -> None:
        """Take a buffer back later, when the application refers to it no more, nor to a view. Any thread may call it.

        A few are remembered; what was lent before them is the application's for good.
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
            self._free.append(buffer)

    @property
    def free_bytes(self) -> int:
        """Bytes of the buffers that wait for use."""
        lent = [*self._lent]
        returned = sum(getrefcount(lent[i]) == IN_TWO_LISTS for i in range(len(lent)))
        return (len(self._free) + returned) * self.spec.size_bytes

    def trim(self) -> None:
        """Give the free buffers back to the system."""
        self._free.clear()
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


class Room:
    """Free memory of one size, for as long as somebody refers to it.

    Args:
        pool: Where it comes from.
        size_bytes: The size.
    """

    __slots__ = ("__weakref__", "free", "pool", "size_bytes")

    def __init__(self, pool: BufferPool, size_bytes: int) -> None:
        self.pool = pool
        self.size_bytes = size_bytes
        self.free: list[Memory] = []

    def take(self) -> Memory:
        """Some memory. Any thread may call it."""
        try:
            return self.free.pop()
        except IndexError:
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
        if type(memory) is Memory and memory.size == self.room.size_bytes and getrefcount(memory) == _IN_BUFFER:
            self.room.free.append(memory)

    @property
    def free_bytes(self) -> int:
        return len(self.room.free) * self.room.size_bytes

    def trim(self) -> None:
        self.room.free.clear()


class BufferPool:
    """All buffers of one device, counted from their allocation until nothing refers to them any more.

    Args:
        allocate: Makes an array of a type, with undefined contents; by default, one in the host's memory.

    Attributes:
        allocations: Buffers allocated since the start; constant once every run finds its buffers in the pool.
        peak_bytes: Highest `held_bytes` so far.
        budget_bytes: Free buffers are given up rather than pass this; None for no limit.

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
        self._rooms: weakref.WeakValueDictionary[int, Room] = weakref.WeakValueDictionary()
        self._lock = held_at_fork(threading.Lock())
        self._held_bytes = 0
        self._alive: dict[int, weakref.ref[Any]] = {}
        # A buffer may die in any thread at any moment, within this lock too: its end is only noted, and counted later.
        self._dead: deque[tuple[int, int]] = deque()

    def bucket(self, spec: TensorSpec) -> Bucket:
        """The bucket for buffers of one type; it is kept, with what is free there, by those that use it.

        Only from the loop's thread.
        """
        bucket = self._buckets.get(spec)
        if bucket is None:
            bucket = self._buckets[spec] = Bucket(self, spec)
        return bucket

    def room(self, size_bytes: int) -> Room:
        """The room for memory of one size in the host's memory; it is kept, with what is free there, by its buckets.

        Only from the loop's thread.
        """
        room = self._rooms.get(size_bytes)
        if room is None:
            room = self._rooms[size_bytes] = Room(self, size_bytes)
        return room

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
        """Give free buffers back to the system if a new one would otherwise pass the budget. Any thread may call it."""
        if self.budget_bytes is not None and self.held_bytes + size_bytes > self.budget_bytes:
            self.trim()

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
        free = sum(bucket.free_bytes for bucket in [*self._buckets.values()])
        return self.held_bytes - free - sum(len(room.free) * room.size_bytes for room in [*self._rooms.values()])

    def trim(self) -> None:
        """Give all free buffers back to the system."""
        for bucket in [*self._buckets.values()]:
            bucket.trim()
        for room in [*self._rooms.values()]:
            room.free.clear()

    def _count_dead(self) -> None:
        while self._dead:
            number, size_bytes = self._dead.popleft()
            del self._alive[number]
            self._held_bytes -= size_bytes
