"""Tables for people, JSON for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from benchmarks.harness import Relation, Table, Verdict

__all__ = ["as_json", "number", "print_machine", "print_question", "verdict_line"]


def print_machine(console: Console, machine: dict[str, Any], loop: str) -> None:
    """One line: where this was measured."""
    for gpu in machine["gpus"]:
        console.print(f"{gpu['name']}, {gpu['memory_bytes'] >> 20:,} MiB, driver {gpu['driver']}, CUDA {gpu['cuda']}")
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    blas = ", ".join(f"{b['internal_api']} {b['version']} ({b['num_threads']} threads)" for b in machine["blas"])
    load = machine["load_average"]
    busy = f", load {load[0]:.1f}" if load else ""
    python = f"Python {machine['python']}, {loop} loop"
    console.print(f"{machine['cpu']}, {machine['cores']} cores{busy}; {python}; {versions}; {blas}")


def print_question(console: Console, name: str, tables: list[Table], left_out: list[str]) -> None:
    """All tables of a question, its budgets, and what was left out."""
    for table in tables:
        console.print()
        console.print(_rich_table(name, table))
        for verdict in table.verdicts():
            console.print(_line(verdict, table.unit))
    for what in left_out:
        console.print(Text(f"  left out: {what}", style="yellow"))


def as_json(tables: list[Table], left_out: list[str]) -> dict[str, Any]:
    """A question's figures, every round of them."""
    return {"tables": [_table_json(table) for table in tables], "left_out": left_out}


def _rich_table(name: str, table: Table) -> RichTable:
    shown = RichTable(title=f"{name}: {table.title}", title_justify="left", title_style="bold")
    shown.add_column("")
    for heading in (table.unit, "quartiles", f"x {table.reference}" if table.reference else "ratio"):
        shown.add_column(heading, justify="right")
    for row in table.rows.values():
        low, high = row.spread
        ratio = table.ratio(row.name)
        shown.add_row(
            row.name, number(row.median), f"{number(low)} .. {number(high)}", "" if ratio is None else number(ratio)
        )
    return shown


def _line(verdict: Verdict, unit: str) -> Text:
    style = {None: "yellow", True: "green", False: "bold red"}[verdict.met]
    return Text(f"  {verdict_line(verdict, unit)}", style=style)


def verdict_line(verdict: Verdict, unit: str) -> str:
    """Outcome of a budget, in one line."""
    budget, value = verdict.budget, verdict.value
    if value is None:
        return f"not measured: {budget.text}"
    shown = f"{number(value)} {unit if budget.relation in (Relation.AT_MOST, Relation.MORE) else 'x'}"
    if verdict.met:
        return f"met: {budget.text}: {shown}"
    return f"MISSED: {budget.text}: {shown}, {_missed_by(verdict, unit)}"


def _missed_by(verdict: Verdict, unit: str) -> str:
    budget, value = verdict.budget, verdict.value
    assert value is not None
    if budget.relation is Relation.MORE or not budget.limit or not value:
        return f"by {number(abs(value - budget.limit))} {unit}"
    return f"by a factor of {number(max(value / budget.limit, budget.limit / value))}"


def number(value: float) -> str:
    """A figure with three or so digits."""
    if value and abs(value) < 0.01:
        return f"{value:.1e}"
    if abs(value) < 100:
        return f"{value:.2f}"
    return f"{value:,.0f}"


def _table_json(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "unit": table.unit,
        "reference": table.reference,
        "rows": [
            {
                "name": row.name,
                "median": row.median,
                "quartiles": list(row.spread),
                "ratio": table.ratio(row.name),
                "samples": row.samples,
            }
            for row in table.rows.values()
        ],
        "budgets": [
            {
                "text": verdict.budget.text,
                "row": verdict.budget.row,
                "relation": verdict.budget.relation.value,
                "other": verdict.budget.other,
                "limit": verdict.budget.limit,
                "value": verdict.value,
                "met": verdict.met,
            }
            for verdict in table.verdicts()
        ],
    }
