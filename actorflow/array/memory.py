"""The memory of a session's values, and its budget."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from actorflow.devices.memory import POOLED_BYTES, BufferPool
from actorflow.errors import GraphError, OutOfMemoryError
from actorflow.place import Place


class Memory:
    """Counts the values of a session; any thread may call it.

    Attributes:
        pool: Counts them: under a budget all values, otherwise large ones.
    """

    def __init__(self, budget_bytes: int | None) -> None:
        if budget_bytes is not None and budget_bytes <= 0:
            raise GraphError(f"memory_budget must be positive, got {budget_bytes} bytes")
        self.pool = BufferPool()
        self.pool.budget_bytes = budget_bytes
        self._counted_bytes = POOLED_BYTES if budget_bytes is None else 1

    def count(self, value: Any) -> None:
        """Count a value from now on."""
        if type(value) is np.ndarray:
            if value.nbytes >= self._counted_bytes and value.base is None:
                self.pool.adopt(value)
        elif type(value) is tuple:
            for each in value:
                self.count(each)

    def fits(self, size_bytes: int) -> bool:
        """Return whether n more bytes fit the budget."""
        budget_bytes = self.pool.budget_bytes
        return budget_bytes is None or self.pool.held_bytes + size_bytes <= budget_bytes

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
