"""Blobs by the names that a file has for its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from actorflow.errors import GraphError, did_you_mean
from actorflow.onnx.file import names_read
from actorflow.onnx.lowering import Values, legal
from actorflow.onnx.values import Value
from actorflow.runtime.model import NoSuchNameError

if TYPE_CHECKING:
    from onnx import GraphProto

    from actorflow.graph.graph import Graph
    from actorflow.graph.nodes import Blob


class FileValues(Mapping[str, "Blob"]):
    """Outputs of the nodes of a file, its inputs and its trained weights: blobs by their names in the file.

    Each blob has the axes of the file. Where a value is only there in another order of axes, an op that transposes it
    is added to the graph when it is first asked for; iterating over the names adds nothing. What is computed in no run
    has no blob: constants, lengths of axes, and what was folded into the weights of something else. Asking for it is a
    `GraphError` that says so, and names what to ask for instead.

    Args:
        scope: Where ops are added.
        graph: The file's graph.
        backend: Name of the backend.
        values: The tensors that lowering has made.
    """

    def __init__(self, scope: Graph, graph: GraphProto, backend: str, values: Values) -> None:
        self._scope = scope
        self._values: dict[str, Value] = {}
        is_trained = any(value is not None and value.trained is not None for value in values.values())
        weight = "it is constant" if is_trained else _WEIGHT
        self._absent: dict[str, str] = {tensor.name: weight for tensor in graph.initializer}
        readers: dict[str, list[str]] = {}  # outputs of the nodes that read a tensor
        for node in graph.node:
            for name in names_read(node):
                readers.setdefault(name, []).extend(filter(None, node.output))
            lacking = _INSIDE if backend == "onnxruntime" else "no output of the file needs it"
            self._absent |= {name: lacking for name in node.output if name and name not in values}
        for name, value in values.items():
            if value is None:
                continue
            if value.lengths is not None:
                self._absent[name] = "it follows from the lengths of axes, and no run computes it"
            elif value.blobs and not value.is_constant:
                # Without the file's own array, and what else was needed to lower it.
                self._values[name] = Value(value.graph, value.spec, blobs=value.blobs)
            elif value.make is not None or value.trained is not None:
                self._absent[name] = _folded(name, readers, values)
            elif name not in self._absent:
                self._absent[name] = "it is constant: it was computed when the file was loaded"

    def __getitem__(self, name: str) -> Blob:
        value = self._values.get(name)
        if value is not None:
            with self._scope, self._scope.at(name=legal(name)):
                return value.blob()
        why = self._absent.get(name)
        if why is not None:
            raise GraphError(f"the file's {name!r} has no blob: {why}")
        near = did_you_mean(name, [*self._values, *self._absent]) or "; `values` has all names that can be fetched"
        raise NoSuchNameError(f"the file has no tensor named {name!r}{near}")

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        """The blob of a name, or a default where there is none."""
        return self[name] if name in self._values else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<FileValues of {self._scope.name!r}: {len(self)} names>"


_WEIGHT = "it is constant; load the file with trainable=True, and its floating weights are variables"
_INSIDE = "onnxruntime computes it inside of its op; load the file with backend='actorflow' to have it"


def _folded(name: str, readers: Mapping[str, list[str]], values: Values) -> str:
    """Why a value that is yet to be made is never made: a scale or a shift after it was folded into its weights."""
    after = readers.get(name, [])
    while len(after) == 1:
        value = values.get(after[0])
        if value is None:
            break
        if value.make is None:
            return (
                f"what follows it was folded into its weights: {after[0]!r} is the result; "
                "load the file with trainable=True to have both"
            )
        after = readers.get(after[0], [])
    return "no output of the file needs it"
