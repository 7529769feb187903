"""A service's day in short: very many frames of one graph, with failures and cancellations mixed in.

``ACTORFLOW_FULL_TESTS=1`` runs 200,000 frames; ``python -m tests.runtime.test_soak [frames]`` prints what it measures.
"""

import asyncio
import gc
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import actorflow as af
from tests.support.effort import FULL, slow

IN_FLIGHT = 4
#: Of so many frames, one fails and one is cancelled.
FAILS_EVERY, CANCELLED_EVERY = 13, 17

Array = np.ndarray[Any, Any]


class PlantedError(Exception):
    pass


class Service:
    """A graph of 20 ops: kernels, plain and async functions, three lanes, three variables; and its plain form."""

    def __init__(self) -> None:
        self.graph = graph = af.Graph("soak")
        self.x = graph.blob("x", (16, 8), "float64")
        self.kind = graph.blob("kind", (), "int64")
        w = graph.variable("w", (8, 8), "float64", init=np.eye(8))
        self.counts = [graph.variable(f"count{i}", (), "int64") for i in range(2)]
        y = af.ops.inner(self.x, w)
        branches = []
        for i in range(3):
            with graph.at(lane=f"lane{i}"):
                z = af.ops.scale(y, 1.0 + i)
                z = af.ops.relu(z)
                z = graph.function(f"shift{i}", lambda a, i=i: a + i, z.spec)(z)
                branches.append(af.ops.scale(z, 0.5))
        total = af.ops.add(*branches)
        checked = graph.function("check", self._check, total.spec)(total, self.kind)
        waited = graph.function("wait", self._wait, checked.spec, concurrency=IN_FLIGHT)(checked)
        self.y = af.ops.scale(waited, 2.0)
        for i, count in enumerate(self.counts):
            after = self.kind if i else self.y
            [count, after] >> graph.function(f"add{i}", lambda n, _: n + 1) >> [count]
        [w] >> graph.op("keep", af.ops.Copy()) >> [w]
        assert len(graph.ops) == 20

    @staticmethod
    def _check(a: Array, kind: Array) -> Array:
        if kind == 1:
            raise PlantedError
        return a

    @staticmethod
    async def _wait(a: Array) -> Array:
        await asyncio.sleep(0)
        return a

    @staticmethod
    def expected(x: Array) -> Array:
        branches = [(np.maximum(x * (1.0 + i), 0) + i) * 0.5 for i in range(3)]
        return 2.0 * (branches[0] + branches[1] + branches[2])


@dataclass
class Soak:
    """Frames by what became of them, and what the process held at each tenth."""

    frames: int
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    held: list[tuple[int, int, int, int]] = field(default_factory=list)
    seconds: float = 0.0
    frame_bytes: int = 0

    async def run(self) -> None:
        service = Service()
        batches = np.random.default_rng(0).standard_normal((97, 16, 8))
        answers = [service.expected(batch) for batch in batches]
        self.frame_bytes = service.graph.memory_cost().total_bytes
        began = time.perf_counter()
        async with service.graph:
            # A run that is cancelled while its plan is made has no frame, and would not be counted.
            claim = service.graph.engine.resources.claim()
            for fetch in (None, [service.y, service.graph]):
                service.graph.engine.program(fetch, {})
            claim.release()
            for tenth in range(10):
                numbers = iter(range(self.frames * tenth // 10, self.frames * (tenth + 1) // 10))
                async with asyncio.TaskGroup() as group:
                    for _ in range(IN_FLIGHT):
                        group.create_task(self._client(service, batches, answers, numbers))
                self._look(service)
            counts = service.graph.engine.frames
        assert (counts.started, counts.in_flight) == (self.frames, 0)
        # A client may have gone when its frame had just ended.
        assert self.finished <= counts.finished <= self.finished + self.cancelled
        assert self.failed <= counts.failed <= self.failed + self.cancelled
        # One counts what was computed to the end, the other what was begun: a cancelled frame may be in either.
        assert counts.finished <= int(service.counts[0].value) <= counts.finished + counts.cancelled
        assert counts.finished <= int(service.counts[1].value) <= self.frames
        self.seconds = time.perf_counter() - began

    async def _client(self, service: Service, batches: Array, answers: list[Array], numbers: Iterator[int]) -> None:
        graph = service.graph
        fetch = [service.y, graph]
        for number in numbers:
            x = batches[number % len(batches)]
            fails = number % FAILS_EVERY == 0
            feeds = {service.x: x, service.kind: np.array(int(fails))}
            if number % CANCELLED_EVERY == 0:
                await self._cancel(graph, feeds, number)
                continue
            try:
                result = await graph.run(feeds, fetch=fetch)
            except af.OpError as error:
                if not (fails and isinstance(error.__cause__, PlantedError)):
                    raise
                self.failed += 1
            else:
                assert not fails
                np.testing.assert_array_equal(result[service.y], answers[number % len(answers)])
                self.finished += 1

    async def _cancel(self, graph: af.Graph, feeds: dict[af.Blob, Array], number: int) -> None:
        """Cancel a run after some turns of the loop; it may have ended by then."""
        task = asyncio.create_task(graph.run(feeds))
        for _ in range(1 + number % 7):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            self.cancelled += 1
        elif task.exception() is not None:
            self.failed += 1
        else:
            self.finished += 1

    def _look(self, service: Service) -> None:
        gc.collect()
        pool = service.graph.engine.resources.device(af.Place()).memory
        self.held.append((rss_bytes(), pool.held_bytes, threading.active_count(), open_files()))


def rss_bytes() -> int:
    """Resident memory; where /proc is missing, the highest so far."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("frames", [1_000, *slow([200_000 if FULL else 4_000])])
async def test_nothing_grows_and_every_frame_is_accounted_for(frames: int) -> None:
    soak = Soak(frames)
    await soak.run()
    assert soak.finished + soak.failed + soak.cancelled == soak.frames
    assert soak.failed > 0
    assert soak.cancelled > 0
    warm, end = soak.held[1], soak.held[-1]
    assert end[0] <= 1.02 * warm[0]
    assert [tenth[2:] for tenth in soak.held[1:]] == [warm[2:]] * 9
    for _, pool_bytes, _, _ in soak.held:
        assert pool_bytes <= IN_FLIGHT * soak.frame_bytes


def main() -> None:
    logging.getLogger("actorflow").setLevel(logging.ERROR)  # each cancelled frame tells what still runs in a thread
    soak = Soak(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
    af.run(soak.run())
    print(f"{soak.frames / soak.seconds:,.0f} frames/s; {soak.finished} finished, {soak.failed} failed, ", end="")
    print(f"{soak.cancelled} cancelled")
    for tenth, (rss, pool, threads, files) in enumerate(soak.held, 1):
        print(f"{tenth:3}0%: RSS {rss / 1e6:.2f} MB, pool {pool:,} bytes, {threads} threads, {files} files")


if __name__ == "__main__":
    main()
