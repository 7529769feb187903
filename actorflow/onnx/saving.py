"""Graphs as ONNX files: each op by the row of its operation (`actorflow.onnx.writers`), images channels-first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    ValueInfoProto,
    checker,
    defs,
    helper,
    numpy_helper,
    save_model,
    shape_inference,
)

from actorflow import __version__
from actorflow.checkpoint.checkpoint import check_at_rest
from actorflow.checkpoint.file import write_atomically
from actorflow.errors import GraphError, whole
from actorflow.graph.body import Body
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Op, Variable
from actorflow.onnx.values import Order, usual
from actorflow.plan.validate import in_order, needed_ops, states_of
from actorflow.runtime.model import Model
from actorflow.spec import Length, TensorSpec, axes_in

if TYPE_CHECKING:
    from actorflow.graph.graph import Fetch

Array = npt.NDArray[Any]
#: Versions of ONNX's operators that files can be written for.
OLDEST, USUAL = 18, 20
#: Bytes that a file can have.
_MOST_BYTES = 2**31 - 1


def channels_first(rank: int) -> Order:
    """The order of images in ONNX."""
    return (0, rank - 1, *range(1, rank - 1))


class UnsupportedError(Exception):
    """An op cannot be written; the text says why."""


def save(model: Graph | Model, path: str | os.PathLike[str], *, fetch: Fetch = None, opset: int = USUAL) -> None:
    """Save what a graph computes as an ONNX file.

    Variables and constants are stored with it, with the values that they have now; open axes keep their names. States
    become inputs, and what follows them outputs, which `Model.sessions` pairs again; they begin with zeros there. The
    file's inputs and outputs have the names and shapes that they have here, images are channels-last, and inside the
    file convolutions and poolings are channels-first, as ONNX wants them. Networks are saved as they are built: build
    one with ``training=False`` to save it.

    Args:
        model: A graph, or a model, whose names of inputs and outputs it has then.
        path: The file, ``.onnx`` by custom. It is written whole or not at all.
        fetch: Of a graph, its outputs, as for `Graph.run`; by default the sinks that ONNX's operators have.
        opset: Version of ONNX's operators, 18 at least; 20 for ``gelu``.
    Raises:
        TypeError: if it is given something else.
        GraphError: if there are operations that ONNX does not have, or not as they are used: all of them, with their
            lines; if the result is more than a file can have, 2 GB; if frames are in flight.
        OSError: if the file cannot be written.

    Example:
        >>> graph = af.Graph("net")
        >>> net = af.nn.MLP(10, hidden=[32], dropout=0.5)
        >>> x = graph.blob("x", ["batch", 64])
        >>> scores = net(x, training=False)
        >>> af.onnx.save(af.Model(graph, {"features": x}, {"scores": scores}), "net.onnx")
        >>> af.onnx.load("net.onnx").inputs
        {'features': <Blob 'features' float32[batch, 64] on cpu>}
    """
    by_default = fetch is None and isinstance(model, Graph)
    if isinstance(model, Graph):
        model = Model.of(model, fetch=fetch)
    elif not isinstance(cast(object, model), Model):
        raise TypeError(f"onnx.save: expected a graph or a model, got {type(model).__name__}")
    elif fetch is not None:
        raise GraphError("onnx.save: a model has its outputs, leave fetch out")
    states = states_of(model.outputs.values())
    if states:
        inputs = model.inputs | {state.name: state for state in states}
        nexts = {blob.name: blob for blob in states.values() if blob not in model.outputs.values()}
        model = Model(model.graph, inputs, model.outputs | nexts)
    newest = defs.onnx_opset_version()
    opset = whole("onnx.save: opset", opset, OLDEST, newest)
    check_at_rest(model.graph, "saved")
    made = Exporter(model, opset, by_default).run()
    try:
        checker.check_model(made, full_check=True)
    except (checker.ValidationError, shape_inference.InferenceError) as error:
        raise GraphError(f"model {model.graph.name!r} makes no valid ONNX file: {error}") from error
    write_atomically(Path(path), lambda temporary: save_model(made, temporary))


class Exporter:
    """Writes the ops of a model.

    A blob may be there in several orders of its axes: what moves axes is not written, but noted, and a node that
    transposes is made where an order is asked for that is not there.

    Args:
        model: The model.
        opset: Version of the operators.
        by_default: Whether its outputs are all that nothing reads, of which those are left out that ONNX's operators do
            not have.
    """

    def __init__(self, model: Model, opset: int, by_default: bool) -> None:
        self.model = model
        self.opset = opset
        self.by_default = by_default
        self.op: Op | None = None
        self._ops: set[Op] = set()  # that are needed
        self._results: set[Blob] = set()  # of bodies
        self._nodes: list[NodeProto] = []
        self._arrays: dict[str, Array] = {}
        self._known: dict[Blob, Array] = {}
        self._tensors: dict[Blob, dict[Order, str]] = {}
        self._parts: dict[Blob, dict[Op, tuple[Order, str]]] = {}
        self._taken = {*model.inputs, *model.outputs}
        self._names: dict[str, str] = {}  # the final names of tensors
        self._lengths: dict[Any, str] = {}
        self._node_names: set[str] = set()
        self._problems: list[str] = []
        self._writers: Mapping[str, Callable[[Exporter, Op, Any], None]] = {}

    def run(self) -> ModelProto:
        """Write all that the outputs need.

        Raises:
            GraphError: naming all ops that cannot be written.
        """
        from actorflow.onnx.writers import WRITERS  # which are written with this

        model, self._writers = self.model, WRITERS
        for name, blob in model.inputs.items():
            self._tensors.setdefault(blob, {})[usual(len(blob.shape))] = name
        self._write_all(in_order(model.graph, needed_ops(model.outputs.values())))
        if self._problems:
            listed = "".join(f"\n  {problem}" for problem in self._problems)
            raise GraphError(f"model {model.graph.name!r} cannot be saved as ONNX:{listed}")
        self.op = None
        self._finish_outputs()
        return self._made()

    def _write_all(self, ops: Sequence[Op]) -> None:
        around = self.op
        self._ops.update(ops)
        for op in ops:
            self.op = op
            try:
                self._check(op)
                writer = self._writers.get(op.operation.kind)
                if writer is None:
                    raise UnsupportedError("ONNX has no such operation")
                writer(self, op, op.operation)
            except UnsupportedError as error:
                self._problems.append(f"{op.name!r} ({op.operation}): {error}; created at {op.site}")
                for blob in op.outputs:
                    self._tensors.setdefault(blob, {})[usual(len(blob.shape))] = "?"
        self.op = around

    # -- bodies ----------------------------------------------------------------------------------------------------

    def chosen(self, condition: str, then: GraphProto, otherwise: GraphProto) -> GraphProto:
        """A graph that computes one of two."""
        around, self._nodes = self._nodes, []
        try:
            tensors = self.nodes("If", [condition], len(then.output), then_branch=then, else_branch=otherwise)
            nodes = self._nodes
        finally:
            self._nodes = around
        outputs = [ValueInfoProto() for _ in tensors]
        for made, value, tensor in zip(outputs, then.output, tensors, strict=True):
            made.CopyFrom(value)
            made.name = tensor
        return helper.make_graph(nodes, "otherwise", [], outputs)

    def inline(self, body: Body, given: Sequence[Blob]) -> None:
        """Write the ops of a body here, on the values of some blobs, the last of which stand for what it captures."""
        for blob, value in zip(body.inputs[-len(given) :] if given else (), given, strict=True):
            array = self.known(value)
            if array is not None:
                self._known[blob] = array
            elif value in self._tensors:
                self._tensors[blob] = dict(self._tensors[value])
        self._results.update(body.outputs)
        self._write_all(body.ops)

    def body(
        self,
        body: Body,
        given: Sequence[Blob],
        parameters: Sequence[Blob | TensorSpec],
        results: Sequence[Blob],
        *,
        always: bool = False,
    ) -> GraphProto:
        """A graph of a body, for an attribute of a node.

        Args:
            body: The body.
            given: Blobs outside that the last of its inputs stand for.
            parameters: Inputs of the graph: blobs of the body, and types of what it does not read.
            results: Its outputs: blobs of the body.
            always: Whether its first output is a truth value that says to go on.
        """
        around, lengths = self._nodes, self._lengths
        self._nodes, self._lengths = [], dict(self._lengths)
        inputs, outputs = [], []
        try:
            for each in parameters:
                name = self._unique(each.name if isinstance(each, Blob) else "unused")
                spec = each.spec if isinstance(each, Blob) else each
                inputs.append(_declared(name, spec))
                if isinstance(each, Blob):
                    self._tensors[each] = {usual(len(each.shape)): name}
            self.inline(body, given)
            if always:
                true = self.node("Identity", [self.array(np.array(True), "true")])
                outputs.append(_declared(true, TensorSpec((), np.dtype(np.bool_))))
            for blob in results:
                tensor = self.read(blob)
                made = {name for node in self._nodes for name in node.output}
                if tensor not in made or tensor in [each.name for each in outputs]:
                    tensor = self.node("Identity", [tensor])
                outputs.append(_declared(tensor, blob.spec))
            nodes = _needed(self._nodes, {each.name for each in outputs})
        finally:
            self._nodes, self._lengths = around, lengths
        return helper.make_graph(nodes, body.scope.name, inputs, outputs)

    # -- values ----------------------------------------------------------------------------------------------------

    def known(self, blob: Blob) -> Array | None:
        """The value of a variable or a constant; None for what is computed."""
        if blob in self._known:
            return self._known[blob]
        if isinstance(blob, Variable):
            self._known[blob] = blob.value
            return self._known[blob]
        return None

    def order(self, blob: Blob) -> Order:
        """The order in which a blob was computed."""
        return next(iter(self._tensors.get(blob, ())), usual(len(blob.shape)))

    def read(self, blob: Blob, order: Order | None = None) -> str:
        """The tensor of a blob, with its axes in an order."""
        order = usual(len(blob.shape)) if order is None else order
        tensors = self._tensors.setdefault(blob, {})
        if order not in tensors:
            array = self.known(blob)
            if array is not None:
                tensors[order] = self.array(array.transpose(order), blob.name)
            else:
                (have, tensor), *_ = tensors.items()
                axes = [have.index(axis) for axis in order]
                tensors[order] = self.node("Transpose", [tensor], perm=axes)
        return tensors[order]

    def read_flat(self, blob: Blob) -> str:
        """The tensor of a blob whose elements lie in memory as in the usual order; axes of length 1 may be anywhere."""
        for order, tensor in self._tensors.get(blob, {}).items():
            long = [axis for axis in order if blob.shape[axis] != 1]
            if long == sorted(long):
                return tensor
        return self.read(blob)

    def read_beside(self, blob: Blob, rank: int, order: Order) -> str:
        """The tensor of a blob that broadcasts with one of more axes, whose order this is."""
        missing = rank - len(blob.shape)
        if order == usual(rank) or not blob.shape:
            return self.read(blob)
        if not missing:
            return self.read(blob, order)
        array = self.known(blob)
        if array is not None:
            array = array.reshape([1] * missing + [*blob.shape]).transpose(order)
            first = next((i for i, length in enumerate(array.shape) if length != 1), rank - 1)
            return self.array(array.reshape(array.shape[first:]), blob.name)
        tensor = self.node("Unsqueeze", [self.read(blob), self.ints(range(missing))])
        return self.node("Transpose", [tensor], perm=order)

    def write(self, blob: Blob, tensor: str, order: Order | None = None) -> None:
        """Say which tensor an output of the op is, with its axes in an order."""
        order = usual(len(blob.shape)) if order is None else order
        if isinstance(blob, Variable):
            raise UnsupportedError(f"it writes variable {blob.name!r}, and files do not change")
        if not blob.has_several_producers:
            self._tensors[blob] = {order: tensor}
            self._names.setdefault(tensor, blob.name)
            return
        assert self.op is not None
        parts = self._parts.setdefault(blob, {})
        parts[self.op] = order, tensor
        if len(parts) < len(blob.producers):
            return
        # Added up in the order in which they were connected, which need not be the one in which they are written.
        (order, total), *others = [parts[op] for op in blob.producers]
        for have, other in others:
            if have != order:
                other = self.node("Transpose", [other], perm=[have.index(axis) for axis in order])
            total = self.node("Add", [total, other])
        self._tensors[blob] = {order: total}

    def know(self, blob: Blob, array: Array) -> None:
        """Say the value of an output of the op."""
        self._known[blob] = array

    def need_one(self, op: Op, *others: int) -> None:
        """Refuse an op of which other outputs than the first one are read."""
        for y in [op.outputs[i] for i in others or range(1, len(op.outputs))]:
            is_result = y in self._results or (not self.by_default and y in self.model.outputs.values())
            if self._readers(y) or is_result:
                raise UnsupportedError(f"its output {y.name!r} is read, which ONNX's does not have")

    def _readers(self, blob: Blob) -> int:
        return sum(reader in self._ops for reader in blob.consumers)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Make a node of one output; returns its tensor."""
        return self.nodes(kind, inputs, 1, **attributes)[0]

    def nodes(self, kind: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        """Make a node; returns its tensors."""
        base = f"{kind.lower()} of {inputs[0] if inputs else 'nothing'}" if self.op is None else self.op.name
        outputs = [self._unique(f"{base}/{kind.lower()}") for _ in range(count)]
        name = base if base not in self._node_names else outputs[0]
        self._node_names.add(name)
        given = {key: value for key, value in attributes.items() if value is not None}
        self._nodes.append(helper.make_node(kind, [*inputs], outputs, name=name, **given))
        return outputs

    def open_end(self, blob: Blob, kinds: Sequence[str]) -> NodeProto | None:
        """The node that computes a blob which nothing but this op reads, if it is of such a kind and takes a bias."""
        is_result = blob in self._results or blob in self.model.outputs.values()
        if self._readers(blob) != 1 or blob.has_several_producers or is_result:
            return None
        tensors = self._tensors.get(blob, {})
        node = next((each for each in reversed(self._nodes) if each.output[0] in tensors.values()), None)
        return node if node is not None and node.op_type in kinds and len(node.input) == 2 else None

    def array(self, array: Array, name: str = "") -> str:
        """A constant."""
        if array.dtype.kind == "c" or array.dtype.hasobject:
            raise UnsupportedError(f"ONNX does not compute with {array.dtype}")
        base = name or "constant"
        for known in (base, *(f"{base}.{i}" for i in range(1, len(self._arrays)))):
            have = self._arrays.get(known)
            if have is not None and have.dtype == array.dtype and np.array_equal(have, array):
                return known
            if have is None:
                break
        tensor = self._unique(base)
        self._arrays[tensor] = np.ascontiguousarray(array).reshape(array.shape)
        return tensor

    def number(self, value: Any, dtype: Any) -> str:
        """A constant without axes."""
        if not isinstance(value, int | float | np.generic):
            raise UnsupportedError(f"{value} follows from open axes")
        return self.array(np.asarray(value, dtype), f"{value:g}" if np.isreal(value) else "")

    def ints(self, values: Sequence[Any] | range) -> str:
        """Whole numbers, or lengths, as a tensor of one axis."""
        if not axes_in(tuple(values)):
            return self.array(np.array([*values], np.int64), "ints")
        return self.node("Concat", [self._length(value) for value in values], axis=0)

    def _length(self, value: Any) -> str:
        """A length, shape (1,), from the shapes of inputs."""
        if value not in self._lengths:
            if not isinstance(value, Length):
                if isinstance(value, int):
                    return self.ints([value])
                raise UnsupportedError(f"{value} is no length")
            self._lengths[value] = self._axis(value.name) if value.name else self._formula(value)
        return self._lengths[value]

    def _axis(self, name: str) -> str:
        for tensor, blob in self.model.inputs.items():
            shape: tuple[Any, ...] = blob.shape
            for i, length in enumerate(shape):
                if isinstance(length, Length) and length.name == name:
                    return self.node("Shape", [tensor], start=i, end=i + 1)
        raise UnsupportedError(f"the open axis {name!r} is the length of no input's axis")

    def _formula(self, value: Length) -> str:
        terms = []
        for product, factor in value.terms:
            factors = [self.ints([factor])] if factor != 1 or not product else []
            for atom in product:
                if isinstance(atom, str):
                    factors.append(self._axis(atom))
                    continue
                left, right = self._length(atom.left), self._length(atom.right)
                if atom.name == "min":
                    factors.append(self.node("Min", [left, right]))
                else:  # Div rounds to 0, Mod has the sign of the divisor
                    rest = self.node("Mod", [left, right])
                    factors.append(self.node("Div", [self.node("Sub", [left, rest]), right]))
            terms.append(self._chain("Mul", factors))
        return self._chain("Add", terms)

    def _chain(self, kind: str, tensors: Sequence[str]) -> str:
        first, *others = tensors
        for other in others:
            first = self.node(kind, [first, other])
        return first

    def _unique(self, name: str) -> str:
        found, i = name, 0
        while found in self._taken:
            i += 1
            found = f"{name}.{i}"
        self._taken.add(found)
        return found

    # -- the file --------------------------------------------------------------------------------------------------

    def _check(self, op: Op) -> None:
        for blob in (*op.inputs, *op.outputs):
            if blob.dtype.kind == "c" or blob.dtype.hasobject:
                raise UnsupportedError(f"ONNX does not compute with {blob.dtype}")

    def _outputs(self) -> dict[str, Blob]:
        return {name: blob for name, blob in self.model.outputs.items() if not self.by_default or self._is_there(blob)}

    def _is_there(self, blob: Blob) -> bool:
        return blob in self._tensors or self.known(blob) is not None

    def _finish_outputs(self) -> None:
        final: dict[str, str] = {}
        for name, blob in self._outputs().items():
            tensor = self.read(blob)
            if tensor in final or tensor in self._arrays or tensor in self.model.inputs:
                tensor = self.node("Identity", [tensor])
            final[tensor] = name
        for tensor, wanted in self._names.items():
            if tensor not in final and tensor not in self.model.inputs and tensor not in self._arrays:
                final[tensor] = self._unique(wanted)
        self._names = final

    def _made(self) -> ModelProto:
        nodes = self._needed_nodes()
        used = {name for node in _within(nodes) for name in node.input}
        for node in _within(nodes):
            for names in (node.input, node.output):
                names[:] = [self._names.get(name, name) for name in names]
            for graph in _graphs(node):
                for value in (*graph.input, *graph.output):
                    value.name = self._names.get(value.name, value.name)
        size = sum(node.ByteSize() for node in nodes) + sum(
            a.nbytes for name, a in self._arrays.items() if name in used
        )
        if size > _MOST_BYTES:
            raise GraphError(f"model {self.model.graph.name!r} takes {size:,} bytes as ONNX, a file can have 2 GB")
        graph = helper.make_graph(
            nodes,
            self.model.graph.name,
            [_declared(name, blob.spec) for name, blob in self.model.inputs.items()],
            [_declared(name, blob.spec) for name, blob in self._outputs().items()],
            [numpy_helper.from_array(array, name) for name, array in self._arrays.items() if name in used],
        )
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(
            graph,
            opset_imports=imports,
            ir_version=helper.find_min_ir_version_for(imports),
            producer_name="actorflow",
            producer_version=__version__,
        )

    def _needed_nodes(self) -> list[NodeProto]:
        return _needed(self._nodes, {tensor for tensor, name in self._names.items() if name in self.model.outputs})


def _needed(nodes: Sequence[NodeProto], tensors: set[str]) -> list[NodeProto]:
    """The nodes that give some tensors, and those that these need."""
    needed, found = set(tensors), []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(name for each in _within([node]) for name in each.input)
            needed.update(value.name for each in _within([node]) for graph in _graphs(each) for value in graph.output)
            found.append(node)
    return found[::-1]


def _graphs(node: NodeProto) -> list[GraphProto]:
    return [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def _within(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        yield node
        for graph in _graphs(node):
            yield from _within(graph.node)


def _declared(name: str, spec: TensorSpec) -> ValueInfoProto:
    lengths: tuple[Any, ...] = spec.shape
    shape = [str(length) if isinstance(length, Length) else length for length in lengths]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(spec.dtype), shape)
