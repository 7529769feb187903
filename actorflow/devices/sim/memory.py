"""Memory of a simulated accelerator: its addresses, and its arrays, which the host cannot read by mistake."""

from __future__ import annotations

import math
import threading
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NoReturn

import numpy.typing as npt

from actorflow.devices.sim.races import Access, Region, Use
from actorflow.errors import OutOfMemoryError, ShapeError
from actorflow.spec import TensorSpec
from actorflow.threads import held_at_fork

if TYPE_CHECKING:
    from actorflow.devices.sim.timeline import WorkFailure
    from actorflow.place import Place

#: Arrays start at multiples of this, as on CUDA.
_ALIGNMENT = 256


class Block:
    """The addresses of one array's memory. They count in the model alone; the contents are in the host's memory.

    Attributes:
        low, high: First address, and the first behind the array.
        region: Its uses, if they are checked.
        failure: Why it does not have the contents that the last work should have written; only for the device's thread.
    """

    __slots__ = ("arena", "failure", "high", "low", "region")

    def __init__(self, arena: Arena, low: int, high: int, region: Region | None) -> None:
        self.arena = arena
        self.low = low
        self.high = high
        self.region = region
        self.failure: WorkFailure | None = None

    def free(self) -> None:
        """Nothing refers to the array any more. Any thread may call it, within the arena's own lock too."""
        self.arena.dead.append(self)


class Arena:
    """Addresses from 0 up to the device's size; an array gets the first hole that is large enough.

    One without elements takes no memory, and gets an address beyond it: what is captured tells arrays apart by theirs.
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
        """The address of its memory, and what is there."""
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
        """Describe what work on this array does with memory; None if that is not noted."""
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
