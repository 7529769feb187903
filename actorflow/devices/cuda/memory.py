"""Memory of a CUDA device, when it may be used again, and page-locked memory of the host.

Buffers are CuPy arrays from CuPy's pool, so the application's own arrays and the graph's share what there is. In what
order lanes use them again is decided by `actorflow.devices.stream.StreamPool`.

CuPy's pool keeps free blocks by the stream that was current when they were allocated, and hands them out again to that
stream at once, though others may still work on them: another lane, or the application, which drops a result when it has
launched its own work on it. So the memory of arrays that pass between streams is kept until all that was launched
before they died has ended. Memory that kernels allocate and drop within one launch needs none of this.

Streams that may have used an array are those of the lanes, and the application's, of which there is no list. CUDA's
legacy default stream is behind each of the latter that is not a non-blocking one. A non-blocking one is known where it
is the current stream as the array dies; it is noted right then, since whatever looks after memory later does so in a
lane, whose stream is the current one by then.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.devices.cuda.stream import CudaEvent
from actorflow.devices.memory import Bucket, BufferPool
from actorflow.devices.stream import StreamLane, StreamPool, Uses, are_before, have_ended, keep
from actorflow.errors import DeviceError, DTypeError, OutOfMemoryError
from actorflow.spec import TensorSpec
from actorflow.threads import held_at_fork


class LateRelease:
    """Keeps the memory of watched arrays until nothing that was launched before they died is pending.

    Arrays die in any thread; all else is called on the loop's thread.

    Args:
        marks: Gives marks behind the pending work of each stream that may use the device's arrays: those that it knows
            of, and those that it is given.
    """

    def __init__(self, current: Callable[[], Any], marks: Callable[[Iterable[Any]], list[CudaEvent]]) -> None:
        self._current = current  # gives the stream of CuPy that is current on the device, in the thread that asks
        self._marks = marks
        self._watched: dict[int, weakref.ref[Any]] = {}
        self._dead: deque[tuple[int, Any, Any]] = deque()
        self._held: deque[tuple[list[CudaEvent], list[Any]]] = deque()

    def watch(self, array: Any) -> None:
        """Keep the memory of an array a while longer than the array. Watching it twice is watching it once."""
        number, memory, dead, current = id(array), array.data.mem, self._dead, self._current
        self._watched[number] = weakref.ref(array, lambda _: dead.append((number, memory, current())))

    @property
    def held(self) -> int:
        """Number of dead arrays whose memory is kept, as far as `sweep` has seen them."""
        return sum(len(memories) for _, memories in self._held)

    def sweep(self) -> None:
        """Let go of memory no longer used; never blocks."""
        memories = []
        streams = set()
        while self._dead:
            number, memory, stream = self._dead.popleft()
            watched = self._watched.get(number)
            if watched is not None and watched() is None:  # else another array has the number by now
                del self._watched[number]
            memories.append(memory)
            streams.add(stream)
            del memory
        if memories:
            self._held.append((self._marks(streams), memories))
            del memories
        while self._held and all(_has_ended(mark) for mark in self._held[0][0]):
            self._held.popleft()

    def wait(self) -> None:
        """Let go of all that has died so far, once it is no longer used; blocks until then."""
        self.sweep()
        while self._held:
            for mark in self._held[0][0]:
                with suppress(DeviceError):  # then it has ended, too; lanes tell of it
                    mark.synchronize()
            self._held.popleft()

    def close(self) -> None:
        """Watch no array any more: nothing will be launched. Arrays that live take their memory with them."""
        try:
            self.wait()
        finally:
            self._watched.clear()


def _has_ended(mark: CudaEvent) -> bool:
    try:
        return mark.query()
    except DeviceError:
        return True


_DTYPES = frozenset("?bhilqBHILQefdFD")  # dtypes of CuPy's kernels, by NumPy's characters
_OUT_OF_MEMORY = 2  # an error of the CUDA runtime


def check_dtype(dtype: np.dtype[Any], place: object) -> None:
    """Check that CUDA devices have a dtype; raises DTypeError if they have not."""
    if dtype.char not in _DTYPES or not dtype.isnative:
        raise DTypeError(
            f"place {str(place)!r} has no arrays of dtype {dtype}: CUDA has bool, integers of 8 to 64 bits, "
            "float16, float32, float64, complex64 and complex128, in the byte order of the machine"
        )


def allocate(cupy: Any, index: int, spec: TensorSpec, late: LateRelease) -> Any:
    """A new array for the current stream, with undefined contents; raises DTypeError or OutOfMemoryError."""
    check_dtype(spec.dtype, f"cuda:{index}")
    runtime = cupy.cuda.runtime
    try:
        with cupy.cuda.Device(index):
            late.sweep()
            try:
                return cupy.empty(spec.shape, spec.dtype)
            except cupy.cuda.memory.OutOfMemoryError:
                # The last resort: all that is free but still in use, and memory cached for other streams.
                late.wait()
                cupy.get_default_memory_pool().free_all_blocks()
                return cupy.empty(spec.shape, spec.dtype)
    except cupy.cuda.memory.OutOfMemoryError as error:
        with cupy.cuda.Device(index):
            free, total = runtime.memGetInfo()
            held, limit = (getattr(cupy.get_default_memory_pool(), name)() for name in ("total_bytes", "get_limit"))
        raise OutOfMemoryError(
            f"device 'cuda:{index}': no room for {spec.size_bytes:,} bytes for {spec}: {free:,} of {total:,} bytes are "
            f"free, CuPy's pool holds {held:,}{f', with a limit of {limit:,}' if limit else ''}"
        ) from error
    except runtime.CUDARuntimeError as error:
        raise DeviceError(f"device 'cuda:{index}' failed to allocate {spec}: {error}") from error


def allocate_pinned(cupy: Any, index: int, spec: TensorSpec) -> npt.NDArray[Any]:
    """A new page-locked array of the host; raises OutOfMemoryError. Any thread may call it."""
    if spec.size_bytes == 0:
        return np.empty(spec.shape, spec.dtype)
    runtime = cupy.cuda.runtime
    try:
        with cupy.cuda.Device(index):
            memory = cupy.cuda.alloc_pinned_memory(spec.size_bytes)
    except runtime.CUDARuntimeError as error:
        if error.status != _OUT_OF_MEMORY:
            raise DeviceError(f"device 'cuda:{index}' failed to allocate {spec} of host memory: {error}") from error
        asked = f"{spec.size_bytes:,} bytes of page-locked host memory for {spec}"
        raise OutOfMemoryError(f"device 'cuda:{index}': no room for {asked}: {error}") from error
    return np.ndarray(spec.shape, spec.dtype, buffer=memory)


class CudaPool(StreamPool):
    """Buffers of one CUDA device."""

    def __init__(
        self, allocate: Callable[[TensorSpec], Any], lanes: Callable[[], Iterable[StreamLane]], late: LateRelease
    ) -> None:
        super().__init__(allocate, lanes)
        self._late = late  # keeps their memory when they have died

    def adopt(self, buffer: Any) -> None:
        super().adopt(buffer)
        self._late.watch(buffer)


class PinnedPool(BufferPool):
    """Page-locked memory of the host that copies to and from one device go through."""

    def __init__(self, allocate: Callable[[TensorSpec], Any], lanes: Callable[[], Sequence[StreamLane]]) -> None:
        super().__init__(allocate)
        self._lanes = lanes  # gives the lanes whose copies use it, at any time
        self._retired: deque[tuple[Any, Uses]] = deque()  # of buckets that are gone

    def bucket(self, spec: TensorSpec) -> PinnedBucket:
        while self._retired and have_ended(self._retired[0][1]):
            self._retired.popleft()
        bucket = self._buckets.get(spec)
        if bucket is None:
            made = bucket = self._buckets[spec] = PinnedBucket(self, spec, self._lanes)
            # Copies may be under way that read free memory when nobody uses the bucket any more.
            weakref.finalize(made, self._retired.extend, made.waiting).atexit = False
        assert isinstance(bucket, PinnedBucket)
        return bucket


class PinnedBucket(Bucket):
    """Free page-locked buffers of one type.

    A buffer comes back when the copy that reads it has been launched, and is given out when that copy has ended: the
    host writes into it without asking the stream. Its ``base`` is the page-locked memory, and that of its views is
    the buffer, so the two can be told apart.
    """

    __slots__ = ("_aged", "_lanes", "_lock", "waiting")

    def __init__(self, pool: BufferPool, spec: TensorSpec, lanes: Callable[[], Sequence[StreamLane]]) -> None:
        super().__init__(pool, spec)
        self._lanes = lanes
        self._lock = held_at_fork(threading.Lock())
        self.waiting: deque[tuple[Any, Uses]] = deque()
        self._aged: Uses = ()

    def take(self) -> Any:
        with self._lock:
            for at, (buffer, uses) in enumerate(self.waiting):
                if have_ended(uses):
                    del self.waiting[at]
                    return buffer
        return self.pool.new(self.spec)

    def give_back(self, buffer: Any) -> None:
        """Take back a buffer that nothing else refers to. Any thread may call it."""
        is_own = buffer.base is None or not isinstance(buffer.base, np.ndarray)
        if is_own and buffer.shape == self.spec.shape and buffer.dtype == self.spec.dtype:
            uses = tuple([(lane, lane.submitted) for lane in self._lanes()])
            with self._lock:
                self.waiting.append((buffer, uses))

    @property
    def free_bytes(self) -> int:
        return len(self.waiting) * self.spec.size_bytes

    def age(self) -> None:
        uses_now = tuple([(lane, lane.submitted) for lane in self._lanes()])
        with self._lock:
            keep(self.waiting, lambda uses: not (have_ended(uses) and are_before(uses, self._aged)))
            self._aged = uses_now

    def trim(self) -> None:
        """Give the buffers that no copy uses any more back to the system."""
        with self._lock:
            keep(self.waiting, lambda uses: not have_ended(uses))
