"""A service that runs graphs for threads without a loop: an event loop in a thread, and devices that graphs share."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Coroutine, Hashable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from actorflow.devices import Device, DeviceOptions, Lane, open_device
from actorflow.devices.stream import StreamLane
from actorflow.errors import DeviceError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob
from actorflow.interchange import to_numpy
from actorflow.loop import run
from actorflow.place import Place
from actorflow.runtime.engine import Engine
from actorflow.runtime.program import Result
from actorflow.threads import in_thread, simulation, start_thread

#: Graphs that are kept, those used last.
_MOST_GRAPHS = 128


class HasGraph(Protocol):
    """An object with a graph."""

    graph: Graph


class _Every:
    """All lanes that there are."""

    def __contains__(self, lane: object) -> bool:
        return True


_EVERY = _Every()
_Kept = TypeVar("_Kept", bound=HasGraph)


class Service:
    """A loop in a thread that runs graphs, one beside the other, on devices of its own.

    Args:
        name: Of the thread.
        budget_bytes: Most bytes on each accelerator; None for no limit.
        options: How devices are used, by place.
    Raises:
        DeviceError: if its thread cannot be started.
        OSError: if that gets no loop.

    Attributes:
        graphs: The graphs that are kept, by key, the one used last at the end.
        devices: The devices opened so far.
        loop: The loop.
    """

    def __init__(self, name: str, budget_bytes: int | None, options: Mapping[Place, DeviceOptions]) -> None:
        self._budget_bytes = budget_bytes
        self._options = options
        self.devices: dict[Place, Device] = {}
        self.graphs: OrderedDict[Hashable, HasGraph] = OrderedDict()
        self._results: WeakValueDictionary[int, Any] = WeakValueDictionary()  # by id: values computed by these devices
        self._begun = self._over = 0  # runs
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._has_ended = False
        started: Future[None] = Future()
        if simulation.loop is not None:
            self._thread, self.loop = threading.current_thread(), simulation.loop
            self._served = self.loop.create_task(self._serve())
            return
        self._thread = start_thread(partial(self._work, started), name)
        started.result()

    # -- from any thread ----------------------------------------------------------------------------------------

    def submit(self, work: Callable[[Service], Coroutine[Any, Any, None]]) -> None:
        """Have the loop run a coroutine, which raises nothing."""
        self.loop.call_soon_threadsafe(self._start, work)

    def close(self) -> None:
        """End the devices and the thread, once everything submitted has ended; does not wait. Once only."""
        self.loop.call_soon_threadsafe(self._ended.set)

    def join(self) -> None:
        """After `close`: block until the thread has ended, unless it is this one."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def is_of_host(self) -> bool:
        """Whether it has opened no accelerators, on which arrays may live."""
        return all(device.is_host for device in self.devices.values())

    # -- on the loop --------------------------------------------------------------------------------------------

    async def call(self, work: Callable[[], None]) -> None:
        """Call a function in a thread; on the loop where there is none to be had."""
        try:
            await in_thread(work)
        except DeviceError:
            work()

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call something after a time, unless the service has ended before."""
        self.loop.call_later(delay_s, callback)

    def kept(self, key: Hashable, make: Callable[[], _Kept]) -> _Kept:
        """The object that was made for a key, with a graph that runs here; made if there is none."""
        found: Any = self.graphs.get(key)
        if found is None:
            found = make()
            Engine(found.graph, shared_device=self._device)
            self.graphs[key] = found
            if len(self.graphs) > _MOST_GRAPHS:
                self.graphs.popitem(last=False)
        else:
            self.graphs.move_to_end(key)
        return found  # type: ignore[no-any-return]

    async def run(self, graph: Graph, feeds: Mapping[Blob, Any], fetch: Sequence[Blob]) -> Result:
        """The values of blobs of one of the graphs.

        Args:
            graph: The graph.
            feeds: Arrays of the host, or of the devices.
            fetch: The blobs.
        """
        self._begun += 1
        lanes = graph.engine.lanes()
        if not lanes or not all(isinstance(lane, StreamLane) for lane in lanes):
            self._expect(_EVERY)
        try:
            result = await graph.run({blob: self._fed(value, blob.place) for blob, value in feeds.items()}, fetch=fetch)
        finally:
            self._over += 1
            if self._over == self._begun:
                self._expect(())
        for blob in fetch:
            if not self.devices[blob.place].is_host:
                self._results[id(result[blob])] = result[blob]
        return result

    def _expect(self, lanes: Container[Lane]) -> None:
        """Have cores shared out among lanes for as long as anything runs: else BLAS has them all, in any thread."""
        for device in self.devices.values():
            device.expect(lanes)

    def _fed(self, value: Any, place: Place) -> Any:
        """An array as these devices take it: one that other devices of the same name have computed is copied."""
        device = self._device(place)
        return value if device.is_host or self._results.get(id(value)) is value else device.upload(to_numpy(value))

    def _device(self, place: Place) -> Device:
        device = self.devices.get(place)
        if device is None:
            device = self.devices[place] = open_device(place, self._options.get(place))
            device.bind(self.loop)
            for pool in device.pools:
                pool.clock = lambda: (self._begun, self._over)
            if not device.is_host and device.memory.budget_bytes is None:
                device.memory.budget_bytes = self._budget_bytes
        return device

    def _start(self, work: Callable[[Service], Coroutine[Any, Any, None]]) -> None:
        task = self.loop.create_task(work(self))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _work(self, started: Future[None]) -> None:
        try:
            run(self._begin(started))
        except BaseException as error:
            if not started.done():
                started.set_exception(error)  # no event loop can be made, for instance
            elif not self._has_ended:  # else it gets no thread to wait in for those of its executor, which it never had
                raise

    async def _begin(self, started: Future[None]) -> None:
        self.loop = asyncio.get_running_loop()
        started.set_result(None)
        await self._serve()

    async def _serve(self) -> None:
        await self._ended.wait()
        while self._tasks:
            await asyncio.wait(self._tasks)
        for kept in self.graphs.values():
            await kept.graph.aclose()
        self.graphs.clear()  # they refer to the devices
        for device in self.devices.values():
            device.close()
        for device in self.devices.values():
            device.join()
        self._has_ended = True
