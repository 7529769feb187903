"""Parts of files: what does not depend on trained weights is computed by ONNX Runtime, as one op."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from google.protobuf.message import EncodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper, shape_inference
from onnx.defs import get_schema

from actorflow.errors import GraphError
from actorflow.graph.graph import Graph
from actorflow.onnx.constants import affords
from actorflow.onnx.file import File, listed, names_read
from actorflow.onnx.lowering import Lowering, Values, is_trained
from actorflow.onnx.runtime import FATAL_IF_EMPTY, OnnxRuntime, Session, Settings
from actorflow.onnx.values import Value, usual
from actorflow.spec import MOST_AXES, Length, TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob

#: Operators whose result has no more elements than their first input, whatever the others say.
_NO_LARGER = {"Cast", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
#: Initializers of more elements say nothing of shapes.
_MOST_LENGTHS = 1024


def forward_part(
    file: File,
    graph: Graph,
    fed: Mapping[str, Blob],
    trainable: bool,
    settings: Settings | None = None,
) -> tuple[GraphProto, Values]:
    """Make the op of what a file computes without trained weights.

    It is the largest part that none of them leads to. What is constant there, or follows from lengths of axes alone, is
    known when the file is loaded, and not computed by ONNX Runtime.

    Args:
        file: The file.
        graph: Where the op is made.
        fed: Blobs of the file's inputs.
        trainable: Whether weights are trained.
        settings: How ONNX Runtime computes.
    Returns:
        The rest of the file, and what the part gives to it, or to the outside.
    Raises:
        GraphError: if a type of what it gives to the rest cannot be said before a run, if what it takes or gives is no
            tensor, or if ONNX Runtime cannot compute it.
        MissingExtraError: if ONNX Runtime is not installed.
    """
    proto = file.model.graph
    unusable = not_tensors(file)
    if unusable:
        raise GraphError(f"these nodes cannot be loaded:\n{listed(unusable)}")
    part, rest = _parted(proto, trainable)
    read = {*file.outputs, *(name for node in rest for name in names_read(node))}
    given = [name for node in part for name in node.output if name and name in read]
    left = GraphProto()
    left.node.extend(rest)
    left.initializer.extend([tensor for tensor in proto.initializer if tensor.name in read])
    if not given:
        return left, {}
    types = _Types(file, graph, part, fed)
    values = types.of(given, by_onnx=not rest)
    computed = [name for name in given if values[name].numbers is None]
    if computed:
        model = _model(file.model, part, fed, computed, weights=True)
        if _has(model.graph, {"Div"}):
            _guard(model.graph, types.known, file.opsets)
        inputs = [each.name for each in model.graph.input]
        alone = graph.options.sequential or graph.options.deterministic
        session = Session(
            file.name,
            _source(file, model, whole=not rest),
            inputs,
            computed,
            1 if alone else None,
            folds=affords(types.constant_bytes, size=1),
            loops=_has(model.graph, {"Loop"}),
            takes_empty=not _has(model.graph, FATAL_IF_EMPTY),
            settings=settings,
        )
        takes, gives = {name: fed[name].spec for name in inputs}, {name: values[name].spec for name in computed}
        for name, spec in {**takes, **gives}.items():
            if spec.dtype.isbuiltin != 1:
                raise GraphError(f"onnxruntime and NumPy exchange no {spec.dtype}, as {name!r} is")
        objects = tuple([file.objects.get(name) for name in inputs]) if file.objects else ()
        operation = OnnxRuntime(session, tuple(takes.values()), tuple(gives.values()), objects)
        found = graph.apply(operation, *[fed[name] for name in inputs], name="onnxruntime")
        for name, blob in zip(computed, [found] if len(computed) == 1 else found, strict=True):
            values[name] = Value(graph, blob.spec, blobs={usual(len(blob.shape)): blob})
    return left, {**values}


def not_tensors(file: File) -> list[tuple[str, str, str]]:
    """Inputs and outputs of a file that are not tensors, and why they are refused."""
    graph = file.model.graph
    found = [("Input", name, why) for name, why in file.unusable.items() if name not in file.objects]
    known = file.unusable
    ends = [("Input", each) for each in graph.input if each.name not in known]
    for what, each in [*ends, *[("Output", each) for each in graph.output]]:
        kind = (each.type.WhichOneof("value") or "tensor_type").removesuffix("_type")
        if kind != "tensor":
            found.append((what, each.name, f"is of type {kind}, and only tensors can be loaded"))
    return found


def _parted(proto: GraphProto, trainable: bool) -> tuple[list[NodeProto], list[NodeProto]]:
    """The nodes that no trained weight leads to, and the others."""
    trained = {tensor.name for tensor in proto.initializer if trainable and is_trained(tensor)}
    part, rest = [], []
    for node in proto.node:
        if trained.isdisjoint(names_read(node)):
            part.append(node)
        else:
            rest.append(node)
            trained.update(node.output)
    return part, rest


def _model(
    model: ModelProto, part: Sequence[NodeProto], fed: Iterable[str], outputs: Sequence[str], *, weights: bool
) -> ModelProto:
    """The model of some nodes, as far as outputs need them; its inputs are fed, as no constant is.

    Without ``weights``, large constants are inputs, too: of them the types alone count.
    """
    needed, nodes = {*outputs}, []
    for node in reversed(part):
        if not needed.isdisjoint(node.output):
            nodes.append(node)
            needed.update(names_read(node))
    graph = model.graph
    made = ModelProto(ir_version=max(model.ir_version, 4), opset_import=model.opset_import)
    made.graph.name = graph.name or "graph"
    made.graph.node.extend(reversed(nodes))
    inputs = {*fed} & needed
    made.graph.input.extend([each for each in graph.input if each.name in inputs])
    for tensor in graph.initializer:
        if tensor.name in needed and (weights or math.prod(tensor.dims) <= _MOST_LENGTHS):
            made.graph.initializer.append(tensor)
        elif tensor.name in needed:
            made.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    made.graph.sparse_initializer.extend([each for each in graph.sparse_initializer if each.values.name in needed])
    made.graph.output.extend([onnx.ValueInfoProto(name=name) for name in outputs])
    return made


def _guard(graph: GraphProto, types: Mapping[str, TypeProto], opsets: Mapping[str, int]) -> None:
    """Have integers divided so that the least one by -1 is no trap, which ends the process: by 1, and then negated."""
    known = {**types, **{each.name: each.type for each in (*graph.input, *graph.value_info)}}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    known.update({name: helper.make_tensor_type_proto(t.data_type, t.dims) for name, t in constants.items()})
    nodes = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _guard(attribute.g, known, opsets)
            if node.op_type == "Constant" and attribute.name == "value":
                constants[node.output[0]] = attribute.t
        if any(name and name not in known for name in node.output):
            known.update(_given(node, known, constants, opsets))
        kind = known[node.input[0]].tensor_type.elem_type if node.op_type == "Div" and node.input[0] in known else 0
        if kind not in (TensorProto.INT32, TensorProto.INT64) or node.domain not in ("", "ai.onnx"):
            nodes.append(node)
            continue
        a, b, y = node.input[0], node.input[1], node.output[0]
        if b in constants and not (numpy_helper.to_array(constants[b]) == -1).any():
            nodes.append(node)
            continue
        own = {part: f"{y}:{part}" for part in ("-1", "1", "is", "has", "two", "by", "sign", "over")}
        for number in (-1, 1):
            graph.initializer.append(helper.make_tensor(own[str(number)], kind, [], [number]))
        nodes += [
            helper.make_node("Equal", [b, own["-1"]], [own["is"]]),
            helper.make_node("Cast", [own["is"]], [own["has"]], to=kind),
            helper.make_node("Add", [own["has"], own["has"]], [own["two"]]),
            helper.make_node("Add", [b, own["two"]], [own["by"]]),
            helper.make_node("Sub", [own["1"], own["two"]], [own["sign"]]),
            helper.make_node("Div", [a, own["by"]], [own["over"]], node.name),
            helper.make_node("Mul", [own["over"], own["sign"]], [y]),
        ]
    del graph.node[:]
    graph.node.extend(nodes)


def _has(graph: GraphProto, operators: Container[str]) -> bool:
    """Return whether a node of some operators is in a graph, or a graph in it."""
    return any(
        node.op_type in operators or any(_has(each.g, operators) for each in node.attribute if each.HasField("g"))
        for node in graph.node
    )


def _source(file: File, model: ModelProto, whole: bool) -> bytes | str:
    try:
        serialized: bytes = model.SerializeToString()
        return serialized
    except (EncodeError, ValueError) as error:  # of more than 2 GB
        if whole and file.path is not None:
            return file.path
        raise GraphError(f"a part so large cannot be given to onnxruntime: {error}") from error


class _Types:
    """Outputs of nodes as far as they are known before a run: constants, lengths, types."""

    def __init__(self, file: File, graph: Graph, part: Sequence[NodeProto], fed: Mapping[str, Blob]) -> None:
        self._file = file
        self._graph = graph
        self._part = part
        self._fed = fed
        self.known: dict[str, TypeProto] = {}  # by ONNX's own rules
        self.constant_bytes = 0.0  # of what constants alone lead to; infinite where a length is not known

    def of(self, names: Sequence[str], by_onnx: bool) -> dict[str, Value]:
        """The values.

        Args:
            names: Tensors that the nodes give.
            by_onnx: Whether ONNX's own rules will do where they say all types; they do not say what is constant.
        Raises:
            GraphError: if a type is not known.
        """
        specs = self._inferred(names)
        if all(blob.spec == self._file.inputs[name] for name, blob in self._fed.items()):
            # The file's lengths that depend on data are checked when they are there. That there are no axes
            # is often said of what was squeezed when it was exported, with a batch of one.
            said = {name: self._file.declared.get(name) for name in names if specs[name] is None}
            specs.update({name: spec for name, spec in said.items() if spec is not None and spec.shape})
        if not by_onnx or None in specs.values():
            text = dict.fromkeys(self._file.objects, "is a Python object")
            lowering = Lowering(Graph("types"), self._file.opsets, self._file.declared, text)
            lowered = self._lowered(lowering, names).items()
            found = {name: value for name, value in lowered if value is not None and not value.spec.is_object}
            if by_onnx and any(getattr(op.operation, "not_one", ()) for op in lowering.graph.ops):
                found = {}  # how many axes there are depends on whether an open one is 1
            missing = [name for name in names if found.get(name) is None and specs[name] is None]
            if missing and not by_onnx:
                raise GraphError(
                    f"what onnxruntime gives as {', '.join(map(repr, missing))} is no tensor of "
                    "numbers, or its lengths are not known before a run: give those of open axes, axes={...}"
                    + (f"\n{listed(lowering.refused)}" if lowering.refused else "")
                )
        else:
            found = {}
        made = {}
        for name in names:
            value, spec = found.get(name), specs[name]
            spec = value.spec if value is not None else spec or TensorSpec((), np.dtype(object))
            known = (None, None) if value is None else (value.known, value.lengths)
            made[name] = Value(self._graph, spec, known=known[0], lengths=known[1])
        return made

    def _lowered(self, lowering: Lowering, names: Sequence[str]) -> Values:
        """As they are in a graph of ordinary ops, which nobody runs."""
        if self._file.model.graph.sparse_initializer:
            return {}
        values = lowering.initializers(self._file.model.graph)
        for name, blob in self._fed.items():
            if name in self._file.objects:
                continue
            source = lowering.graph.blob(lowering.graph.unique_name("input"), blob.shape, blob.dtype)
            values[name] = Value(lowering.graph, blob.spec, blobs={usual(len(blob.shape)): source})
        lowering.walk(self._part, values, names)
        return values

    def _inferred(self, names: Sequence[str]) -> dict[str, TensorSpec | None]:
        """Types by ONNX's own rules; None where they leave a length open."""
        model = _model(self._file.model, self._part, self._fed, names, weights=False)
        symbols: dict[Length, str] = {}  # short names: each type that follows has them again
        types: dict[str, TypeProto] = {}
        for name, blob in self._fed.items():
            if name in self._file.objects:  # its type is the file's
                continue
            lengths_fed: tuple[Any, ...] = blob.shape
            shape = [symbols.setdefault(n, f"n{len(symbols)}") if isinstance(n, Length) else n for n in lengths_fed]
            types[name] = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(blob.dtype), shape)
        for info in model.graph.input:  # large constants among them
            types.setdefault(info.name, info.type)
        constants = {tensor.name: tensor for tensor in model.graph.initializer}
        for tensor in constants.values():
            types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        known = {tensor.name: 8.0 * math.prod(tensor.dims) for tensor in self._file.model.graph.initializer}
        for node in model.graph.node:
            given = _given(node, types, constants, self._file.opsets)
            types.update(given)
            if all(name in known for name in node.input if name):
                bound = known[node.input[0]] if node.op_type in _NO_LARGER else math.inf
                made = {name: min(_bytes(given.get(name)), bound) for name in node.output if name}
                known.update(made)
                self.constant_bytes += sum(made.values())
        self.known = types
        lengths = {symbol: length for length, symbol in symbols.items()}
        return {name: _spec(types[name], lengths) if name in types else None for name in names}


def _given(
    node: NodeProto, types: Mapping[str, TypeProto], constants: dict[str, TensorProto], opsets: Mapping[str, int]
) -> dict[str, TypeProto]:
    """Types of what a node gives, by ONNX's rules.

    They are asked node by node: those for a whole file have no bounds, as axes can become twice as many at each node.
    """
    try:
        schema = get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
        imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        read = {name: types[name] for name in node.input if name}
        found = shape_inference.infer_node_outputs(schema, node, read, constants, opset_imports=imports)
    except Exception:  # noqa: BLE001  there are no types of what is not valid, and its errors are of many kinds
        return {}
    return {name: each for name, each in found.items() if len(each.tensor_type.shape.dim) <= MOST_AXES}


def _bytes(described: TypeProto | None) -> float:
    if described is None or not described.tensor_type.HasField("shape"):
        return math.inf
    dims = described.tensor_type.shape.dim
    return 8 * math.prod([dim.dim_value if dim.HasField("dim_value") else math.inf for dim in dims])


def _spec(described: TypeProto, lengths: Mapping[str, Any]) -> TensorSpec | None:
    tensor = described.tensor_type
    if not tensor.HasField("shape") or tensor.elem_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        return None
    shape: list[Any] = [
        dim.dim_value if dim.HasField("dim_value") else lengths.get(dim.dim_param) for dim in tensor.shape.dim
    ]
    return None if None in shape else TensorSpec(tuple(shape), helper.tensor_dtype_to_np_dtype(tensor.elem_type))
