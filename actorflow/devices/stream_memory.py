"""Buffers of a device with streams: used again in the order of the streams, without the host.

A buffer comes back when the last work that uses it has been *launched*, which may be long before that work has run. So
it comes back with its uses: per lane, the number of the newest work that may touch it. A lane whose uses alone these
are may take it at once, since its next work runs behind them. Any other lane takes it when they have ended or it has
waited for them anyway, and only if there is no room for another buffer, makes its stream wait for them. Buffers are
taken in a fixed order, so that frames that do the same get the same ones, and what was captured can be replayed
(`actorflow.actors.segment`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from actorflow.devices.memory import Bucket, Pool
from actorflow.errors import OutOfMemoryError
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.devices.stream import StreamLane

#: Lanes, and the number of the newest work of each that may touch a buffer.
Uses = tuple[tuple["StreamLane", int], ...]


class StreamPool(Pool):
    """All buffers of one device with streams. Only from the loop's thread.

    Args:
        allocate: Makes an array of a type, with undefined contents.
        lanes: Gives all lanes of the device.
    """

    def __init__(self, allocate: Callable[[TensorSpec], Any], lanes: Callable[[], Iterable[StreamLane]]) -> None:
        super().__init__(allocate)
        self.lanes = lanes
        self._own: WeakValueDictionary[int, Any] = WeakValueDictionary()  # what was made here, by its id
        self._free: dict[TensorSpec, deque[tuple[Any, Uses]]] = {}
        self._free_bytes = 0
        self._retired: deque[tuple[Any, Uses]] = deque()

    def bucket(self, spec: TensorSpec, lane: StreamLane | None = None, users: Sequence[StreamLane] = ()) -> Bucket:
        """Where ``lane`` takes buffers of one type that it and ``users`` will use."""
        assert lane is not None
        return StreamBucket(self, spec, lane, tuple(dict.fromkeys((lane, *users))))

    def bucket_of(self, spec: TensorSpec, users: Iterable[StreamLane]) -> Bucket:
        """Where buffers of one type go back to that ``users`` may use, as many as these are by then."""
        return _CommonBucket(self, spec, users)

    def take(self, spec: TensorSpec, lane: StreamLane) -> Any:
        """A buffer with undefined contents that the work ``lane`` launches next may use.

        Raises:
            OutOfMemoryError: if there is no room for it.
        """
        free = self._free.get(spec)
        if free:
            for at, (buffer, uses) in enumerate(free):
                if all(lane.comes_behind(user, number) for user, number in uses):
                    del free[at]
                    self._free_bytes -= spec.size_bytes
                    return buffer
            if self.budget_bytes is not None and self.held_bytes + spec.size_bytes > self.budget_bytes:
                return self._take_behind(spec, lane)
        try:
            return self.new(spec)
        except OutOfMemoryError:
            if free:
                return self._take_behind(spec, lane)
            self.trim()
            return self.new(spec)

    def give_back(self, spec: TensorSpec, buffer: Any, users: Iterable[StreamLane]) -> None:
        """Take back a buffer that nobody else refers to and that work launched so far on ``users`` may touch."""
        if self._retired:
            self._sweep()
        uses = tuple([(user, user.submitted) for user in users])
        is_own = self._own.get(id(buffer)) is buffer
        if is_own:
            if buffer.shape != spec.shape or buffer.dtype != spec.dtype:  # ``spec`` is that of a view of it
                spec = TensorSpec(buffer.shape, buffer.dtype)
            insort(self._free.setdefault(spec, deque()), (buffer, uses), key=_rank)
            self._free_bytes += spec.size_bytes
        else:
            self._retired.append((buffer, uses))

    def adopt(self, buffer: Any) -> None:
        super().adopt(buffer)
        self._own[id(buffer)] = buffer

    def retire(self, buffer: Any) -> None:
        self._retired.append((buffer, tuple([(lane, lane.submitted) for lane in self.lanes()])))

    @property
    def used_bytes(self) -> int:
        self._sweep()
        return self.held_bytes - self._free_bytes

    def trim(self) -> None:
        """Give up the free buffers whose uses have ended."""
        self._sweep()
        for spec, free in self._free.items():
            kept = deque(entry for entry in free if not _have_ended(entry[1]))
            self._free_bytes -= (len(free) - len(kept)) * spec.size_bytes
            self._free[spec] = kept

    def _take_behind(self, spec: TensorSpec, lane: StreamLane) -> Any:
        free = self._free[spec]
        buffer, uses = min(free, key=_work_ahead)
        del free[bisect_left(free, id(buffer), key=_rank)]
        self._free_bytes -= spec.size_bytes
        for user, number in uses:
            lane.wait_until(user, number)
        return buffer

    def _sweep(self) -> None:
        """Let go of what was not made here, once its uses have ended."""
        while self._retired and _have_ended(self._retired[0][1]):
            self._retired.popleft()


class StreamBucket(Bucket):
    """Where one slot of a program gets its buffers from, and gives them back to.

    Attributes:
        lane: Whose work writes the slot.
        users: All lanes whose work uses it.
    """

    __slots__ = ("_stream_pool", "lane", "users")

    def __init__(self, pool: StreamPool, spec: TensorSpec, lane: StreamLane, users: tuple[StreamLane, ...]) -> None:
        super().__init__(pool, spec)
        self._stream_pool = pool
        self.lane = lane
        self.users = users

    def take(self) -> Any:
        return self._stream_pool.take(self.spec, self.lane)

    def give_back(self, buffer: Any) -> None:
        self._stream_pool.give_back(self.spec, buffer, self.users)


class _CommonBucket(Bucket):
    """Where the buffers of a variable go back to: frames of any program may still use them."""

    __slots__ = ("_stream_pool", "_users")

    def __init__(self, pool: StreamPool, spec: TensorSpec, users: Iterable[StreamLane]) -> None:
        super().__init__(pool, spec)
        self._stream_pool = pool
        self._users = users

    def give_back(self, buffer: Any) -> None:
        self._stream_pool.give_back(self.spec, buffer, self._users)


def _rank(entry: tuple[Any, Uses]) -> int:
    """Where a free buffer stands: of those that it may take, a lane always takes the same."""
    return id(entry[0])


def _work_ahead(entry: tuple[Any, Uses]) -> int:
    """How much work a lane would wait for that takes a free buffer."""
    return sum(max(0, number - user.completed) for user, number in entry[1])


def _have_ended(uses: Uses) -> bool:
    return all(user.completed >= number for user, number in uses)
