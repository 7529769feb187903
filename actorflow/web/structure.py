"""What the page must know of a graph before anything runs: nodes, edges and where they are drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.node import Blob, Node, Op, Variable
from actorflow.web.layout import BLOB_SIZE, OP_SIZE, Layout, LayoutCache

__all__ = ["Structure", "capture"]


class Structure(NamedTuple):
    """A graph at one revision, laid out and encoded.

    Attributes:
        revision: `Graph.revision` at the time.
        message: The ``graph`` message of `actorflow.web.wire`, ready to send.
        op_ids: `Node.id` of each op, ascending.
        op_index: Index in the message's ``nodes`` of each op.
    """

    revision: int
    message: str
    op_ids: npt.NDArray[np.int64]
    op_index: npt.NDArray[np.uint32]


def capture(name: str, revision: int, nodes: Sequence[Node], layouts: LayoutCache) -> Structure:
    """Describe and lay out a graph; safe in a thread, as it reads only what is replaced and never changed.

    Args:
        name: The graph's name.
        revision: The graph's revision when ``nodes`` was taken.
        nodes: `Graph.nodes`.
        layouts: Layouts computed before.
    """
    index = {node: i for i, node in enumerate(nodes)}
    is_op = np.fromiter((isinstance(node, Op) for node in nodes), np.bool_, len(nodes))
    pairs: list[tuple[int, int]] = []
    cut: list[bool] = []
    for at, op in enumerate(nodes):
        if isinstance(op, Op):
            # A blob that was made or deleted meanwhile is not in `nodes`; the next revision brings it.
            inputs = [index[blob] for blob in op.inputs if blob in index]
            outputs = [blob for blob in op.outputs if blob in index]
            pairs += [(blob, at) for blob in inputs] + [(at, index[blob]) for blob in outputs]
            cut += [False] * len(inputs) + [isinstance(blob, Variable) for blob in outputs]
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    layout = layouts.layered(is_op, edges, np.array(cut, dtype=np.bool_))
    op_index = np.flatnonzero(is_op).astype(np.uint32)
    op_ids = np.fromiter((nodes[i].id for i in op_index.tolist()), np.int64, len(op_index))
    return Structure(revision, _message(name, revision, nodes, edges, layout), op_ids, op_index)


def _message(name: str, revision: int, nodes: Sequence[Node], edges: npt.NDArray[np.int64], layout: Layout) -> str:
    xs, ys = layout.x.round(1).tolist(), layout.y.round(1).tolist()
    # One call per node: a single call for all of them would hold the GIL, and with it the loop, for its whole length.
    encoded = [json.dumps(_describe(node, x, y)) for node, x, y in zip(nodes, xs, ys, strict=True)]
    head = {
        "type": "graph",
        "name": name,
        "revision": revision,
        "sizes": {"op": OP_SIZE, "blob": BLOB_SIZE},
        "edges": np.column_stack([edges, layout.back]).tolist(),
    }
    return f'{json.dumps(head)[:-1]}, "nodes": [{", ".join(encoded)}]}}'


def _describe(node: Node, x: float, y: float) -> dict[str, Any]:
    described = {
        "id": node.id,
        "name": node.name,
        "label": node.name.rpartition("/")[2],
        "place": str(node.place),
        "site": str(node.site),
        "x": x,
        "y": y,
    }
    if isinstance(node, Op):
        described |= {
            "kind": "op",
            "operation": _text(node.operation),
            "operation_kind": node.operation.kind,
            "lane": node.lane or "auto",
        }
    elif isinstance(node, Blob):
        described |= {
            "kind": "variable" if isinstance(node, Variable) else "blob",
            "shape": node.shape,
            "dtype": str(node.dtype),
        }
    return described


def _text(operation: Any) -> str:
    try:
        return str(operation)
    except Exception:  # noqa: BLE001  a user's __str__ must not take the page down
        return type(operation).__name__
