"""Graphs and plans as text: tables and Graphviz."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from actorflow.node import Blob, Variable
from actorflow.ops.function import Function

if TYPE_CHECKING:
    from actorflow.graph import Graph
    from actorflow.plan import Plan, PlannedOp

__all__ = ["graph_table", "plan_table", "to_dot"]


def graph_table(graph: Graph) -> str:
    """A table of a graph's ops."""
    rows = [
        (op.name, str(op.operation), f"{op.place} {op.lane or 'auto'}", _types(op.inputs), _types(op.outputs))
        for op in graph.ops
    ]
    variables = graph.variables
    size_bytes = sum(variable.spec.size_bytes for variable in variables)
    count = sum(variable.spec.size for variable in variables)
    return "\n".join(
        [
            *_table(("op", "operation", "place, lane", "inputs", "outputs"), rows),
            f"graph {graph.name!r}: {len(graph.ops)} ops, {len(graph.blobs)} blobs, {len(variables)} variables "
            f"({count:,} elements, {size_bytes:,} bytes)",
        ]
    )


def plan_table(plan: Plan) -> str:
    """A table of a plan's steps."""
    rows = []
    for op in plan.ops:
        inputs, outputs = (
            ", ".join(f"{plan.slots[slot].blob.name} {plan.slots[slot].spec}" for slot in slots)
            for slots in (op.inputs, op.outputs)
        )
        rows.append((_step(op), _kernel(op), f"{op.place} {op.lane}", inputs, outputs))
    return "\n".join(
        [
            *_table(("op", "kernel", "place, lane", "inputs", "outputs"), rows),
            f"fed: {_types(plan.feeds) or 'nothing'}",
            f"fetched: {_types(plan.fetches) or 'nothing'}",
            f"updated: {_types(plan.updates) or 'nothing'}",
            *[f"captured: {_segment(plan, segment)}" for segment in plan.segments],
            *[f"note: {note} ({', '.join(names)})" for note, names in plan.notes.items()],
        ]
    )


def _step(op: PlannedOp) -> str:
    """What a step of a plan is called: by its op, or by what the plan does to a blob."""
    if op.shown_as is op.node:
        return op.node.name
    what = {"Stage": "copy", "Transfer": "copy"}.get(op.operation.kind, op.operation.kind.lower())
    return f"{what} of {op.shown_as.name}"


def _segment(plan: Plan, segment: Sequence[int]) -> str:
    """The steps of a segment, and its lane."""
    ops = [plan.ops[index] for index in segment]
    return f"{', '.join(map(_step, ops))} as one, {ops[0].place} {ops[0].lane}"


def _kernel(op: PlannedOp) -> str:
    if op.kernel is not None:
        return f"{op.kernel.key.library}.{op.kernel.key.operation}"
    return "function" if isinstance(op.operation, Function) else str(op.operation)


def to_dot(graph: Graph) -> str:
    """A graph in Graphviz's language."""
    lines = [f"digraph {_quote(graph.name)} {{", "  rankdir=LR;"]
    nodes = set(graph.nodes)
    for node in graph.nodes:
        if isinstance(node, Blob):
            style = ", style=bold" if isinstance(node, Variable) else ""
            lines.append(f"  n{node.id} [shape=ellipse{style}, label={_quote(node.name, str(node.spec))}];")
    for op in graph.ops:
        lines.append(f"  n{op.id} [shape=box, label={_quote(op.name, str(op.operation))}];")
        lines += [f"  n{blob.id} -> n{op.id};" for blob in op.inputs if blob in nodes]
        lines += [f"  n{op.id} -> n{blob.id};" for blob in op.outputs if blob in nodes]
    return "\n".join([*lines, "}", ""])


def _types(blobs: Iterable[Blob]) -> str:
    return ", ".join(f"{blob.name} {blob.spec}" for blob in blobs)


def _quote(*lines: str) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * width for width in widths]
    cells = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (header, rule, *rows))
    return ["  ".join(row).rstrip() for row in cells]
