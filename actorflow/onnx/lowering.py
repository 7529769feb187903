"""Lowering: the nodes of a file, one after the other, become ops of a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.defs import get_schema

from actorflow.errors import ActorflowError, GraphError
from actorflow.onnx import by_data, constants, flow, folding
from actorflow.onnx.file import BROKEN, names_read
from actorflow.onnx.operators import TABLE
from actorflow.onnx.refusal import DependsOnData, Refused
from actorflow.onnx.table import Node
from actorflow.onnx.values import Order, Value, in_order, usual
from actorflow.spec import Length, TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph
    from actorflow.graph.nodes import Blob


class Declared(NamedTuple):
    """A tensor's declaration in the file: its shape, and its dtype where that is known."""

    shape: tuple[Any, ...]
    dtype: np.dtype[Any] | None


#: Operators that keep the shape of the first input.
_KEEPING = {"Identity", "Cast", "CastLike", "Sqrt", "Log", "Exp", "Neg", "Abs", "Reciprocal", "Relu", "Sigmoid", "Not"}
#: Most scopes inside of each other.
_DEEPEST = 64
#: Most scopes of the names of nodes, besides one for each op.
_MOST_SCOPES = 4096
#: The first version of ONNX's own operators that is known here.
OLDEST = 6
#: Names of ONNX's own domain.
_OWN = ("", "ai.onnx")
#: Dtypes of outputs that are of one type in all nodes of an operator.
_DTYPES = {"tensor(bool)": np.dtype(bool), "tensor(int64)": np.dtype(np.int64), "tensor(float)": np.dtype(np.float32)}
#: Tensors by name; None for those that a refused node should have given.
Values = dict[str, Value | None]


class Lowering:
    """One walk over the nodes of a file.

    Args:
        graph: Root of the graph in which ops are made, in its current scope.
        opsets: Version of each domain.
        declared: Types of tensors that the file declares.
        unusable: Inputs that cannot be loaded, and why.
        variable: Makes the variable of a trained initializer, of its name, the scope and the name there that it
            says, and its value; None if nothing is trained.

    Attributes:
        refused: Refused nodes: operator, name of the node, and why.
    """

    def __init__(
        self,
        graph: Graph,
        opsets: Mapping[str, int],
        declared: Mapping[str, TensorSpec],
        unusable: Mapping[str, str],
        variable: Callable[[str, Graph, str, Any], Blob] | None = None,
    ) -> None:
        self.graph = graph
        self.declared: dict[str, Declared] = {name: Declared(*spec) for name, spec in declared.items()}
        self.opsets = {("" if domain in _OWN else domain): version for domain, version in opsets.items()}
        self._unusable = unusable
        self.refused: list[tuple[str, str, str]] = []
        self._variable = variable
        self._outer = graph.current_scope
        self._scopes: dict[tuple[str, ...], Graph] = {(): self._outer}
        self._made_by: dict[str, NodeProto] = {}  # the node that gives each tensor
        self._has_objects = False  # whether only a run knows the lengths of some tensors

    # -- values --------------------------------------------------------------------------------------------------------

    def constant(self, array: Any) -> Value:
        """The value of an array."""
        return Value(self.graph, TensorSpec(array.shape, array.dtype), known=array)

    def initializers(self, graph: GraphProto, weights: Mapping[str, Any] = MappingProxyType({})) -> Values:
        """The values of a graph's initializers; ``weights`` are those that it has without their bytes."""
        found: Values = {}
        for tensor in graph.initializer:
            array = weights[tensor.name] if tensor.name in weights else array_of(tensor)
            value = found[tensor.name] = self.constant(constants.own(array))
            if self._variable is not None and is_trained(tensor):
                value.trained = self._trained(tensor.name, value)
        if graph.sparse_initializer:
            raise GraphError("sparse initializers cannot be loaded")
        return found

    def _trained(self, name: str, value: Value) -> Callable[[], Blob]:
        make = self._variable
        assert make is not None
        *scopes, own = _path(name) or ["variable"]

        def made() -> Blob:
            with self._scope(tuple(scopes)) as scope:
                return make(name, scope, own, value.known)

        return made

    # -- the walk ------------------------------------------------------------------------------------------------------

    def walk(self, nodes: Sequence[NodeProto], values: Values, outputs: Iterable[str], prefix: str = "") -> None:
        """Lower nodes in their order, which is topological.

        Args:
            nodes: The nodes.
            values: Tensors by name: those that are known before, to which those that nodes give are added.
            outputs: Names of the tensors that are read afterwards.
            prefix: Prefix of the nodes' names.
        """
        outputs = list(outputs)
        nodes = flow.with_stacks(nodes, outputs)
        self._has_objects = self._has_objects or any(map(_is_object, values.values()))
        reads = Counter(outputs)
        read_by = [[*names_read(proto)] for proto in nodes]
        for names in read_by:
            reads.update(names)
        unread = reads.copy()
        for proto in reversed(nodes):  # what is declared of a function of elements is so of what it reads
            shape = self.declared.get(proto.output[0]) if proto.op_type in _KEEPING and proto.output else None
            if shape is not None:
                self.declared.setdefault(proto.input[0], Declared(shape.shape, None))
        for i, proto in enumerate(nodes):
            name = prefix + (proto.name or f"{proto.op_type}_{next(filter(None, proto.output), i)}")
            given: Sequence[Value | None]
            try:
                given = self._lowered(proto, name, values, reads)
            except Refused as error:
                self.refused.append((proto.op_type, name, str(error)))
                given = ()
            except (ActorflowError, *BROKEN) as error:
                # Attributes and constants of a file may be anything, and what reads them expects what ONNX says.
                self.refused.append((proto.op_type, name, f"{type(error).__name__}: {error}"))
                given = ()
            for position, output in enumerate(proto.output):
                if output:
                    self._made_by[output] = proto
                    values[output] = value = given[position] if position < len(given) else None
                    self._has_objects = self._has_objects or _is_object(value)
            for each in read_by[i]:
                unread[each] -= 1
                value = values.get(each)
                if not unread[each] and value is not None and value.is_constant:
                    values[each] = Value(self.graph, value.spec)  # without the array, which may be large

    def _lowered(self, proto: NodeProto, name: str, values: Values, reads: Mapping[str, int]) -> Sequence[Value | None]:
        operator = proto.op_type if proto.domain in _OWN else f"{proto.domain}:{proto.op_type}"
        row = TABLE.get(operator)
        has_parts = proto.op_type in flow.OPERATORS and proto.domain in _OWN
        if has_parts and proto.op_type == "If" and self._is_decided(proto, values):
            return self._branch(proto, name, values)
        if proto.domain in _OWN and self.opsets.get("", OLDEST) < OLDEST:
            raise Refused(f"it is of opset {self.opsets['']}, and known are {OLDEST} and later ones")
        if row is not None and operator == "Constant":  # no op is made
            constant = row.lower(
                Node(self.graph, proto, self._attributes(proto), (), OLDEST, (), self._deferring(name))
            )
            return (cast(Value, constant),)
        schema = _schema(*self._operator(proto))
        has_body = bool(schema and (schema.has_function or schema.has_context_dependent_function))
        inputs: list[Value | None] = []
        for each in proto.input:
            if each in self._unusable:
                raise Refused(f"its input {each!r} {self._unusable[each]}")
            if each and values.get(each) is None:
                if each not in values:
                    raise Refused(f"reads {each!r}, which nothing before it gives")
                return ()  # what gives it was refused
            inputs.append(values[each] if each else None)
        attributes = self._attributes(proto)
        opset = self.opsets.get("" if proto.domain in _OWN else proto.domain, 1)
        reads_objects = self._has_objects and any(_is_object(values.get(each)) for each in names_read(proto))
        if reads_objects and not (has_parts or proto.op_type == "SequenceMap"):
            with self._named(name):
                found = self._by_data(proto, attributes, inputs, opset)
            if found is None:
                raise Refused("reads what only a run knows the lengths of, and is computed for known ones alone")
            return found
        if has_parts:
            with self._named(name):
                return flow.lowered(self, proto, inputs, values)
        found = folding.folded(proto, attributes, inputs, opset, self.opsets, self.graph)
        if found is not None:
            return found
        alone = [reads[each] == 1 for each in proto.input]
        with self._named(name):
            try:
                if row is None and has_body:
                    return self._body(proto, name, inputs, schema)
                if row is None:
                    raise Refused(folding.WHY_NOT.get(proto.op_type, "the operator is not supported"))
                lowered = row.lower(Node(self.graph, proto, attributes, inputs, opset, alone, self._deferring(name)))
            except Refused as error:
                if row is not None and not isinstance(error, DependsOnData):
                    raise
                found = self._by_data(proto, attributes, inputs, opset)
                if found is None:
                    raise
                return found
        return (lowered,) if isinstance(lowered, Value) else lowered

    def _by_data(
        self, proto: NodeProto, attributes: Mapping[str, Any], inputs: Sequence[Value | None], opset: int
    ) -> Sequence[Value | None] | None:
        """An op of arrays: it gives what the file declares, and else Python objects; None if nothing computes it."""
        first = next((value for value in inputs if value is not None), None)
        wanted = [bool(output) for output in proto.output]
        if (
            (first is None and proto.op_type not in by_data.FUNCTIONS)
            or wanted != sorted(wanted, reverse=True)
            or proto.op_type in folding.WHY_NOT
        ):
            return None
        is_known = not any(map(_is_object, inputs))
        is_same = is_known and not proto.domain and proto.op_type in by_data.SAME
        schema = _schema(*self._operator(proto))
        specs = []
        for i, output in enumerate(filter(None, proto.output)):
            shape = () if proto.op_type in by_data.SCALAR else first.shape if is_same and first is not None else None
            shape, dtype = self.declared.get(output) or (shape, None)
            dtype = dtype or _dtype_of(schema, i, first if is_known else None)
            specs.append(by_data.OBJECT if shape is None or dtype is None else TensorSpec(shape, dtype))
        given = tuple([value is not None for value in inputs])
        operation = by_data.by_data(proto.op_type, proto.domain, attributes, opset, given, specs)
        if operation is None:
            return None
        read = [value for value in inputs if value is not None] or [self.constant(np.array(0))]
        made = self.graph.apply(operation, *[value.blob() for value in read])
        blobs = made if isinstance(made, tuple) else (made,)
        return [in_order(self.graph, usual(len(blob.shape)), blob) for blob in blobs]

    def _deferring(self, name: str) -> Callable[..., Callable[[], tuple[Order, Blob]]]:
        def deferred(make: Callable[[], tuple[Order, Blob]]) -> Callable[[], tuple[Order, Blob]]:
            def made() -> tuple[Order, Blob]:
                with self._named(name):
                    return make()

            return made

        return deferred

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """The scope that a node's name says, and its last part as name of the ops that are made inside."""
        *scopes, own = _path(name) or ["node"]
        with self._scope(tuple(scopes)), self.graph._made(name=own):
            yield

    def _scope(self, path: tuple[str, ...]) -> Graph:
        found = self._scopes.get(path)
        if found is None:
            if len(self._scopes) > _MOST_SCOPES + self.graph.root.size:
                raise GraphError(f"the names of nodes are paths to more than {len(self._scopes)} scopes")
            with self._scope(path[:-1]):
                found = self._scopes[path] = self.graph.unique_subgraph(path[-1])
        return found

    def _operator(self, proto: NodeProto) -> tuple[str, int, str]:
        domain = "" if proto.domain in _OWN else proto.domain
        return proto.op_type, self.opsets.get(domain, 1), domain

    def _attributes(self, proto: NodeProto) -> dict[str, Any]:
        """The attributes, with the defaults that the operator's description says."""
        given = {attribute.name: _plain(attribute) for attribute in proto.attribute}
        return {**_defaults(*self._operator(proto)), **given}

    # -- parts that are graphs themselves ------------------------------------------------------------------------------

    def _body(self, proto: NodeProto, name: str, inputs: Sequence[Value | None], schema: Any) -> Sequence[Value | None]:
        assert schema is not None
        function = _function(schema, proto, inputs, self.opsets.get("" if proto.domain in _OWN else proto.domain, 1))
        return self.call(function, proto, name, inputs)

    def call(
        self, function: onnx.FunctionProto, proto: NodeProto, name: str, inputs: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        """Lower the body of a function in the place of a node."""
        values: Values = {}
        missing = set()
        for i, each in enumerate(function.input):
            if i < len(inputs) and inputs[i] is not None:
                values[each] = inputs[i]
            else:
                missing.add(each)
        schema = _schema(*self._operator(proto))
        given = _described(schema)
        given.update({attribute.name: attribute for attribute in function.attribute_proto})
        given.update({attribute.name: attribute for attribute in proto.attribute})
        nodes = [_instantiated(node, given, missing) for node in function.node]
        outer, self.opsets = self.opsets, {**self.opsets, **{o.domain: o.version for o in function.opset_import}}
        declared = self.declared
        pairs = zip(function.output, proto.output, strict=False)
        self.declared = {inner: declared[output] for inner, output in pairs if output in declared}
        before = len(self.refused)
        try:
            self.walk(nodes, values, function.output, f"{name}/")
        finally:
            self.opsets, self.declared = outer, declared
        if len(self.refused) > before:
            operator, _, why = self.refused[before]
            del self.refused[before:]
            raise Refused(f"{operator} in its body: {why}" if operator != proto.op_type else why)
        return [values.get(output) for output in function.output]

    def _is_decided(self, proto: NodeProto, values: Values) -> bool:
        """Return whether it is known which branch is taken, or nothing is known as what gives it was refused."""
        condition = values.get(proto.input[0])
        if condition is None:
            return True
        numbers = condition.numbers
        if numbers is not None and not any(isinstance(each, Length) for each in numbers.reshape(-1)):
            return True
        return flow.is_squeeze(proto, self._made_by)

    def _branch(self, proto: NodeProto, name: str, values: Values) -> Sequence[Value | None]:
        condition = values.get(proto.input[0])
        if condition is None:
            return ()
        numbers = condition.numbers
        taken = "then_branch" if numbers is None or numbers.reshape(-1)[0] else "else_branch"
        branch = next(attribute.g for attribute in proto.attribute if attribute.name == taken)
        inner: Values = {**values, **self.initializers(branch)}
        outputs = [output.name for output in branch.output]
        self.walk(branch.node, inner, outputs, f"{name}/")
        return [inner.get(output) for output in outputs]

    def part(self, graph: GraphProto, given: Sequence[Value], values: Values, may_be_objects: int) -> list[Value]:
        """Lower a graph inside a node, as a part of the graph that is computed by itself: in the current scope.

        Args:
            graph: The graph.
            given: Values of its inputs.
            values: All values around it.
            may_be_objects: Number of the first outputs of which only a run has to know the lengths.
        Returns:
            The values of its outputs.
        """
        inner: Values = {each: flow.inside(value) for each, value in values.items()}
        inner.update(self.initializers(graph))
        inner.update(zip([each.name for each in graph.input], given, strict=True))
        outputs = [output.name for output in graph.output]
        before, around = len(self.refused), (self._outer, self._scopes)
        self._outer = self.graph.current_scope
        self._scopes = {(): self._outer}
        try:
            self.walk(graph.node, inner, outputs)
            if len(self.refused) > before:
                operator, _, why = self.refused[before]
                raise Refused(f"{operator} in its body: {why}")
            found = [inner.get(output) for output in outputs]
            missing = [output for output, value in zip(outputs, found, strict=True) if value is None]
            if missing:
                raise Refused(f"nothing in its body gives {', '.join(map(repr, missing))}")
            for i, (output, value) in enumerate(zip(outputs, found, strict=True)):
                if value is not None and value.blob().spec.is_object and i >= may_be_objects:  # made in this scope
                    raise Refused(f"only a run knows the lengths of {output!r}, which its body gives")
            return [value for value in found if value is not None]
        finally:
            self._outer, self._scopes = around
            del self.refused[before:]


def _is_object(value: Value | None) -> bool:
    """Return whether only a run knows the lengths of a value."""
    return value is not None and value.spec.is_object


@lru_cache(512)
def _schema(operator: str, version: int, domain: str) -> Any:
    try:
        return get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return None


def _dtype_of(schema: Any, position: int, first: Value | None) -> Any:
    """The dtype of an output, where the operator has one for it or gives it that of the first input; None if not."""
    if schema is None:
        return None
    output = schema.outputs[min(position, len(schema.outputs) - 1)]
    if len(output.types) == 1:
        return _DTYPES.get(*output.types)
    return first.dtype if first is not None and output.type_str == schema.inputs[0].type_str else None


def _described(schema: Any) -> dict[str, AttributeProto]:
    """Attributes with the defaults that an operator's description says."""
    described = [each.default_value for each in schema.attributes.values()] if schema else []
    return {each.name: each for each in described if each.type != AttributeProto.UNDEFINED}


@lru_cache(512)
def _defaults(operator: str, version: int, domain: str) -> dict[str, Any]:
    return {name: _plain(each) for name, each in _described(_schema(operator, version, domain)).items()}


def is_trained(tensor: TensorProto) -> bool:
    """Whether an initializer is one of the weights that can be trained."""
    return bool(tensor.dims) and helper.tensor_dtype_to_np_dtype(tensor.data_type).kind in "fV"


def array_of(tensor: TensorProto) -> Any:
    """The array that a tensor of the file is.

    Raises:
        Refused: if it is text.
    """
    if tensor.data_type == TensorProto.STRING:
        raise Refused(f"tensor {tensor.name!r} is text")
    array = numpy_helper.to_array(tensor)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def legal(name: str) -> str:
    """A name of the file as one of a node here: printable and without a slash."""
    if name.isprintable() and "/" not in name:  # as nearly all are
        return name or "_"
    return "".join([c if c.isprintable() and c != "/" else "_" for c in name])


def _path(name: str) -> list[str]:
    """The scopes that a name of the file says, and the name there."""
    return [legal(part) for part in name.split("/", _DEEPEST) if part]


#: Fields of attributes that are numbers, by their types: `helper.get_attribute_value` asks one type after the other.
_FIELDS = {
    AttributeProto.INT: "i",
    AttributeProto.INTS: "ints",
    AttributeProto.FLOAT: "f",
    AttributeProto.FLOATS: "floats",
}


def _plain(attribute: AttributeProto) -> Any:
    if attribute.ref_attr_name:  # functions have been inlined where they are called
        raise Refused(
            f"its attribute {attribute.name!r} is {attribute.ref_attr_name!r} of a function, and it is in none"
        )
    if (field := _FIELDS.get(attribute.type)) is not None:
        found = getattr(attribute, field)
        return found if len(field) == 1 else [*found]
    if attribute.type == AttributeProto.TENSOR:
        return constants.own(array_of(attribute.t))
    if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS, AttributeProto.SPARSE_TENSOR):
        return None
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if attribute.type == AttributeProto.STRINGS:
        return [each.decode("utf-8", "replace") for each in value]
    return value


def _function(schema: Any, proto: NodeProto, inputs: Sequence[Value | None], opset: int) -> onnx.FunctionProto:
    function = onnx.FunctionProto()
    if schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
        version = max(versions, default=schema.since_version)
        types = [folding.type_of(value).SerializeToString() for value in inputs]
        body = schema.get_context_dependent_function_with_opset_version(version, proto.SerializeToString(), types)
    else:
        versions = [v for v in schema.function_opset_versions if v <= opset]
        body = schema.get_function_with_opset_version(max(versions, default=schema.since_version))
    function.ParseFromString(body)
    return function


def _instantiated(node: NodeProto, given: Mapping[str, AttributeProto], missing: set[str]) -> NodeProto:
    """A node of a function's body, with the attributes and without the inputs that the call gives or leaves out."""
    made = NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            kept = made.attribute.add()
            kept.CopyFrom(attribute)
            for inner in (*kept.graphs, *([kept.g] if kept.type == AttributeProto.GRAPH else [])):
                nodes = [_instantiated(each, given, missing) for each in inner.node]
                del inner.node[:]
                inner.node.extend(nodes)
        elif attribute.ref_attr_name in given:
            kept = made.attribute.add()
            kept.CopyFrom(given[attribute.ref_attr_name])
            kept.name = attribute.name
    for i, each in enumerate(made.input):
        if each in missing:
            made.input[i] = ""
    return made
