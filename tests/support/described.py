"""A small graph for what describes graphs: as tables, as pictures."""

from __future__ import annotations

import actorflow as af
from actorflow import ops


def linear_graph() -> af.Graph:
    """An inner product in a scope, with a variable and a lane of its own, then a softmax."""
    graph = af.Graph("linear")
    x = graph.blob("x", (128, 10))
    with graph.subgraph("layer") as layer:
        w = layer.variable("w", (16, 10))
        with graph.at(lane="side"):
            y = ops.inner(x, w)
    ops.softmax(y)
    return graph
