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
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import actorflow as af
from benchmarks.inference.contender import Run, kind_of, peer
from benchmarks.inference.names import ONNX
from benchmarks.onnx.names import BACKEND
from benchmarks.onnx.tasks import TASKS, Task

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
                models[task] = (
                    peer(tasks[task].model(), {"x": tasks[task].image()}, cores)
                    if name == ONNX
                    else await _ours(tasks[task], name, stack)
                )
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
    return run


if __name__ == "__main__":
    af.run(serve(sys.argv[1], int(sys.argv[2])))
