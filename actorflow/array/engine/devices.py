"""The devices of a session: their memory, and the service that computes there."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Coroutine, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from actorflow.array.engine.memory import Memory
from actorflow.devices import DeviceOptions
from actorflow.errors import OutOfMemoryError
from actorflow.place import Place
from actorflow.threads import held_at_fork

if TYPE_CHECKING:
    from actorflow.array.engine.compiling import Computation
    from actorflow.array.engine.service import Service

#: Computations whose memory is remembered.
_MOST_PEAKS = 1024


class DeviceMemory(Memory):
    """The memory that a session's values take on one device.

    Args:
        budget_bytes: Most bytes of values; None for no limit.
        place: The device.
    """

    def __init__(self, budget_bytes: int | None, place: Place) -> None:
        super().__init__(budget_bytes)
        self._place = place
        self._known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def count(self, value: Any) -> None:
        buffer = value if value.base is None else value.base
        if self._known.get(id(buffer)) is not buffer:
            self._known[id(buffer)] = buffer
            self.pool.adopt(buffer)

    def no_room(self, what: str, size_bytes: int) -> OutOfMemoryError:
        return OutOfMemoryError(f"on {self._place}: {super().no_room(what, size_bytes)}")


class Devices:
    """The devices of a session.

    A service runs from the first computation until `close`; what is asked for later starts another one.

    Args:
        budget_bytes: Most bytes of values on each device; None for no limit.
        options: How devices are used, by place.
        capture: As for `actorflow.Graph`.
    """

    def __init__(self, budget_bytes: int | None, options: Mapping[Place, DeviceOptions], capture: bool) -> None:
        self._budget_bytes = budget_bytes
        self._capture = capture
        self._peaks: dict[Hashable, int] = {}
        self._options = dict(options)
        self._memories: dict[Place, DeviceMemory] = {}
        self._lock = held_at_fork(threading.Lock(), is_outer=True)
        self._running: list[Service] = []  # at most one
        self._end = weakref.finalize(self, _close, self._lock, self._running)

    def memory(self, place: Place) -> DeviceMemory:
        """The memory of a device. With the session's lock held."""
        memory = self._memories.get(place)
        if memory is None:
            options = self._options.get(place)
            own = None if options is None else options.memory_budget
            memory = self._memories[place] = DeviceMemory(own or self._budget_bytes, place)
        return memory

    def peak_bytes(self, computation: Computation, place: Place) -> int:
        """Most bytes that a computation takes on its device. With the session's lock held."""
        known = self._peaks.get(computation.key)
        if known is None:
            compiled = computation.compile()
            known = compiled.graph.compile(compiled.fetched).footprint(place).peak_bytes
            if len(self._peaks) >= _MOST_PEAKS:
                self._peaks.clear()
            self._peaks[computation.key] = known
        return known

    def submit(self, work: Callable[[Service], Coroutine[Any, Any, None]]) -> None:
        """Have the service run a coroutine. From any thread."""
        with self._lock:
            if not self._running:
                # It loads the runtime of graphs, which only devices need.
                from actorflow.array.engine.service import Service

                self._running.append(Service(self._budget_bytes, self._options, self._capture))
            self._running[0].submit(work)

    def forget_parent(self) -> None:
        """Forget the service, whose thread the child of a fork does not have."""
        self._end.detach()
        self._running = []
        self._end = weakref.finalize(self, _close, self._lock, self._running)

    def close(self) -> None:
        """End the service once all is done that was submitted, and wait for that, unless on its own thread."""
        _close(self._lock, self._running)


def _close(lock: threading.Lock, running: list[Service]) -> None:
    with lock:
        ending = running[:]
        running.clear()
        for service in ending:
            service.close()
    for service in ending:
        service.join()
