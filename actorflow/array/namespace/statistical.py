"""Statistical, searching, sorting, set and utility functions of the standard."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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


def _fold(kind: type[Reduction], x: Array, axis: Axis, keepdims: bool) -> Array:
    axes = axes_of(kind.function_name, axis, len(node_of(kind.function_name, "x", x).shape))
    return reduced(kind, x, axes, bool(keepdims))


def _accumulated(kind: type[Reduction], x: Array, axis: Axis, dtype: npt.DTypeLike | None, keepdims: bool) -> Array:
    own = node_of(kind.function_name, "x", x).dtype
    if dtype is not None:
        wanted = np.dtype(dtype)
        return cast(_fold(kind, cast(x, wanted), axis, keepdims), wanted)
    return _fold(kind, cast(x, summed_dtype(own)) if own.kind == "b" else x, axis, keepdims)


def sum(x: Array, /, *, axis: Axis = None, dtype: npt.DTypeLike | None = None, keepdims: bool = False) -> Array:
    """The sum over axes; all of them if none is named. Integers are added up in 64 bits.

    Args:
        x: Any shape, numeric or bool.
        axis: One axis or several, negative ones counted from the end; by default all.
        dtype: Of the result, and of what is added up.
        keepdims: Keep the axes, with length 1.
    Returns:
        Array of the remaining shape.
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
    """The product over axes; all of them if none is named. Integers are multiplied in 64 bits.

    Arguments, result and errors: those of `sum`.
    Gradient: g times the product of all other elements.
    Example:
        >>> xp.prod(xp.asarray([[1, 5], [7, 2]]), axis=1)
        Array([ 5, 14], dtype=int64)
    """
    return _accumulated(ReduceProd, x, axis, dtype, keepdims)


def max(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The greatest element over axes, or NaN where there is one.

    Args:
        x: Any shape, real.
        axis: One axis or several, negative ones counted from the end; by default all.
        keepdims: Keep the axes, with length 1.
    Returns:
        Array of the remaining shape and the dtype of ``x``.
    Raises:
        ShapeError: if ``x`` does not have the axes, or nothing along them.
        DTypeError: if ``x`` is not real.
    Gradient: g, in equal shares to all elements that are the greatest.
    Example:
        >>> xp.max(xp.asarray([[1, 5], [7, 2]]), axis=0)
        Array([7, 5], dtype=int64)
    """
    return _fold(ReduceMax, x, axis, keepdims)


def min(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The least element over axes, or NaN where there is one.

    Arguments, result, errors and gradient: those of `max`.
    Example:
        >>> xp.min(xp.asarray([[1, 5], [7, 2]]), axis=0)
        Array([1, 2], dtype=int64)
    """
    return _fold(ReduceMin, x, axis, keepdims)


def _truth(x: Array) -> Array:
    return x if node_of("all", "x", x).dtype == np.bool_ else not_equal(x, 0)


def all(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """True where all elements over axes are true, or not zero.

    Args:
        x: Any shape and dtype.
        axis: One axis or several, negative ones counted from the end; by default all.
        keepdims: Keep the axes, with length 1.
    Returns:
        Array of the remaining shape, bool.
    Raises:
        AxisError: if ``x`` does not have the axes.
    Example:
        >>> print(xp.all(xp.asarray([[1, 0], [2, 3]]), axis=1))
        [False  True]
    """
    return _fold(ReduceAll, _truth(x), axis, keepdims)


def any(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """True where any element over axes is true, or not zero.

    Arguments, result and errors: those of `all`.
    Example:
        >>> print(xp.any(xp.asarray([[0, 0], [2, 0]]), axis=1))
        [False  True]
    """
    return _fold(ReduceAny, _truth(x), axis, keepdims)


def count_nonzero(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The number of elements over axes that are not zero.

    Arguments and errors: those of `all`.
    Returns:
        Array of the remaining shape, int64.
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
    """The arithmetic mean over axes.

    Args:
        x: Any shape; integers and bools count as float64.
        axis: One axis or several, negative ones counted from the end; by default all.
        keepdims: Keep the axes, with length 1.
    Returns:
        Array of the remaining shape and the dtype of ``x``; NaN of nothing.
    Raises:
        AxisError: if ``x`` does not have the axes.
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
    """The mean of the squared distances from the mean, with ``count - correction`` in the denominator.

    Args:
        x: Any shape, real; integers and bools count as float64.
        axis: One axis or several, negative ones counted from the end; by default all.
        correction: 1 for the unbiased variance of a sample.
        keepdims: Keep the axes, with length 1.
    Returns:
        Array of the remaining shape and the dtype of ``x``.
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
    """The square root of the variance; see `var`.

    Arguments, result and errors: those of `var`.
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
    """The sums of all elements up to each one along an axis; from 0 on with ``include_initial``.

    Args:
        x: At least one axis, numeric or bool.
        axis: The axis, counted from the end if negative; an array with one axis needs none.
        dtype: Of the result; by default that of ``x``, for integers and bools one of 64 bits.
        include_initial: Begin with the sum of nothing: the axis is longer by 1.
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
    """The products of all elements up to each one along an axis; from 1 on with ``include_initial``.

    Arguments, result and errors: those of `cumulative_sum`.
    Example:
        >>> xp.cumulative_prod(xp.asarray([1, 2, 3, 4]))
        Array([ 1,  2,  6, 24], dtype=int64)
    """
    return _cumulated(CumProd, x, axis, dtype, include_initial)


def diff(
    x: Array, /, *, axis: int = -1, n: int = 1, prepend: Array | None = None, append: Array | None = None
) -> Array:
    """The differences of neighbours along an axis, ``n`` times over.

    Args:
        x: At least one axis, numeric or bool.
        axis: The axis, counted from the end if negative.
        n: How often, not negative; each time the axis is shorter by 1.
        prepend: Put before ``x`` along the axis.
        append: Put behind it.
    Returns:
        Array of the dtype of ``x``; of bools, whether neighbours differ.
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
    """The index of the first greatest element along an axis, or of the flattened array.

    Args:
        x: Any shape, real or bool.
        axis: The axis, counted from the end if negative; None for the flattened array.
        keepdims: Keep the axis, with length 1.
    Returns:
        Array of the remaining shape, int64.
    Raises:
        ShapeError: if ``x`` does not have the axis, or nothing along it.
        DTypeError: if ``x`` is complex.
    Example:
        >>> print(xp.argmax(xp.asarray([[1, 5], [7, 2]]), axis=1))
        [1 0]
    """
    return _position(ArgMax, x, axis, keepdims)


def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The index of the first least element along an axis, or of the flattened array.

    Arguments, result and errors: those of `argmax`.
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
    """The elements in order along an axis.

    Args:
        x: At least one axis, any dtype.
        axis: The axis, counted from the end if negative.
        descending: Whether the greatest is first.
        stable: Whether equal elements keep their order; False may be faster.
    Returns:
        Array of the type of ``x``; NaN comes after all numbers.
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
    """The indices that put the elements in order along an axis.

    Arguments and errors: those of `sort`.
    Returns:
        Array of the shape of ``x``, int64.
    Example:
        >>> x = xp.asarray([30, 10, 20])
        >>> order = xp.argsort(x)
        >>> print(order, xp.take(x, order))
        [1 2 0] [10 20 30]
    """
    return applied_to(x, ArgSort, axis, bool(descending), bool(stable))


# -- sets: where the shape of the result depends on values, it is computed at once ------------------------------


class UniqueAll(NamedTuple):
    """Result of `unique_all`."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """Result of `unique_counts`."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """Result of `unique_inverse`."""

    values: Array
    inverse_indices: Array


def _given(like: Array, value: Any) -> Array:
    return given(np.array(value), like._node.evaluator, place=like.device)


def _value(name: str, x: Array) -> Value:
    node_of(name, "x", x)
    return x._value()


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """The indices of the elements that are not zero, one array per axis, which are computed at once.

    Args:
        x: At least one axis, any dtype.
    Returns:
        Arrays of int64, all of one length.
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


def unique_all(x: Array, /) -> UniqueAll:
    """The distinct elements, in order, where each is first, which one each element is, and how many there are.

    Computed at once, as the shape depends on the values.
    Args:
        x: Any shape and dtype; each NaN is an element of its own.
    Returns:
        The named tuple ``values``, ``indices``, ``inverse_indices`` (of the shape of ``x``) and ``counts``.
    Raises:
        OpError: if the computation of ``x`` failed.
    Example:
        >>> values, indices, inverse, counts = xp.unique_all(xp.asarray([7, 3, 7, 7]))
        >>> print(values, indices, inverse, counts)
        [3 7] [1 0] [1 0 1 1] [1 3]
    """
    return UniqueAll(*(_given(x, each) for each in np.unique_all(_value("unique_all", x))))


def unique_counts(x: Array, /) -> UniqueCounts:
    """The distinct elements, in order, and how many of each there are.

    Computed at once, as the shape depends on the values.
    Arguments and errors: those of `unique_all`.
    Returns:
        The named tuple ``values``, ``counts``.
    Example:
        >>> values, counts = xp.unique_counts(xp.asarray([7, 3, 7, 7]))
        >>> print(values, counts)
        [3 7] [1 3]
    """
    return UniqueCounts(*(_given(x, each) for each in np.unique_counts(_value("unique_counts", x))))


def unique_inverse(x: Array, /) -> UniqueInverse:
    """The distinct elements, in order, and which one each element is.

    Computed at once, as the shape depends on the values.
    Arguments and errors: those of `unique_all`.
    Returns:
        The named tuple ``values``, ``inverse_indices``.
    Example:
        >>> values, inverse = xp.unique_inverse(xp.asarray([7, 3, 7, 7]))
        >>> print(values, xp.take(values, inverse))
        [3 7] [7 3 7 7]
    """
    return UniqueInverse(*(_given(x, each) for each in np.unique_inverse(_value("unique_inverse", x))))


def unique_values(x: Array, /) -> Array:
    """The distinct elements, in order.

    Computed at once, as the shape depends on the values.
    Arguments and errors: those of `unique_all`.
    Returns:
        Array with one axis.
    Example:
        >>> xp.unique_values(xp.asarray([7, 3, 7, 7]))
        Array([3, 7], dtype=int64)
    """
    return _given(x, np.unique(_value("unique_values", x), equal_nan=False))
