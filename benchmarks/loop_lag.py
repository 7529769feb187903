"""How late do the application's own callbacks get while a graph runs flat out?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import numpy as np

import actorflow as af
from benchmarks.harness import Budget, Case, Harness, Relation, Table
from benchmarks.workloads import MatMul, chain_graph, matmul_factors, matmul_size, training_step

__all__ = ["measure"]

_TICK_S = 0.002

ACTORFLOW, THREAD, IDLE = "actorflow", "the same in a bare thread", "idle loop"


async def measure(harness: Harness) -> list[Table]:
    """99th percentile of a ticker's lateness beside matrix products of three sizes, and beside training steps."""
    tables = []
    for target_us, count in ((10, 500), (400, 100), (5_000, 20)):
        tables.append(await _products(harness, target_us, harness.pick(count, 2)))
    tables.append(await _training(harness))
    return tables


async def _products(harness: Harness, target_us: int, count: int) -> Table:
    size = matmul_size(target_us * 1e-6)
    x, w = matmul_factors(size)
    graph, source = chain_graph(count, w, MatMul())
    buffers = np.empty_like(x), np.empty_like(x)

    def loop() -> None:
        y = x
        for i in range(count):
            y = np.matmul(y, w, out=buffers[i % 2])

    title = f"products of {size} x {size} (about {target_us} us)"
    try:
        return await _compare(harness, title, graph, lambda: graph.run({source: x}), loop)
    finally:
        await graph.aclose()


async def _training(harness: Harness) -> Table:
    training = training_step()
    graph = training.graph
    fetch = [training.updates]
    try:
        return await _compare(
            harness,
            "training steps of a small Network in Network",
            graph,
            lambda: graph.run(training.feeds, fetch=fetch),
            plain_frame(graph, training.feeds, fetch),
        )
    finally:
        await graph.aclose()


async def _compare(
    harness: Harness,
    title: str,
    graph: af.Graph,
    run: Callable[[], Awaitable[Any]],
    same_work: Callable[[], object],
) -> Table:
    seconds = harness.pick(1500, 20) / 1000
    for _ in range(3):
        await run()

    async def beside_graph() -> float:
        return await _lag_ms(run, seconds)

    async def beside_thread() -> float:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as executor:
            return await _lag_ms(lambda: loop.run_in_executor(executor, same_work), seconds)

    async def beside_nothing() -> float:
        return await _lag_ms(lambda: asyncio.sleep(seconds), seconds)

    cases: dict[str, Case] = {IDLE: beside_nothing, THREAD: beside_thread, ACTORFLOW: beside_graph}
    budget = Budget("at most 2 ms more than with bare threads", ACTORFLOW, Relation.MORE, 2.0, THREAD)
    return await harness.compare(title, "ms late, p99", cases, reference=THREAD, budgets=[budget])


async def _lag_ms(work: Callable[[], Awaitable[Any]], seconds: float) -> float:
    """Do ``work()`` again and again for so long; the 99th percentile of a ticker's lateness meanwhile."""
    late: list[float] = []
    ticker = asyncio.create_task(_tick(late))
    end = perf_counter() + seconds
    while perf_counter() < end:
        await work()
    ticker.cancel()
    await asyncio.wait([ticker])
    return float(np.percentile(late, 99)) * 1e3 if late else 0.0


async def _tick(late: list[float]) -> None:
    while True:
        due = perf_counter() + _TICK_S
        await asyncio.sleep(_TICK_S)
        late.append(max(0.0, perf_counter() - due))


def plain_frame(graph: af.Graph, feeds: dict[Any, Any], fetch: list[Any]) -> Callable[[], None]:
    """The kernels of a frame in a plain loop, in the order of the plan, into buffers that are used again.

    Updates are computed and dropped.
    """
    plan = graph.compile(fetch)
    values: list[Any] = [np.empty(slot.blob.shape, slot.blob.dtype) for slot in plan.slots]
    for blob, slot in plan.feeds.items():
        values[slot] = feeds[blob]
    for variable, slot in plan.reads.items():
        values[slot] = variable.value
    steps = [(op, op.kernel) for op in plan.ops if op.kernel is not None]

    def run() -> None:
        for op, kernel in steps:
            inputs = [values[slot] for slot in op.inputs]
            outputs = None if kernel.returns else [values[slot] for slot in op.outputs]
            number = (0,) if kernel.random else ()
            returned = kernel.function(op.operation, inputs, outputs, *number)
            if outputs is None:
                for slot, value in zip(op.outputs, returned, strict=True):
                    values[slot] = value

    return run
