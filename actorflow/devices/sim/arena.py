"""The memory of a simulated accelerator: it has addresses, and those of a freed array are handed out again."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from actorflow.devices.sim.races import Access, Region
from actorflow.errors import OutOfMemoryError
from actorflow.spec import TensorSpec
from actorflow.threads import held_at_fork

if TYPE_CHECKING:
    from actorflow.devices.sim.work import Failure

#: Arrays start at multiples of this, as on CUDA.
_ALIGNMENT = 256


class Block:
    """The addresses of one array's memory. They count in the model alone; the contents are in the host's memory.

    Attributes:
        arena: Where it comes from.
        low, high: First address, and the first behind the array.
        region: Who uses it, if that is asked for.
        failure: Why it does not have the contents that the last work should have written; only for the device's thread.
    """

    __slots__ = ("arena", "failure", "high", "low", "region")

    def __init__(self, arena: Arena, low: int, high: int, region: Region | None) -> None:
        self.arena = arena
        self.low = low
        self.high = high
        self.region = region
        self.failure: Failure | None = None

    def free(self) -> None:
        """Nobody refers to the array any more. Any thread may call it, within the arena's own lock too."""
        self.arena.dead.append(self)


class Arena:
    """Addresses from 0 up to the device's size; an array gets the first hole that is large enough.

    Args:
        where: The device, for messages.
        size_bytes: How much there is.
        races: Whether uses are noted.

    Attributes:
        dead: Blocks to be freed.
    """

    def __init__(self, where: str, size_bytes: int, races: bool) -> None:
        self._where = where
        self._size_bytes = size_bytes
        self._races = races
        self._lock = held_at_fork(threading.Lock())
        self._holes = [(0, size_bytes)]
        self._left: list[Access] = []  # uses of freed memory that the host has not seen end
        self.dead: deque[Block] = deque()

    @property
    def used_bytes(self) -> int:
        """Bytes of all arrays that somebody refers to."""
        with self._lock:
            self._bury()
            return self._size_bytes - sum(high - low for low, high in self._holes)

    def allocate(self, spec: TensorSpec) -> Block:
        """Addresses for an array. Any thread may call it.

        Raises:
            OutOfMemoryError: if no hole is large enough.
        """
        size_bytes = -(-spec.size_bytes // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            self._bury()
            low = self._take(spec, size_bytes)
            high = low + spec.size_bytes
            region = None
            if self._races:
                earlier = [access for access in self._left if access.overlaps(low, high)]
                region = Region(f"array {spec}", earlier)
        return Block(self, low, high, region)

    def _take(self, spec: TensorSpec, size_bytes: int) -> int:
        if not size_bytes:
            return 0
        for at, (low, high) in enumerate(self._holes):
            if high - low >= size_bytes:
                self._holes[at : at + 1] = [(low + size_bytes, high)] if low + size_bytes < high else []
                return low
        free = [high - low for low, high in self._holes]
        raise OutOfMemoryError(
            f"{self._where} has no room for {spec}, {size_bytes:,} bytes: {sum(free):,} of its "
            f"{self._size_bytes:,} bytes are free, at most {max(free, default=0):,} in one piece"
        )

    def _bury(self) -> None:
        if not self.dead:
            return
        self._left = [access for access in self._left if not access.is_before(None)]
        holes = self._holes
        while self.dead:
            block = self.dead.popleft()
            if block.low < block.high:
                holes.append((block.low, -(-block.high // _ALIGNMENT) * _ALIGNMENT))
            if block.region is not None:
                self._left += block.region.pending
        holes.sort()
        self._holes = merged = holes[:1]
        for low, high in holes[1:]:
            if low == merged[-1][1]:
                merged[-1] = (merged[-1][0], high)
            else:
                merged.append((low, high))
