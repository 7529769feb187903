"""The service that runs graphs for arrays: an event loop in a thread, devices, and graphs that are kept."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Hashable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from actorflow.array.engine.compiling import Compiled, Computation
from actorflow.array.transforms.cache import RecentCache
from actorflow.devices import Device, DeviceOptions, open_device
from actorflow.interchange import to_numpy
from actorflow.loop import run
from actorflow.place import Place
from actorflow.runtime.engine import Engine
from actorflow.threads import start_thread

#: Graphs that are kept, those used last.
_MOST_GRAPHS = 128
#: Most graphs that differ in numbers alone; beyond that, the numbers are fed.
_MOST_VARIANTS = 4


class Service:
    """A loop in a thread that runs graphs, one beside the other.

    Args:
        budget_bytes: Most bytes on each device; None for no limit.
        options: How devices are used, by place.
        capture: As for `actorflow.Graph`.
    Raises:
        DeviceError: if its thread cannot be started.
        OSError: if that gets no loop.
    """

    def __init__(self, budget_bytes: int | None, options: dict[Place, DeviceOptions], capture: bool) -> None:
        self._budget_bytes = budget_bytes
        self._capture = capture
        self._variants: dict[Hashable, set[Hashable]] = {}  # sets of numbers, by structure
        self._options = options
        self._devices: dict[Place, Device] = {}
        self._graphs: RecentCache[Compiled] = RecentCache(_MOST_GRAPHS)
        self._results: WeakValueDictionary[int, Any] = WeakValueDictionary()  # by id: values computed by these devices
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Event | None = None
        started: Future[None] = Future()
        self._thread = start_thread(partial(self._work, started), "actorflow-devices")
        started.result()

    # -- from any thread ----------------------------------------------------------------------------------------

    def submit(self, work: Callable[[Service], Coroutine[Any, Any, None]]) -> None:
        """Have the loop run a coroutine, which raises nothing."""
        self._loop.call_soon_threadsafe(self._start, work)

    def close(self) -> None:
        """End the devices and the thread, once everything submitted has ended; does not wait. Once only."""
        assert self._ended is not None
        self._loop.call_soon_threadsafe(self._ended.set)

    def join(self) -> None:
        """After `close`: block until the thread has ended, unless it is this one."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- on the loop --------------------------------------------------------------------------------------------

    async def compute(self, computation: Computation, values: Sequence[Any]) -> list[Any]:
        """Run the graph of a computation.

        Args:
            computation: What to compute.
            values: What it reads: arrays of the host, or of the devices.
        """
        compiled = self.compiled(computation)
        feeds = {
            blob: self._fed(values[i] if part is None else values[i][part], blob.place)
            for i, part, blob in compiled.feeds
        }
        fetched = compiled.fetched
        result = await compiled.graph.run(feeds, fetch=fetched)
        for blob in fetched:
            if not self._devices[blob.place].is_host:
                self._results[id(result[blob])] = result[blob]
        return [
            tuple([result[blob] for blob in each]) if isinstance(each, tuple) else result[each]
            for each in compiled.fetches
        ]

    def compiled(self, computation: Computation) -> Compiled:
        """The graph of a computation."""
        compiled = self._graphs.get(computation.key)
        if compiled is not None:
            return compiled
        if computation.numbers and not self._is_worth_it(computation):
            return self.compiled(computation.with_numbers_fed())
        compiled = computation.compile(capture=self._capture)
        Engine(compiled.graph, shared_device=self._device)
        self._graphs.put(computation.key, compiled)
        return compiled

    def _is_worth_it(self, computation: Computation) -> bool:
        """Return whether numbers are made part of a graph: not where others come again and again."""
        if len(self._variants) >= 8 * _MOST_GRAPHS:
            self._variants.clear()
        known = self._variants.setdefault(computation.structure, set())
        if len(known) >= _MOST_VARIANTS:
            return False
        known.add(computation.numbers)
        return True

    def _fed(self, value: Any, place: Place) -> Any:
        """An array as these devices take it: one that other devices of the same name have computed is copied."""
        device = self._device(place)
        return value if device.is_host or self._results.get(id(value)) is value else to_numpy(value)

    def _device(self, place: Place) -> Device:
        device = self._devices.get(place)
        if device is None:
            device = self._devices[place] = open_device(place, self._options.get(place))
            device.bind(self._loop)
            if not device.is_host and device.memory.budget_bytes is None:
                device.memory.budget_bytes = self._budget_bytes
        return device

    def _start(self, work: Callable[[Service], Coroutine[Any, Any, None]]) -> None:
        task = self._loop.create_task(work(self))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _work(self, started: Future[None]) -> None:
        try:
            run(self._serve(started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)  # no event loop can be made, for instance

    async def _serve(self, started: Future[None]) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        started.set_result(None)
        await self._ended.wait()
        while self._tasks:
            await asyncio.wait(self._tasks)
        for compiled in self._graphs:
            await compiled.graph.aclose()
        self._graphs = RecentCache(_MOST_GRAPHS)  # its graphs refer to the devices
        for device in self._devices.values():
            device.close()
        for device in self._devices.values():
            device.join()
