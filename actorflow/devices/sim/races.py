"""The race detector: which work has used which memory, and what orders it.

It goes by what is known to happen before what (vector clocks), not by what happens to run when: work of one stream is
in the order of launching; a stream that waits for an event comes behind all that the event came behind; and the host
launches only after what it has seen end. Two pieces of work that use one memory, one of them writing, must be ordered
by that. Whether they are is decided when the second is launched, whether or not the first has run by then.
"""

from __future__ import annotations

import weakref
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import byte_bounds

from actorflow.errors import RaceError


class StreamClock:
    """Order of one stream: what its work comes behind.

    Attributes:
        behind: For other streams, number of the newest work that all later work of this one comes behind.
        late: What was found wrong with those when the host saw their end, with the number of the copy.
    """

    __slots__ = ("behind", "late", "launched", "seen", "sources", "where")

    def __init__(self, where: str) -> None:
        self.where = where  # the lane and the device, for messages
        self.launched = 0
        self.seen = 0  # number of the newest work whose end the host has seen
        self.behind: dict[StreamClock, int] = {}
        self.sources: deque[tuple[int, HostSource]] = deque()  # host memory of copies that the host has not seen end
        self.late: list[tuple[int, RaceError]] = []

    def now(self) -> Mapping[StreamClock, int]:
        """Work that a mark made now comes behind."""
        self.behind = {clock: number for clock, number in self.behind.items() if number > clock.seen}
        return {**self.behind, self: self.launched}

    def wait(self, mark: Mapping[StreamClock, int]) -> None:
        """All later work comes behind a mark."""
        for clock, number in mark.items():
            if clock is not self and number > self.behind.get(clock, 0):
                self.behind[clock] = number

    def take_late(self, number: int) -> list[RaceError]:
        """Take what was found wrong with work up to ``number``."""
        taken = [error for copy, error in self.late if copy <= number]
        self.late = [entry for entry in self.late if entry[0] > number]
        return taken

    def has_seen(self, number: int) -> None:
        """The host has seen the end of all work up to ``number``."""
        self.seen = number
        while self.sources and self.sources[0][0] <= number:
            copy, source = self.sources.popleft()
            if not source.is_whole():
                self.late.append((copy, source.error()))
            source.release()


def see(mark: Mapping[StreamClock, int]) -> None:
    """The host has seen a mark pass."""
    for clock, number in mark.items():
        if number > clock.seen:
            clock.has_seen(number)


class HostSource:
    """Host memory that a copy reads, which must not change before the host has seen the copy's end."""

    __slots__ = ("_array", "_by", "_checksum")

    def __init__(self, array: npt.NDArray[Any], by: str) -> None:
        self._array: npt.NDArray[Any] | None = array
        self._by = by
        self._checksum = _checksum(array)

    def is_whole(self) -> bool:
        """True if it is what it was when the copy was launched."""
        return self._array is None or _checksum(self._array) == self._checksum

    def release(self) -> None:
        """Let it change: the host has seen the copy's end, or what changes it is known to come behind."""
        self._array = None

    def error(self) -> RaceError:
        """Error for memory that is not whole."""
        return RaceError(
            f"the host changed memory that {self._by} copies to the device: it had not seen the end of the copy"
        )


@dataclass(frozen=True, slots=True)
class Access:
    """Use of some memory by one piece of work.

    Attributes:
        low, high: From which address up to which.
        what: The array that it knew there.
        source: What it copies from the host.
    """

    clock: StreamClock
    number: int
    by: str
    low: int
    high: int
    writes: bool
    what: str
    source: HostSource | None = None

    def overlaps(self, low: int, high: int) -> bool:
        """True if it uses any of these addresses."""
        return self.low < high and low < self.high

    def is_before(self, clock: StreamClock | None) -> bool:
        """True if work that is launched now on a stream, or (None) by the host itself, comes behind it."""
        if self.clock.seen >= self.number or self.clock is clock:
            return True
        return clock is not None and clock.behind.get(self.clock, 0) >= self.number


class Region:
    """The memory of one array, with the uses of it that something may still have to wait for.

    Args:
        earlier: Uses of the same addresses when they were another array's.
    """

    __slots__ = ("__weakref__", "_accesses", "_earlier", "what")

    def __init__(self, what: str, earlier: Iterable[Access] = ()) -> None:
        self.what = what
        self._accesses: list[Access] = []
        self._earlier = list(earlier)

    @property
    def pending(self) -> list[Access]:
        """Uses that the host has not seen end."""
        return [access for access in (*self._earlier, *self._accesses) if not access.is_before(None)]

    def check(self, clock: StreamClock | None, by: str, low: int, high: int, writes: bool) -> None:
        """Check that a use launched now, or one by the host itself (``clock`` is None), is ordered.

        Raises:
            RaceError: naming the use and the one that it conflicts with.
        """
        for accesses in (self._accesses, self._earlier):
            for access in accesses:
                if (writes or access.writes) and access.overlaps(low, high) and not access.is_before(clock):
                    self._refuse(clock, f"{by} {'writes' if writes else 'reads'}", access, accesses is self._accesses)

    def add(self, use: Use, clock: StreamClock, number: int, by: str) -> None:
        """A use that was checked has been launched."""
        low, high, writes = use.low, use.high, use.writes
        self._earlier = [old for old in self._earlier if not _covers(use, clock, old)]
        if writes:
            for old in self._accesses:
                if old.source is not None and old.overlaps(low, high):
                    old.source.release()
        self._accesses = [old for old in self._accesses if not _covers(use, clock, old)]
        self._accesses.append(Access(clock, number, by, low, high, writes, self.what, use.source))

    def _refuse(self, clock: StreamClock | None, use: str, access: Access, is_alive: bool) -> NoReturn:
        verb = "writes" if access.writes else "still reads"
        missing = f"{clock.where} has not waited for it" if clock else "the host has not seen the end of it"
        if is_alive:
            raise RaceError(f"{use} {self.what}, which {access.by} {verb}: {missing}")
        raise RaceError(
            f"{use} {self.what}, in memory that {access.by} {verb} as {access.what}, freed early: {missing}"
        )


def _covers(use: Use, clock: StreamClock, old: Access) -> bool:
    """True if nothing needs to wait for an old access any more, once it waits for a new use that comes behind it."""
    if old.is_before(None):
        return True
    is_inside = use.low <= old.low and old.high <= use.high
    return is_inside and (use.writes or (old.clock is clock and not old.writes))


@dataclass(frozen=True, slots=True)
class Use:
    """Use of memory that a piece of work is going to make.

    Attributes:
        low, high: From which address up to which.
        source: What it copies from the host.
    """

    region: Region
    low: int
    high: int
    writes: bool
    source: HostSource | None = None


_Regions = dict[int, tuple[weakref.ref[npt.NDArray[Any]], Region]]
_host: _Regions = {}


def host_use(array: npt.NDArray[Any], writes: bool, by: str) -> Use:
    """Describe what a copy does with host memory.

    All arrays that show the memory of one array share a region, which ends with that array.
    """
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    key = id(owner)
    known = _host.get(key)
    if known is None or known[0]() is not owner:
        known = (
            weakref.ref(owner, partial(_forget, _host, key)),
            Region(f"host memory {owner.dtype}{list(owner.shape)}"),
        )
        _host[key] = known
    low, high = byte_bounds(array) if array.size else (0, 0)
    region = known[1]
    # What a device still writes there changes lawfully.
    is_changing = any(access.writes and access.overlaps(low, high) for access in region.pending)
    source = None if writes or is_changing else HostSource(array, by)
    return Use(region, low, high, writes, source)


def _forget(regions: _Regions, key: int, dead: weakref.ref[npt.NDArray[Any]]) -> None:
    if key in regions and regions[key][0] is dead:  # or another array has the key by now
        del regions[key]


def _checksum(array: npt.NDArray[Any]) -> int:
    flat = np.ascontiguousarray(array).reshape(-1)
    return zlib.crc32(flat.view(np.uint8).data) if flat.size else 0
