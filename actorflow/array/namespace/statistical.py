"""Statistical, searching, sorting, set and utility functions of the standard."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow.array.namespace.apply import applied_to
from actorflow.array.namespace.creation import full
from actorflow.array.namespace.manipulation import concat
from actorflow.array.namespace.operate import cast, node_of, reduced
from actorflow.array.record.primitives import Value
from actorflow.array.record.record import given
from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops.elementwise import deviation, maximum, not_equal, square
from actorflow.ops.operation import Operation, apply, axes_of
from actorflow.ops.ordering import ArgSort, CumProd, CumSum, Sort
from actorflow.ops.reductions import ArgMax, ArgMin, ReduceAll, ReduceAny, ReduceMax, ReduceMin, ReduceProd
from actorflow.ops.shaping import ReduceSum, Reduction, summed_dtype
from actorflow.spec import axes_in

if TYPE_CHECKING:
    from actorflow.array.array import Array

Axis = int | Sequence[int] | None


def _accumulated(kind: type[Reduction], x: Array, axis: Axis, dtype: npt.DTypeLike | None, keepdims: bool) -> Array:
    own = node_of(kind.function_name, "x", x).dtype
    if dtype is not None:
        wanted = np.dtype(dtype)
        return cast(reduced(kind, cast(x, wanted), axis, keepdims), wanted)
    return reduced(kind, cast(x, summed_dtype(own)) if own.kind == "b" else x, axis, keepdims)


def sum(x: Array, /, *, axis: Axis = None, dtype: npt.DTypeLike | None = None, keepdims: bool = False) -> Array:
    """As `numpy.sum`, with options by name. Integers are added up in 64 bits.

    Raises:
        AxisError: if ``x`` does not have the axes.
    Gradient: g for every element.
    Example:
        >>> x = xp.asarray([[1, 5], [7, 2]])
        >>> print(xp.sum(x), xp.sum(x, axis=1))
        15 [6 9]
    """
    return _accumulated(ReduceSum, x, axis, dtype, keepdims)


def prod(x: Array, /, *, axis: Axis = None, dtype: npt.DTypeLike | None = None, keepdims: bool = False) -> Array:
    """As `numpy.prod`, with options by name. Integers are multiplied in 64 bits. Errors: those of `sum`.

    Gradient: g times the product of all other elements.
    Example:
        >>> xp.prod(xp.asarray([[1, 5], [7, 2]]), axis=1)
        Array([ 5, 14], dtype=int64)
    """
    return _accumulated(ReduceProd, x, axis, dtype, keepdims)


def max(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """As `numpy.max`, with options by name: NaN where there is one.

    Raises:
        ShapeError: if ``x`` does not have the axes, or nothing along them.
        DTypeError: if ``x`` is not real.
    Gradient: g, in equal shares to all elements that are the greatest.
    Example:
        >>> xp.max(xp.asarray([[1, 5], [7, 2]]), axis=0)
        Array([7, 5], dtype=int64)
    """
    return reduced(ReduceMax, x, axis, keepdims)


def min(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """As `numpy.min`, with options by name: NaN where there is one. Errors and gradient: those of `max`.

    Example:
        >>> xp.min(xp.asarray([[1, 5], [7, 2]]), axis=0)
        Array([1, 2], dtype=int64)
    """
    return reduced(ReduceMin, x, axis, keepdims)


def _truth(x: Array) -> Array:
    return x if node_of("all", "x", x).dtype == np.bool_ else not_equal(x, 0)


def all(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """As `numpy.all`, with options by name. Errors: those of `sum`.

    Example:
        >>> print(xp.all(xp.asarray([[1, 0], [2, 3]]), axis=1))
        [False  True]
    """
    return reduced(ReduceAll, _truth(x), axis, keepdims)


def any(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """As `numpy.any`, with options by name. Errors: those of `sum`.

    Example:
        >>> print(xp.any(xp.asarray([[0, 0], [2, 0]]), axis=1))
        [False  True]
    """
    return reduced(ReduceAny, _truth(x), axis, keepdims)


def count_nonzero(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """As `numpy.count_nonzero`, with options by name; int64. Errors: those of `sum`.

    Example:
        >>> print(xp.count_nonzero(xp.asarray([[0, 1], [2, 3]]), axis=1))
        [1 2]
    """
    return sum(_truth(x), axis=axis, keepdims=keepdims)


def _count(x: Array, axis: Axis, correction: float = 0.0) -> Array | float:
    """The number of elements along axes, less a correction; an array, if an axis is open."""
    lengths = tuple([x.shape[each] for each in axes_of("mean", axis, x.ndim)])
    if axes_in(lengths):
        return cast(maximum(sum(full(lengths, 1.0)) - correction, 0.0), x.dtype)
    return float(builtins.max(0, math.prod(lengths) - correction))


def mean(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """As `numpy.mean`, with options by name; integers and bools count as float64. NaN of nothing.

    Errors: those of `sum`.
    Gradient: g / number of elements for every element.
    Example:
        >>> xp.mean(xp.asarray([[1.0, 5.0], [7.0, 2.0]]), axis=1)
        Array([3. , 4.5], dtype=float64)
    """
    node = node_of("mean", "x", x)
    if node.dtype == np.float16:  # whose sums soon leave its range
        return cast(mean(cast(x, np.dtype(np.float32)), axis=axis, keepdims=keepdims), node.dtype)
    if node.dtype.kind not in "fc":
        x = cast(x, np.dtype(np.float64))
    return sum(x, axis=axis, keepdims=keepdims) / _count(x, axis)


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


def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """As `numpy.argmax`, with options by name; int64.

    Raises:
        ShapeError: if ``x`` does not have the axis, or nothing along it.
        DTypeError: if ``x`` is complex.
    Example:
        >>> print(xp.argmax(xp.asarray([[1, 5], [7, 2]]), axis=1))
        [1 0]
    """
    return _position(ArgMax, x, axis, keepdims)


def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """As `numpy.argmin`, with options by name; int64. Errors: those of `argmax`.

    Example:
        >>> print(xp.argmin(xp.asarray([[1, 5], [7, 2]])))
        0
    """
    return _position(ArgMin, x, axis, keepdims)


def _position(kind: type[Reduction], x: Array, axis: int | None, keepdims: bool) -> Array:
    name = kind.function_name
    axes = axes_of(name, axis, len(node_of(name, "x", x).shape))
    numbers = cast(x, np.dtype(np.uint8)) if x.dtype.kind == "b" else x
    found: Array = apply(kind(None if axis is None else axes, bool(keepdims)), numbers)
    return found


# -- order ------------------------------------------------------------------------------------------------------


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """As `numpy.sort`, with options by name: stable unless ``stable`` is false, NaN after all numbers.

    Args:
        x: At least one axis, any dtype.
        axis: The axis, counted from the end if negative.
        descending: Whether the greatest is first.
        stable: Whether equal elements keep their order; False may be faster.
    Raises:
        ShapeError: if ``x`` does not have the axis.
    Gradient: g, in the order of ``x``.
    Example:
        >>> xp.sort(xp.asarray([[3, 1, 2], [9, 7, 8]]), descending=True)
        Array([[3, 2, 1],
               [9, 8, 7]], dtype=int64)
    """
    return applied_to(x, Sort, axis, bool(descending), bool(stable))


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """As `numpy.argsort`, with the options and errors of `sort`; int64.

    Example:
        >>> x = xp.asarray([30, 10, 20])
        >>> order = xp.argsort(x)
        >>> print(order, xp.take(x, order))
        [1 2 0] [10 20 30]
    """
    return applied_to(x, ArgSort, axis, bool(descending), bool(stable))


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
