"""The common runner: interleaves the contenders round by round and compares their medians.

Machines are shared and noisy, so a figure alone says little: every contender runs once per round, in turn, and budgets
are judged by the median of the ratios within the rounds.
"""

from __future__ import annotations

import gc
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

__all__ = ["Budget", "Case", "Harness", "Relation", "Row", "Table", "UnavailableError", "Verdict", "per"]

#: One round of one contender: gives the figure, or an awaitable of it.
Case = Callable[[], Any]


class UnavailableError(Exception):
    """The subject of a question is not available here; the message says what was looked for."""


class Relation(Enum):
    """Relation of a budget to a row, and to another row of the same round.

    AT_MOST: the figure is at most the limit. TIMES: at most ``limit`` times the other's. BELOW: the other's is at
    least ``limit`` times as large. MORE: at most ``limit`` more than the other's.
    """

    AT_MOST = "at most"
    TIMES = "times"
    BELOW = "below"
    MORE = "more"


@dataclass(frozen=True)
class Budget:
    """A limit from the list of budgets.

    Attributes:
        text: The budget in words.
        row: Name of the row that it limits.
        relation: What is limited.
        limit: The limit: in the table's unit for AT_MOST and MORE, else a factor.
        other: Name of the row it is compared with; None for AT_MOST.
    """

    text: str
    row: str
    relation: Relation
    limit: float
    other: str | None = None

    def judge(self, rows: Mapping[str, Row]) -> Verdict:
        """Verdict of the rounds; a verdict without a value if one of the rows was left out."""
        row, other = rows.get(self.row), rows.get(self.other or self.row)
        if row is None or other is None:
            return Verdict(self, None, None)
        pairs = list(zip(row.samples, other.samples, strict=True))
        match self.relation:
            case Relation.AT_MOST:
                value = row.median
            case Relation.TIMES:
                value = median(mine / its for mine, its in pairs)
            case Relation.BELOW:
                value = median(its / mine for mine, its in pairs)
            case Relation.MORE:
                value = median(mine - its for mine, its in pairs)
        return Verdict(self, value, value >= self.limit if self.relation is Relation.BELOW else value <= self.limit)


@dataclass(frozen=True)
class Verdict:
    """Outcome of a budget.

    Attributes:
        budget: Which one.
        value: What was measured, in the unit of the budget's limit; None if a row of it was left out.
        met: Whether that is within the budget.
    """

    budget: Budget
    value: float | None
    met: bool | None


@dataclass(frozen=True)
class Row:
    """The figures of one contender, one per round."""

    name: str
    samples: list[float]

    @property
    def median(self) -> float:
        """Middle of the rounds."""
        return median(self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """Quartiles of the rounds."""
        if len(self.samples) < 2:
            return self.samples[0], self.samples[0]
        low, _, high = quantiles(self.samples, n=4, method="inclusive")
        return low, high


@dataclass(frozen=True)
class Table:
    """One comparison.

    Attributes:
        title: What was measured.
        unit: Of all figures.
        rows: By name, in the order of display.
        reference: Name of the row that ratios are shown against.
        budgets: Limits on the rows.
    """

    title: str
    unit: str
    rows: dict[str, Row]
    reference: str | None = None
    budgets: Sequence[Budget] = ()

    def ratio(self, name: str) -> float | None:
        """Median over the rounds of a row's figure divided by the reference's; None where that is 0 or left out."""
        reference = self.rows.get(self.reference) if self.reference is not None else None
        if reference is None or not all(reference.samples):
            return None
        pairs = zip(self.rows[name].samples, reference.samples, strict=True)
        return median(mine / its for mine, its in pairs)

    def verdicts(self) -> list[Verdict]:
        """Outcomes of the budgets."""
        return [budget.judge(self.rows) for budget in self.budgets]


@dataclass
class Harness:
    """Instruments of a question.

    Attributes:
        quick: Whether a smoke run is wanted: less work, figures that mean little.
        rounds: How often each contender runs.
        place: The place that was asked for; None leaves it to the question.
        data: Directory of the data set that was named, if any.
        left_out: What was not measured, and why.
    """

    quick: bool = False
    rounds: int = 7
    place: str | None = None
    data: Path | None = None
    left_out: list[str] = field(default_factory=list)

    def pick(self, full: int, quick: int) -> int:
        """An amount of work."""
        return quick if self.quick else full

    def peer(self, module: str) -> Any:
        """An optional peer's module, or None, which is noted."""
        try:
            return importlib.import_module(module)
        except ImportError as error:
            self.leave_out(f"{module}: {error}; peers are in the extra `bench`")
            return None

    def leave_out(self, what: str) -> None:
        """Note what is not measured, and why."""
        self.left_out.append(what)

    async def compare(
        self,
        title: str,
        unit: str,
        cases: Mapping[str, Case],
        *,
        reference: str | None = None,
        budgets: Sequence[Budget] = (),
        warm_up: int = 1,
    ) -> Table:
        """Run the contenders in turn, `rounds` times, after rounds that do not count.

        Each round begins with another contender, so that none always runs in the wake of the same one.
        """
        names = list(cases)
        samples: dict[str, list[float]] = {name: [] for name in names}
        for number in range(-warm_up, self.rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                gc.collect()
                figure = cases[name]()
                if inspect.isawaitable(figure):
                    figure = await figure
                if number >= 0:
                    samples[name].append(float(figure))
        rows = {name: Row(name, samples[name]) for name in names}
        return Table(title, unit, rows, reference, budgets)


def per(count: int, unit_s: float, work: Callable[[], Any]) -> Case:
    """A case that times ``work()``, awaited where it must be, and gives the time per item in units of ``unit_s``."""

    async def case() -> float:
        start = perf_counter()
        result = work()
        if inspect.isawaitable(result):
            await result
        return (perf_counter() - start) / count / unit_s

    return case
