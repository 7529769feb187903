"""``python -m benchmarks.onnx.contender NAME CORES``: runs the models that it reads orders for.

An order is a line of JSON, ``[task, runs]``, and so is the answer: ``ms``, of a run; ``kernels``, of it the ms in
kernels of each kind; ``outputs``, some of the numbers that it gives. The peer's kernels are timed apart, since its
profiler takes time.
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

import actorflow as af
from benchmarks.inference.contender import PROFILED, kind_of, per_run
from benchmarks.inference.names import ONNX
from benchmarks.onnx.names import BACKEND
from benchmarks.onnx.tasks import TASKS, Task

#: Computes so often: (ms in kernels of each kind, all runs together; the output).
Run = Callable[[int], Awaitable[tuple[dict[str, float], Any]]]
_SHOWN = 1000  # numbers of an output


async def serve(name: str, cores: int) -> None:
    """Read orders until there are no more."""
    if hasattr(os, "sched_setaffinity"):  # not on macOS and Windows
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    tasks = {task.name: task for task in TASKS}
    async with AsyncExitStack() as stack:
        models: dict[str, Run] = {}
        for line in sys.stdin:
            task, runs = json.loads(line)
            if task not in models:
                models[task] = _onnx(tasks[task], cores) if name == ONNX else await _ours(tasks[task], name, stack)
            start = perf_counter()
            kernels, output = await models[task](runs)
            ms = 1e3 * (perf_counter() - start) / runs
            kernels = {kind: of_all / runs for kind, of_all in kernels.items()}
            outputs = output.reshape(-1)[:: max(1, output.size // _SHOWN)].tolist()
            print(json.dumps({"ms": ms, "kernels": kernels, "outputs": outputs}), flush=True)


async def _ours(task: Task, name: str, stack: AsyncExitStack) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{task.name}.onnx")
        path.write_bytes(task.model())
        model = af.onnx.load(path, backend="onnxruntime" if name == BACKEND else "actorflow")
    graph, feeds = model.graph, {"x": task.image()}
    stack.push_async_callback(graph.aclose)
    kinds = {op.id: kind_of(op.operation, [blob.shape for blob in op.inputs]) for op in graph.ops}

    async def run(runs: int) -> tuple[dict[str, float], Any]:
        before = {node: of_op.total_ns for node, of_op in graph.engine.profile.items()}
        for _ in range(runs):
            (output,) = (await model.run(feeds)).values()
        kernels: Counter[str] = Counter()
        for node, of_op in graph.engine.profile.items():
            kernels[kinds[node]] += 1e-6 * (of_op.total_ns - before.get(node, 0))
        return kernels, output

    await run(1)
    try:
        from actorflow.ops.numba import compiled
    except ImportError:  # without the extra `jit`
        return run
    compiled()
    return run


def _onnx(task: Task, cores: int) -> Run:
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    model, feeds = task.model(), {"x": task.image()}

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
            (output,) = timed.run(None, feeds)
        return {kind: runs * ms for kind, ms in kernels.items()}, output

    return run


if __name__ == "__main__":
    af.run(serve(sys.argv[1], int(sys.argv[2])))
