"""Kernels of `actorflow.ops.reduce` and of what broadcasts."""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np

from actorflow.ops.broadcast import BroadcastTo, ReduceSum, Reduction
from actorflow.ops.cuda.launch import (
    ANYTHING,
    FLOATS,
    REALS,
    Array,
    contiguous,
    kernel,
    launch,
    launch_flat,
    wide_dtype,
)
from actorflow.ops.cuda.reduce import Columns, columns_over, sum_axes
from actorflow.ops.product import ReduceProd, ReduceProdDown
from actorflow.ops.reduce import (
    ArgMax,
    ArgMin,
    CountNonzero,
    ReduceAll,
    ReduceAny,
    ReduceMax,
    ReduceMean,
    ReduceMin,
)


def _fold(function: str, again: str, operation: Reduction, x: Array, out: Array) -> None:
    """Reduce in one launch, or in two where the columns alone do not fill a device; always in the same order."""
    x, columns = columns_over(_as_bytes(x), operation.axes(x.ndim))
    out = _as_bytes(out)
    tile = columns.sum_tile()
    if tile.parts == 1:
        _launch(function, x, out, columns, tile.grid, tile.block, tile.parts, tile.columns)
        return
    partial = cupy.empty((tile.parts, columns.all), wide_dtype(out.dtype) if out.dtype.kind == "f" else out.dtype)
    _launch(function, x, partial, columns, tile.grid, tile.block, tile.parts, tile.columns)
    rest = Columns(columns.all, tile.parts, columns.all)
    tile = rest.softmax_tile()
    _launch(again, partial, out, rest, tile.grid, tile.block, 1, tile.columns)


def _launch(function: str, x: Array, y: Array, columns: Columns, grid: int, block: int, parts: int, width: int) -> None:
    launch("fold", function, grid, block, (x, y, *columns, parts, width), x.dtype, RESULT=y.dtype)


def _as_bytes(x: Array) -> Array:
    return contiguous(x).view(np.uint8) if x.dtype == np.bool_ else x


@kernel(BroadcastTo, dtypes=ANYTHING)
def _broadcast_to(operation: BroadcastTo, inputs: list[Array], outputs: list[Array]) -> None:
    cupy.copyto(outputs[0], cupy.broadcast_to(inputs[0], outputs[0].shape))


@kernel(ReduceSum, dtypes=REALS)
def _sum(operation: ReduceSum, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (y,) = inputs, outputs
    if x.dtype.kind == "f":
        sum_axes(x, operation.axes(x.ndim), y)
    else:
        _fold("fold_sum", "fold_sum", operation, x, y)


@kernel(ReduceMean, dtypes=FLOATS)
def _mean(operation: ReduceMean, inputs: list[Array], outputs: list[Array]) -> None:
    axes = operation.axes(inputs[0].ndim)
    sum_axes(inputs[0], axes, outputs[0], float(math.prod(inputs[0].shape[i] for i in axes)))


@kernel(ReduceMax, dtypes=REALS)
def _max(operation: ReduceMax, inputs: list[Array], outputs: list[Array]) -> None:
    _fold("fold_max", "fold_max", operation, inputs[0], outputs[0])


@kernel(ReduceMin, dtypes=REALS)
def _min(operation: ReduceMin, inputs: list[Array], outputs: list[Array]) -> None:
    _fold("fold_min", "fold_min", operation, inputs[0], outputs[0])


@kernel(ReduceProd, dtypes=REALS)
def _prod(operation: ReduceProd, inputs: list[Array], outputs: list[Array]) -> None:
    _fold("fold_prod", "fold_prod", operation, inputs[0], outputs[0])


@kernel(ReduceAny, dtypes=("bool",))
def _any(operation: ReduceAny, inputs: list[Array], outputs: list[Array]) -> None:
    _fold("fold_any", "fold_any", operation, inputs[0], outputs[0])


@kernel(ReduceAll, dtypes=("bool",))
def _all(operation: ReduceAll, inputs: list[Array], outputs: list[Array]) -> None:
    _fold("fold_all", "fold_all", operation, inputs[0], outputs[0])


@kernel(CountNonzero, dtypes=("bool", *REALS))
def _count_nonzero(operation: CountNonzero, inputs: list[Array], outputs: list[Array]) -> None:
    _fold("count_nonzero", "fold_sum", operation, inputs[0], outputs[0])


def _position(operation: Reduction, x: Array, y: Array, largest: int) -> None:
    x, columns = columns_over(x, operation.axes(x.ndim))
    tile = columns.softmax_tile()
    args: tuple[Any, ...] = (x, y, *columns, tile.columns, largest)
    launch("fold", "position", tile.grid, tile.block, args, x.dtype, RESULT=x.dtype)


@kernel(ArgMax, dtypes=REALS)
def _argmax(operation: ArgMax, inputs: list[Array], outputs: list[Array]) -> None:
    _position(operation, inputs[0], outputs[0], 1)


@kernel(ArgMin, dtypes=REALS)
def _argmin(operation: ArgMin, inputs: list[Array], outputs: list[Array]) -> None:
    _position(operation, inputs[0], outputs[0], 0)


@kernel(ReduceProdDown, dtypes=FLOATS)
def _prod_down(operation: ReduceProdDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g, x), (dx,) = inputs, outputs
    axes = Reduction(operation.axis).axes(x.ndim)
    x, columns = columns_over(x, axes)
    # Where the axes do not lie side by side, they come last in the columns, and so must the result's.
    kept = [i for i in range(dx.ndim) if i not in axes]
    is_moved = x.shape != dx.shape or axes != tuple(range(axes[0], axes[0] + len(axes)) if axes else ())
    target = cupy.empty(x.shape, x.dtype) if is_moved else dx
    before = cupy.empty(x.shape, wide_dtype(x.dtype))
    launch_flat("fold", "prod_down", columns.all, (contiguous(g), x, target, before, *columns), x.dtype, RESULT=x.dtype)
    if is_moved:
        cupy.copyto(dx.transpose(*kept, *axes), target)
