"""How do single answers of networks compare with onnxruntime's?

Awaits runs of a graph with one image each, of LeNet, MobileNetV3 and ResNet-50, on one core and on all: onnxruntime has
the same networks and weights, channels first. Each contender is a process of its own, as in `training`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import numpy as np

from benchmarks.harness import Case, Harness, Row, Table
from benchmarks.inference.names import ONNX, OURS
from benchmarks.inference.tasks import TASKS, Task
from benchmarks.machine import cores
from benchmarks.process import Process

__all__ = ["check_scores", "measure", "parts", "shares_outside_kernels"]

_TOLERANCE = 1e-5  # of the largest score


async def measure(harness: Harness) -> list[Table]:
    """Runs of each network, on one core and on all cores, and on one core what they are made of."""
    has_peer = all(harness.peer(module) is not None for module in ("onnx", "onnxruntime"))
    names = [OURS, ONNX] if has_peer else [OURS]
    tables = []
    for count in sorted({1, cores()}) if not harness.quick else (1,):
        async with AsyncExitStack() as stack:
            processes = {
                name: await stack.enter_async_context(Process.started("benchmarks.inference.contender", name, count))
                for name in names
            }
            for task in TASKS if not harness.quick else TASKS[:1]:
                tables += await _compare(harness, task, processes, count)
    return tables


async def _compare(harness: Harness, task: Task, processes: dict[str, Process], count: int) -> list[Table]:
    runs = harness.pick(task.runs, 2)
    answers: dict[str, list[Any]] = {name: [] for name in processes}

    def case(name: str) -> Case:
        async def figure() -> float:
            answer = await processes[name].ask(task.name, runs)
            answers[name].append(answer)
            check_scores(task.name, {of: found[-1]["scores"] for of, found in answers.items() if found})
            return float(answer["ms"])

        return figure

    title = f"{task.title}, one image, {count} core{'s' if count > 1 else ''}"
    cases = {name: case(name) for name in processes}
    table = await harness.compare(title, "ms", cases, reference=list(processes)[-1], warm_up=2)
    if count > 1:  # times of kernels overlap
        return [table]
    timed = {name: found[-harness.rounds :] for name, found in answers.items()}
    return [table, shares_outside_kernels(title, timed[OURS]), parts(title, timed)]


def shares_outside_kernels(title: str, answers: list[Any]) -> Table:
    """Share of our runs outside kernels."""
    samples = [100 * (1 - sum(answer["kernels"].values()) / answer["ms"]) for answer in answers]
    return Table(f"{title}: outside kernels", "% of the run", {OURS: Row(OURS, samples)})


def parts(title: str, timed: Mapping[str, list[Any]]) -> Table:
    """Times in kernels by kind, the largest first; the peer's profiler says them once."""
    rows = [
        Row(f"{name}: {kind}", [answer["kernels"][kind] for answer in answers])
        for name, answers in timed.items()
        for kind in answers[0]["kernels"]
    ]
    rows.sort(key=lambda row: (not row.name.startswith(OURS), -row.median))
    return Table(f"{title}: in kernels", "ms", {row.name: row for row in rows})


def check_scores(name: str, scores: Mapping[str, Any], tolerance: float = _TOLERANCE) -> None:
    """Check that all contenders compute the same.

    Args:
        name: The network's.
        scores: By contender.
        tolerance: Of the largest score.
    Raises:
        AssertionError: if their scores differ.
    """
    (first, expected), *others = scores.items()
    largest = np.abs(expected).max()
    for other, found in others:
        error = np.abs(np.subtract(found, expected)).max() / largest
        if not error <= tolerance:
            raise AssertionError(f"{name}: the scores of {other} and of {first} lie {error:.1e} of the largest apart")
