"""Counts, kept items, processes and devices that the runs of one loader share."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from actorflow.devices import Device, open_device
from actorflow.errors import DeviceError, PipelineError
from actorflow.graph.graph import Graph
from actorflow.pipeline.calls.call import Call
from actorflow.pipeline.calls.options import Skips
from actorflow.pipeline.processes.workers import ProcessPool
from actorflow.pipeline.stages.stage import Stage, seeds_of
from actorflow.pipeline.stats import StageStats
from actorflow.place import Place
from actorflow.threads import forget_in_child, in_thread


class LoaderResources:
    """Counts, kept items and processes of a loader.

    Args:
        stages: All of its stages.

    Attributes:
        stats: Counts of each stage.
    """

    def __init__(self, stages: list[Stage]) -> None:
        self.stats = {stage: StageStats(stage.name, stage.kind, stage.site, stage.concurrency) for stage in stages}
        self.skips = Skips()  # items left out
        self.caches: dict[Stage, Any] = {}  # items that caches have kept
        self._pools: dict[Stage, ProcessPool] = {}
        self._devices: dict[Stage, Device] = {}
        self._used: set[Stage] = set()
        weakref.finalize(self, _close_all, self._pools, self._devices)
        forget_in_child(self)

    def forget_parent(self) -> None:
        """This is the child of a fork: devices, and calls that run, are the parent's."""
        self._devices.clear()
        for stats in self.stats.values():
            stats.running = 0

    def pool(self, stage: Call) -> ProcessPool:
        """The processes that call the function of a stage."""
        if stage not in self._pools:
            self._pools[stage] = ProcessPool(stage.for_processes(), stage.concurrency, seeds_of(stage))
        return self._pools[stage]

    def device(self, stage: Stage, place: Place, graph: Graph | None, loop: asyncio.AbstractEventLoop) -> Device:
        """The loader's own device for a stage, with the options of the graph's."""
        device = self._devices.get(stage)
        if device is None:
            options = None if graph is None else graph.root.options.devices.get(place)
            device = self._devices[stage] = open_device(place, options)
        device.bind(loop)
        return device

    def use_up(self, stage: Stage) -> None:
        """A source that can be iterated once is iterated.

        Raises:
            PipelineError: the second time.
        """
        if stage in self._used:
            raise PipelineError(
                f"source {stage.name!r} is an iterator, which can be iterated once, from its start: give a sequence, "
                "an iterable that begins anew each time, or a function that gives one for an epoch"
            )
        self._used.add(stage)

    async def aclose(self) -> None:
        """Stop the processes and forget what was kept."""
        self.caches.clear()
        devices = list(self._devices.values())
        _close_all({}, self._devices)
        for device in devices:
            device.join()
        if self._pools:
            try:
                await in_thread(lambda: _close_all(self._pools, {}))
            except DeviceError:  # there is no thread to be had: the loop waits
                _close_all(self._pools, {})


def _close_all(pools: dict[Stage, ProcessPool], devices: dict[Stage, Device]) -> None:
    for device in devices.values():
        device.close()
    devices.clear()
    while pools:
        _, pool = pools.popitem()
        pool.close()
