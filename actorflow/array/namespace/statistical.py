"""Statistical, searching, sorting, set and utility functions of the standard."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow.array.namespace.apply import applied, applied_to
from actorflow.array.namespace.creation import full
from actorflow.array.namespace.operate import cast, node_of, reduced
from actorflow.array.record.primitives import Value
from actorflow.array.record.record import given
from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops.elementwise import deviation, maximum, not_equal, square
from actorflow.ops.operation import Operation, axes_of, normal_axes
from actorflow.ops.ordering import CumProd, CumSum
from actorflow.ops.reductions import (
    ArgMax,
    ArgMin,
    CountNonzero,
    ReduceAll,
    ReduceAny,
    ReduceMean,
    ReduceProd,
    mean,
    sum,
)
from actorflow.ops.shaping import Axis, ReduceSum, Reduction, concat
from actorflow.spec import axes_in

if TYPE_CHECKING:
    from actorflow.array.array import Array

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
    found = sum(x, axis=axis, keepdims=keepdims) / _count(x, axis)
    return cast(found, own) if own == np.float16 else found


def _count(x: Array, axis: Axis, correction: float = 0.0) -> Array | float:
    """The number of elements along axes, less a correction; an array, if an axis is open."""
    lengths = tuple([x.shape[each] for each in axes_of("mean", axis, x.ndim)])
    if axes_in(lengths):
        return cast(maximum(sum(full(lengths, 1.0)) - correction, 0.0), x.dtype)
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
    squares = square(x - mean(x, axis=axis, keepdims=True))
    return sum(squares, axis=axis, keepdims=keepdims) / _count(x, axis, correction)


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
