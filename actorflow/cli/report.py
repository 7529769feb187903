"""What the demo prints: progress, and where the time went."""

from __future__ import annotations

import time
from collections import Counter
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from actorflow.cli.training import Step
from actorflow.graph import Graph

__all__ = ["EpochProgress", "time_table"]

_REFRESH_S = 0.1


class EpochProgress:
    """A bar with loss and accuracy at a terminal; elsewhere one line per epoch.

    Args:
        console: Where to print.
        epochs: How many epochs there will be.
        steps: Steps per epoch.
    """

    def __init__(self, console: Console, epochs: int, steps: int) -> None:
        self._console = console
        self._epochs = epochs
        self._steps = steps
        self._epoch = 0
        self._window: list[Step] = []
        self._next_refresh = 0.0
        # Drawn from the loop and not by rich's thread, which would compete with the steps for the GIL.
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}  accuracy {task.fields[accuracy]:.3f}"),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def start_epoch(self) -> None:
        """Begin the next epoch."""
        self._epoch += 1
        self._window.clear()
        self._task = self._bar.add_task(self._title, total=self._steps, loss=float("nan"), accuracy=float("nan"))

    def advance(self, step: Step) -> None:
        """Count one step."""
        self._window.append(step)
        if self._task is None:
            return
        last = len(self._window) == self._steps
        if last or time.monotonic() >= self._next_refresh:
            loss, accuracy = self._means()
            self._bar.update(self._task, completed=len(self._window), loss=loss, accuracy=accuracy)
            self._bar.refresh()
            self._next_refresh = time.monotonic() + _REFRESH_S

    def end_epoch(self) -> None:
        """End the epoch; off a terminal, print it."""
        if not self._console.is_terminal:
            loss, accuracy = self._means()
            self._console.print(f"{self._title}  loss {loss:.3f}  accuracy {accuracy:.3f}", highlight=False)

    @property
    def _title(self) -> str:
        return f"epoch {self._epoch:{len(str(self._epochs))}}/{self._epochs}"

    def _means(self) -> tuple[float, float]:
        count = len(self._window) or 1
        return sum(step.loss for step in self._window) / count, sum(step.accuracy for step in self._window) / count


def time_table(graph: Graph, elapsed_s: float) -> Table:
    """Where the time went: calls, total and share per kind of operation, the longest first.

    Args:
        graph: A graph that has run.
        elapsed_s: Wall time that it ran for, in seconds.
    """
    ops: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    total_ns: Counter[str] = Counter()
    profile = graph.engine.profile
    for op in graph.ops:
        if op.id in profile:
            kind = op.operation.kind
            ops[kind] += 1
            calls[kind] += profile[op.id].calls
            total_ns[kind] += profile[op.id].total_ns
    in_ops_s = total_ns.total() / 1e9
    table = Table(
        title="where the time went",
        caption=f"{in_ops_s:.2f} s in operations, {elapsed_s:.2f} s by the clock",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("operation")
    for header in ("ops", "calls", "total", "mean", "share"):
        table.add_column(header, justify="right")
    for kind, spent_ns in total_ns.most_common():
        table.add_row(
            kind,
            f"{ops[kind]}",
            f"{calls[kind]:,}",
            f"{spent_ns / 1e9:.2f} s",
            f"{spent_ns / 1e3 / max(calls[kind], 1):,.0f} us",
            f"{spent_ns / max(total_ns.total(), 1):.1%}",
        )
    return table
