"""Kernels of `actorflow.ops.batch_norm` and `actorflow.ops.layer_norm`.

They are elementwise kernels, and sums of what these write, in float32 at least. The statistics broadcast: (channels,)
for batches, (samples, 1) for layers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import cupy
import numpy as np

from actorflow.ops.batch_norm import BatchNorm, BatchNormDown, BatchNormInference, BatchNormInferenceDown
from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, elementwise, kernel, wide_dtype
from actorflow.ops.cuda.reduce import sum_axes
from actorflow.ops.layer_norm import LayerNorm, LayerNormDown

__all__: list[str] = []

_WIDEN = elementwise("widen", "T x", "R y", "y = R(x)")
_SQUARED_DISTANCE = elementwise("squared_distance", "T x, R mean", "R y", "y = (R(x) - mean) * (R(x) - mean)")
_NORMALIZE = elementwise(
    "normalize",
    "T x, R mean, R variance, T scale, T shift, float64 epsilon",
    "T y",
    "y = T((R(x) - mean) / R(sqrt(variance + R(epsilon))) * R(scale) + R(shift))",
)
_MOVE = elementwise(
    "move_average",
    "T old, T batch, float64 momentum, float64 unbiased",
    "T y",
    "y = T(1 - momentum) * old + T(momentum * unbiased) * batch",
)
_PRODUCT = elementwise(
    "normalized_product",
    "T g, T x, R mean, R variance, float64 epsilon",
    "R y",
    "y = R(g) * ((R(x) - mean) / R(sqrt(variance + R(epsilon))))",
)
_SCALED = elementwise("widened_product", "T g, T scale", "R y", "y = R(g) * R(scale)")
_TIMES = elementwise("widened_times", "R a, T scale", "R y", "y = a * R(scale)")
_DOWN = elementwise(
    "normalize_down",
    "T g, T x, T scale, R mean, R variance, R s, R product, float64 epsilon, float64 count",
    "T dx",
    "const R r = R(1) / R(sqrt(variance + R(epsilon))), n = (R(x) - mean) * r;"
    "dx = T(r * (R(g) * R(scale) - s / R(count) - n * (product / R(count))))",
)
_INFERENCE_DOWN = elementwise(
    "normalize_by_constants_down",
    "T g, T scale, R variance, float64 epsilon",
    "T dx",
    "dx = T(R(g) * R(scale) / R(sqrt(variance + R(epsilon))))",
)


class _Rows(NamedTuple):
    """How an array is seen: as (rows, width), with statistics per column or per row."""

    rows: int
    width: int
    axis: int

    @classmethod
    def of(cls, shape: tuple[int, ...], axes: int, axis: int) -> _Rows:
        return cls(math.prod(shape[:-axes]), math.prod(shape[-axes:]), axis)

    def matrix(self, x: Array) -> Array:
        return contiguous(x).reshape(self.rows, self.width)

    def statistic(self, x: Array) -> Array:
        """What broadcasts with the matrix."""
        return contiguous(x).reshape((1, self.width) if self.axis == 0 else (self.rows, 1))

    def sum(self, x: Array, out: Array, divisor: float = 1.0) -> None:
        """The sum that a statistic is of."""
        sum_axes(x, (self.axis,), out.reshape(out.size), divisor)

    @property
    def terms(self) -> int:
        return self.rows if self.axis == 0 else self.width


def _wide(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return cupy.empty(shape, wide_dtype(dtype))


def _statistics(rows: _Rows, x: Array, mean: Array, variance: Array) -> None:
    wide = _wide(x.shape, x.dtype)
    _WIDEN(x, wide)
    rows.sum(wide, mean, rows.terms)
    _SQUARED_DISTANCE(x, rows.statistic(mean), wide)
    rows.sum(wide, variance, rows.terms)


@kernel(BatchNorm, dtypes=FLOATS)
def _batch_norm(operation: BatchNorm, inputs: list[Array], outputs: list[Array]) -> None:
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
    momentum = np.float64(operation.momentum)
    _MOVE(running_mean, mean, momentum, np.float64(1), new_mean)
    _MOVE(running_variance, variance, momentum, np.float64(rows.rows / (rows.rows - 1)), new_variance)


@kernel(BatchNormInference, dtypes=FLOATS, inplace=True)
def _batch_norm_inference(operation: BatchNormInference, inputs: list[Array], outputs: list[Array]) -> None:
    x, scale, shift, mean, variance = inputs
    _NORMALIZE(x, mean, variance, scale, shift, np.float64(operation.epsilon), outputs[0])


def _products(rows: _Rows, operation: Any, g: Array, x: Array, mean: Array, variance: Array) -> Array:
    products = _wide(x.shape, x.dtype)
    _PRODUCT(g, x, mean, variance, np.float64(operation.epsilon), products)
    return products


def _sum_columns(x: Array, *outs: Array) -> None:
    """Sums over the samples, each written to all of ``outs``, which may differ in dtype."""
    for out in outs:
        sum_axes(x, (0,), out.reshape(out.size))


def _widened(g: Array) -> Array:
    wide = _wide(g.shape, g.dtype)
    _WIDEN(g, wide)
    return wide


@kernel(BatchNormDown, dtypes=FLOATS)
def _batch_norm_down(operation: BatchNormDown, inputs: list[Array], outputs: list[Array]) -> None:
    rows = _Rows.of(inputs[1].shape, 1, 0)
    g, x = (rows.matrix(array) for array in inputs[:2])
    scale, mean, variance = (rows.statistic(v) for v in inputs[2:])
    dx, dscale, dshift = outputs
    s, product = (_wide((rows.width,), x.dtype) for _ in range(2))
    _sum_columns(_products(rows, operation, g, x, mean, variance), product, dscale)
    _sum_columns(_widened(g), s, dshift)
    for sums in (s, product):
        _TIMES(sums, scale.reshape(rows.width), sums)
    arrays = (g, x, scale, mean, variance, rows.statistic(s), rows.statistic(product))
    _DOWN(*arrays, np.float64(operation.epsilon), np.float64(rows.terms), rows.matrix(dx))


@kernel(BatchNormInferenceDown, dtypes=FLOATS)
def _batch_norm_inference_down(operation: BatchNormInferenceDown, inputs: list[Array], outputs: list[Array]) -> None:
    rows = _Rows.of(inputs[1].shape, 1, 0)
    g, x = (rows.matrix(array) for array in inputs[:2])
    scale, mean, variance = (rows.statistic(v) for v in inputs[2:])
    _sum_columns(_products(rows, operation, g, x, mean, variance), outputs[1])
    _sum_columns(_widened(g), outputs[2])
    _INFERENCE_DOWN(g, scale, variance, np.float64(operation.epsilon), rows.matrix(outputs[0]))


@kernel(LayerNorm, dtypes=FLOATS)
def _layer_norm(operation: LayerNorm, inputs: list[Array], outputs: list[Array]) -> None:
    rows = _Rows.of(inputs[0].shape, operation.axes, 1)
    x, (y, mean, variance) = rows.matrix(inputs[0]), outputs
    _statistics(rows, x, mean, variance)
    own = [contiguous(v).reshape(1, rows.width) for v in inputs[1:]]
    epsilon = np.float64(operation.epsilon)
    _NORMALIZE(x, rows.statistic(mean), rows.statistic(variance), *own, epsilon, rows.matrix(y))


@kernel(LayerNormDown, dtypes=FLOATS)
def _layer_norm_down(operation: LayerNormDown, inputs: list[Array], outputs: list[Array]) -> None:
    rows = _Rows.of(inputs[1].shape, operation.axes, 1)
    g, x = (rows.matrix(array) for array in inputs[:2])
    scale = contiguous(inputs[2]).reshape(1, rows.width)
    mean, variance = (rows.statistic(v) for v in inputs[3:])
    dx, dscale, dshift = outputs
    products = _products(rows, operation, g, x, mean, variance)
    _sum_columns(products, dscale)
    _sum_columns(_widened(g), dshift)
    s, product = (_wide((rows.rows,), x.dtype) for _ in range(2))
    _TIMES(products, scale, products)
    rows.sum(products, product)
    _SCALED(g, scale, products)
    rows.sum(products, s)
    arrays = (g, x, scale, mean, variance, rows.statistic(s), rows.statistic(product))
    _DOWN(*arrays, np.float64(operation.epsilon), np.float64(rows.terms), rows.matrix(dx))
