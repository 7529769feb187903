"""What the page must know of a graph before anything runs: nodes and edges. The page itself places them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.errors import text_of
from actorflow.graph.nodes import Blob, Node, Op, Variable
from actorflow.web.exchange import to_json


class Structure(NamedTuple):
    """A graph at one revision, encoded.

    Attributes:
        revision: `Graph.revision` at the time.
        message: The ``graph`` message of `actorflow.web.wire`, ready to send.
        names: Name of each node, in the message's order.
        op_ids: `Node.id` of each op, ascending.
        op_index: Index in the message's ``nodes`` of each op.
        index_of: Index in the message's ``nodes`` by `Node.id`; -1 for ids that no node has.
    """

    revision: int
    message: str
    names: Sequence[str]
    op_ids: npt.NDArray[np.int64]
    op_index: npt.NDArray[np.uint32]
    index_of: npt.NDArray[np.int64]


def capture(name: str, revision: int, nodes: Sequence[Node]) -> Structure:
    """Describe a graph; safe in a thread, as it reads only what is replaced and never changed.

    Args:
        name: The graph's name.
        revision: The graph's revision when ``nodes`` was taken.
        nodes: `Graph.nodes`.
    """
    index = {node: i for i, node in enumerate(nodes)}
    edges: list[tuple[int, int, int]] = []
    for at, op in enumerate(nodes):
        if isinstance(op, Op):
            # A blob that was made or deleted meanwhile is not in `nodes`; the next revision brings it.
            edges += [(index[blob], at, 0) for blob in op.inputs if blob in index]
            edges += [(at, index[blob], int(isinstance(blob, Variable))) for blob in op.outputs if blob in index]
    ids = np.fromiter((node.id for node in nodes), np.int64, len(nodes))
    is_op = np.fromiter((isinstance(node, Op) for node in nodes), np.bool_, len(nodes))
    index_of = np.full(int(ids.max(initial=-1)) + 1, -1, np.int64)
    index_of[ids] = np.arange(len(nodes))
    # One call per node: a single call for all of them would hold the GIL, and with it the loop, for its whole length.
    encoded = ", ".join([to_json(_describe(node)) for node in nodes])
    head = json.dumps({"type": "graph", "name": name, "revision": revision, "edges": edges})
    message = f'{head[:-1]}, "nodes": [{encoded}]}}'
    op_index = np.flatnonzero(is_op).astype(np.uint32)
    return Structure(revision, message, [node.name for node in nodes], ids[is_op], op_index, index_of)


def _describe(node: Node) -> dict[str, Any]:
    described = {
        "id": node.id,
        "name": node.name,
        "label": node.name.rpartition("/")[2],
        "rank": node.place.rank,
        "device": str(node.place).rpartition("/")[2],
        "site": str(node.site),
    }
    if isinstance(node, Op):
        described |= {
            "kind": "op",
            "operation": text_of(node.operation),
            "operation_kind": node.operation.kind,
            "lane": node.lane or "auto",
        }
    elif isinstance(node, Blob):
        described |= {
            "kind": "variable" if isinstance(node, Variable) else "blob",
            "shape": node.shape,
            "dtype": str(node.dtype),
            "bytes": node.spec.size_bytes,
        }
    return described
