"""``python -m benchmarks.batch_one.contender NAME CORES``: runs the networks that it reads orders for.

An order is a line of JSON, ``[task, runs, pause in s]``, and so is the answer: ``ms``, the median of the runs;
``processor_ms``, of all threads, per run; ``scores``. Of a contender that computes products, the task is ignored.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np

import actorflow as af
from benchmarks.batch_one.names import PRODUCTS, PRODUCTS_ALL, SEQUENTIAL
from benchmarks.batch_one.tasks import MODELS, TASKS, Task
from benchmarks.inference.names import OURS
from benchmarks.inference.onnx_networks import Network

#: Computes so often, with a pause after each: (s of each run, the scores).
Run = Callable[[int, float], Awaitable[tuple[list[float], Any]]]
_WARM_UP, _PRODUCT_SIZE, _PRODUCTS = 25, 384, 8


async def serve(name: str, cores: int) -> None:
    """Read orders until there are no more."""
    if hasattr(os, "sched_setaffinity"):  # not on macOS and Windows
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    tasks = {task.name: task for task in TASKS}
    async with AsyncExitStack() as stack:
        known: dict[str, Run] = {}
        for line in sys.stdin:
            task, runs, pause_s = json.loads(line)
            if task not in known:
                if name in (PRODUCTS, PRODUCTS_ALL):
                    known[task] = _products(cores, stack)
                elif name.startswith(OURS):
                    known[task] = _ours(tasks[task], name == SEQUENTIAL, stack)
                else:
                    known[task] = _onnx(tasks[task], cores)
                await known[task](_WARM_UP, 0.0)
            begun = process_time()
            times, scores = await known[task](runs, pause_s)
            spent_ms = 1e3 * (process_time() - begun) / runs
            answer = {"ms": 1e3 * median(times), "processor_ms": spent_ms, "scores": np.asarray(scores).tolist()}
            print(json.dumps(answer), flush=True)


def _ours(task: Task, is_sequential: bool, stack: AsyncExitStack) -> Run:
    graph, x, scores, _ = task.graph(sequential=is_sequential)
    feeds = {x: task.images()}
    stack.push_async_callback(graph.aclose)

    async def run(runs: int, pause_s: float) -> tuple[list[float], Any]:
        times = []
        for _ in range(runs):
            start = perf_counter()
            result = await graph.run(feeds, fetch=[scores])
            times.append(perf_counter() - start)
            if pause_s:
                await asyncio.sleep(pause_s)
        return times, result[scores]

    return run


def _onnx(task: Task, cores: int) -> Run:
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    layers = task.graph()[-1]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores
    model = MODELS[task.name](Network(layers.variables, task.shape))
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = {"x": np.ascontiguousarray(np.moveaxis(task.images(), -1, 1))}

    async def run(runs: int, pause_s: float) -> tuple[list[float], Any]:
        times = []
        for _ in range(runs):
            start = perf_counter()
            (scores,) = session.run(None, feeds)
            times.append(perf_counter() - start)
            if pause_s:
                await asyncio.sleep(pause_s)
        return times, scores

    return run


def _products(cores: int, stack: AsyncExitStack) -> Run:
    """As many products as on one thread, shared out to threads that do nothing else."""
    x = np.ones((_PRODUCT_SIZE, _PRODUCT_SIZE), np.float32)
    outs = [np.empty_like(x) for _ in range(cores)]
    pool = stack.enter_context(ThreadPoolExecutor(cores))

    def some(out: Any) -> None:
        for _ in range(_PRODUCTS // cores):
            np.matmul(x, x, out=out)

    async def run(runs: int, pause_s: float) -> tuple[list[float], Any]:
        times = []
        for _ in range(runs):
            start = perf_counter()
            list(pool.map(some, outs))
            times.append(perf_counter() - start)
            if pause_s:
                await asyncio.sleep(pause_s)
        return times, 0.0

    return run


if __name__ == "__main__":
    af.run(serve(sys.argv[1], int(sys.argv[2])))
