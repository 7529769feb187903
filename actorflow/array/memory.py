"""The memory of a session's values: reused buffers, and a budget."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from functools import cache
from sys import getrefcount
from typing import Any

import numpy as np

from actorflow.array.record.primitives import DType, Value
from actorflow.array.record.record import Lease
from actorflow.core import UNSHARED
from actorflow.devices.memory import POOLED_BYTES, Bucket, BufferPool
from actorflow.errors import GraphError, OutOfMemoryError
from actorflow.place import Place
from actorflow.spec import TensorSpec

#: Free buffers that are kept.
_KEPT_BYTES = 256 * 1024 * 1024


class Memory:
    """Counts the values of a session, and keeps the buffers of those that have ended for later ones.

    All but `count`, `lease` and `reclaim`, which any thread may call, are called with the session's lock held.

    Attributes:
        pool: The buffers. Under a budget all values are counted there, otherwise those that are used again.
    """

    def __init__(self, budget_bytes: int | None) -> None:
        if budget_bytes is not None and budget_bytes <= 0:
            raise GraphError(f"memory_budget must be positive, got {budget_bytes} bytes")
        self.pool = BufferPool()
        self.pool.budget_bytes = budget_bytes
        self._bucket: Callable[[TensorSpec], Bucket] = cache(self.pool.bucket)
        self._counted_bytes = POOLED_BYTES if budget_bytes is None else 1
        self._ended: deque[Value] = deque()
        self._ended_bytes = 0

    def count(self, value: Any) -> None:
        """Count a value from now on."""
        if type(value) is np.ndarray:
            if value.nbytes >= self._counted_bytes and value.base is None:
                self.pool.adopt(value)
        elif type(value) is tuple:
            for each in value:
                self.count(each)

    def lease(self, value: Any) -> Lease | None:
        """Have the memory of a value reclaimed when its record ends."""
        if type(value) is np.ndarray and value.nbytes >= POOLED_BYTES:
            return Lease(value, self.reclaim)
        return None

    def reclaim(self, value: Any) -> None:
        """Keep the memory of a value that a record has let go of, maybe while garbage is collected."""
        if type(value) is np.ndarray and value.nbytes >= POOLED_BYTES and self._ended_bytes < _KEPT_BYTES:
            self._ended_bytes += value.nbytes
            self._ended.append(value)

    def take(self, shape: tuple[int, ...], dtype: DType) -> Value:
        """A buffer with undefined contents."""
        spec = TensorSpec(shape, dtype)
        value: Value
        if spec.size_bytes < POOLED_BYTES:
            value = np.empty(shape, dtype)
            self.count(value)
        else:
            self.sort_out()
            value = self._bucket(spec).take()
        return value

    def sort_out(self) -> None:
        """Take back the buffers of ended records that have no other references."""
        self._ended_bytes = 0
        while self._ended:
            value = self._ended.popleft()
            if getrefcount(value) == UNSHARED and value.flags.c_contiguous:
                self._bucket(TensorSpec(value.shape, value.dtype)).give_back(value)
        if self.pool.held_bytes - self.pool.used_bytes > _KEPT_BYTES:
            self.pool.trim()

    def fits(self, size_bytes: int) -> bool:
        """Return whether n more bytes fit the budget; free buffers give way."""
        budget = self.pool.budget_bytes
        if budget is None:
            return True
        room = budget - size_bytes
        if self.pool.held_bytes > room:
            self.sort_out()
            self.pool.trim()
        return self.pool.held_bytes <= room

    def no_room(self, what: str, size_bytes: int) -> OutOfMemoryError:
        """The error of an array or a unit that does not fit."""
        return OutOfMemoryError(
            f"{what} needs {size_bytes:,} bytes, and {self.pool.held_bytes:,} of the budget of "
            f"{self.pool.budget_bytes:,} bytes are taken by arrays that the program still refers to"
        )


class DeviceMemory(Memory):
    """The memory that a session's values take on one device."""

    def __init__(self, budget_bytes: int | None, place: Place) -> None:
        super().__init__(budget_bytes)
        self._place = place
        self._known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def count(self, value: Any) -> None:
        for each in value if type(value) is tuple else (value,):
            buffer = each if each.base is None else each.base
            if self._known.get(id(buffer)) is not buffer:
                self._known[id(buffer)] = buffer
                self.pool.adopt(buffer)

    def no_room(self, what: str, size_bytes: int) -> OutOfMemoryError:
        return OutOfMemoryError(f"on {self._place}: {super().no_room(what, size_bytes)}")
