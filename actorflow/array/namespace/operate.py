"""Recording of operations on elements and over axes: operands, broadcasting, axes, dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import copysign
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow.array.record.primitives import (
    DType,
    ElementwisePrimitive,
    ReductionPrimitive,
    Value,
    elementwise_primitive,
    reduction_primitive,
)
from actorflow.array.record.record import Input, Record, record
from actorflow.core import desk
from actorflow.errors import DTypeError, ShapeError
from actorflow.ops.elementwise import Cast
from actorflow.ops.operation import axes_of
from actorflow.ops.shaping import Reduction
from actorflow.spec import TensorSpec, broadcast_shapes, integers

if TYPE_CHECKING:
    from actorflow.array.array import Array

_COMPARISONS = frozenset({"equal", "greater", "greater_equal", "less", "less_equal", "not_equal"})
_SCALARS = (bool, int, float, complex)
_SAMPLES = {bool: True, int: 1, float: 1.0, complex: 1j}
#: Integers that every dtype has are below it.
_FEW = 100
_targets: dict[tuple[DType, type], DType] = {}


def node_of(name: str, argument: str, x: object) -> Record:
    """The record that an array shows.

    Raises:
        DTypeError: if it is not an array; the message names the argument.
    """
    if type(x) is Record.array_type:
        return x._node
    raise DTypeError(f"{name}: {argument} must be an array of actorflow.array, got {type(x).__name__}")


def constant(name: str, value: object, dtype: DType) -> Value:
    """A Python number beside an array: it takes the array's dtype, unless it is of a higher kind.

    Raises:
        DTypeError: if it is not a number.
        OverflowError: if an integer does not fit, and it is not only compared.
    """
    kind = type(value)
    if kind is float:
        return _float(value, dtype, copysign(1.0, value))  # type: ignore[arg-type]
    target = _targets.get((dtype, kind))
    if kind is int and target is not None and 0 <= value < _FEW:  # type: ignore[operator]
        return _integer(value, target)
    if target is None:
        if kind in _SAMPLES:
            target = _targets[dtype, kind] = np.result_type(dtype, _SAMPLES[kind])
        elif isinstance(value, np.ndarray | np.generic):
            if value.dtype.kind not in "biufc":
                raise DTypeError(f"{name}: expected booleans or numbers, got {value.dtype}")
            return np.array(value)
        else:
            plain: Any = next((base for base in _SCALARS if isinstance(value, base)), None)  # as of an enum
            if plain is None:
                raise DTypeError(f"{name}: expected arrays and numbers, got {kind.__name__}")
            return constant(name, plain(value), dtype)
    try:
        return np.array(value, target)
    except OverflowError:
        if name in _COMPARISONS and dtype.kind in "iub":  # as NumPy does: it is beyond all that there can be
            return np.array(np.inf if value > 0 else -np.inf)  # type: ignore[operator]
        raise


@lru_cache(maxsize=1_024)
def _float(value: float, dtype: DType, _sign: float) -> Value:  # as keys, zeros of both signs are equal
    found = value_of(value, np.result_type(dtype, 1.0))
    found.flags.writeable = False
    return found


@lru_cache(maxsize=1_024)
def _integer(value: int, dtype: DType) -> Value:
    found = np.array(value, dtype)
    found.flags.writeable = False
    return found


def value_of(value: Any, dtype: npt.DTypeLike | None) -> Value:
    """Python numbers, or nested sequences of them, as an array; floats beyond a dtype are infinities without a warning.

    Raises:
        OverflowError: if an integer does not fit.
    """
    with np.errstate(all="ignore"):
        return np.array(value, dtype)


def pair(name: str, x1: Any, x2: Any) -> tuple[Input, Input]:
    """Two operands, each an array or a number; a number beside an array is as for `constant`."""
    if type(x1) is Record.array_type:
        one = x1._node
        return one, x2._node if type(x2) is Record.array_type else constant(name, x2, one.dtype)
    if type(x2) is Record.array_type:
        return constant(name, x1, x2._node.dtype), x2._node
    kind = np.result_type(x1, x2)
    return value_of(x1, kind), value_of(x2, kind)


@lru_cache(maxsize=4_096)
def broadcast(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that arrays of these shapes broadcast to.

    Raises:
        ShapeError: if they do not.
    """
    try:
        return broadcast_shapes(*shapes)
    except ValueError:
        raise ShapeError(f"{name}: shapes {', '.join(map(str, shapes))} do not broadcast") from None


def unary(op: ElementwisePrimitive, x: Array) -> Array:
    """Record an operation on each element of an array."""
    node = node_of(op.name, "x", x)
    found: Array | None = op.loop.of_one(x)
    if found is not None:
        return found
    return record(op, (node,), node.shape, op.dtype(node.dtype), (), node.evaluator)


def binary(op: ElementwisePrimitive, x1: Any, x2: Any) -> Array:
    """Record an operation on each pair of elements; one of the two may be a number."""
    found: Array | None = op.loop.of_two(x1, x2)
    return recorded(op, x1, x2) if found is None else found


def recorded(op: ElementwisePrimitive, x1: Any, x2: Any) -> Array:
    """The same, where that is not computed at once."""
    kind = Record.array_type
    if type(x1) is kind:
        a: Input = x1._node
        b: Input = x2._node if type(x2) is kind else constant(op.name, x2, a.dtype)
    else:
        b = node_of(op.name, "one of the arguments", x2)
        a = constant(op.name, x1, b.dtype)
    shape = a.shape if a.shape == b.shape else broadcast(op.name, a.shape, b.shape)
    return record(op, (a, b), shape, op.dtype(a.dtype, b.dtype))


def cast(x: Array, dtype: DType) -> Array:
    """The array with elements of another dtype; itself if it has it."""
    if x._node.dtype == dtype:
        return x
    found: Array | None = None
    if dtype.kind not in "iu" or x._node.dtype.kind not in "fV":  # as an integer, what is too large is the nearest one
        found = desk.call(_caster(dtype), x, is_view=False)
    return unary(_casting(dtype), x) if found is None else found


@lru_cache(maxsize=256)
def _caster(dtype: DType) -> Callable[..., Value]:
    return methodcaller("astype", dtype, "C")


@lru_cache(maxsize=256)
def _casting(dtype: DType) -> ElementwisePrimitive:
    return elementwise_primitive(Cast(dtype))


def elementwise(operation: Any, inputs: Sequence[Any]) -> Array:
    """Record an elementwise operation on arrays, at least one, and numbers."""
    if type(operation) is Cast:
        return cast(inputs[0], operation.dtype)
    op, count = elementwise_primitive(operation), len(inputs)
    if count == 2:
        return binary(op, *inputs)
    if count == 1:
        x: Array = inputs[0]  # a sum of one
        return x if operation.arguments[0][0] == "*" else unary(op, x)
    if operation.conditions:
        return chosen(op, *inputs)
    found = inputs[0]
    for each in inputs[1:]:
        found = binary(op, found, each)
    made: Array = found
    return made


def chosen(op: ElementwisePrimitive, condition: Any, x1: Any, x2: Any) -> Array:
    """Record a choice between two operands by a condition."""
    which = node_of(op.name, "condition", condition)
    if which.dtype != np.bool_:
        raise DTypeError(f"{op.name}: condition must be bool, got {which.dtype}")
    one, other = pair(op.name, x1, x2)
    shape = broadcast(op.name, which.shape, one.shape, other.shape)
    return record(op, (which, one, other), shape, op.dtype(which.dtype, one.dtype, other.dtype))


@lru_cache(maxsize=4_096)
def _reduction(
    kind: Any, axis: int | tuple[int, ...] | None, keepdims: bool, shape: tuple[int, ...], dtype: DType
) -> tuple[ReductionPrimitive, tuple[int, ...], DType, tuple[Any, ...], Callable[..., Any] | None]:
    """The primitive of a reduction, shape and dtype of its result, its parameters, and what computes it at once."""
    axes = axes_of(kind.function_name, axis, len(shape))
    op = reduction_primitive(kind, axes, keepdims)
    [spec] = op.operation.infer(TensorSpec(shape, dtype))
    params = axes, keepdims, spec.dtype
    return op, spec.shape, spec.dtype, params, op.of_all(params)


def reduced(kind: type[Reduction], x: Array, axis: int | Sequence[int] | None, keepdims: bool) -> Array:
    """Record a reduction by a ufunc."""
    node = node_of(kind.function_name, "x", x)
    if axis is not None and type(axis) is not int:
        axis = integers(axis)
    keepdims = bool(keepdims)
    op, shape, dtype, params, bound = _reduction(kind, axis, keepdims, node.shape, node.dtype)  # type: ignore[arg-type]
    found: Array | None = desk.call(bound, x, is_view=False)
    return record(op, (node,), shape, dtype, params, node.evaluator, node.size) if found is None else found
