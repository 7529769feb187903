"""Kernels of `actorflow.ops.nn.norm`.

Statistics are taken in one pass over the data, in float32 at least, and the results are written in another: a batch is
read twice forwards, and with its gradient twice backwards; layers need a third pass backwards, since they add up along
both axes. The statistics broadcast: (channels,) for batches, (samples, 1) for layers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import cupy
import numpy as np

from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, elementwise, kernel, launch
from actorflow.ops.cuda.reductions import Columns, sum_axes
from actorflow.ops.nn import norm as ops
from actorflow.ops.operation import wide_dtype

_NORMALIZE = elementwise(
    "normalize",
    "T x, R mean, R variance, T scale, T shift, float64 epsilon",
    "T y",
    "y = T((R(x) - mean) / R(sqrt(variance + R(epsilon))) * R(scale) + R(shift))",
)
_MOVE = elementwise(
    "move_averages",
    "T old_mean, T mean, T old_variance, T variance, float64 momentum, float64 unbiased",
    "T new_mean, T new_variance",
    "new_mean = T(1 - momentum) * old_mean + T(momentum) * mean;"
    "new_variance = T(1 - momentum) * old_variance + T(momentum * unbiased) * variance",
)
_RECIPROCAL = elementwise(
    "one_over_deviation", "T variance, float64 epsilon", "T r", "r = T(1) / T(sqrt(variance + T(epsilon)))"
)
_NARROW = elementwise("narrow_two", "R a, R b", "T x, T y", "x = T(a); y = T(b)")
_BATCH_DOWN = elementwise(
    "batch_norm_down",
    "T g, T x, T scale, R mean, R r, R total, R product, float64 count",
    "T dx",
    "const R n = (R(x) - mean) * r; dx = T(r * R(scale) * (R(g) - total / R(count) - n * (product / R(count))))",
)
_LAYER_DOWN = elementwise(
    "layer_norm_down",
    "T g, T x, T scale, R mean, R r, R total, R product, float64 count",
    "T dx",
    "const R n = (R(x) - mean) * r; dx = T(r * (R(g) * R(scale) - total / R(count) - n * (product / R(count))))",
)
_INFERENCE_DOWN = elementwise("normalize_by_constants_down", "T g, T scale, R r", "T dx", "dx = T(R(g) * R(scale) * r)")


class _Rows(NamedTuple):
    """An array seen as (rows, width), with statistics per column or per row."""

    rows: int
    width: int
    axis: int

    @classmethod
    def of(cls, shape: tuple[int, ...], axes: int, axis: int) -> _Rows:
        return cls(math.prod(shape[:-axes]), math.prod(shape[-axes:]), axis)

    def matrix(self, x: Array) -> Array:
        return contiguous(x).reshape(self.rows, self.width)

    def statistic(self, x: Array) -> Array:
        return contiguous(x).reshape((1, self.width) if self.axis == 0 else (self.rows, 1))

    def columns(self, axis: int) -> Columns:
        return Columns.along((self.rows, self.width), axis)

    @property
    def terms(self) -> int:
        return self.rows if self.axis == 0 else self.width


def _wide(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return cupy.empty(shape, wide_dtype(dtype))


def _statistics(rows: _Rows, x: Array, mean: Array, variance: Array) -> None:
    """Mean and variance of a matrix, in one pass over it."""
    columns = rows.columns(rows.axis)
    tile = columns.sum_tile()

    def run(function: str, arrays: tuple[Array, ...], columns: Columns, grid: int, block: int, *more: int) -> None:
        launch("norm", function, grid, block, (*arrays, *columns, *more), x.dtype)

    if tile.parts == 1:
        run("moments", (x, mean, variance, mean), columns, tile.grid, tile.block, 1, tile.columns)
        return
    partial = [_wide((tile.parts, columns.all), x.dtype) for _ in range(3)]
    run("moments", (x, *partial), columns, tile.grid, tile.block, tile.parts, tile.columns)
    rest = Columns(columns.all, tile.parts, columns.all)
    tile = rest.softmax_tile()
    run("join_moments", (*partial, mean, variance), rest, tile.grid, tile.block, tile.columns)


def _reciprocal(operation: Any, variance: Array) -> Array:
    r = cupy.empty(variance.shape, variance.dtype)
    _RECIPROCAL(variance, np.float64(operation.epsilon), r)
    return r


def _sums(rows: _Rows, axis: int, g: Array, x: Array, mean: Array, r: Array, scale: Array) -> Array:
    """Sums along an axis of ``g``, along rows times ``scale``, and of that times normalized ``x``: (2, columns)."""
    columns = rows.columns(axis)
    tile = columns.sum_tile()
    partial = _wide((tile.parts, 2, columns.all), x.dtype)
    args = (g, x, mean, r, scale, partial, *columns, tile.parts, tile.columns, int(axis != rows.axis), axis)
    launch("norm", "sums_of_normalized", tile.grid, tile.block, args, x.dtype)
    if tile.parts == 1:
        return partial.reshape(2, columns.all)
    sums = _wide((2, columns.all), x.dtype)
    sum_axes(partial, (0,), sums)
    return sums


@kernel(ops.BatchNorm, dtypes=FLOATS)
def _batch_norm(operation: ops.BatchNorm, inputs: list[Array], outputs: list[Array]) -> None:
    x, scale, shift, running_mean, running_variance = inputs
    y, mean, variance, new_mean, new_variance = outputs
    rows = _Rows.of(x.shape, 1, 0)
    matrix = rows.matrix(x)
    _statistics(rows, matrix, mean, variance)
    _NORMALIZE(
        matrix,
        *(rows.statistic(v) for v in (mean, variance, scale, shift)),
        np.float64(operation.epsilon),
        rows.matrix(y),
    )
    momentum, unbiased = np.float64(operation.momentum), np.float64(rows.rows / (rows.rows - 1))
    _MOVE(running_mean, mean, running_variance, variance, momentum, unbiased, new_mean, new_variance)


@kernel(ops.BatchNormInference, dtypes=FLOATS, inplace=True)
def _batch_norm_inference(operation: ops.BatchNormInference, inputs: list[Array], outputs: list[Array]) -> None:
    x, scale, shift, mean, variance = inputs
    _NORMALIZE(x, mean, variance, scale, shift, np.float64(operation.epsilon), outputs[0])


@kernel(ops.BatchNormInferenceDown, dtypes=FLOATS)
@kernel(ops.BatchNormDown, dtypes=FLOATS)
def _batch_norm_down(operation: ops.BatchNormDown, inputs: list[Array], outputs: list[Array]) -> None:
    rows = _Rows.of(inputs[1].shape, 1, 0)
    g, x = (rows.matrix(array) for array in inputs[:2])
    scale, mean, variance = (contiguous(array) for array in inputs[2:])
    dx, dscale, dshift = outputs
    r = _reciprocal(operation, variance)
    total, product = _sums(rows, 0, g, x, mean, r, scale)
    _NARROW(product, total, dscale, dshift)
    if isinstance(operation, ops.BatchNormInferenceDown):
        _INFERENCE_DOWN(g, rows.statistic(scale), rows.statistic(r), rows.matrix(dx))
        return
    statistics = map(rows.statistic, (scale, mean, r, total, product))
    _BATCH_DOWN(g, x, *statistics, np.float64(rows.terms), rows.matrix(dx))


@kernel(ops.LayerNorm, dtypes=FLOATS)
def _layer_norm(operation: ops.LayerNorm, inputs: list[Array], outputs: list[Array]) -> None:
    rows = _Rows.of(inputs[0].shape, operation.axes, 1)
    x, (y, mean, variance) = rows.matrix(inputs[0]), outputs
    _statistics(rows, x, mean, variance)
    own = [contiguous(v).reshape(1, rows.width) for v in inputs[1:]]
    epsilon = np.float64(operation.epsilon)
    _NORMALIZE(x, rows.statistic(mean), rows.statistic(variance), *own, epsilon, rows.matrix(y))


@kernel(ops.LayerNormDown, dtypes=FLOATS)
def _layer_norm_down(operation: ops.LayerNormDown, inputs: list[Array], outputs: list[Array]) -> None:
    rows = _Rows.of(inputs[1].shape, operation.axes, 1)
    g, x = (rows.matrix(array) for array in inputs[:2])
    scale, mean, variance = (contiguous(array) for array in inputs[2:])
    dx, dscale, dshift = outputs
    r = _reciprocal(operation, variance)
    total, product = _sums(rows, 0, g, x, mean, r, scale)
    _NARROW(product, total, dscale.reshape(rows.width), dshift.reshape(rows.width))
    total, product = _sums(rows, 1, g, x, mean, r, scale)
    statistics = map(rows.statistic, (mean, r, total, product))
    _LAYER_DOWN(g, x, scale.reshape(1, rows.width), *statistics, np.float64(rows.terms), rows.matrix(dx))
