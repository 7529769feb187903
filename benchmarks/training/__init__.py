"""How long does a whole training step take beside torch eager, and how much of it is not spent in kernels?

Forward, backward and the update by SGD with momentum, of the same network from the same weights on the same batch, on
one core and on all of them. Each contender is a process of its own, since BLAS and OpenMP read their settings when they
are loaded and their idle threads spin. The processes take turns, round by round.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from benchmarks.harness import Budget, Case, Harness, Relation, Row, Table
from benchmarks.machine import cores
from benchmarks.process import Process
from benchmarks.training.names import CONTENDERS, OURS, TORCH, TORCH_LAST
from benchmarks.training.tasks import TASKS, Task

__all__ = ["Stepped", "check_losses", "measure", "shares_outside_kernels"]

_NEEDS_TORCH = (TORCH, TORCH_LAST)
_SHARE = 0.02
_TOLERANCE = 1e-3


class Stepped(NamedTuple):
    """Report of a contender on some steps.

    Attributes:
        wall_ms: Time of a step.
        processor_ms: Time of the processor for it, of all threads: what other programs take away is not in it.
        kernels_ms: Of it, the time in kernels; 0 from peers, which do not say.
        loss: After the steps.
    """

    wall_ms: float
    processor_ms: float
    kernels_ms: float
    loss: float


async def measure(harness: Harness) -> list[Table]:
    """Training steps of each network, on one core and on all cores."""
    names = _names(harness)
    tables = []
    for count in sorted({1, cores()}) if not harness.quick else (1,):
        async with _processes(names, count) as processes:
            for task in TASKS if not harness.quick else TASKS[:1]:
                tables += await _compare(harness, task, processes, count)
    return tables


def _names(harness: Harness) -> list[str]:
    """The contenders that can run here."""
    names = list(CONTENDERS)
    if harness.peer("torch") is None:
        names = [name for name in names if name not in _NEEDS_TORCH]
    if harness.quick and TORCH_LAST in names:
        names.remove(TORCH_LAST)  # processes that import torch take their time to start
    return names


@asynccontextmanager
async def _processes(names: Sequence[str], count: int) -> AsyncIterator[dict[str, Process]]:
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(Process.started("benchmarks.training.contender", name, count))
            for name in names
        }


async def _compare(harness: Harness, task: Task, processes: dict[str, Process], count: int) -> list[Table]:
    """The time per step, and the share of it outside kernels, of one network."""
    steps = harness.pick(task.steps, 1)
    batch = harness.pick(task.batch, 2)
    results: dict[str, list[Stepped]] = {name: [] for name in processes}

    def case(name: str, process: Process) -> Case:
        async def figure() -> float:
            result = Stepped(*await process.ask(task.name, batch, steps))
            results[name].append(result)
            return result.wall_ms

        return figure

    on = f"{count} core{'s' if count > 1 else ''}"
    title = f"{task.title}, batch {batch}, {on}"
    table = await harness.compare(
        title,
        "ms per step",
        {name: case(name, process) for name, process in processes.items()},
        reference=TORCH if TORCH in processes else next(iter(processes)),
        budgets=_budgets(),
        warm_up=2,
    )
    check_losses(task.name, results)
    if count > 1:
        return [table]
    timed = {name: found[-harness.rounds :] for name, found in results.items()}
    return [table, _processor(table, timed), shares_outside_kernels(title, timed)]


def _budgets() -> list[Budget]:
    return [Budget(f"at least the speed of {TORCH}", OURS, Relation.BELOW, 1.0, TORCH)]


def _processor(table: Table, timed: Mapping[str, Sequence[Stepped]]) -> Table:
    """The same steps in time of the processor, which says more on a machine that others use, too."""
    rows = {name: Row(name, [result.processor_ms for result in results]) for name, results in timed.items()}
    return Table(f"{table.title}: time of the processor", table.unit, rows, table.reference)


def shares_outside_kernels(title: str, timed: Mapping[str, Sequence[Stepped]]) -> Table:
    """Share of a step outside kernels; on several cores their times overlap, and there is no such share."""
    rows = {OURS: Row(OURS, [100 * (1 - result.kernels_ms / result.wall_ms) for result in timed[OURS]])}
    budgets = [Budget(f"at most {_SHARE:.0%} outside kernels", OURS, Relation.AT_MOST, 100 * _SHARE)]
    return Table(f"{title}: outside kernels", "% of the step", rows, budgets=budgets)


def check_losses(name: str, results: Mapping[str, Sequence[Stepped]]) -> None:
    """Check that all contenders train the same network.

    Raises:
        AssertionError: if their losses after the first steps differ.
    """
    losses = {name: found[0].loss for name, found in results.items()}
    first = next(iter(losses.values()))
    if any(not abs(loss - first) <= _TOLERANCE * abs(first) for loss in losses.values()):
        raise AssertionError(f"{name}: the contenders' losses after the same steps differ: {losses}")
