"""The memory of a session's values: buffers used again, a budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from sys import getrefcount
from typing import Any

import numpy as np

from actorflow.array.primitives import DType, Value
from actorflow.devices.memory import UNSHARED, Pool
from actorflow.errors import GraphError, OutOfMemoryError
from actorflow.spec import TensorSpec

__all__ = ["Memory"]

#: Buffers from this size on are counted, and used again.
_POOLED_BYTES = 16_384
#: Free buffers that are kept.
_KEPT_BYTES = 256 * 1024 * 1024


class Memory:
    """Counts the values of a session, and keeps the buffers of those that have ended for later ones.

    All but `count` and `reclaim` are called with the session's lock held.

    Args:
        budget_bytes: Most bytes of values; None for no limit.

    Attributes:
        pool: The buffers.
        reserved_bytes: What is being allocated by operations that make their results themselves.
    """

    def __init__(self, budget_bytes: int | None) -> None:
        if budget_bytes is not None and budget_bytes <= 0:
            raise GraphError(f"memory_budget must be positive, got {budget_bytes} bytes")
        self.pool = Pool()
        self.pool.budget_bytes = budget_bytes
        self.reserved_bytes = 0
        self._ended: deque[Value] = deque()
        self._ended_bytes = 0

    @property
    def is_limited(self) -> bool:
        """Whether there is a budget."""
        return self.pool.budget_bytes is not None

    def count(self, value: Any) -> None:
        """Count a value from now on. Any thread may call it."""
        if type(value) is np.ndarray and value.nbytes >= _POOLED_BYTES and value.base is None:
            self.pool.adopt(value)

    def reclaim(self, value: Any) -> None:
        """A record has let go of its value. Any thread may call it, the garbage collector included."""
        if type(value) is np.ndarray and value.nbytes >= _POOLED_BYTES and self._ended_bytes < _KEPT_BYTES:
            self._ended_bytes += value.nbytes
            self._ended.append(value)

    def take(self, shape: tuple[int, ...], dtype: DType) -> Value:
        """A buffer with undefined contents."""
        spec = TensorSpec(shape, dtype)
        if spec.size_bytes < _POOLED_BYTES:
            return np.empty(shape, dtype)
        buffer: Value = self.pool.bucket(spec).take()
        return buffer

    def sort_out(self, kept: Iterable[Any] = ()) -> None:
        """Take the buffers of ended records back that nobody else refers to, but for those in ``kept``."""
        if not self._ended:
            return
        excepted = {id(value) for value in kept}
        self._ended_bytes = 0
        while self._ended:
            value = self._ended.popleft()
            if id(value) not in excepted and getrefcount(value) == UNSHARED and value.flags.c_contiguous:
                self.pool.bucket(TensorSpec(value.shape, value.dtype)).give_back(value)
        if self.pool.held_bytes - self.pool.used_bytes > _KEPT_BYTES:
            self.pool.trim()

    def fits(self, size_bytes: int, share: float = 1.0) -> bool:
        """Whether so much more fits the budget, or a share of it; free buffers give way."""
        budget = self.pool.budget_bytes
        if budget is None or size_bytes < _POOLED_BYTES:
            return True
        self.sort_out()
        room = budget * share - self.reserved_bytes - size_bytes
        if self.pool.held_bytes > room:
            self.pool.trim()
        return self.pool.held_bytes <= room

    def no_room(self, what: str, size_bytes: int) -> OutOfMemoryError:
        """The error of something that does not fit."""
        return OutOfMemoryError(
            f"{what} needs {size_bytes:,} bytes, and {self.pool.held_bytes:,} of the budget of "
            f"{self.pool.budget_bytes:,} bytes are taken by arrays that the program still refers to"
        )
