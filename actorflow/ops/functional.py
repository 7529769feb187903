"""What the functional forms (``af.ops.softmax(y)``) share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from actorflow.errors import GraphError
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph
    from actorflow.graph.nodes import Blob

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def spec_of(kind: str, argument: str, blob: object) -> TensorSpec:
    """The type of a blob that was given as an argument.

    Raises:
        GraphError: if it is no blob; the message names the argument.
    """
    from actorflow.graph.nodes import Blob  # nodes are built on operations

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


def whole(form: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """Decorate a functional form that makes several ops: it makes all of them, or none if one cannot be made."""

    @wraps(form)
    def made(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        graph = next(_graphs_of((*args, *kwargs.values())), None)
        if graph is None:  # which is an error
            return form(*args, **kwargs)
        with graph.root._store.all_or_nothing():
            return form(*args, **kwargs)

    return made


def _graphs_of(values: Sequence[object]) -> Iterator[Graph]:
    """The graphs of the blobs among some arguments, or in a sequence or mapping of theirs."""
    from actorflow.graph.nodes import Blob

    for value in values:
        if isinstance(value, Blob):
            yield value.graph
        elif isinstance(value, list | tuple):
            yield from _graphs_of(value)
        elif isinstance(value, Mapping):
            yield from _graphs_of([*value.values()])
