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
from actorflow.errors import DTypeError, ShapeError
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
    """The sum over axes; all of them if none is named. Integers are added up in 64 bits."""
    return _accumulated(ReduceSum, x, axis, dtype, keepdims)


def prod(x: Array, /, *, axis: Axis = None, dtype: npt.DTypeLike | None = None, keepdims: bool = False) -> Array:
    """The product over axes; all of them if none is named. Integers are multiplied in 64 bits."""
    return _accumulated(ReduceProd, x, axis, dtype, keepdims)


def max(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The greatest element over axes, or NaN where there is one."""
    return _fold(ReduceMax, x, axis, keepdims)


def min(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The least element over axes, or NaN where there is one."""
    return _fold(ReduceMin, x, axis, keepdims)


def _truth(x: Array) -> Array:
    return x if node_of("all", "x", x).dtype == np.bool_ else not_equal(x, 0)


def all(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """True where all elements over axes are true, or not zero."""
    return _fold(ReduceAll, _truth(x), axis, keepdims)


def any(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """True where any element over axes is true, or not zero."""
    return _fold(ReduceAny, _truth(x), axis, keepdims)


def count_nonzero(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The number of elements over axes that are not zero."""
    return sum(_truth(x), axis=axis, keepdims=keepdims)


def _count(x: Array, axis: Axis, correction: float = 0.0) -> Array | float:
    """The number of elements along axes, less a correction; an array, if an axis is open."""
    lengths = tuple([x.shape[each] for each in axes_of("mean", axis, x.ndim)])
    if axes_in(lengths):
        return cast(maximum(sum(full(lengths, 1.0)) - correction, 0.0), x.dtype)
    return float(builtins.max(0, math.prod(lengths) - correction))


def mean(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The arithmetic mean over axes."""
    node = node_of("mean", "x", x)
    if node.dtype == np.float16:  # whose sums soon leave its range
        return cast(mean(cast(x, np.dtype(np.float32)), axis=axis, keepdims=keepdims), node.dtype)
    if node.dtype.kind not in "fc":
        x = cast(x, np.dtype(np.float64))
    return sum(x, axis=axis, keepdims=keepdims) / _count(x, axis)


def var(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The mean of the squared distances from the mean, with ``count - correction`` in the denominator."""
    node = node_of("var", "x", x)
    if node.dtype.kind == "c":
        raise DTypeError(f"var: expected real numbers, got {node.dtype}")
    if node.dtype.kind != "f":
        x = cast(x, np.dtype(np.float64))
    squares = square(x - mean(x, axis=axis, keepdims=True))
    return sum(squares, axis=axis, keepdims=keepdims) / _count(x, axis, correction)


def std(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The square root of the variance; see `var`."""
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
    """The sums of all elements up to each one along an axis; from 0 on with ``include_initial``."""
    return _cumulated(CumSum, x, axis, dtype, include_initial)


def cumulative_prod(
    x: Array, /, *, axis: int | None = None, dtype: npt.DTypeLike | None = None, include_initial: bool = False
) -> Array:
    """The products of all elements up to each one along an axis; from 1 on with ``include_initial``."""
    return _cumulated(CumProd, x, axis, dtype, include_initial)


def diff(
    x: Array, /, *, axis: int = -1, n: int = 1, prepend: Array | None = None, append: Array | None = None
) -> Array:
    """The differences of neighbours along an axis, ``n`` times over."""
    (axis,) = axes_of("diff", axis, len(node_of("diff", "x", x).shape))
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
    """The index of the first greatest element along an axis, or of the flattened array."""
    return _position(ArgMax, x, axis, keepdims)


def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The index of the first least element along an axis, or of the flattened array."""
    return _position(ArgMin, x, axis, keepdims)


def _position(kind: type[Reduction], x: Array, axis: int | None, keepdims: bool) -> Array:
    name = kind.function_name
    axes = axes_of(name, axis, len(node_of(name, "x", x).shape))
    numbers = cast(x, np.dtype(np.uint8)) if x.dtype.kind == "b" else x
    found: Array = apply(kind(None if axis is None else axes, bool(keepdims)), numbers)
    return found


# -- order ------------------------------------------------------------------------------------------------------


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The elements in order along an axis."""
    return applied_to(x, Sort, axis, bool(descending), bool(stable))


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The indices that put the elements in order along an axis."""
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
    """The indices of the elements that are not zero, one array per axis.

    Raises:
        ShapeError: for a 0-d array.
    """
    value = _value("nonzero", x)
    if not value.ndim:
        raise ShapeError("nonzero: expected at least one axis, got a 0-d array")
    return tuple(_given(x, each) for each in np.nonzero(value))


def unique_all(x: Array, /) -> UniqueAll:
    """The distinct elements, in order, where each is first, which one each element is, and how many there are."""
    return UniqueAll(*(_given(x, each) for each in np.unique_all(_value("unique_all", x))))


def unique_counts(x: Array, /) -> UniqueCounts:
    """The distinct elements, in order, and how many of each there are."""
    return UniqueCounts(*(_given(x, each) for each in np.unique_counts(_value("unique_counts", x))))


def unique_inverse(x: Array, /) -> UniqueInverse:
    """The distinct elements, in order, and which one each element is."""
    return UniqueInverse(*(_given(x, each) for each in np.unique_inverse(_value("unique_inverse", x))))


def unique_values(x: Array, /) -> Array:
    """The distinct elements, in order."""
    return _given(x, np.unique(_value("unique_values", x), equal_nan=False))
