"""Opening of axes that a file fixes, as most have a batch of one: what follows from a length is made to follow it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from actorflow.errors import GraphError, ShapeError
from actorflow.graph.graph import Graph
from actorflow.onnx.file import File, listed
from actorflow.onnx.lowering import Lowering, Values
from actorflow.onnx.values import Value, usual
from actorflow.spec import Length, TensorSpec, at, axis

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob

#: Operators that are told the shape of their result, and the input that says it.
_TOLD = {"Reshape": 1, "Resize": 3}
#: Number added to a length to see which ones do not follow it: no other length has it.
_LONGER = 1009


def open_axes(file: File) -> None:
    """Have a file's nodes take axes of any length that it fixes, `File.opened`.

    Where a node is told a shape, and that has the fixed length at the place of the axis, behind axes that stay as they
    are, it is the length of the axis: the node is then told that. All else means what it says. So each tensor must have
    the shape that the file gives it when the axes have the lengths that the file fixes.

    Args:
        file: Its model is changed.
    Raises:
        GraphError: naming the nodes that need the lengths which the file fixes.
    """
    nodes = [*file.model.graph.node]
    opening = _Opening(file, nodes)
    values = _values(opening, file, file.inputs)
    opening.walk(nodes, values, file.outputs)
    opening.tell()
    file.path = None  # what is there is another model
    changed = _changed(file, nodes, values)
    file.declared = file.declared_in(file.model)
    longer = _refused(file, {name: length + _LONGER for name, length in file.opened.items()})
    needing = {each[:2]: each for each in (*longer, *changed, *opening.refused)}
    if needing:  # some may be refused whatever the lengths are
        for operator, name, _ in _refused(file, file.opened):
            needing.pop((operator, name), None)
    if needing:
        tried = [f"{name!r} ({n} in the file, {n + _LONGER} tried)" for name, n in file.opened.items()]
        raise GraphError(
            f"an axis that the file fixes cannot be opened, {', '.join(tried)}: these nodes need its length. "
            f"Export the model with that axis dynamic.\n{listed([*needing.values()])}"
        )


def _refused(file: File, lengths: Mapping[str, int]) -> list[tuple[str, str, str]]:
    declared, inputs = (
        {name: spec._replace(shape=_closed(spec, lengths)) for name, spec in specs.items()}
        for specs in (file.declared, file.inputs)
    )
    lowering = Lowering(Graph("closed"), file.opsets, declared, file.unusable)
    lowering.walk([*file.model.graph.node], _values(lowering, file, inputs), file.outputs)
    return lowering.refused


class _Opening(Lowering):
    """A walk, in a graph that nobody runs, that notes which nodes are told a length which is to be open."""

    def __init__(self, file: File, nodes: Sequence[NodeProto]) -> None:
        super().__init__(Graph("opened"), file.opsets, file.declared, file.unusable)
        self._file = file
        self._nodes = {id(node) for node in nodes}  # and not those of branches
        self._told: list[tuple[NodeProto, int, list[int], list[int]]] = []

    def _lowered(self, proto: NodeProto, name: str, values: Values, reads: Mapping[str, int]) -> Sequence[Value | None]:
        position = _TOLD.get(proto.op_type, len(proto.input))
        if position < len(proto.input) and id(proto) in self._nodes:
            x, told = values.get(proto.input[0]), values.get(proto.input[position])
            if x is not None and told is not None and told.is_constant and told.known is not None:
                target = told.known.reshape(-1).tolist()
                axes = [*self._at_their_places(x.shape, target)]
                if axes:
                    self._told.append((proto, position, target, axes))
                    shape = np.array([x.shape[i] if i in axes else n for i, n in enumerate(target)], object)
                    values = {**values, proto.input[position]: Value(self.graph, told.spec, lengths=shape)}
        return super()._lowered(proto, name, values, reads)

    def _at_their_places(self, shape: Sequence[int | Length], target: Sequence[int]) -> Iterator[int]:
        """Axes to be opened that a target has where the shape has them."""
        for i, (length, said) in enumerate(zip(shape, target, strict=False)):
            if isinstance(length, Length) and self._file.opened.get(str(length)) == said:
                yield i
            elif said not in (0, length):
                return

    def tell(self) -> None:
        """Have the nodes be told the lengths of the axes."""
        graph = self._file.model.graph
        made: dict[int, list[NodeProto]] = {}
        for proto, position, target, axes in self._told:
            name, data = f"{proto.output[0]}:shape", proto.input[0]
            nodes = made[id(proto)] = [helper.make_node("Shape", [data], [f"{name}:all"], f"{name}:all")]
            parts = []
            for i, n in enumerate(target):
                part = f"{name}:{i}"
                parts.append(part)
                number = np.array([i if i in axes else n], np.int64)
                if i in axes:
                    graph.initializer.append(numpy_helper.from_array(number, f"{part}:axis"))
                    nodes.append(helper.make_node("Gather", [f"{name}:all", f"{part}:axis"], [part], part))
                else:
                    graph.initializer.append(numpy_helper.from_array(number, part))
            nodes.append(helper.make_node("Concat", parts, [name], name, axis=0))
            proto.input[position] = name
        told = [each for node in graph.node for each in (*made.get(id(node), ()), node)]
        del graph.node[:]
        graph.node.extend(told)


def _values(lowering: Lowering, file: File, inputs: Mapping[str, TensorSpec]) -> Values:
    graph = lowering.graph
    values = lowering.initializers(file.model.graph, file.weights)
    for name, spec in inputs.items():
        blob: Blob = graph.blob(graph.unique_name("input"), spec.shape, spec.dtype)
        values[name] = Value(graph, blob.spec, blobs={usual(len(blob.shape)): blob})
    return values


def _changed(file: File, nodes: Sequence[NodeProto], values: Values) -> list[tuple[str, str, str]]:
    """The first node that gives another shape than the file says, where axes have the lengths that it fixes."""
    for node in nodes:
        for name in node.output:
            value, declared = values.get(name), file.fixed.get(name)
            if value is None or declared is None:
                continue
            shape = _closed(value.spec, file.opened)
            pairs = zip(shape, declared.shape, strict=False)
            if len(shape) != len(declared.shape) or any(isinstance(n, int) and n != said for n, said in pairs):
                why = f"gives {value.spec.shape}, and {declared.shape} where the lengths are those of the file"
                return [(node.op_type, node.name or name, why)]  # what follows may differ for that reason
    return []


def _closed(spec: TensorSpec, lengths: Mapping[str, int]) -> tuple[Any, ...]:
    """A shape with the lengths of some axes, as far as numbers follow from them."""
    known = {**{name: axis(name) for name in spec.axes}, **lengths}
    found = []
    for length in spec.shape:
        try:
            found.append(at(length, known))
        except ShapeError:  # a quotient of which only a part is known
            found.append(length)
    return tuple(found)
