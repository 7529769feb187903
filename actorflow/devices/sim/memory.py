"""Memory of a simulated accelerator: its addresses, its arrays, which the host cannot read by mistake, and its races.

The race detector goes by the order that is certain (vector clocks), not by the order that happened: work of
one stream is in the order of launching; a stream that waits for an event comes behind all that the event came behind;
and the host launches only after work it has seen end. Two pieces of work on one memory, one of them writing, must
be ordered by that. Whether they are is decided when the second is launched, whether or not the first has run by then.
"""

from __future__ import annotations

import math
import threading
import weakref
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import byte_bounds

from actorflow.errors import OutOfMemoryError, RaceError, ShapeError
from actorflow.place import Place
from actorflow.spec import TensorSpec
from actorflow.threads import held_at_fork

if TYPE_CHECKING:
    from actorflow.devices.sim.stream import WorkFailure


class StreamClock:
    """Order of one stream: the work that its own comes behind.

    Attributes:
        behind: For other streams, number of the newest work that all later work of this one comes behind.
        late: Faults found in those when the host saw their end, with the number of the copy.
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
        """Take the faults found in work up to ``number``."""
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
        """True if it is as it was when the copy was launched."""
        return self._array is None or _checksum(self._array) == self._checksum

    def release(self) -> None:
        """Let it change: the host has seen the copy's end, or the change is known to come behind."""
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
    """

    clock: StreamClock
    number: int
    by: str
    low: int
    high: int
    writes: bool
    what: str  # the array that it knew there
    source: HostSource | None = None  # the memory that it copies from the host

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
        """Check that a use launched now, or one by the host (``clock`` is None), is ordered; raises RaceError."""
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
    """

    region: Region
    low: int
    high: int
    writes: bool
    source: HostSource | None = None  # the memory that it copies from the host


_Regions = dict[int, tuple[weakref.ref[npt.NDArray[Any]], Region]]
_host: _Regions = {}


def host_use(array: npt.NDArray[Any], writes: bool, by: str) -> Use:
    """Describe a copy's use of host memory.

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
    # Bytes that a device still writes change lawfully.
    is_changing = any(access.writes and access.overlaps(low, high) for access in region.pending)
    source = None if writes or is_changing else HostSource(array, by)
    return Use(region, low, high, writes, source)


def _forget(regions: _Regions, key: int, dead: weakref.ref[npt.NDArray[Any]]) -> None:
    if key in regions and regions[key][0] is dead:  # or another array has the key by now
        del regions[key]


def _checksum(array: npt.NDArray[Any]) -> int:
    flat = np.ascontiguousarray(array).reshape(-1)
    return zlib.crc32(flat.view(np.uint8).data) if flat.size else 0


_ALIGNMENT = 256  # arrays start at multiples of this, as on CUDA


class Block:
    """The addresses of one array's memory. They count in the model alone; the contents are in the host's memory.

    Attributes:
        low, high: First address, and the first behind the array.
        failure: Why it does not have the contents that the last work should have written; only for the device's thread.
    """

    __slots__ = ("arena", "failure", "high", "low", "region")

    def __init__(self, arena: Arena, low: int, high: int, region: Region | None) -> None:
        self.arena = arena
        self.low = low
        self.high = high
        self.region = region  # its uses, if they are checked
        self.failure: WorkFailure | None = None

    def free(self) -> None:
        """Nothing refers to the array any more. Any thread may call it, within the arena's own lock too."""
        self.arena.dead.append(self)


class Arena:
    """Addresses from 0 up to the device's size; an array gets the first hole that is large enough.

    One without elements takes no memory, and gets an address past it: a captured segment tells arrays apart by theirs.
    """

    def __init__(self, where: str, size_bytes: int, races: bool) -> None:
        self._where = where
        self._size_bytes = size_bytes
        self._races = races
        self._lock = held_at_fork(threading.Lock())
        self._holes = [(0, size_bytes)]
        self._beyond = [size_bytes]  # a heap; its greatest is the first that none has had
        self._left: list[Access] = []  # uses of freed memory that the host has not seen end
        self.dead: deque[Block] = deque()

    @property
    def used_bytes(self) -> int:
        """Bytes of all arrays that are referred to."""
        with self._lock:
            self._bury()
            return self._size_bytes - sum(high - low for low, high in self._holes)

    def allocate(self, spec: TensorSpec) -> Block:
        """Addresses for an array. Any thread may call it; raises OutOfMemoryError if no hole is large enough."""
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
            low = heappop(self._beyond)
            if not self._beyond:
                self._beyond.append(low + _ALIGNMENT)
            return low
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
            else:
                heappush(self._beyond, block.low)
            if block.region is not None:
                self._left += block.region.pending
        holes.sort()
        self._holes = merged = holes[:1]
        for low, high in holes[1:]:
            if low == merged[-1][1]:
                merged[-1] = (merged[-1][0], high)
            else:
                merged.append((low, high))


def _refuse(self: SimArray, *_: Any, **__: Any) -> NoReturn:
    raise TypeError(
        f"{self!r} is in the memory of {self.place}, where Python and NumPy cannot reach it: "
        "copy it to the host with af.to_numpy(x)"
    )


class SimArray:
    """A C-contiguous array in the memory of a simulated accelerator.

    NumPy does not take it, and Python's operators do not either, nor can it be iterated, indexed, compared or pickled:
    each of these would read memory of the device from the host. `get` copies it, once nothing is pending on it.

    Attributes:
        place: The device.
        base: None if it owns its memory, else the array that does.
        block: Its memory.
        contents: Its elements, for work that runs on the device alone.
        shape, dtype, ndim, size, nbytes, itemsize: As those of NumPy's arrays.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [2])
        >>> with graph.at("sim:0"):
        ...     y = x * 2
        >>> value = graph.run_sync({x: [1, 2]})[y]
        >>> value, value.shape, value.nbytes
        (<SimArray float32[2] on sim:0>, (2,), 8)
        >>> value.get()
        array([2., 4.], dtype=float32)
        >>> np.asarray(value)
        Traceback (most recent call last):
            ...
        TypeError: <SimArray float32[2] on sim:0> is in the memory of sim:0, where Python and NumPy cannot reach it...
    """

    __slots__ = (
        *("__weakref__", "base", "block", "contents", "place"),
        *("dtype", "itemsize", "nbytes", "ndim", "shape", "size"),
    )

    def __init__(self, place: Place, block: Block, contents: npt.NDArray[Any], base: SimArray | None = None) -> None:
        self.place = place
        self.block = block
        self.base = base
        self.contents = contents
        self.shape, self.dtype, self.ndim = contents.shape, contents.dtype, contents.ndim
        self.size, self.nbytes, self.itemsize = contents.size, contents.nbytes, contents.itemsize

    def __del__(self) -> None:
        if getattr(self, "base", self) is None:
            self.block.free()

    def reshape(self, *shape: int | tuple[int, ...]) -> SimArray:
        """A view with another shape; no work for the device.

        Raises:
            ShapeError: if the number of elements differs.
        """
        axes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        try:
            view = self.contents.reshape(axes)  # type: ignore[arg-type]
        except ValueError as error:
            raise ShapeError(f"{self!r} has {math.prod(self.shape)} elements, no shape {axes} has") from error
        return SimArray(self.place, self.block, view, self if self.base is None else self.base)

    @property
    def at(self) -> tuple[int, TensorSpec]:
        """The address of its memory, and the spec of the array there."""
        return self.block.low, TensorSpec(self.shape, self.dtype)

    def get(self) -> npt.NDArray[Any]:
        """A copy in the host's memory, at once: nothing waits.

        Raises:
            RaceError: if something writes it whose end the host has not seen.
        """
        if self.block.region is not None:
            self.block.region.check(None, "the host", self.block.low, self.block.high, writes=False)
        return self.contents.copy()

    def use(self, writes: bool) -> Use | None:
        """Describe the use that work on this array makes of memory; None if that is not noted."""
        region = self.block.region
        return None if region is None else Use(region, self.block.low, self.block.high, writes)

    def __repr__(self) -> str:
        return f"<SimArray {TensorSpec(self.shape, self.dtype)} on {self.place}>"

    __hash__ = object.__hash__


_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or", "xor")
#: Methods that Python and NumPy would call on an array that they can read.
_REFUSED = [
    *("array", "array_function", "array_ufunc", "bool", "buffer", "complex", "contains", "float", "getitem", "index"),
    *("int", "iter", "matmul", "reduce_ex", "rmatmul", "round", "setitem", "neg", "pos", "abs", "invert"),
    *("eq", "ne", "lt", "le", "gt", "ge"),
    *[f"{prefix}{name}" for name in (*_OPERATORS, "divmod") for prefix in ("", "r")],
    *[f"i{name}" for name in (*_OPERATORS, "matmul")],
]
for _name in _REFUSED:
    setattr(SimArray, f"__{_name}__", _refuse)
