"""What does a step of a loop of short ops cost, beside onnxruntime's, and how late is the event loop meanwhile?"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import actorflow as af
from benchmarks.harness import Budget, Harness, Relation, Table, per

__all__ = ["measure"]

_US = 1e-6

OURS, PEER = "af.scan", "onnxruntime's Scan"
WHILE, EMPTY = "a while loop with a test of convergence, nine ops", "a body without ops"
LAG, CANCEL = "latest turn of another task", "longest wait for the end of a cancelled run"


async def measure(harness: Harness) -> list[Table]:
    """Six products of 64 and 4,096 elements in a scan; a while loop of nine ops; 1,000,000 iterations."""
    steps = harness.pick(20_000, 500)
    tables = [await _compare(harness, size, steps) for size in (64, 4096)]
    return [*tables, await _alone(harness, steps), await _million(harness, harness.pick(1_000_000, 5_000))]


async def _compare(harness: Harness, size: int, steps: int) -> Table:
    graph = af.Graph("scan")
    x, rows = graph.blob("x", [size]), graph.blob("rows", [steps])

    def body(carry: Any, row: Any) -> tuple[Any, Any]:
        for _ in range(6):
            carry = carry * 1.0001
        return carry, row

    last, taken = af.scan(body, x, rows)
    fed = {"x": np.ones(size, np.float32), "rows": np.ones(steps, np.float32)}
    feeds = {x: fed["x"], rows: fed["rows"]}
    cases = {OURS: per(steps, _US, lambda: graph.run(feeds, fetch=[last, taken]))}
    if harness.peer("onnxruntime") is not None and harness.peer("onnx") is not None:
        session = _session(af.Model(graph, {"x": x, "rows": rows}, {"last": last, "taken": taken}))
        cases[PEER] = per(steps, _US, lambda: session.run(None, fed))
    async with graph:
        for _ in range(3):
            await graph.run(feeds, fetch=[last, taken])
        budgets = [Budget("at most onnxruntime's time", OURS, Relation.TIMES, 1.0, PEER)]
        if size == 64:
            budgets.append(Budget("at most 3 us a step", OURS, Relation.AT_MOST, 3.0))
        return await harness.compare(f"scan of six ops on {size} elements", "us per step", cases, budgets=budgets)


def _session(model: af.Model) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scan.onnx")
        af.onnx.save(model, path)
        return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])


async def _alone(harness: Harness, steps: int) -> Table:
    graph = af.Graph("loops")
    x = graph.blob("x", [64])

    def newton(i: Any, y: Any, error: Any) -> tuple[Any, Any, Any]:
        new = (y + x / y) * 0.5
        return i + 1, new, af.ops.max(af.ops.absolute(new - y))

    _, root, _ = af.while_loop(lambda i, y, error: (error >= 0) & (i < steps), newton, (0, x, np.float32(1)))
    same, _ = af.scan(lambda y, _: (y, None), x, length=steps)
    feeds = {x: np.linspace(1, 9, 64, dtype=np.float32)}
    async with graph:
        for fetched in (root, same) * 3:
            await graph.run(feeds, fetch=[fetched])
        cases = {
            name: per(steps, _US, lambda blob=blob: graph.run(feeds, fetch=[blob]))
            for name, blob in ((WHILE, root), (EMPTY, same))
        }
        budgets = [
            Budget("nine ops: at most 8 us a step", WHILE, Relation.AT_MOST, 8.0),
            Budget("an empty body: at most 0.5 us a step", EMPTY, Relation.AT_MOST, 0.5),
        ]
        return await harness.compare("loops alone, 64 elements", "us per step", cases, budgets=budgets)


async def _million(harness: Harness, steps: int) -> Table:
    graph = af.Graph("long")
    x = graph.blob("x", [64])
    i, y = af.while_loop(lambda i, y: i < steps, lambda i, y: (i + 1, y * 1.0000001), (0, x))
    feeds = {x: np.ones(64, np.float32)}

    async def lag() -> float:
        """A run beside a task that wants the loop again and again."""
        run, latest = asyncio.ensure_future(graph.run(feeds, fetch=[i, y])), 0.0
        while not run.done():
            begun = perf_counter()
            await asyncio.sleep(0)
            latest = max(latest, perf_counter() - begun)
        return latest * 1e3

    async def cancelled() -> float:
        """The longest of some waits for the end of a run that is cancelled in the middle."""
        waits: list[float] = []
        for _ in range(5):
            run = asyncio.ensure_future(graph.run(feeds, fetch=[i, y]))
            await asyncio.sleep(2e-3)
            begun = perf_counter()
            run.cancel()
            await asyncio.wait([run])
            waits.append(perf_counter() - begun)
        return max(waits) * 1e3

    async with graph:
        await graph.run(feeds, fetch=[i, y])
        return await harness.compare(
            f"{steps:,} iterations",
            "ms",
            {LAG: lag, CANCEL: cancelled},
            budgets=[
                Budget("another task waits for 10 ms at most", LAG, Relation.AT_MOST, 10.0),
                Budget("a cancelled run ends within 2 ms", CANCEL, Relation.AT_MOST, 2.0),
            ],
        )
