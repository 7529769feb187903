"""Do things that can overlap overlap: waits on the loop, work on several lanes?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

import numpy as np

import actorflow as af
from benchmarks.harness import Budget, Harness, Relation, Table, per
from benchmarks.machine import cores
from benchmarks.workloads import Sine, sine_size

__all__ = ["measure"]

_MS = 1e-3
_WAIT_S = 0.010

ACTORFLOW = "actorflow"
ONE_WAIT, GATHER = "one wait", "asyncio.gather"
THREADS, EXECUTOR = "raw threads", "ThreadPoolExecutor"


async def measure(harness: Harness) -> list[Table]:
    """100 waits of 10 ms side by side, and 1 ms operations without the GIL on one lane per core."""
    return [await _waits(harness), await _lanes(harness)]


async def _waits(harness: Harness) -> Table:
    count = harness.pick(100, 10)

    async def wait(x: Any) -> Any:
        await asyncio.sleep(_WAIT_S)
        return x

    graph = af.Graph("waits")
    x = graph.blob("x", (1,))
    for i in range(count):
        graph.function(f"wait{i}", wait, x.spec)(x)
    feeds = {x: np.ones(1, dtype=np.float32)}
    budget = Budget("at most 1.1x of one wait", ACTORFLOW, Relation.TIMES, 1.1, ONE_WAIT)
    try:
        return await harness.compare(
            f"{count} async ops that wait 10 ms",
            "ms",
            {
                ONE_WAIT: per(1, _MS, lambda: asyncio.sleep(_WAIT_S)),
                GATHER: per(1, _MS, lambda: asyncio.gather(*[wait(0) for _ in range(count)])),
                ACTORFLOW: per(1, _MS, lambda: graph.run(feeds)),
            },
            reference=ONE_WAIT,
            budgets=[budget],
        )
    finally:
        await graph.aclose()


async def _lanes(harness: Harness) -> Table:
    lanes, each = max(2, cores()), harness.pick(100, 5)
    value = np.linspace(0, 1, sine_size(_MS), dtype=np.float32)
    graph = af.Graph("lanes")
    x = graph.blob("x", value.shape)
    for i in range(lanes * each):
        with graph.at(lane=f"lane{i % lanes}"):
            graph.op(f"sine{i}", Sine())(x)
    # The ops are asked for, not their results: these would be new arrays, the threads' are not.
    ops, feeds = graph.ops, {x: value}
    for _ in range(3):
        await graph.run(feeds, fetch=ops)
    executor = ThreadPoolExecutor(lanes)
    budget = Budget("at least 0.95 of the speed of raw threads", ACTORFLOW, Relation.BELOW, 0.95, THREADS)
    try:
        return await harness.compare(
            f"{lanes * each} sines of {value.size} numbers (about 1 ms) on {lanes} lanes",
            "ms",
            {
                THREADS: per(1, _MS, _in_threads(lanes, each, value)),
                EXECUTOR: per(1, _MS, _in_executor(executor, lanes, each, value)),
                ACTORFLOW: per(1, _MS, lambda: graph.run(feeds, fetch=ops)),
            },
            reference=THREADS,
            budgets=[budget],
        )
    finally:
        executor.shutdown()
        await graph.aclose()


def _in_threads(lanes: int, each: int, value: Any) -> Callable[[], None]:
    def work(out: Any) -> None:
        for _ in range(each):
            np.sin(value, out=out)

    buffers = [np.empty_like(value) for _ in range(lanes)]

    def run() -> None:
        threads = [Thread(target=work, args=(out,)) for out in buffers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


def _in_executor(executor: ThreadPoolExecutor, lanes: int, each: int, value: Any) -> Callable[[], Any]:
    buffers = [np.empty_like(value) for _ in range(lanes)]

    def run() -> Any:
        loop = asyncio.get_running_loop()
        calls = [
            loop.run_in_executor(executor, lambda out=buffers[i % lanes]: np.sin(value, out=out))
            for i in range(lanes * each)
        ]
        return asyncio.gather(*calls)

    return run
