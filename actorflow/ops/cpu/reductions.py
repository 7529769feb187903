"""Kernels of `actorflow.ops.reductions`, and of sums and broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from actorflow.ops import reductions as ops
from actorflow.ops.cpu.buffers import Array, is_half
from actorflow.ops.operation import wide_dtype
from actorflow.ops.registry import kernel
from actorflow.ops.shaping import BroadcastTo, ReduceSum, Reduction, summed_dtype

#: With fewer elements than this in a row, NumPy's loop over rows costs more than BLAS's product with ones.
_SHORT = 64
#: Likewise, for what BLAS cannot do.
_SHORT_RUN = 512


def sum_axes(x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
    """The sum over axes, as an array of its own; of integers in 64 bits, of less than float32 in float32."""
    wide = summed_dtype(wide_dtype(x.dtype) if is_half(x) else x.dtype)
    columns = _columns(x, axes)
    if columns is None or x.dtype not in (np.float32, np.float64):
        return np.asarray(_reduced(np.add, x, axes, wide, keepdims))
    outer, length, inner = columns
    total: Array | None = None
    if inner == 1 and outer > 1 and length < _SHORT:
        total = np.dot(x.reshape(outer, length), np.ones(length, x.dtype))
    elif outer == 1 and 1 < inner < _SHORT:
        total = np.dot(np.ones(length, x.dtype), x.reshape(length, inner))
    if total is None:
        total = np.asarray(np.add.reduce(x.reshape(columns), axis=1))
    elif not ops.is_certain(np.add, total):  # BLAS adds up several parts at once
        with np.errstate(all="ignore"):
            total = np.asarray(np.add.reduce(x.reshape(columns), axis=1))
    return total.reshape([1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes])


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


@kernel(ops.ReduceMean)
def _mean(operation: ops.ReduceMean, inputs: list[Array], outputs: list[Array]) -> None:
    (x,) = inputs
    axes = operation.axes(x.ndim)
    total = sum_axes(x, axes, operation.keepdims)
    with np.errstate(all="ignore"):
        total = total / total.dtype.type(math.prod(x.shape[i] for i in axes))
    np.copyto(outputs[0], total, casting="unsafe")


@kernel(ops.ReduceMax)
@kernel(ops.ReduceMin)
@kernel(ops.ReduceAny)
@kernel(ops.ReduceAll)
def _reduce(operation: Reduction, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (out,), ufunc = inputs, outputs, operation.ufunc
    axes = operation.axes(x.ndim)
    columns = _columns(x, axes)
    if columns is None or not 1 < columns[2] < _SHORT_RUN:
        ufunc.reduce(x, axis=axes, keepdims=operation.keepdims, out=out)
        return
    # Half against half, in long runs: NumPy goes by the short runs behind the axes, ten times as slowly.
    rest = x.reshape(columns)
    while (length := rest.shape[1]) > 1:
        half = length // 2
        upper = ufunc(rest[:, :half], rest[:, half : 2 * half])
        if length % 2:
            ufunc(upper[:, :1], rest[:, -1:], out=upper[:, :1])
        rest = upper
    np.copyto(out, rest.reshape(out.shape))


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
