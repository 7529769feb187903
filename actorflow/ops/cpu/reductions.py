"""Kernels of `actorflow.ops.reductions`, and of sums and broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from actorflow.ops import reductions as ops
from actorflow.ops.cpu.buffers import Array, is_half, loops_for
from actorflow.ops.operation import wide_dtype
from actorflow.ops.registry import kernel
from actorflow.ops.shaping import BroadcastTo, ReduceSum, Reduction, summed_dtype
from actorflow.spec import TensorSpec

#: Elements that are added up one after the other, at most: by BLAS, as a product with ones, many times faster than
#: NumPy's loop over rows.
_RUN = 64
#: Fewer columns than this are too few for BLAS: where there are many rows, some are seen as one.
_NARROW, _MANY = 64, 4096
#: Where no run is longer, NumPy's own sum of so many elements is sooner done.
_MUCH = 1 << 15
#: Runs along the last axis are at least so long; else NumPy's own sum is as exact, and sooner done.
_LEAST_RUN = 16
#: Sums of so few runs are added up in their own dtype.
_FEW = 16
#: Likewise, for what BLAS cannot do.
_SHORT_RUN = 512
#: With fewer runs, NumPy is sooner done all the same.
_MANY_RUNS = 512


def sum_axes(x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
    """The sum over axes, as an array of its own; of integers in 64 bits, of less than float32 in float32.

    All floating sums are made here: runs of at most `_RUN` elements one after the other, in `x`'s precision, and what
    they give in float64, half against half. So the error grows with the logarithm of their number at most, along
    whichever axes, as that of NumPy's sum along the last one.
    """
    if x.size <= _RUN and x.dtype.char in "fd":  # a run at most
        return np.asarray(_reduced(np.add, x, axes, x.dtype, keepdims))
    if is_half(x):
        x = x.astype(np.float32)
    columns = _columns(x, axes)
    if x.dtype.char not in "fdFD" or not _is_long(x, axes, columns):
        return np.asarray(_reduced(np.add, x, axes, summed_dtype(x.dtype), keepdims))
    with np.errstate(all="ignore"):
        total = _summed(x, axes) if columns is None else _sum_columns(x.reshape(columns))
        if not ops.is_certain(np.add, total):  # several parts were added up at once
            total = np.asarray(_reduced(np.add, x, axes, x.dtype, keepdims))
    return total.reshape([1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes])


def sum_rows(rows: Array, out: Array) -> None:
    """``out = rows.sum(0)`` of a matrix, as `sum_axes` adds up, in less time where there are few rows."""
    if rows.dtype != out.dtype or rows.dtype.char not in "fd" or not rows.flags.c_contiguous or not rows.size:
        np.copyto(out, sum_axes(rows, (0,)), casting="unsafe")
    elif len(rows) <= _RUN:
        np.dot(_ones(rows.dtype)[: len(rows)], rows, out=out)
    elif rows.shape[1] >= _LEAST_RUN and (loops := loops_for(rows, out)) is not None:
        loops.sum_rows(rows, out)
    else:
        with np.errstate(all="ignore"):
            out[...] = _sum_columns(rows[np.newaxis])[0]


def _is_long(x: Array, axes: tuple[int, ...], columns: tuple[int, int, int] | None) -> bool:
    """Return whether NumPy's own sum is slower, or adds up more than a run one after the other."""
    if columns is None:
        return bool(x.size > _RUN and math.prod([x.shape[i] for i in axes]) > _RUN)
    outer, length, inner = columns
    if inner == 1:
        return bool((x.size > _MANY and x.itemsize == 4) or (length < _RUN and outer > 1))
    return bool(length > _RUN or inner < _NARROW or x.size > _MUCH)


def _summed(x: Array, axes: tuple[int, ...]) -> Array:
    """The sum over axes that do not lie side by side in memory, which stay with length 1: one run of axes at a time."""
    order = sorted(range(x.ndim), key=lambda i: -abs(x.strides[i]))
    flat = x.transpose(order)
    if not flat.flags.c_contiguous:
        flat = np.ascontiguousarray(flat)
    places = sorted(order.index(i) for i in axes)
    while places:
        end = first = places.pop()
        while places and places[-1] == first - 1:
            first = places.pop()
        columns = _columns(flat, tuple(range(first, end + 1)))
        assert columns is not None
        shape = (*flat.shape[:first], *[1] * (end + 1 - first), *flat.shape[end + 1 :])
        flat = _sum_columns(flat.reshape(columns)).reshape(shape)
    return flat.transpose(sorted(range(x.ndim), key=order.__getitem__))


def _sum_columns(x: Array) -> Array:
    """The sum of (outer, length, inner) along the middle, in the dtype of ``x``."""
    outer, length, inner = x.shape
    dtype = x.dtype
    if dtype.kind == "c":
        real = x.view(x.real.dtype).reshape(outer, length, 2 * inner)
        return np.ascontiguousarray(_sum_columns(real)).view(dtype)
    if length <= _RUN:
        return _by_ones(x)
    run, together = _RUN, max(1, _NARROW // inner) if length > _MANY and inner > 1 else 1
    if length <= _MANY or inner == 1 < outer:
        even = _even_run(length)
        if even >= _LEAST_RUN:
            parts = _by_ones(x.reshape(outer, length // even, even, inner))
            return _put_together(parts.astype(np.float64) if parts.shape[1] > _FEW else parts, dtype)
        if inner == 1:  # short runs of a row here and there would take longer
            return np.asarray(np.add.reduce(x, axis=1))
    runs, rest = divmod(length, together * run)
    rows, rest = divmod(rest, together)
    at, end = runs * together, length - rest
    parts = np.empty((outer, at + (rows > 0) * together + rest, inner))
    if runs:
        whole = x[:, : at * run].reshape(outer, runs, run, together * inner)
        parts[:, :at] = _by_ones(whole).reshape(outer, at, inner)
    if rows:
        fewer = x[:, at * run : end].reshape(outer, rows, together * inner)
        parts[:, at : at + together] = _by_ones(fewer).reshape(outer, together, inner)
    if rest:
        parts[:, -rest:] = x[:, end:]
    return _put_together(parts, dtype)


def _put_together(parts: Array, dtype: np.dtype[Any]) -> Array:
    """The sum of the runs' results, in the dtype of their elements."""
    if parts.dtype == dtype and parts.shape[1] > _RUN:
        return _halved(np.add, parts)
    return _by_ones(parts).astype(dtype, copy=False)


@lru_cache(maxsize=4096)
def _even_run(length: int) -> int:
    """The longest run that is of at most `_RUN` elements, so many of which make the length."""
    return next(run for run in range(_RUN, 0, -1) if length % run == 0)


def _by_ones(x: Array) -> Array:
    """The sum along the axis before the last one, one after the other."""
    length, inner = x.shape[-2:]
    if length == 1:
        return x[..., 0, :].copy()
    ones = _ones(x.dtype)[:length] if length <= _RUN else np.ones(length, x.dtype)
    if x.size == length * inner:
        return np.asarray(np.dot(ones, x.reshape(length, inner))).reshape(*x.shape[:-2], inner)
    if inner == 1 and x.flags.c_contiguous:
        return np.asarray(np.dot(x.reshape(-1, length), ones)).reshape(*x.shape[:-2], 1)
    return np.asarray(np.matmul(ones, x))


@lru_cache(maxsize=2)
def _ones(dtype: np.dtype[Any]) -> Array:
    return np.ones(_RUN, dtype)


def _halved(ufunc: np.ufunc, x: Array) -> Array:
    """The reduction of (outer, length, inner) along the middle: half against half, in long runs."""
    while (length := x.shape[1]) > 1:
        half = length // 2
        upper = ufunc(x[:, :half], x[:, half : 2 * half])
        if length % 2:
            ufunc(upper[:, :1], x[:, -1:], out=upper[:, :1])
        x = upper
    return x[:, 0]


def _reduced(ufunc: np.ufunc, x: Array, axes: tuple[int, ...], dtype: np.dtype[Any], keepdims: bool) -> Any:
    # Any ufunc: the types of the known ones ask for `keepdims` as a literal.
    return ufunc.reduce(x, axis=axes, dtype=dtype, keepdims=keepdims)


def _columns(x: Array, axes: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Elements before, along and behind axes that lie side by side in a contiguous array; None if they do not."""
    if not x.size or not axes or axes != tuple(range(axes[0], axes[-1] + 1)) or not x.flags.c_contiguous:
        return None
    shape = x.shape
    return math.prod(shape[: axes[0]]), math.prod(shape[axes[0] : axes[-1] + 1]), math.prod(shape[axes[-1] + 1 :])


@kernel(BroadcastTo)
def _broadcast_to(operation: BroadcastTo, inputs: list[Array], outputs: list[Array]) -> None:
    np.copyto(outputs[0], inputs[0])


@kernel(ReduceSum)
def _sum(operation: ReduceSum, inputs: list[Array], outputs: list[Array]) -> None:
    (x,) = inputs
    np.copyto(outputs[0], sum_axes(x, operation.axes(x.ndim), operation.keepdims), casting="unsafe")


def _averaging(operation: ops.ReduceMean, inputs: Sequence[TensorSpec]) -> Any:
    (shape, _), *_ = inputs
    axes, keepdims = operation.axes(len(shape)), operation.keepdims
    count = math.prod([shape[i] for i in axes])

    def compute(operation: ops.ReduceMean, inputs: list[Array], outputs: list[Array]) -> None:
        total = sum_axes(inputs[0], axes, keepdims)
        np.copyto(outputs[0], total / total.dtype.type(count), casting="unsafe")

    return compute


@kernel(ops.ReduceMean, bind=_averaging)
def _mean(operation: ops.ReduceMean, inputs: list[Array], outputs: list[Array]) -> None:
    with np.errstate(all="ignore"):
        _averaging(operation, [TensorSpec(x.shape, x.dtype) for x in inputs])(operation, inputs, outputs)


def _bound(operation: Reduction, inputs: Sequence[TensorSpec]) -> Any:
    """The kernel for one step; one that reduces all axes is NumPy's reduction."""
    (shape, _), *_ = inputs
    if any(n > 1 for i, n in enumerate(shape) if i not in operation.axes(len(shape))):
        return _reduce
    ufunc, axes, keepdims = operation.ufunc, operation.axes(len(shape)), operation.keepdims

    def compute(operation: Reduction, inputs: list[Array], outputs: list[Array]) -> None:
        ufunc.reduce(inputs[0], axis=axes, keepdims=keepdims, out=outputs[0])

    marked: Any = compute
    marked.ufunc = ufunc
    return compute


@kernel(ops.ReduceMax, bind=_bound)
@kernel(ops.ReduceMin, bind=_bound)
@kernel(ops.ReduceAny, bind=_bound)
@kernel(ops.ReduceAll, bind=_bound)
def _reduce(operation: Reduction, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (out,), ufunc = inputs, outputs, operation.ufunc
    axes = operation.axes(x.ndim)
    columns = _columns(x, axes)
    if columns is None or not 1 < columns[2] < _SHORT_RUN or columns[0] * columns[1] < _MANY_RUNS:
        ufunc.reduce(x, axis=axes, keepdims=operation.keepdims, out=out)
        return
    # NumPy goes by the short runs behind the axes, ten times as slowly.
    np.copyto(out, _halved(ufunc, x.reshape(columns)).reshape(out.shape))


@kernel(ops.ReduceProd)
def _prod(operation: ops.ReduceProd, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (y,) = inputs, outputs
    wide = wide_dtype(x.dtype) if is_half(x) else y.dtype
    with np.errstate(all="ignore"):
        total = _reduced(np.multiply, x, operation.axes(x.ndim), wide, operation.keepdims)
        np.copyto(y, total, casting="unsafe")


@kernel(ops.CountNonzero)
def _count_nonzero(operation: ops.CountNonzero, inputs: list[Array], outputs: list[Array]) -> None:
    (x,) = inputs
    outputs[0][...] = np.count_nonzero(x, axis=operation.axes(x.ndim), keepdims=operation.keepdims)


@kernel(ops.ArgMax)
@kernel(ops.ArgMin)
def _position(operation: ops.ArgMax | ops.ArgMin, inputs: list[Array], outputs: list[Array]) -> None:
    find: Callable[..., Any] = np.argmax if isinstance(operation, ops.ArgMax) else np.argmin
    axis = None if operation.axis is None else operation.axis[0]
    outputs[0][...] = find(inputs[0], axis=axis, keepdims=operation.keepdims)
