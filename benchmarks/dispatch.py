"""What does the runtime add to each op, and to each run?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import Budget, Case, Harness, Relation, Table, per
from benchmarks.workloads import Pass, Tasks, build_graph, chain, layered, sinks_of

__all__ = ["measure"]

_US = 1e-6
_VALUE = np.ones(1, dtype=np.float32)

FUNCTIONS, KERNELS = "actorflow, functions", "actorflow, kernels"
LOOP, TASKS = "plain loop", "asyncio, task per node"
DASK_SYNC, DASK_THREADED = "dask synchronous", "dask threaded"


def trivial(first: Any, *_others: Any) -> Any:
    return first


async def measure(harness: Harness) -> list[Table]:
    """Per op and its blob for a chain and a layered graph, inline and warm; then runs of five ops."""
    count = harness.pick(5_000, 300)
    dask = harness.peer("dask.local"), harness.peer("dask.threaded")
    shapes = {"a chain": chain(count), "layers of 100, fan-in 3": layered(count)}
    tables = [await _per_op(harness, f"{count:,} trivial tasks, {name}", tasks, dask) for name, tasks in shapes.items()]
    return [*tables, await _per_run(harness, dask)]


async def _per_op(harness: Harness, title: str, tasks: Tasks, dask: tuple[Any, Any]) -> Table:
    cases, graphs = await _cases(tasks, dask, repeats=1, count=len(tasks))
    try:
        return await harness.compare(
            title, "us per op + blob", cases, reference=LOOP, budgets=[*_budgets(FUNCTIONS), *_budgets(KERNELS)]
        )
    finally:
        for graph in graphs:
            await graph.aclose()


async def _per_run(harness: Harness, dask: tuple[Any, Any]) -> Table:
    repeats = harness.pick(500, 20)
    cases, graphs = await _cases(chain(5), dask, repeats=repeats, count=repeats)
    budgets = [
        Budget(f"{name}: at most 5 times the plain loop", name, Relation.TIMES, 5.0, LOOP)
        for name in (FUNCTIONS, KERNELS)
    ]
    try:
        return await harness.compare("a run of 5 trivial tasks", "us per run", cases, reference=LOOP, budgets=budgets)
    finally:
        for graph in graphs:
            await graph.aclose()


def _budgets(row: str) -> list[Budget]:
    return [
        Budget(f"{row}: at most the time of the plain loop", row, Relation.TIMES, 1.0, LOOP),
        Budget(f"{row}: at least 100x below {DASK_SYNC}", row, Relation.BELOW, 100.0, DASK_SYNC),
        Budget(f"{row}: at least 8x below {TASKS}", row, Relation.BELOW, 8.0, TASKS),
    ]


async def _cases(tasks: Tasks, dask: tuple[Any, Any], repeats: int, count: int) -> tuple[dict[str, Case], list[Any]]:
    """The contenders, each running ``tasks`` ``repeats`` times, with figures per one of ``count``."""
    cases: dict[str, Case] = {}
    graphs = []
    for name, operation in ((FUNCTIONS, trivial), (KERNELS, Pass())):
        graph, source = build_graph(tasks, operation)
        feeds = {source: _VALUE}
        # The first calls of an op, of unknown cost, go to the lane; then ops fire as one.
        for _ in range(6):
            await graph.run(feeds)
        graphs.append(graph)
        cases[name] = per(count, _US, _repeated(graph.run, feeds, repeats))

    def loop() -> None:
        for _ in range(repeats):
            _plain_loop(tasks)

    async def in_tasks() -> None:
        for _ in range(repeats):
            await _task_per_node(tasks)

    cases[LOOP] = per(count, _US, loop)
    cases[TASKS] = per(count, _US, in_tasks)
    dask_graph = {"0": _VALUE} | {str(i): (trivial, *map(str, inputs)) for i, inputs in enumerate(tasks, 1)}
    keys = [str(value) for value in sinks_of(tasks)]
    local, threaded = dask
    if local is not None:
        cases[DASK_SYNC] = per(count, _US, lambda: [local.get_sync(dask_graph, keys) for _ in range(repeats)])
    if threaded is not None:
        cases[DASK_THREADED] = per(count, _US, lambda: [threaded.get(dask_graph, keys) for _ in range(repeats)])
    return cases, graphs


def _repeated(run: Callable[[Any], Any], feeds: Any, repeats: int) -> Callable[[], Any]:
    async def work() -> None:
        for _ in range(repeats):
            await run(feeds)

    return work


def _plain_loop(tasks: Tasks) -> Any:
    values: list[Any] = [_VALUE]
    for inputs in tasks:
        values.append(trivial(*[values[i] for i in inputs]))
    return values[-1]


async def _task_per_node(tasks: Tasks) -> Any:
    async def node(inputs: list[asyncio.Future[Any]]) -> Any:
        return trivial(*[await future for future in inputs])

    loop = asyncio.get_running_loop()
    source = loop.create_future()
    source.set_result(_VALUE)
    futures: list[asyncio.Future[Any]] = [source]
    for inputs in tasks:
        futures.append(loop.create_task(node([futures[i] for i in inputs])))
    return await asyncio.gather(*[futures[i] for i in sinks_of(tasks)])
