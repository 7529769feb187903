"""A graph as a notebook shows it: counts and a table of its ops, of the moment, as HTML without scripts."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from actorflow.show.text import visible

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph
    from actorflow.graph.nodes import Blob

_MOST_OPS = 100
_HEADER = ("op", "operation", "place", "inputs", "outputs")


def graph_html(graph: Graph) -> str:
    """Counts, and of a graph of up to 100 ops what they are; nothing is run or served.

    Names come from whoever built the graph, so they are escaped, and nothing in them is hidden.
    """
    variables = graph.variables
    size_bytes = sum(variable.spec.size_bytes for variable in variables)
    frames = graph.root.engine.frames
    count = len(graph.ops)
    head = (
        f"<p><b>graph {escape(graph.name)}</b>: {count:,} ops, {len(graph.blobs):,} blobs, {len(variables):,} "
        f"variables ({size_bytes:,} bytes); {frames.finished:,} frames finished, {frames.failed:,} failed</p>"
    )
    if count > _MOST_OPS:
        return f"{head}<p>serve it to look at so many ops: <code>await af.web.serve(graph).start()</code></p>"
    rows = [
        (op.name, str(op.operation), f"{op.place} {op.lane or 'auto'}", _types(op.inputs), _types(op.outputs))
        for op in graph.ops
    ]
    table = "".join([_row("th", _HEADER), *[_row("td", row) for row in rows]])
    return f"{head}<details><summary>ops</summary><table>{table}</table></details>"


def _types(blobs: Iterable[Blob]) -> str:
    return ", ".join(f"{blob.name} {blob.spec}" for blob in blobs)


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(visible(cell))}</{tag}>' for cell in cells)}</tr>"
