"""When memory of a CUDA device may be used again.

CuPy's pool keeps free blocks by the stream that was current when they were allocated, and hands them out again to that
stream at once, whoever else still works on them: another lane, or the application, which drops a result when it has
launched its own work on it. So the memory of arrays that pass between streams is kept until all that was launched
before they died has ended. What kernels allocate and drop within one launch needs none of this.

Streams that may have used an array are those of the lanes, and the application's, which nobody lists. CUDA's legacy
default stream is behind each of the latter that is not a non-blocking one. A non-blocking one is known where it is the
current stream as the array dies; it is noted right then, since whoever looks after memory later does so in a lane,
whose stream is the current one by then.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from actorflow.devices.cuda.stream import CudaEvent
from actorflow.errors import DeviceError


class LateRelease:
    """Keeps the memory of watched arrays until nothing that was launched before they died is pending.

    Arrays die in any thread; all else is called on the loop's thread.

    Args:
        current: Gives the stream of CuPy that is current on the device, in the thread that asks.
        marks: Gives marks behind what is pending on each stream that may use the device's arrays: those that it knows
            of, and those that it is given.
    """

    def __init__(self, current: Callable[[], Any], marks: Callable[[Iterable[Any]], list[CudaEvent]]) -> None:
        self._current = current
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
        """How many dead arrays' memory is kept, as far as `sweep` has seen them."""
        return sum(len(memories) for _, memories in self._held)

    def sweep(self) -> None:
        """Let go of what nobody uses any more; never blocks."""
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
        """Let go of all that has died so far, once nobody uses it; blocks until then."""
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
