"""Does the second core pay for single images, or cost?

Runs of LeNet, MobileNetV3, ResNet-18 and GoogLeNet with one image each, back to back and with 5 ms between them: in the
default mode on all cores, with ``sequential=True`` on one, and onnxruntime with one thread and with as many as there
are cores. What bare threads reach with products of matrices is measured in the same rounds. Each contender is a process
of its own, as in `training`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from benchmarks.batch_one.names import DEFAULT, ONNX, ONNX_ALL, PRODUCTS, PRODUCTS_ALL, SEQUENTIAL
from benchmarks.batch_one.tasks import TASKS, Task
from benchmarks.harness import Budget, Case, Harness, Relation, Row, Table
from benchmarks.inference import check_scores
from benchmarks.machine import cores
from benchmarks.process import Process

__all__ = ["budgets_for", "measure"]

_PAUSES_S = {"back to back": 0.0, "5 ms between runs": 0.005}
#: Runs of a round with pauses, and of products.
_MOST_APART, _MOST_PRODUCTS = 30, 10
#: What onnxruntime gains from more cores, where we have to gain, and how much.
_PEER_GAINS, _GAIN = 1.4, 1.25


async def measure(harness: Harness) -> list[Table]:
    """Times and processor times of runs, for each network and rhythm."""
    has_peer = all(harness.peer(module) is not None for module in ("onnx", "onnxruntime"))
    contenders = {SEQUENTIAL: 1, DEFAULT: cores(), PRODUCTS: 1, PRODUCTS_ALL: cores()}
    if has_peer:
        contenders |= {ONNX: 1, ONNX_ALL: cores()}
    tables = []
    async with AsyncExitStack() as stack:
        processes = {
            name: await stack.enter_async_context(Process.started("benchmarks.batch_one.contender", name, count))
            for name, count in contenders.items()
        }
        bare = {name: processes.pop(name) for name in (PRODUCTS, PRODUCTS_ALL)}
        for task in TASKS if not harness.quick else TASKS[:1]:
            for rhythm, pause_s in _PAUSES_S.items():
                tables += await _compare(harness, task, rhythm, pause_s, {**processes, **bare})
    return tables


async def _compare(
    harness: Harness, task: Task, rhythm: str, pause_s: float, processes: dict[str, Process]
) -> Sequence[Table]:
    runs = harness.pick(min(task.runs, _MOST_APART) if pause_s else task.runs, 2)
    answers: dict[str, list[Any]] = {name: [] for name in processes}

    def case(name: str) -> Case:
        async def figure() -> float:
            count = min(runs, _MOST_PRODUCTS) if name in (PRODUCTS, PRODUCTS_ALL) else runs
            answer = await processes[name].ask(task.name, count, pause_s)
            answers[name].append(answer)
            return float(answer["ms"])

        return figure

    title = f"{task.title}, {rhythm}"
    table = await harness.compare(title, "ms", {name: case(name) for name in processes}, reference=SEQUENTIAL)
    networks = [name for name in processes if name not in (PRODUCTS, PRODUCTS_ALL)]
    check_scores(task.name, {name: answers[name][-1]["scores"] for name in networks})
    spent = {name: Row(name, [each["processor_ms"] for each in answers[name][-harness.rounds :]]) for name in networks}
    budget = Budget("at most 1.3 times sequential's", DEFAULT, Relation.TIMES, 1.3, SEQUENTIAL)
    return [
        replace(table, budgets=budgets_for(table)),
        Table(f"{title}: processor time of all threads", "ms", spent, SEQUENTIAL, [budget]),
    ]


def budgets_for(table: Table) -> list[Budget]:
    """The default mode is never slower than one core, and gains where onnxruntime does."""
    budgets = [Budget("never slower than on one core", DEFAULT, Relation.TIMES, 1.0, SEQUENTIAL)]
    if ONNX_ALL in table.rows:
        gains = Budget("", ONNX_ALL, Relation.BELOW, _PEER_GAINS, ONNX).judge(table.rows)
        if gains.met:
            text = f"onnxruntime gains {gains.value:.2f}: at least {_GAIN} times as fast as on one core"
            budgets.append(Budget(text, DEFAULT, Relation.BELOW, _GAIN, SEQUENTIAL))
    return budgets
