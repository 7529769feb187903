"""How do models from ONNX files compare with onnxruntime's own runs of them?

Awaits runs of `af.onnx.load(path)` with one image each on one core: as ordinary ops, and computed by onnxruntime as one
op. Each contender is a process of its own, as in `inference`.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from benchmarks.harness import Budget, Case, Harness, Relation, Table, UnavailableError
from benchmarks.inference import check_scores, parts, shares_outside_kernels
from benchmarks.inference.names import ONNX, OURS
from benchmarks.onnx.names import BACKEND
from benchmarks.onnx.tasks import TASKS, Task
from benchmarks.process import Process

__all__ = ["measure"]

_TOLERANCE = 1e-4  # of the largest output
_BACKEND_TIMES, _BACKEND_MORE_MS = 1.05, 0.1


async def measure(harness: Harness) -> list[Table]:
    """Runs of each model, and what they are made of."""
    if not all(harness.peer(module) is not None for module in ("onnx", "onnxruntime")):
        raise UnavailableError("onnx and onnxruntime are not installed: pip install 'actorflow[bench]'")
    tables = []
    async with AsyncExitStack() as stack:
        processes = {
            name: await stack.enter_async_context(Process.started("benchmarks.onnx.contender", name, 1))
            for name in (OURS, BACKEND, ONNX)
        }
        here = [task for task in TASKS if task.is_here]
        for task in here if not harness.quick else here[-1:]:
            tables += await _compare(harness, task, processes)
        for task in TASKS:
            if task not in here:
                harness.leave_out(f"{task.title}: rapidocr_onnxruntime is not installed, whose model it is")
    return tables


async def _compare(harness: Harness, task: Task, processes: dict[str, Process]) -> list[Table]:
    runs = harness.pick(task.runs, 2)
    answers: dict[str, list[Any]] = {name: [] for name in processes}

    def case(name: str) -> Case:
        async def figure() -> float:
            answer = await processes[name].ask(task.name, runs)
            answers[name].append(answer)
            check_scores(task.name, {of: found[-1]["outputs"] for of, found in answers.items() if found}, _TOLERANCE)
            return float(answer["ms"])

        return figure

    title = f"{task.title}, 1 core"
    budgets = [
        Budget(f"at most {task.times} times onnxruntime's time", OURS, Relation.TIMES, task.times, ONNX),
        Budget(f"at most {_BACKEND_TIMES} times its time", BACKEND, Relation.TIMES, _BACKEND_TIMES, ONNX),
        Budget("at most 100 us more than its time", BACKEND, Relation.MORE, _BACKEND_MORE_MS, ONNX),
    ]
    cases = {name: case(name) for name in processes}
    table = await harness.compare(title, "ms", cases, reference=ONNX, budgets=budgets, warm_up=2)
    timed = {name: answers[name][-harness.rounds :] for name in (OURS, ONNX)}
    return [table, shares_outside_kernels(title, timed[OURS]), parts(title, timed)]
