"""Functions of the standard that `actorflow.ops` does not have as they are here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow import ops
from actorflow.array.namespace.apply import applied, applied_to, binary, broadcast, cast, node_of, reduced
from actorflow.array.namespace.creation import full
from actorflow.array.record.primitives import Value, elementwise_primitive
from actorflow.array.record.record import Record, given
from actorflow.core import desk
from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops.elementwise import Sum, at_least, at_most, copy, deviation, maximum, not_equal, square
from actorflow.ops.operation import Operation, axes_of, normal_axes
from actorflow.ops.ordering import CumProd, CumSum
from actorflow.ops.reductions import ArgMax, ArgMin, CountNonzero, ReduceAll, ReduceAny, ReduceMean, ReduceProd
from actorflow.ops.shaping import Axis, ReduceSum, Reduction, Reshape, Transpose, broadcast_to, concat
from actorflow.spec import axes_in, integers

if TYPE_CHECKING:
    from actorflow.array.array import Array

# -- elements ---------------------------------------------------------------------------------------------------

_ADD = elementwise_primitive(Sum())


def add(x1: Any, x2: Any, /) -> Array:
    """The sum: ``x1 + x2``.

    Args:
        x1: Any shape, numeric or bool.
        x2: A shape that broadcasts with it; one of them may be a number.
    Returns:
        Array of the common shape, of the dtype that the array API standard says.
    Raises:
        ShapeError, DTypeError: if the operands do not fit.
    Gradient: g for each operand, summed over what was broadcast.
    Example:
        >>> xp.add(xp.asarray([1, 2]), xp.asarray([[10], [20]]))
        Array([[11, 12],
               [21, 22]], dtype=int64)
    """
    return binary(_ADD, x1, x2)


def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    """As `numpy.clip`, in the dtype of ``x``; None leaves a side open.

    Integers within bounds that are floating are floating, as in NumPy: there may be no integer between them.

    Raises:
        ShapeError, DTypeError: if the bounds do not fit.
    Gradient: g where ``x`` is within the bounds, else 0; for a bound g where it is the result and ``x`` is not.
    Example:
        >>> xp.clip(xp.asarray([-5, 0, 5]), max=2)
        Array([-5,  0,  2], dtype=int64)
    """
    dtype = node_of("clip", "x", x).dtype
    if min is None and max is None:
        return copy(x)
    clipped = x if min is None else at_least(x, min)
    clipped = clipped if max is None else at_most(clipped, max)
    return clipped if dtype.kind in "iu" and clipped.dtype.kind == "f" else cast(clipped, dtype)


# -- shapes and parts ------------------------------------------------------------------------------------------


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """As `numpy.broadcast_shapes`.

    Raises:
        ShapeError: if they do not broadcast.
    Example:
        >>> xp.broadcast_shapes((3, 1), (4,), ())
        (3, 4)
    """
    return broadcast("broadcast_shapes", (), *map(tuple, shapes))


def broadcast_arrays(*arrays: Array) -> list[Array]:
    """As `numpy.broadcast_arrays`, a list of arrays.

    Raises:
        ShapeError: if they do not broadcast.
    Gradient: the sum of g over what was repeated.
    Example:
        >>> a, b = xp.broadcast_arrays(xp.asarray([1, 2]), xp.asarray([[10], [20]]))
        >>> print(a.shape, b.shape)
        (2, 2) (2, 2)
    """
    if not arrays:
        return []
    shape = broadcast("broadcast_arrays", *(node_of("broadcast_arrays", "each argument", x).shape for x in arrays))
    return [broadcast_to(x, shape) for x in arrays]


def reshape(
    x: Array,
    /,
    shape: Sequence[int],
    *,
    copy: bool | None = None,  # noqa: ARG001  makes no difference: arrays are values of their own
) -> Array:
    """As `numpy.reshape`; one length may be -1. ``copy`` makes no difference: each array is a value of its own.

    Raises:
        ShapeError: if the number of elements does not fit.
    Gradient: g in the shape of ``x``.
    Example:
        >>> xp.reshape(xp.arange(6), (2, -1))
        Array([[0, 1, 2],
               [3, 4, 5]], dtype=int64)
    """
    return applied_to(x, Reshape, integers(shape))


def permute_dims(x: Array, /, axes: Sequence[int]) -> Array:
    """As `numpy.permute_dims`; all axes are named.

    Raises:
        ShapeError: if ``axes`` is not a permutation of the axes.
    Gradient: g with the inverse permutation.
    Example:
        >>> xp.permute_dims(xp.zeros((2, 3, 4)), (2, 0, 1)).shape
        (4, 2, 3)
    """
    return applied_to(x, Transpose, integers(axes))


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """As `numpy.take`, along an axis that a one-dimensional array need not name.

    Raises:
        ShapeError, DTypeError: if the arrays do not fit.
        OpError: where the value is asked for, if an index is out of range.
    Gradient: g, added where its parts were taken from.
    Example:
        >>> xp.take(xp.asarray([[1, 2], [3, 4]]), xp.asarray([1, 1, 0]), axis=0)
        Array([[3, 4],
               [3, 4],
               [1, 2]], dtype=int64)
    """
    if axis is None and len(node_of("take", "x", x).shape) != 1:
        raise ShapeError(f"take: axis must be given for shape {x.shape}")
    return ops.take(x, indices, axis or 0)


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """As `numpy.take_along_axis`, with the last axis by default. Errors: those of `take`.

    Gradient: g, added where its elements were taken from.
    Example:
        >>> x = xp.asarray([[10, 30, 20], [5, 4, 6]])
        >>> xp.take_along_axis(x, xp.argsort(x), axis=1)
        Array([[10, 20, 30],
               [ 4,  5,  6]], dtype=int64)
    """
    return ops.take_along_axis(x, indices, axis)


def matmul(x1: Array, x2: Array, /) -> Array:
    """As `numpy.matmul`.

    Raises:
        ShapeError: if the lengths along which is summed differ, or an array is 0-d.
    Gradient: da = g @ b.H; db = a.H @ g; summed over axes that were broadcast.
    Example:
        >>> xp.matmul(xp.asarray([[1, 2], [3, 4]]), xp.asarray([1, 10]))
        Array([21, 43], dtype=int64)
    """
    found: Array | None = desk.product(x1, x2)
    return ops.matmul(x1, x2) if found is None else found


def matrix_transpose(x: Array, /) -> Array:
    """The array with its last two axes exchanged.

    Raises:
        ShapeError: if there are fewer.

    Example:
        >>> xp.matrix_transpose(xp.asarray([[1, 2, 3]])).shape
        (3, 1)
    """
    rank = len(x._node.shape) if type(x) is Record.array_type else 0
    return applied_to(x, Transpose, (*range(rank - 2), rank - 1, rank - 2)) if rank > 1 else ops.matrix_transpose(x)


# -- reductions -------------------------------------------------------------------------------------------------

_OF_TRUTH = frozenset({ReduceAll, ReduceAny, CountNonzero})
#: The dtypes that reductions of bools take them for.
_OF_BOOLS = {ReduceSum: np.int64, ReduceProd: np.int64, CountNonzero: np.int64, ArgMax: np.uint8, ArgMin: np.uint8}


def reduction(kind: type[Reduction], x: Array, axis: Axis, keepdims: bool) -> Array:
    """Record a reduction of an array, which may have the dtypes that NumPy takes."""
    if kind is ReduceMean:
        return _mean(x, axis, keepdims)
    if kind in _OF_TRUTH and x._node.dtype != np.bool_:
        x = not_equal(x, 0)
    if kind in _OF_BOOLS and x._node.dtype == np.bool_:
        x = cast(x, np.dtype(_OF_BOOLS[kind]))
    if kind is CountNonzero:
        kind = ReduceSum
    if kind.ufunc is not None:
        return reduced(kind, x, axis, keepdims)
    found: Array = applied(kind(normal_axes(axis), bool(keepdims)), (x,))
    return found


def _mean(x: Array, axis: Axis, keepdims: bool) -> Array:
    own = x.dtype
    if own.kind not in "fc" or own == np.float16:  # whose sums soon leave its range
        x = cast(x, np.dtype(np.float32 if own == np.float16 else np.float64))
    found = ops.sum(x, axis=axis, keepdims=keepdims) / _count(x, axis)
    return cast(found, own) if own == np.float16 else found


def _count(x: Array, axis: Axis, correction: float = 0.0) -> Array | float:
    """The number of elements along axes, less a correction; an array, if an axis is open."""
    lengths = tuple([x.shape[each] for each in axes_of("mean", axis, x.ndim)])
    if axes_in(lengths):
        return cast(maximum(ops.sum(full(lengths, 1.0)) - correction, 0.0), x.dtype)
    return float(max(0, math.prod(lengths) - correction))


def var(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """As `numpy.var`, with options by name; integers and bools count as float64.

    Raises:
        AxisError: if ``x`` does not have the axes.
        DTypeError: if ``x`` is complex.
    Gradient: through the mean, too.
    Example:
        >>> x = xp.asarray([1.0, 3.0, 1.0, 3.0])
        >>> print(xp.var(x), float(xp.var(x, correction=1)).__round__(3))
        1.0 1.333
    """
    node = node_of("var", "x", x)
    if node.dtype.kind == "c":
        raise DTypeError(f"var: expected real numbers, got {node.dtype}")
    if node.dtype.kind != "f":
        x = cast(x, np.dtype(np.float64))
    squares = square(x - ops.mean(x, axis=axis, keepdims=True))
    return ops.sum(squares, axis=axis, keepdims=keepdims) / _count(x, axis, correction)


def std(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """As `numpy.std`, with options by name: the root of `var`, whose errors it has.

    Gradient: through the mean, too; 0 for equal numbers.
    Example:
        >>> print(xp.std(xp.asarray([1.0, 3.0, 1.0, 3.0])))
        1.0
    """
    return deviation(var(x, axis=axis, correction=correction, keepdims=keepdims))


# -- along an axis ----------------------------------------------------------------------------------------------


def _cumulated(make: type[Operation], x: Array, axis: int | None, dtype: npt.DTypeLike | None, first: bool) -> Array:
    node = node_of(make.function_name, "x", x)
    if axis is None and len(node.shape) != 1:
        raise ShapeError(f"{make.function_name}: axis must be given for shape {x.shape}")
    at = axis or 0
    if dtype is None and node.dtype.kind != "b":
        found = applied_to(x, make, at)
    else:
        kind = np.dtype(np.int64 if dtype is None else dtype)
        found = cast(applied_to(cast(x, kind), make, at), kind)
    if not first:
        return found
    (axis,) = axes_of(make.function_name, at, len(x.shape))
    start = found.constant_like(int(make is CumProd), (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return concat([start, found], axis=axis)


def cumulative_sum(
    x: Array, /, *, axis: int | None = None, dtype: npt.DTypeLike | None = None, include_initial: bool = False
) -> Array:
    """As `numpy.cumulative_sum`.

    Raises:
        ShapeError: if ``x`` does not have the axis, or none is named and there are several.
    Gradient: the sums of g from the other end.
    Example:
        >>> xp.cumulative_sum(xp.asarray([1, 2, 3, 4]), include_initial=True)
        Array([ 0,  1,  3,  6, 10], dtype=int64)
    """
    return _cumulated(CumSum, x, axis, dtype, include_initial)


def cumulative_prod(
    x: Array, /, *, axis: int | None = None, dtype: npt.DTypeLike | None = None, include_initial: bool = False
) -> Array:
    """As `numpy.cumulative_prod`. Errors: those of `cumulative_sum`.

    Example:
        >>> xp.cumulative_prod(xp.asarray([1, 2, 3, 4]))
        Array([ 1,  2,  6, 24], dtype=int64)
    """
    return _cumulated(CumProd, x, axis, dtype, include_initial)


def diff(
    x: Array, /, *, axis: int = -1, n: int = 1, prepend: Array | None = None, append: Array | None = None
) -> Array:
    """As `numpy.diff`, with options by name; of bools, whether neighbours differ.

    Raises:
        ShapeError: if ``x`` does not have the axis, or ``prepend`` or ``append`` does not fit.
        GraphError: if ``n`` is negative.
    Gradient: through the subtractions.
    Example:
        >>> xp.diff(xp.asarray([1, 4, 9, 16]))
        Array([3, 5, 7], dtype=int64)
    """
    (axis,) = axes_of("diff", axis, len(node_of("diff", "x", x).shape))
    if n < 0:
        raise GraphError(f"diff: n must not be negative, got {n}")
    if n == 0:
        return x
    parts = [part for part in (prepend, x, append) if part is not None]
    if len(parts) > 1:
        x = concat(parts, axis=axis)
    lead = (slice(None),) * axis
    for _ in range(n):
        one, other = x[(*lead, slice(1, None))], x[(*lead, slice(None, -1))]
        x = one != other if x.dtype.kind == "b" else one - other
    return x


# -- sets: where the shape of the result depends on values, it is computed at once ------------------------------


def _given(like: Array, value: Any) -> Array:
    return given(np.array(value), like._node.evaluator, place=like.device)


def _value(name: str, x: Array) -> Value:
    node_of(name, "x", x)
    return x._value()


def _unique(name: str, x: Array) -> Any:
    """A named tuple of arrays, as NumPy has it."""
    found = getattr(np, name)(_value(name, x))
    return found._make([_given(x, each) for each in found])


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """As `numpy.nonzero`, computed at once.

    Raises:
        ShapeError: for a 0-d array.
    Example:
        >>> rows, columns = xp.nonzero(xp.asarray([[0, 7], [9, 0]]))
        >>> print(rows, columns)
        [0 1] [1 0]
    """
    value = _value("nonzero", x)
    if not value.ndim:
        raise ShapeError("nonzero: expected at least one axis, got a 0-d array")
    return tuple(_given(x, each) for each in np.nonzero(value))


def unique_all(x: Array, /) -> Any:
    """As `numpy.unique_all`, computed at once, as the shape depends on the values; each NaN is an element of its own.

    Raises:
        OpError: if the computation of ``x`` failed.
    Example:
        >>> values, indices, inverse, counts = xp.unique_all(xp.asarray([7, 3, 7, 7]))
        >>> print(values, indices, inverse, counts)
        [3 7] [1 0] [1 0 1 1] [1 3]
    """
    return _unique("unique_all", x)


def unique_counts(x: Array, /) -> Any:
    """As `numpy.unique_counts`, computed at once; see `unique_all`.

    Example:
        >>> values, counts = xp.unique_counts(xp.asarray([7, 3, 7, 7]))
        >>> print(values, counts)
        [3 7] [1 3]
    """
    return _unique("unique_counts", x)


def unique_inverse(x: Array, /) -> Any:
    """As `numpy.unique_inverse`, computed at once; see `unique_all`.

    Example:
        >>> values, inverse = xp.unique_inverse(xp.asarray([7, 3, 7, 7]))
        >>> print(values, xp.take(values, inverse))
        [3 7] [7 3 7 7]
    """
    return _unique("unique_inverse", x)


def unique_values(x: Array, /) -> Array:
    """As `numpy.unique_values`, computed at once; see `unique_all`. In order.

    Example:
        >>> xp.unique_values(xp.asarray([7, 3, 7, 7]))
        Array([3, 7], dtype=int64)
    """
    return _given(x, np.unique(_value("unique_values", x), equal_nan=False))
