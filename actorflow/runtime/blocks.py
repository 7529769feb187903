"""Blocks of a cache: memory for the positions of sessions, which take it as they go on.

A frame reads the positions that a session has kept. What a step adds is written behind them when its frame ends, and
becomes theirs when the step is returned: so a frame writes nothing, and holds nothing of a session.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import CacheFullError, FeedError, SessionClosedError
from actorflow.graph.cache import Cache, Cached
from actorflow.interchange import as_array
from actorflow.loop import waits
from actorflow.spec import TensorSpec


class Blocks:
    """All blocks of a cache; sessions that find none wait, first come, first served.

    Args:
        name: Name of the graph.
        cache: The cache.
        pools: Its sources of keys and values.

    Attributes:
        cache: As above.
        arrays: Memory of each pool. The system gives it when it is written to first.
    """

    def __init__(self, name: str, cache: Cache, pools: Sequence[Cached]) -> None:
        self.cache = cache
        self.arrays: dict[Cached, npt.NDArray[Any]] = {each: np.zeros(each.shape, each.dtype) for each in pools}
        self._name = name
        self._free = [*range(cache.blocks)][::-1]  # those that were used last are used first
        self._holders: set[Held] = set()
        self._waiting: deque[Held] = deque()

    @property
    def used(self) -> int:
        """Number of blocks that sessions have."""
        return self.cache.blocks - len(self._free)

    def write(self, pool: Cached, places: Any, value: npt.NDArray[Any]) -> None:
        """Put positions, (position, ...), into places of a pool."""
        self.arrays[pool].reshape(-1, *value.shape[1:])[places] = value

    async def take(self, held: Held, count: int, timeout_s: float | None) -> None:
        """Give a session some more blocks.

        Raises:
            CacheFullError: if they are not free in time, or if all that have some wait for more: then the last one.
            SessionClosedError: if the session is closed meanwhile.
        Cancellation: leaves it without them, or with them if it had got them.
        """
        if not self._waiting and count <= len(self._free):
            self._give(held, count)
            return
        if timeout_s == 0:
            raise self._full(count)
        held.wanted, held.granted = count, asyncio.get_running_loop().create_future()
        self._waiting.append(held)
        self._serve()
        try:
            async with asyncio.timeout(timeout_s):
                await held.granted
        except TimeoutError:
            raise self._full(count) from None
        finally:
            if held in self._waiting:
                self._waiting.remove(held)
                self._serve()

    def _full(self, count: int) -> CacheFullError:
        return CacheFullError(self._name, count, len(self._free), self.cache.blocks, len(self._waiting))

    def _give(self, held: Held, count: int) -> None:
        held.add([self._free.pop() for _ in range(count)])
        self._holders.add(held)

    def _serve(self) -> None:
        while self._waiting and self._waiting[0].wanted <= len(self._free):
            held = self._waiting.popleft()
            if waits(held.granted):
                self._give(held, held.wanted)
                held.granted.set_result(None)
        if self._waiting and self._holders <= {*self._waiting}:  # nobody goes on: the last one gives way
            held = self._waiting.pop()
            if waits(held.granted):
                held.granted.set_exception(self._full(held.wanted))

    def release(self, held: Held, why: str) -> None:
        """Take the blocks of a session back; one that waits for some is told why."""
        if held in self._waiting:
            self._waiting.remove(held)
            if waits(held.granted):
                held.granted.set_exception(SessionClosedError(f"a session of graph {self._name!r} {why}"))
        self._free += held.blocks[::-1]
        held.blocks = []
        self._holders.discard(held)
        self._serve()


class Held:
    """Blocks of a session.

    Args:
        blocks: The pool of its cache.
        given: The first contents, by the names of pools.

    Attributes:
        table: Numbers of its blocks, as a row.
        count: Number of positions that it has kept.
        room: Number of positions that it may have in these blocks.
        blocks: Numbers of its blocks.
        wanted, granted: The number of blocks it waits for, and the future of the wait.
    """

    granted: asyncio.Future[None]

    def __init__(self, blocks: Blocks, given: Mapping[str, Any] | None) -> None:
        self._all, cache = blocks, blocks.cache
        self.table = np.zeros((1, cache.table.shape[1]), np.int64)
        self.blocks: list[int] = []
        self.count = self.room = self.wanted = 0
        self._first = {} if given is None else self._restored(given)

    def _restored(self, given: Mapping[str, Any]) -> dict[Cached, npt.NDArray[Any]]:
        counts = {np.shape(given[pool.name])[:1] for pool in self._all.arrays}
        if len(counts) != 1 or counts == {()} or max(counts)[0] > self._all.cache.most:
            raise FeedError(
                f"a session must begin with as many positions in each of {[pool.name for pool in self._all.arrays]}, "
                f"at most {self._all.cache.most}, got {sorted(counts)}"
            )
        ((self.count,),) = counts
        specs = {pool: TensorSpec((self.count, *pool.shape[2:]), pool.dtype) for pool in self._all.arrays}
        return {
            pool: np.array(as_array(given[pool.name], spec, f"state {pool.name!r} of a session"))
            for pool, spec in specs.items()
        }

    async def reserve(self, new: int, timeout_s: float | None) -> None:
        """Have room for the positions of a step, which has not enough.

        Raises:
            FeedError: if it would have more positions than a session may.
            CacheFullError, SessionClosedError: as `Blocks.take`.
        """
        cache, total = self._all.cache, self.count + new
        if total > cache.most:
            raise FeedError(
                f"a session has read {self.count} positions of at most {cache.most}, and a step of {new} more is "
                "too long"
            )
        await self._all.take(self, -(-total // cache.block) - len(self.blocks), timeout_s)

    def add(self, blocks: Sequence[int]) -> None:
        """Take further blocks, into the first of which goes what the session begins with."""
        self.blocks += blocks
        self.table[0, : len(self.blocks)] = self.blocks
        self.room = min(len(self.blocks) * self._all.cache.block, self._all.cache.most)
        for pool, value in self._first.items():
            self._all.write(pool, self._places(), value)
        self._first = {}

    def _places(self) -> list[int]:
        """Where its positions are, in pools without the axis of the blocks."""
        size, blocks = self._all.cache.block, self.blocks
        return [blocks[i // size] * size + i % size for i in range(self.count)]

    def release(self, why: str) -> None:
        """Give the blocks back."""
        if not self._first:
            self._first = self.state()
        self._all.release(self, why)

    def state(self) -> dict[Cached, npt.NDArray[Any]]:
        """Copies of what it has kept."""
        if self._first:
            return {pool: value.copy() for pool, value in self._first.items()}
        places = self._places()
        return {pool: array.reshape(-1, *pool.shape[2:])[places] for pool, array in self._all.arrays.items()}
