"""Folding: what nodes give is computed when a file is loaded, where it is constant or follows from lengths of axes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import NodeProto, helper
from onnx.reference import ReferenceEvaluator

from actorflow.onnx.values import Value
from actorflow.spec import Length, TensorSpec, at, axes_in, maximum, minimum

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph

#: Operators that are folded: those of shape arithmetic, and on elements. What else is constant is left to the plan, as
#: ONNX's evaluator takes some other operators for those of the newest opset.
_FOLDED = {
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Concat", "ConstantOfShape", "Cos", "CumSum",
    "DequantizeLinear", "Equal", "Exp", "Expand", "EyeLike", "Floor", "Gather", "GatherElements", "GatherND", "Greater",
    "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "NonZero", "Not",
    "OneHot", "Or", "Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape",
    "Round", "ScatterElements", "ScatterND", "Shape", "Sin", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile",
    "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
}  # fmt: skip
#: Most elements of what is made larger than what it is made of.
_MOST = 1 << 20
#: Operators that give more elements than they read, and the input that says how many.
_GROWING = {"ConstantOfShape": 0, "Expand": 1, "Range": -1, "Tile": 1}

#: Why operators are refused that have no row.
WHY_NOT = {
    **dict.fromkeys(["Loop", "Scan"], "loops cannot be loaded: a graph has no cycles"),
    **dict.fromkeys(
        [
            "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength",
            "SequenceMap", "SplitToSequence", "ConcatFromSequence",
        ],
        "sequences cannot be loaded: a blob holds one tensor",
    ),
    **dict.fromkeys(
        ["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"],
        "random numbers cannot be loaded, as no two runtimes draw the same ones: make them an input of the model",
    ),
    **dict.fromkeys(
        ["Optional", "OptionalGetElement", "OptionalHasElement"], "optional values cannot be loaded"
    ),
    **dict.fromkeys(
        ["StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch", "TfIdfVectorizer", "LabelEncoder"],
        "text cannot be loaded",
    ),
    **dict.fromkeys(["ImageDecoder", "MaxRoiPool", "MelWeightMatrix"], "the operator is not supported"),
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
    if of_lengths is not None:
        found = of_lengths(attributes, inputs, opset)
        if found is not None:
            return [_value(graph, each) for each in found]
    if proto.domain or not all(value is None or value.is_constant for value in inputs):
        return None
    arrays = [None if value is None else value.known for value in inputs]
    if proto.op_type == "Div":
        return [_known(graph, _divided(*arrays))]
    if proto.op_type not in _FOLDED:
        return None
    if any(value is not None and value.dtype.hasobject for value in inputs) or _grows(proto, inputs):
        return None
    return _evaluated(proto, arrays, opsets, graph)


def _known(graph: Graph, array: Any) -> Value:
    return Value(graph, TensorSpec(array.shape, array.dtype), known=array)


def _divided(a: Any, b: Any) -> Any:
    """The quotient, of integers rounded towards 0."""
    if a.dtype.kind not in "iu":
        return np.asarray(a / b, a.dtype)
    quotient = a // b
    return np.asarray(quotient + ((quotient < 0) & (quotient * b != a)), a.dtype)


def _grows(proto: NodeProto, inputs: Sequence[Value | None]) -> bool:
    """Whether the result may be much larger than what it is made of."""
    if proto.op_type not in _GROWING:
        return False
    position = _GROWING[proto.op_type]
    if position < 0:
        return True
    said = inputs[position]
    assert said is not None
    assert said.known is not None
    size = math.prod(max(int(n), 1) for n in said.known.reshape(-1).tolist())
    first = inputs[0]
    return (size * (first.spec.size if proto.op_type == "Tile" and first else 1)) > _MOST


def _evaluated(
    proto: NodeProto, arrays: Sequence[Any], opsets: Mapping[str, int], graph: Graph
) -> Sequence[Value | None] | None:
    """What ONNX's own evaluator gives; None if it fails, as what the node is lowered to then says why."""
    names = [f"input{i}" if array is not None else "" for i, array in enumerate(arrays)]
    node = NodeProto()
    node.CopyFrom(proto)
    del node.input[:], node.output[:]
    node.input.extend(names)
    node.output.extend([f"output{i}" for i, output in enumerate(proto.output) if output])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = helper.make_model(
                helper.make_graph(
                    [node],
                    "folded",
                    [helper.make_value_info(name, _any()) for name in names if name],
                    [helper.make_value_info(name, _any()) for name in node.output],
                ),
                opset_imports=[helper.make_opsetid(domain, version) for domain, version in opsets.items()],
            )
            feeds = {name: array for name, array in zip(names, arrays, strict=True) if name}
            found = ReferenceEvaluator(model).run(None, feeds)
    except Exception:  # noqa: BLE001  it raises whatever NumPy does
        return None
    given = iter(found)
    values: list[Value | None] = []
    for output in proto.output:
        array = np.asarray(next(given)) if output else None
        if array is not None and array.dtype.hasobject:
            return None
        values.append(None if array is None else _known(graph, array))
    return values


def _any() -> Any:
    from onnx import TypeProto

    return TypeProto()


# -- what follows from lengths -----------------------------------------------------------------------------------------

#: An array of numbers, or, of dtype object, of numbers and lengths that stand for integers of a dtype.
_Numbers = Any


class _Lengths:
    """Numbers and lengths, and the dtype that they have in the file."""

    def __init__(self, elements: Any, dtype: Any) -> None:
        self.elements = elements
        self.dtype = np.dtype(dtype)


def _value(graph: Graph, found: _Lengths) -> Value:
    array = np.asarray(found.elements, object)
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


def _shape(attributes: Mapping[str, Any], inputs: _Given, opset: int) -> Sequence[_Lengths] | None:
    (x,) = inputs
    assert x is not None
    start, end = attributes.get("start", 0), attributes.get("end")
    return [_Lengths(_vector(x.shape[slice(start, end)]), np.int64)]


def _size(attributes: Mapping[str, Any], inputs: _Given, opset: int) -> Sequence[_Lengths] | None:
    (x,) = inputs
    assert x is not None
    made = np.empty((), object)
    made[()] = math.prod(x.shape)
    return [_Lengths(made, np.int64)]


def _vector(elements: Sequence[Any]) -> Any:
    made = np.empty(len(elements), object)
    made[:] = list(elements)
    return made


def _of(function: Callable[..., Any]) -> _Rule:
    """The rule of an operator that is a function of arrays, attributes and the opset."""

    def rule(attributes: Mapping[str, Any], inputs: _Given, opset: int) -> Sequence[_Lengths] | None:
        if not _are_lengths(inputs):
            return None
        dtype = next(value.dtype for value in inputs if value is not None)
        arrays = [None if value is None else _objects(value) for value in inputs]
        try:
            made = function(attributes, opset, *arrays)
        except (TypeError, ValueError, IndexError, ZeroDivisionError):  # a number is needed that is not known
            return None
        return (
            None if made is None else [_Lengths(each, dtype) for each in (made if isinstance(made, list) else [made])]
        )

    return rule


def _elementwise(function: Callable[..., Any], dtype: Any = None) -> _Rule:
    """The rule of an operator on elements."""
    ufunc = np.frompyfunc(function, function.__code__.co_argcount, 1)
    whole = _of(lambda attributes, opset, *arrays: np.asarray(ufunc(*arrays), object))

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


def _times(a: Any, b: Any) -> Any:
    return _whole(a) * _whole(b)


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

    return _elementwise(over)(attributes, inputs, opset)


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


def _min(a: Any, b: Any) -> Any:
    return minimum(a, b)


def _max(a: Any, b: Any) -> Any:
    return maximum(a, b)


def _axes(attributes: Mapping[str, Any], given: Any) -> tuple[int, ...] | None:
    found = attributes.get("axes") if given is None else given.reshape(-1).tolist()
    return None if found is None else tuple([int(each) for each in found])


def _unsqueezed(attributes: Mapping[str, Any], opset: int, x: Any, axes: Any = None) -> Any:
    return np.expand_dims(x, _axes(attributes, axes) or ())


def _squeezed(attributes: Mapping[str, Any], opset: int, x: Any, axes: Any = None) -> Any:
    return np.squeeze(x, _axes(attributes, axes))


def _gathered(attributes: Mapping[str, Any], opset: int, x: Any, indices: Any) -> Any:
    return np.asarray(np.take(x, indices.astype(np.int64), attributes.get("axis", 0)), object)


def _sliced(attributes: Mapping[str, Any], opset: int, x: Any, *given: Any) -> Any:
    starts, ends = (given[0], given[1]) if given else (np.array(attributes[n], object) for n in ("starts", "ends"))
    axes = given[2] if len(given) > 2 else attributes.get("axes")
    steps = given[3] if len(given) > 3 else None
    axes = range(len(starts)) if axes is None else np.asarray(axes).reshape(-1).tolist()
    key: list[Any] = [slice(None)] * x.ndim
    for i, axis in enumerate(axes):
        key[axis] = slice(int(starts[i]), int(ends[i]), None if steps is None else int(steps[i]))
    return x[tuple(key)]


def _reshaped(attributes: Mapping[str, Any], opset: int, x: Any, shape: Any) -> Any:
    return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(shape.astype(np.int64).tolist())])


def _joined(attributes: Mapping[str, Any], opset: int, *parts: Any) -> Any:
    return np.concatenate(parts, attributes.get("axis", 0))


def _product(attributes: Mapping[str, Any], opset: int, x: Any, axes: Any = None) -> Any:
    return np.asarray(np.prod(x, _axes(attributes, axes), keepdims=bool(attributes.get("keepdims", 1))), object)


def _cast(attributes: Mapping[str, Any], inputs: _Given, opset: int) -> Sequence[_Lengths] | None:
    if not _are_lengths(inputs) or inputs[0] is None:
        return None
    dtype = helper.tensor_dtype_to_np_dtype(attributes["to"])
    if dtype.kind not in "if" or dtype.itemsize < 4:  # which a length may not fit into
        return None
    return [_Lengths(inputs[0].lengths, dtype)]


OF_LENGTHS: dict[str, _Rule] = {
    "Shape": _shape,
    "Size": _size,
    "Cast": _cast,
    "Gather": _of(_gathered),
    "Slice": _of(_sliced),
    "Concat": _of(_joined),
    "Reshape": _of(_reshaped),
    "Unsqueeze": _of(_unsqueezed),
    "Squeeze": _of(_squeezed),
    "ReduceProd": _of(_product),
    "Identity": _elementwise(lambda x: x),
    "Floor": _elementwise(lambda x: x),
    "Ceil": _elementwise(lambda x: x),
    "Neg": _elementwise(lambda x: -x),
    "Add": _elementwise(lambda a, b: _whole(a) + _whole(b)),
    "Sub": _elementwise(lambda a, b: _whole(a) - _whole(b)),
    "Mul": _elementwise(_times),
    "Div": _quotient,
    "Where": _chosen,
    "Min": _elementwise(_min),
    "Max": _elementwise(_max),
    "Equal": _elementwise(_equal, np.bool_),
}
