"""What the functional forms (``af.ops.softmax(y)``) share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actorflow.errors import GraphError
from actorflow.ops.operation import Operation

if TYPE_CHECKING:
    from actorflow.node import Blob

__all__ = ["apply"]


def apply(operation: Operation, *inputs: Blob, name: str | None = None) -> Any:
    """Make an op of ``operation`` on ``inputs`` in their graph's current scope; see `Graph.apply`.

    Raises:
        GraphError: if an input is no blob; the message names the argument.
    """
    from actorflow.node import Blob  # nodes are built on operations

    names = operation.arguments
    given: tuple[object, ...] = inputs
    for i, blob in enumerate(given):
        if not isinstance(blob, Blob):
            argument = names[min(i, len(names) - 1)].lstrip("*")
            raise GraphError(f"{operation.kind}: {argument} must be a blob, got {type(blob).__name__}")
    if not inputs:
        raise GraphError(f"{operation.kind}: give at least one blob")
    return inputs[0].graph.root.apply(operation, *inputs, name=name)
