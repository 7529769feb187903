"""``python -m benchmarks.inference.contender NAME CORES``: runs the networks that it reads orders for.

An order is a line of JSON, ``[task, runs]``, and so is the answer: ``ms``, of a run; ``kernels``, of it the ms in
kernels of each kind; ``scores``. The peer's kernels are timed apart, since its profiler takes time.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import actorflow as af
from benchmarks.inference.names import OURS
from benchmarks.inference.tasks import TASKS, Task

#: Computes so often: (ms in kernels of each kind, all runs together; the scores).
Run = Callable[[int], Awaitable[tuple[dict[str, float], Any]]]
PROFILED = 5  # runs


async def serve(name: str, cores: int) -> None:
    """Read orders until there are no more."""
    if hasattr(os, "sched_setaffinity"):  # not on macOS and Windows
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    tasks = {task.name: task for task in TASKS}
    async with AsyncExitStack() as stack:
        networks: dict[str, Run] = {}
        for line in sys.stdin:
            task, runs = json.loads(line)
            if task not in networks:
                networks[task] = _ours(tasks[task], stack) if name == OURS else _onnx(tasks[task], cores)
            start = perf_counter()
            kernels, scores = await networks[task](runs)
            ms = 1e3 * (perf_counter() - start) / runs
            kernels = {kind: of_all / runs for kind, of_all in kernels.items()}
            print(json.dumps({"ms": ms, "kernels": kernels, "scores": scores.tolist()}), flush=True)


def _ours(task: Task, stack: AsyncExitStack) -> Run:
    graph, x, scores, _ = task.graph()
    feeds = {x: task.images()}
    stack.push_async_callback(graph.aclose)
    kinds = {op.id: kind_of(op.operation, [blob.shape for blob in op.inputs]) for op in graph.ops}

    async def run(runs: int) -> tuple[dict[str, float], Any]:
        before = {node: of_op.total_ns for node, of_op in graph.engine.profile.items()}
        for _ in range(runs):
            result = await graph.run(feeds, fetch=[scores])
        kernels: Counter[str] = Counter()
        for node, of_op in graph.engine.profile.items():
            kernels[kinds[node]] += 1e-6 * (of_op.total_ns - before.get(node, 0))
        return kernels, result[scores]

    return run


def kind_of(operation: af.ops.Operation, shapes: list[tuple[int, ...]]) -> str:
    if operation.kind != "Conv":
        return operation.kind
    return _conv(shapes[1][:-2], shapes[0][-1], shapes[1][-2])


def _conv(size: tuple[int, ...], channels: int, filter_channels: int) -> str:
    """A convolution in words, by its kernel's size, the channels of the images and those that one filter sees."""
    return f"Conv {'x'.join(map(str, size))}{' depthwise' if filter_channels == 1 < channels else ''}"


def _onnx(task: Task, cores: int) -> Run:
    from benchmarks.inference import onnx_networks

    layers = task.graph()[-1]
    model = getattr(onnx_networks, task.name)(onnx_networks.Network(layers.variables, task.shape))
    return peer(model, {"x": np.ascontiguousarray(np.moveaxis(task.images(), -1, 1))}, cores)


def peer(model: bytes, feeds: dict[str, Any], cores: int) -> Run:
    """onnxruntime with a model of one output."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)

    def session(**settings: Any) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = cores
        for setting, value in settings.items():
            setattr(options, setting, value)
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    with tempfile.TemporaryDirectory() as folder:
        profiled = session(enable_profiling=True, profile_file_prefix=f"{folder}/profile")
        for _ in range(1 + PROFILED):
            profiled.run(None, feeds)
        events = json.loads(Path(profiled.end_profiling()).read_text(encoding="utf-8"))
    kernels = per_run([event for event in events if event["name"].endswith("_kernel_time")])
    timed = session()

    async def run(runs: int) -> tuple[dict[str, float], Any]:
        for _ in range(runs):
            (scores,) = timed.run(None, feeds)
        return {kind: runs * ms for kind, ms in kernels.items()}, scores

    return run


def per_run(events: list[Any]) -> dict[str, float]:
    """ms in onnxruntime's kernels of each kind, without the first run."""
    kernels: Counter[str] = Counter()
    for event in events[len(events) // (1 + PROFILED) :]:
        kind, shapes = event["args"]["op_name"], event["args"]["input_type_shape"]
        if kind.endswith("Conv"):
            (x,), (weight,) = shapes[0].values(), shapes[1].values()
            kind = _conv(tuple(weight[2:]), x[1], weight[1])
        kernels[kind] += 1e-3 * event["dur"] / PROFILED
    return kernels


if __name__ == "__main__":
    af.run(serve(sys.argv[1], int(sys.argv[2])))
