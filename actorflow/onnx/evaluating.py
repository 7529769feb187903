"""Outputs of nodes of constants: computed by NumPy, and where that takes more than a line, by ONNX's own evaluator.

The evaluator takes a quarter of a second to import, and a millisecond a node.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from onnx import NodeProto, TypeProto, helper
from onnx.reference import ReferenceEvaluator

_Attributes = Mapping[str, Any]
#: The first version of ONNX's operators whose functions of elements broadcast as NumPy's do.
_OLDEST = 7


def evaluated(
    proto: NodeProto, attributes: _Attributes, arrays: Sequence[Any], opset: int, opsets: Mapping[str, int]
) -> Sequence[Any] | None:
    """Arrays that a node gives of arrays, None for outputs that nobody reads.

    None if that cannot be computed, as what the node is lowered to then says why.
    """
    function: Any = _FUNCTIONS.get(proto.op_type) if opset >= _OLDEST else None
    try:
        found = None if function is None else function(attributes, *arrays)
        if found is not None:
            return [_alone(np.asarray(found), arrays)]
        return _by_onnx(proto, arrays, opsets)
    except Exception:  # noqa: BLE001  NumPy and ONNX's evaluator raise whatever they like
        return None


def most_elements(operator: str, arrays: Sequence[Any]) -> float:
    """Number of elements that a node gives of arrays, or more; infinite where only its result says so."""
    sizes = [array.size for array in arrays if array is not None]
    if operator in _MOVING:
        return float(sizes[0])
    return max(math.prod(sizes), sum(sizes)) if operator in _ELEMENTWISE or operator in _JOINING else math.inf


def _alone(array: Any, read: Sequence[Any]) -> Any:
    """The array, without the rest of a larger one that it is a part of."""
    is_part = any(each is not None and each.nbytes > array.nbytes and np.may_share_memory(array, each) for each in read)
    return array.copy() if is_part else array


def _by_onnx(proto: NodeProto, arrays: Sequence[Any], opsets: Mapping[str, int]) -> Sequence[Any]:
    names = [f"input{i}" if array is not None else "" for i, array in enumerate(arrays)]
    node = NodeProto()
    node.CopyFrom(proto)
    del node.input[:], node.output[:]
    node.input.extend(names)
    node.output.extend([f"output{i}" for i, output in enumerate(proto.output) if output])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ends: Any = [
            [helper.make_value_info(name, TypeProto()) for name in each] for each in (filter(None, names), node.output)
        ]
        imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        model = helper.make_model(helper.make_graph([node], "folded", *ends), opset_imports=imports)
        feeds = {name: array for name, array in zip(names, arrays, strict=True) if name}
        given = iter(ReferenceEvaluator(model).run(None, feeds))
    return [np.asarray(next(given)) if output else None for output in proto.output]


# -- functions of attributes and arrays: also of arrays of lengths -----------------------------------------------------


def _axes(attributes: _Attributes, given: Any) -> tuple[int, ...] | None:
    found = attributes.get("axes") if given is None else given.reshape(-1).tolist()
    return None if found is None else tuple([int(each) for each in found])


def _sliced(attributes: _Attributes, x: Any, *given: Any) -> Any:
    starts, ends = (given[0], given[1]) if given else (np.array(attributes[n], object) for n in ("starts", "ends"))
    axes = given[2] if len(given) > 2 else attributes.get("axes")
    steps = given[3] if len(given) > 3 else None
    axes = range(len(starts)) if axes is None else np.asarray(axes).reshape(-1).tolist()
    key: list[Any] = [slice(None)] * x.ndim
    for i, axis in enumerate(axes):
        key[axis] = slice(int(starts[i]), int(ends[i]), None if steps is None else int(steps[i]))
    return x[tuple(key)]


def _reshaped(attributes: _Attributes, x: Any, shape: Any = None) -> Any:
    lengths = attributes["shape"] if shape is None else shape.astype(np.int64).tolist()
    keeps = not attributes.get("allowzero", 0)
    return x.reshape([x.shape[i] if n == 0 and keeps else n for i, n in enumerate(lengths)])


_JOINING: dict[str, Callable[..., Any]] = {
    "Concat": lambda attributes, *parts: np.concatenate(parts, attributes.get("axis", 0)),
    "Gather": lambda attributes, x, indices: np.asarray(
        np.take(x, indices.astype(np.int64), attributes.get("axis", 0)), x.dtype
    ),
}
#: Functions of operators that give as many elements as they read, or fewer.
_MOVING: dict[str, Callable[..., Any]] = {
    "Reshape": _reshaped,
    "Slice": _sliced,
    "Squeeze": lambda attributes, x, axes=None: np.squeeze(x, _axes(attributes, axes)),
    "Transpose": lambda attributes, x: x.transpose(attributes.get("perm")),
    "Unsqueeze": lambda attributes, x, axes=None: np.expand_dims(x, _axes(attributes, axes) or ()),
}
#: Functions of operators that take arrays of lengths, too.
OF_OBJECTS: dict[str, Callable[..., Any]] = {
    **_JOINING,
    **{operator: function for operator, function in _MOVING.items() if operator != "Transpose"},
    "ReduceProd": lambda attributes, x, axes=None: np.asarray(
        np.prod(x, _axes(attributes, axes), keepdims=bool(attributes.get("keepdims", 1))), object
    ),
}


# -- functions of constants alone --------------------------------------------------------------------------------------


def _cast(attributes: _Attributes, x: Any) -> Any:
    dtype = helper.tensor_dtype_to_np_dtype(attributes["to"])
    return x.astype(dtype) if dtype.kind in "biuf" and x.dtype.kind in "biuf" else None


def _quotient(attributes: _Attributes, a: Any, b: Any) -> Any:
    """The quotient, of integers rounded towards 0."""
    if a.dtype.kind not in "iu":
        return np.asarray(a / b, a.dtype)
    quotient = a // b
    return np.asarray(quotient + ((quotient < 0) & (quotient * b != a)), a.dtype)


def _dequantized(attributes: _Attributes, x: Any, scale: Any, zero: Any = None) -> Any:
    if attributes.get("block_size", 0) or attributes.get("output_dtype", 0) or scale.dtype != np.float32:
        return None
    if x.dtype.kind not in "iu" or scale.ndim > 1:
        return None
    shape = [1] * x.ndim
    if scale.ndim and scale.size > 1:
        shape[attributes.get("axis", 1)] = -1
    wide = x.astype(np.float32)
    if zero is not None:
        wide = wide - zero.astype(np.float32).reshape(shape)
    return wide * scale.reshape(shape)


def _range(attributes: _Attributes, start: Any, limit: Any, delta: Any) -> Any:
    return np.arange(int(start), int(limit), int(delta), dtype=start.dtype) if start.dtype.kind == "i" else None


def _filled(attributes: _Attributes, shape: Any) -> Any:
    value = attributes.get("value")
    return np.full(shape.tolist(), np.float32(0) if value is None else value.reshape(-1)[0])


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arrays: reduce(function, arrays)


def _of_like(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of elements of one dtype."""

    def of_like(attributes: _Attributes, *arrays: Any) -> Any:
        is_plain = all(array is not None and array.dtype == arrays[0].dtype for array in arrays)
        return function(*arrays) if is_plain and arrays[0].dtype.kind in "biuf" else None

    return of_like


_OF_LIKE: dict[str, Callable[..., Any]] = {
    "Abs": np.abs, "Add": np.add, "And": np.logical_and, "Ceil": np.ceil, "Cos": np.cos, "Equal": np.equal,
    "Exp": np.exp, "Floor": np.floor, "Greater": np.greater, "GreaterOrEqual": np.greater_equal, "Less": np.less,
    "LessOrEqual": np.less_equal, "Log": np.log, "Max": _reduced(np.maximum), "Min": _reduced(np.minimum),
    "Mul": np.multiply, "Neg": np.negative, "Not": np.logical_not, "Or": np.logical_or, "Pow": np.power,
    "Sin": np.sin, "Sqrt": np.sqrt, "Sub": np.subtract, "Xor": np.logical_xor,
}  # fmt: skip
_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    **{operator: _of_like(function) for operator, function in _OF_LIKE.items()},
    "Cast": _cast,
    "DequantizeLinear": _dequantized,
    "Div": _quotient,
    "Where": lambda attributes, condition, a, b: np.where(condition, a, b) if a.dtype == b.dtype else None,
}
_FUNCTIONS = {
    **_ELEMENTWISE,
    **_JOINING,
    **_MOVING,
    "ConstantOfShape": _filled,
    "Expand": lambda _, x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist()))).copy(),
    "Range": _range,
    "Tile": lambda attributes, x, repeats: np.tile(x, repeats.tolist()),
}
