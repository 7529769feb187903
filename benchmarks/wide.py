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
from benchmarks.workloads import hashing, hashing_rounds

__all__ = ["measure"]

_MS = 1e-3
_WAIT_S = 0.010

ACTORFLOW = "actorflow"
ONE_WAIT, GATHER = "one wait", "asyncio.gather"
THREADS, EXECUTOR = "raw threads", "ThreadPoolExecutor"


async def measure(harness: Harness) -> list[Table]:
    """100 waits of 10 ms side by side, and 1 ms of work without the GIL on one lane per core."""
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
    rounds = hashing_rounds(_MS)

    def work(x: Any) -> Any:
        hashing(rounds)
        return x

    graph = af.Graph("lanes")
    x = graph.blob("x", (1,))
    for i in range(lanes * each):
        graph.function(f"hash{i}", work, x.spec, lane=f"lane{i % lanes}")(x)
    feeds = {x: np.ones(1, dtype=np.float32)}
    executor = ThreadPoolExecutor(lanes)
    budget = Budget("at least 0.97 of the speed of raw threads", ACTORFLOW, Relation.BELOW, 0.97, THREADS)
    try:
        return await harness.compare(
            f"{lanes * each} hashes of about 1 ms on {lanes} lanes",
            "ms",
            {
                THREADS: per(1, _MS, lambda: _in_threads(lanes, each, work)),
                EXECUTOR: per(1, _MS, lambda: _in_executor(executor, lanes * each, work)),
                ACTORFLOW: per(1, _MS, lambda: graph.run(feeds)),
            },
            reference=THREADS,
            budgets=[budget],
        )
    finally:
        executor.shutdown()
        await graph.aclose()


def _in_threads(lanes: int, each: int, work: Callable[[Any], Any]) -> None:
    def repeat() -> None:
        for _ in range(each):
            work(None)

    threads = [Thread(target=repeat) for _ in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def _in_executor(executor: ThreadPoolExecutor, count: int, work: Callable[[Any], Any]) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.gather(*[loop.run_in_executor(executor, work, None) for _ in range(count)])
