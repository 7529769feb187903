"""A simulated device whose time stands still until the test lets it pass."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

import actorflow as af
from actorflow.devices.sim import SimDevice, SimOptions
from actorflow.devices.stream import StreamLane

#: So many turns of the loop in which nothing happens mean that nothing will.
TURNS = 5


class Standstill:
    """Makes graphs whose devices have a clock that the test turns: each kernel and each copy takes one second."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.graph: af.Graph | None = None

    def options(self, **options: Any) -> SimOptions:
        """Options of one device."""
        return SimOptions(clock=lambda: self.now_ns, kernel_s=1.0, latency_s=1.0, **options)

    def make(self, **options: Any) -> af.Graph:
        """A graph; it may use ``sim:0`` and ``sim:1``."""
        self.graph = graph = af.Graph("standstill", devices={f"sim:{i}": self.options(**options) for i in range(2)})
        close = graph.aclose

        async def aclose() -> None:
            self.advance(1e6)  # or what is under way would never end
            await close()

        graph.aclose = aclose  # type: ignore[method-assign]
        return graph

    def advance(self, duration_s: float) -> None:
        """Let time pass on the devices."""
        assert self.graph is not None
        self.now_ns += round(duration_s * 1e9)
        for device in self.graph.engine.resources.devices.values():
            if isinstance(device, SimDevice):
                device.timeline.wake()

    async def settle(self) -> None:
        """Let the loop turn until only time can bring anything further."""
        quiet = 0
        async with asyncio.timeout(60):
            while quiet < TURNS:
                await asyncio.sleep(0)
                quiet = quiet + 1 if self._is_quiet else 0

    async def run(self, feeds: Iterable[dict[Any, Any]], fetch: Any = None, apart_s: float = 0.0) -> list[Any]:
        """Start a frame for each feed, with some time between them, launch what can be launched, and let them end."""
        graph = self.graph
        assert graph is not None
        tasks = []
        for feed in feeds:
            tasks.append(asyncio.create_task(graph.run(feed, fetch=fetch)))
            await self.settle()
            self.advance(apart_s)
            await self.settle()
        while not all(task.done() for task in tasks):
            self.advance(1e3)
            await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    @property
    def _is_quiet(self) -> bool:
        assert self.graph is not None
        resources = self.graph.engine.resources
        lanes = resources.lanes_at_work()
        if resources.dispatcher.ready or not all(isinstance(lane, StreamLane) for lane in lanes):
            return False
        for device in resources.devices.values():
            if isinstance(device, SimDevice):
                lanes, heap = device._all_lanes(), device.timeline._heap
                if (heap and heap[0][0] <= self.now_ns) or sum(lane.stream.unfinished for lane in lanes) > len(heap):
                    return False
                if any(lane.head is not None and lane.head.passed for lane in lanes):
                    return False
        return True


@pytest.fixture
def still() -> Standstill:
    """Devices whose time stands still."""
    return Standstill()
