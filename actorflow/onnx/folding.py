"""Folding: what nodes give is computed when a file is loaded, where it is constant or follows from lengths of axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import NodeProto, TensorProto, TypeProto, helper, numpy_helper, shape_inference
from onnx.defs import get_schema

from actorflow.onnx import constants, evaluating
from actorflow.onnx.values import Value
from actorflow.spec import Length, TensorSpec, at, axes_in, maximum, minimum

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph

#: Operators that are folded: those of shape arithmetic, and on elements. What else is constant is left to the plan, as
#: ONNX's evaluator takes some other operators for those of the newest opset.
_FOLDED = {
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Concat", "ConstantOfShape", "Cos", "CumSum",
    "DequantizeLinear", "Div", "Equal", "Exp", "Expand", "EyeLike", "Floor", "Gather", "GatherElements", "GatherND",
    "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "NonZero",
    "Not", "OneHot", "Or", "Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape",
    "Round", "ScatterElements", "ScatterND", "Shape", "Sin", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile",
    "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
}  # fmt: skip
#: Most elements of what is made larger than what it is made of.
_MOST = 1 << 20
#: Operators whose elements ONNX's evaluator takes one by one, as objects, and most elements that they read then.
_ONE_BY_ONE, _MOST_ONE_BY_ONE = {"GatherElements", "GatherND", "ScatterElements", "ScatterND"}, 1 << 17
#: Most elements that say how large a result is, and most lengths in an array: shapes have a few.
_MOST_LENGTHS = 1024

#: Why operators are refused that have no row.
WHY_NOT = {
    **dict.fromkeys(
        ["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"],
        "random numbers cannot be loaded, as no two runtimes draw the same ones: make them an input of the model",
    ),
    "ZipMap": "maps cannot be loaded: export the model with zipmap=False",
    **dict.fromkeys(
        ["StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch"],
        "text cannot be loaded",
    ),
    **dict.fromkeys(["ImageDecoder", "MaxRoiPool"], "the operator is not supported"),
}  # fmt: skip


def folded(
    proto: NodeProto,
    attributes: Mapping[str, Any],
    inputs: Sequence[Value | None],
    opset: int,
    opsets: Mapping[str, int],
    graph: Graph,
) -> Sequence[Value | None] | None:
    """The values of a node's outputs; None if they are not known now."""
    of_lengths = OF_LENGTHS.get(proto.op_type) if not proto.domain else None
    if of_lengths is not None and _are_few(proto, inputs, opset):
        found = of_lengths(attributes, inputs, opset)
        if found is not None and all(constants.affords(each.bytes, size=1) for each in found):
            return [_value(graph, each) for each in found]
    if proto.domain or not all(value is None or value.is_constant for value in inputs):
        return None
    arrays = [None if value is None else value.known for value in inputs]
    if proto.op_type not in _FOLDED or any(array is not None and array.dtype.hasobject for array in arrays):
        return None
    read = sum(value.spec.size for value in inputs if value is not None)
    if proto.op_type in _ONE_BY_ONE and read > _MOST_ONE_BY_ONE:
        return None
    is_small = evaluating.most_elements(proto.op_type, arrays) <= _MOST_LENGTHS
    if not is_small:
        made = _given(proto, inputs, opset)
        if made is None or sum(spec.size for spec in made) > max(read, _MOST):
            return None
        if not constants.affords(sum(spec.size_bytes for spec in made), size=1):
            return None
    given = evaluating.evaluated(proto, attributes, arrays, opset, opsets)
    if given is None or any(array is not None and array.dtype.hasobject for array in given):
        return None
    if is_small and not all(constants.affords(array.nbytes, size=1) for array in given if array is not None):
        return None
    for array in given:
        if array is not None:
            constants.count_while_held(array)
    return [None if x is None else Value(graph, TensorSpec(x.shape, x.dtype), known=x) for x in given]


def _are_few(proto: NodeProto, inputs: Sequence[Value | None], opset: int) -> bool:
    """Whether a node gives but a few lengths: they are computed one by one."""
    if not _are_lengths(inputs):  # all of which have known sizes; others have no lengths but those of their axes
        return True
    if math.prod([max(value.spec.size, 1) for value in inputs if value is not None]) <= _MOST_LENGTHS:
        return True
    made = _given(proto, inputs, opset)
    return made is not None and sum(spec.size for spec in made) <= _MOST_LENGTHS


def _given(proto: NodeProto, inputs: Sequence[Value | None], opset: int) -> list[TensorSpec] | None:
    """Types of what a node gives, by ONNX's rules and before it is computed; None if they do not say them.

    A length that they leave open, such as the number of elements that are not zero, is at most that of all inputs.
    """
    types, data = {}, {}
    node = NodeProto()
    node.CopyFrom(proto)
    del node.input[:]
    for i, value in enumerate(inputs):
        node.input.append("" if value is None else f"input{i}")
        if value is not None:
            types[f"input{i}"] = type_of(value)
            if value.is_constant and value.known is not None and value.known.size <= _MOST_LENGTHS:
                data[f"input{i}"] = numpy_helper.from_array(value.known)
    imports = [helper.make_opsetid(proto.domain, opset)]
    try:
        schema = get_schema(proto.op_type, opset, proto.domain)
        found = shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=imports)
    except Exception:  # noqa: BLE001  what is wrong is found in lowering
        return None
    most = sum(value.spec.size for value in inputs if value is not None)
    made = []
    for each in found.values():
        tensor = each.tensor_type
        if not tensor.HasField("shape"):
            return None
        shape = [dim.dim_value if dim.HasField("dim_value") else most for dim in tensor.shape.dim]
        made.append(TensorSpec(tuple(shape), helper.tensor_dtype_to_np_dtype(tensor.elem_type)))
    return made


def type_of(value: Value | None) -> TypeProto:
    """The type of a value, in ONNX's words."""
    if value is None:
        return TypeProto()
    if value.spec.is_object:  # what reads it says whether it is one tensor
        return helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_type_proto(kind, [None if isinstance(n, Length) else n for n in value.shape])


# -- what follows from lengths -----------------------------------------------------------------------------------------


class _Lengths:
    """Numbers and lengths, and the dtype that they have in the file."""

    def __init__(self, elements: Any, dtype: Any) -> None:
        self.elements = np.asarray(elements, object)
        self.dtype = np.dtype(dtype)

    @property
    def bytes(self) -> int:
        """About what the objects take."""
        return sum(200 * (1 + len(each.terms)) if isinstance(each, Length) else 8 for each in self.elements.flat)


def _value(graph: Graph, found: _Lengths) -> Value:
    array = found.elements
    spec = TensorSpec(array.shape, found.dtype)
    if any(isinstance(each, Length) for each in array.reshape(-1)):
        return Value(graph, spec, lengths=array)
    return Value(graph, spec, known=array.astype(found.dtype))


_Given = Sequence[Value | None]
_Rule = Callable[[Mapping[str, Any], _Given, int], "Sequence[_Lengths] | None"]


def _objects(value: Value) -> Any:
    numbers = value.numbers
    return None if numbers is None or (not value.is_constant and value.lengths is None) else np.asarray(numbers, object)


def _are_lengths(inputs: _Given) -> bool:
    """Whether all inputs are numbers or lengths, and one is a length: the others are left to ONNX's evaluator."""
    given = [value for value in inputs if value is not None]
    return any(value.lengths is not None for value in given) and all(
        value.lengths is not None or value.is_constant for value in given
    )


def _of_shape(function: Callable[..., Any]) -> _Rule:
    """The rule of an operator that is a function of attributes and a shape."""

    def rule(attributes: Mapping[str, Any], inputs: _Given, opset: int) -> Sequence[_Lengths] | None:
        (x,) = inputs
        assert x is not None
        return [_Lengths(function(attributes, x.shape), np.int64)]

    return rule


def _of(function: Callable[..., Any]) -> _Rule:
    """The rule of an operator that is a function of attributes and arrays."""

    def rule(attributes: Mapping[str, Any], inputs: _Given, opset: int) -> Sequence[_Lengths] | None:
        if not _are_lengths(inputs):
            return None
        dtype = next(value.dtype for value in inputs if value is not None)
        arrays = [None if value is None else _objects(value) for value in inputs]
        try:
            made = function(attributes, *arrays)
        except (TypeError, ValueError, IndexError, ZeroDivisionError):  # a number is needed that is not known
            return None
        return [_Lengths(made, dtype)]

    return rule


def _elementwise(function: Callable[..., Any], inputs: int, dtype: Any = None) -> _Rule:
    ufunc = np.frompyfunc(function, inputs, 1)
    whole = _of(lambda attributes, *arrays: np.asarray(ufunc(*arrays), object))

    def rule(attributes: Mapping[str, Any], inputs: _Given, opset: int) -> Sequence[_Lengths] | None:
        found = whole(attributes, inputs, opset)
        return found if dtype is None or found is None else [_Lengths(each.elements, dtype) for each in found]

    return rule


def _whole(number: Any) -> Any:
    """A number that is a length's factor: an integer, also where the file has it as a floating-point number."""
    if isinstance(number, float | np.floating):
        if not float(number).is_integer():
            raise ValueError(number)
        return int(number)
    return number


def _quotient(attributes: Mapping[str, Any], inputs: _Given, opset: int) -> Sequence[_Lengths] | None:
    is_exact = any(value is not None and value.dtype.kind == "f" for value in inputs)

    def over(a: Any, b: Any) -> Any:
        a, b = _whole(a), _whole(b)
        if is_exact and (rest := a % b) != 0:
            raise ValueError(rest)
        if not isinstance(a, Length) and not isinstance(b, Length):
            quotient = abs(a) // abs(b)
            return quotient if (a < 0) == (b < 0) else -quotient
        shortest = dict.fromkeys(axes_in((a, b)), 1)
        if at(a, shortest) < 0 or at(b, shortest) < 0:
            raise ValueError(a)  # the file rounds towards 0, formulas of lengths round down
        return a // b

    return _elementwise(over, 2)(attributes, inputs, opset)


def _chosen(attributes: Mapping[str, Any], inputs: _Given, opset: int) -> Sequence[_Lengths] | None:
    condition, *branches = inputs
    if condition is None or not condition.is_constant or not _are_lengths(branches) or branches[0] is None:
        return None
    a, b = [np.asarray(value.numbers, object) for value in branches if value is not None]
    return [_Lengths(np.where(np.asarray(condition.known), a, b), branches[0].dtype)]


def _equal(a: Any, b: Any) -> Any:
    if isinstance(a, Length) or isinstance(b, Length):
        difference = a - b
        if isinstance(difference, Length):
            if (not isinstance(a, Length) and a < 0) or (not isinstance(b, Length) and b < 0):
                return False
            raise ValueError("not known")
        return difference == 0
    return a == b


def _cast(attributes: Mapping[str, Any], inputs: _Given, opset: int) -> Sequence[_Lengths] | None:
    if not _are_lengths(inputs) or inputs[0] is None:
        return None
    dtype = helper.tensor_dtype_to_np_dtype(attributes["to"])
    if dtype.kind not in "if" or dtype.itemsize < 4:  # which a length may not fit into
        return None
    return [_Lengths(inputs[0].lengths, dtype)]


OF_LENGTHS: dict[str, _Rule] = {
    "Shape": _of_shape(lambda attributes, shape: shape[attributes.get("start", 0) : attributes.get("end")]),
    "Size": _of_shape(lambda _, shape: math.prod(shape)),
    "Cast": _cast,
    **{operator: _of(function) for operator, function in evaluating.OF_OBJECTS.items()},
    **dict.fromkeys(("Identity", "Floor", "Ceil"), _elementwise(lambda x: x, 1)),
    "Neg": _elementwise(lambda x: -x, 1),
    "Add": _elementwise(lambda a, b: _whole(a) + _whole(b), 2),
    "Sub": _elementwise(lambda a, b: _whole(a) - _whole(b), 2),
    "Mul": _elementwise(lambda a, b: _whole(a) * _whole(b), 2),
    "Div": _quotient,
    "Where": _chosen,
    "Min": _elementwise(minimum, 2),
    "Max": _elementwise(maximum, 2),
    "Equal": _elementwise(_equal, 2, np.bool_),
}
