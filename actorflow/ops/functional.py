"""What the functional forms (``af.ops.softmax(y)``) share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actorflow.errors import GraphError
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.node import Blob

__all__ = ["apply", "blob_of", "spec_of"]


def spec_of(kind: str, argument: str, blob: object) -> TensorSpec:
    """The type of a blob that was given as an argument.

    Raises:
        GraphError: if it is no blob; the message names the argument.
    """
    from actorflow.node import Blob  # nodes are built on operations

    if not isinstance(blob, Blob):
        raise GraphError(f"{kind}: {argument} must be a blob, got {type(blob).__name__}")
    return blob.spec


def apply(operation: Operation, *inputs: Blob, name: str | None = None) -> Any:
    """Make an op of ``operation`` on ``inputs`` in their graph's current scope; see `Graph.apply`.

    Raises:
        GraphError: if an input is no blob; the message names the argument.
    """
    names = operation.arguments
    for i, blob in enumerate(inputs):
        spec_of(operation.kind, names[min(i, len(names) - 1)].lstrip("*"), blob)
    if not inputs:
        raise GraphError(f"{operation.kind}: give at least one blob")
    return inputs[0].graph.root.apply(operation, *inputs, name=name)


def blob_of(operation: Operation, *inputs: Blob, name: str | None = None) -> Blob:
    """`apply` for an operation with one output."""
    y: Blob = apply(operation, *inputs, name=name)
    return y
