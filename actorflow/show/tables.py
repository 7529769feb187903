"""Graphs and plans as tables, of text or HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from actorflow.errors import visible
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Variable
from actorflow.ops.function import Function
from actorflow.plan.plan import Plan, PlannedOp

_UNITS = (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0))
#: Ops that a notebook shows.
_MOST_OPS = 100
#: Parts, or values, of a step that a table names all.
_MOST_NAMES = 32


def graph_table(graph: Graph) -> str:
    """A table of a graph's ops."""
    variables, size_bytes = _variables(graph)
    count = sum(variable.spec.size for variable in variables)
    return "\n".join(
        [
            *_table(("op", "operation", "place, lane", "inputs", "outputs"), _op_rows(graph)),
            f"graph {graph.name!r}: {len(graph.ops)} ops, {len(graph.blobs)} blobs, {len(variables)} variables "
            f"({count:,} elements, {size_bytes:,} bytes)",
        ]
    )


def graph_html(graph: Graph) -> str:
    """A graph as a notebook shows it: counts and a table of up to 100 ops, as HTML without scripts.

    Nothing is run or served. Names come from the program that built the graph: they are escaped, and nothing in them is
    hidden.
    """
    variables, size_bytes = _variables(graph)
    frames = graph.root.engine.frames
    count = len(graph.ops)
    head = (
        f"<p><b>graph {escape(graph.name)}</b>: {count:,} ops, {len(graph.blobs):,} blobs, {len(variables):,} "
        f"variables ({size_bytes:,} bytes); {frames.finished:,} frames finished, {frames.failed:,} failed</p>"
    )
    if count > _MOST_OPS:
        return f"{head}<p>serve it to look at its ops: <code>await af.web.serve(graph).start()</code></p>"
    header = ("op", "operation", "place", "inputs", "outputs")
    table = "".join([_html_row("th", header), *[_html_row("td", row) for row in _op_rows(graph)]])
    return f"{head}<details><summary>ops</summary><table>{table}</table></details>"


def plan_table(plan: Plan) -> str:
    """A table of a plan's steps."""
    rows = []
    for op in plan.ops:
        inputs, outputs = (
            _listed([f"{plan.slots[slot].blob.name} {plan.slots[slot].spec}" for slot in slots], ", ")
            for slots in (op.inputs, op.outputs)
        )
        name = _listed([*map(step_name, op.parts)], " + ") or step_name(op)
        rows.append((name, kernel_name(op), f"{op.place} {op.lane}", inputs, outputs))
    return "\n".join(
        [
            *_table(("op", "kernel", "place, lane", "inputs", "outputs"), rows),
            f"fed: {_types(plan.feeds) or 'nothing'}",
            f"fetched: {_types(plan.fetches) or 'nothing'}"
            if not plan.per_item
            else f"per item: {_types(plan.per_item)}",
            f"updated: {_types(plan.updates) or 'nothing'}",
            *([f"constant: {', '.join(map(step_name, plan.folded))}"] if plan.folded else []),
            *[f"captured: {_segment(plan, segment)}" for segment in plan.segments],
            *[visible(f"note: {note} ({', '.join(names)})") for note, names in plan.notes.items()],
        ]
    )


def _listed(names: Sequence[str], between: str) -> str:
    if len(names) <= _MOST_NAMES:
        return between.join(names)
    return f"{between.join(names[: _MOST_NAMES // 2])}{between}{len(names) - _MOST_NAMES // 2} more"


def step_name(op: PlannedOp) -> str:
    """Name of a step of a plan: its op's, the names of the ops in one pass, or the plan's own step for a blob."""
    if op.parts:
        return " + ".join(map(step_name, op.parts))
    if op.site is op.node:
        return op.node.name
    what = {"Stage": "copy", "Transfer": "copy"}.get(op.operation.kind, op.operation.kind.lower())
    return f"{what} of {op.site.name}"


def _segment(plan: Plan, segment: Sequence[int]) -> str:
    ops = [plan.ops[index] for index in segment]
    return visible(f"{', '.join(map(step_name, ops))} as one, {ops[0].place} {ops[0].lane}")


def kernel_name(op: PlannedOp) -> str:
    """Name of the kernel or function of a step of a plan."""
    if op.kernel is not None:
        return f"{op.kernel.key.library}.{op.kernel.key.operation}"
    return "function" if isinstance(op.operation, Function) else str(op.operation)


def time_text(time_ns: float) -> str:
    """A time of three digits, with its unit."""
    for unit, size_ns in _UNITS:
        if time_ns >= size_ns:
            count = time_ns / size_ns
            return f"{count:.3g} {unit}" if count < 999.5 else f"{count:,.0f} {unit}"
    return "0"


def _variables(graph: Graph) -> tuple[tuple[Variable, ...], int]:
    variables = graph.variables
    return variables, sum(variable.spec.size_bytes for variable in variables)


def _op_rows(graph: Graph) -> list[tuple[str, ...]]:
    return [
        (op.name, str(op.operation), f"{op.place} {op.lane or 'auto'}", _types(op.inputs), _types(op.outputs))
        for op in graph.ops
    ]


def _html_row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(visible(cell))}</{tag}>' for cell in cells)}</tr>"


def _types(blobs: Iterable[Blob]) -> str:
    return ", ".join(f"{blob.name} {blob.spec}" for blob in blobs)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * width for width in widths]
    cells = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (header, rule, *rows))
    return ["  ".join(row).rstrip() for row in cells]
