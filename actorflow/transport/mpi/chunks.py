"""Messages that are too large for one of MPI's, in parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from actorflow.transport.mpi.table import Ended

#: Parts of one message, or of the reductions of a group, that are under way at once. MPI looks through all that are for
#: each one that comes: with thousands, nothing seems to move any more.
AT_ONCE = 32


def chunks(data: memoryview, chunk_bytes: int) -> list[memoryview]:
    """The parts of a message that MPI carries; one, at least."""
    if len(data) <= chunk_bytes:
        return [data]
    return [data[i : i + chunk_bytes] for i in range(0, len(data), chunk_bytes)]


class Parts:
    """Several requests that end as one.

    Args:
        count: How many.
        ended: Called when all have ended, with the bytes of all, and the first error code that is not 0.
    """

    __slots__ = ("_code", "_count", "_ended", "_size_bytes")

    def __init__(self, count: int, ended: Ended) -> None:
        self._count = count
        self._ended = ended
        self._size_bytes = 0
        self._code = 0

    def __call__(self, count: int, code: int) -> None:
        """One has ended."""
        self._size_bytes += count
        self._code = self._code or code
        self._count -= 1
        if not self._count:
            self._ended(self._size_bytes, self._code)


class Row:
    """The parts of one message, one behind the other, a few of them under way at once.

    Args:
        parts: In their order.
        start: Starts the request of a part; is given what it calls at its end.
        ended: Called when all have ended, or none is under way after an error.
    """

    __slots__ = ("_code", "_ended", "_left", "_size_bytes", "_start", "_under_way")

    def __init__(self, parts: list[memoryview], start: Callable[[memoryview, Ended], None], ended: Ended) -> None:
        self._left = deque(parts)
        self._start = start
        self._ended = ended
        self._under_way = 0
        self._size_bytes = 0
        self._code = 0
        self._fill()

    def _fill(self) -> None:
        while self._left and self._under_way < AT_ONCE:
            self._under_way += 1
            self._start(self._left.popleft(), self._part_ended)

    def _part_ended(self, count: int, code: int) -> None:
        self._under_way -= 1
        self._size_bytes += count
        if code:
            self._code = self._code or code
            self._left.clear()
        self._fill()
        if not self._under_way:
            self._ended(self._size_bytes, self._code)
