"""Figures in files: JSON for programs, Markdown to keep."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import Table
from benchmarks.report import as_json, number, verdict_line

__all__ = ["RESULTS", "Answer", "markdown", "write_json", "write_results"]

#: Where results are kept.
RESULTS = Path("benchmarks/results")


class Answer(NamedTuple):
    """Result of a question."""

    tables: list[Table]
    left_out: list[str]


def write_json(path: Path, head: Mapping[str, Any], answers: Mapping[str, Answer]) -> None:
    """Write all figures, every round of them, below what they were measured with."""
    questions = {name: as_json(*answer) for name, answer in answers.items()}
    path.write_text(json.dumps({**head, "questions": questions}, indent=1) + "\n", encoding="utf-8")


def write_results(folder: Path, head: Mapping[str, Any], answers: Mapping[str, Answer]) -> Path:
    """Write Markdown, and JSON beside it, named after the GPU, or the processor, and today's date in UTC.

    Returns:
        The Markdown file.
    """
    machine = head["machine"]
    device = machine["gpus"][0]["name"] if machine["gpus"] else machine["cpu"]
    slug = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "unknown"
    now = datetime.now(UTC)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{slug}-{now:%Y-%m-%d}.md"
    path.write_text(markdown(device, now, head, answers), encoding="utf-8")
    write_json(path.with_suffix(".json"), head, answers)
    return path


def markdown(device: str, when: datetime, head: Mapping[str, Any], answers: Mapping[str, Answer]) -> str:
    """The tables, those of one unit and reference as lines of one table, then budgets and what was left out."""
    lines = [f"# {device}, {when:%Y-%m-%d}", "", *_machine_lines(head), ""]
    for name, (tables, left_out) in answers.items():
        lines += [f"## {name}", ""]
        for _, group in groupby(tables, lambda table: (table.unit, table.reference)):
            lines += [*_table_lines(list(group)), ""]
        verdicts = [
            f"- {table.title}: {verdict_line(verdict, table.unit)}" for table in tables for verdict in table.verdicts()
        ]
        if verdicts:
            lines += ["Budgets:", "", *verdicts, ""]
        if left_out:
            lines += ["Left out:", "", *[f"- {what}" for what in left_out], ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _machine_lines(head: Mapping[str, Any]) -> Iterable[str]:
    machine = head["machine"]
    for gpu in machine["gpus"]:
        memory = f"{gpu['memory_bytes'] >> 20:,} MiB, {gpu['multiprocessors']} multiprocessors"
        yield f"- GPU: {gpu['name']}, {memory}; driver {gpu['driver']}, CUDA {gpu['cuda']}, runtime {gpu['runtime']}"
    yield f"- Host: {machine['cpu']}, {machine['cores']} cores; {machine['system']}"
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    yield f"- Versions: Python {machine['python']}, {versions}; {head['loop']} loop"
    quick = "; a smoke run, whose figures mean little" if head["quick"] else ""
    yield f"- Medians of {head['rounds']} interleaved rounds{quick}; in brackets the median ratio within the rounds"


def _table_lines(tables: list[Table]) -> Iterable[str]:
    """A line per table, a column per row; or, for a table by itself, a line per row."""
    unit, reference = tables[0].unit, tables[0].reference
    ratio = f" (x {reference})" if reference else ""
    if len(tables) == 1:
        (table,) = tables
        yield f"**{table.title}**"
        yield ""
        yield from _grid(["", f"{unit}{ratio}"], [[row, _cell(table, row)] for row in table.rows])
        return
    columns = list(dict.fromkeys(row for table in tables for row in table.rows))
    cells = [[table.title, *[_cell(table, row) for row in columns]] for table in tables]
    yield from _grid([f"{unit}{ratio}", *columns], cells)


def _cell(table: Table, row: str) -> str:
    if row not in table.rows:
        return ""
    figure, ratio = number(table.rows[row].median), table.ratio(row)
    return figure if ratio is None or row == table.reference else f"{figure} ({number(ratio)})"


def _grid(head: list[str], rows: Iterable[list[str]]) -> Iterable[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|---" + "|---:" * (len(head) - 1) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
