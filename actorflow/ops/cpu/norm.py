"""Kernels of `actorflow.ops.nn.norm`.

They take blocks of rows, (rows, channels) for batches and (samples, elements) for layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array, in_float32, row_blocks, scratch
from actorflow.ops.cpu.parallel import by_rows, rowwise
from actorflow.ops.cpu.reductions import sum_axes
from actorflow.ops.nn import norm as ops
from actorflow.ops.registry import kernel


def _sum(rows: Array) -> Array:
    """The sum of rows."""
    return sum_axes(rows, (0,))


def _matrix(x: Array, width: int) -> Array:
    return x.reshape(x.size // max(1, width), width) if x.size else x.reshape(0, width)


def _statistics(x: Array) -> tuple[Array, Array]:
    """Mean and variance of columns, in float64; the mean is subtracted before anything is squared."""

    def totals(rows: Array) -> Array:
        found = np.zeros(x.shape[1])
        for (part,) in row_blocks(rows):
            found += _sum(part)
        return found

    mean = np.add.reduce(by_rows([x], totals, 2)) / len(x)
    rough = mean.astype(x.dtype)

    def moments(rows: Array) -> Array:
        found = np.zeros((2, x.shape[1]))
        for (part,) in row_blocks(rows):
            centered = np.subtract(part, rough, out=scratch("centered", part.shape, x.dtype))
            found[0] += _sum(centered)
            found[1] += _sum(np.multiply(centered, centered, out=centered))
        return found

    rest, squares = np.add.reduce(by_rows([x], moments, 6)) / len(x)
    return rough + rest, np.maximum(squares - rest * rest, 0)


#: Writes ``(x - center) * factor + shift`` to the last argument; rows, and vectors of their width.
Normalize = Callable[[Array, Array, Array, Array, Array], None]
#: Writes ``(x - mean) * of_x + g * of_g + of_1`` to the last argument; of ``g, x, mean, of_g, of_x, of_1``.
Combine = Callable[[Array, Array, Array, Array, Array, Array, Array], None]


def _normalize(x: Array, center: Array, factor: Array, shift: Array, y: Array) -> None:
    def compute(rows: Array, results: Array) -> None:
        for part, out in row_blocks(rows, results):
            np.subtract(part, center, out=out)
            np.multiply(out, factor, out=out)
            np.add(out, shift, out=out)

    by_rows([x, y], compute, 3)


def _combine(g: Array, x: Array, mean: Array, of_g: Array, of_x: Array, of_1: Array, dx: Array) -> None:
    def compute(*rows: Array) -> None:
        for g_part, x_part, out in row_blocks(*rows):
            centered = np.subtract(x_part, mean, out=scratch("centered", x_part.shape, x.dtype))
            np.multiply(centered, of_x, out=centered)
            np.multiply(g_part, of_g, out=out)
            np.add(out, centered, out=out)
            np.add(out, of_1, out=out)

    by_rows([g, x, dx], compute, 3)


def factor_of(scale: Array, variance: Array, epsilon: float, dtype: np.dtype[Any]) -> Array:
    """What centered values of each channel are multiplied by."""
    factor: Array = (scale / np.sqrt(variance + epsilon)).astype(dtype)
    return factor


@kernel(ops.BatchNorm)
@in_float32
def _batch_norm(operation: ops.BatchNorm, inputs: list[Array], outputs: list[Array]) -> None:
    batch_norm(operation, inputs, outputs, _normalize)


def batch_norm(operation: ops.BatchNorm, inputs: list[Array], outputs: list[Array], normalize: Normalize) -> None:
    """The batch's normalized values and statistics; see `BatchNorm`."""
    x, scale, shift, running_mean, running_variance = inputs
    y, mean, variance, new_mean, new_variance = outputs
    rows = _matrix(x, x.shape[-1])
    exact_mean, exact_variance = _statistics(rows) if rows.size else (np.zeros(0), np.zeros(0))
    mean[...], variance[...] = exact_mean, exact_variance
    factor = factor_of(scale, exact_variance, operation.epsilon, x.dtype)
    normalize(rows, exact_mean.astype(x.dtype), factor, shift, _matrix(y, x.shape[-1]))
    momentum, unbiased = operation.momentum, len(rows) / max(1, len(rows) - 1)
    new_mean[...] = (1 - momentum) * running_mean + momentum * exact_mean
    new_variance[...] = (1 - momentum) * running_variance + momentum * unbiased * exact_variance


@kernel(ops.BatchNormInference, inplace=True)
@rowwise
@in_float32
def _batch_norm_inference(operation: ops.BatchNormInference, inputs: list[Array], outputs: list[Array]) -> None:
    x, scale, shift, mean, variance = inputs
    width, factor = x.shape[-1], factor_of(scale, variance, operation.epsilon, x.dtype)
    _normalize(_matrix(x, width), mean.astype(x.dtype), factor, shift, _matrix(outputs[0], width))


def _channel_sums(g: Array, x: Array, mean: Array) -> Array:
    """Sums of ``g * (x - mean)`` and of ``g``, in float64."""

    def sums(g_rows: Array, x_rows: Array) -> Array:
        found = np.zeros((2, x.shape[1]))
        for g_part, x_part in row_blocks(g_rows, x_rows):
            centered = np.subtract(x_part, mean, out=scratch("centered", x_part.shape, x.dtype))
            found[0] += _sum(np.multiply(centered, g_part, out=centered))
            found[1] += _sum(g_part)
        return found

    total: Array = np.add.reduce(by_rows([g, x], sums, 3))
    return total


@kernel(ops.BatchNormInferenceDown)
@kernel(ops.BatchNormDown)
@in_float32
def _batch_norm_down(operation: ops.BatchNormDown, inputs: list[Array], outputs: list[Array]) -> None:
    batch_norm_down(operation, inputs, outputs, _combine)


def batch_norm_down(operation: ops.BatchNormDown, inputs: list[Array], outputs: list[Array], combine: Combine) -> None:
    """Gradients of batch normalization; see `BatchNormDown`."""
    width = inputs[1].shape[-1]
    g, x, dx = (_matrix(array, width) for array in (*inputs[:2], outputs[0]))
    scale, mean, variance = inputs[2:]
    r = 1 / np.sqrt(variance.astype(np.float64) + operation.epsilon)
    products, total = _channel_sums(g, x, mean)
    products *= r
    outputs[1][...], outputs[2][...] = products, total
    if isinstance(operation, ops.BatchNormInferenceDown):
        np.multiply(g, (r * scale).astype(x.dtype), out=dx)
        return
    # dx = r * scale * (g - mean(g) - n * mean(g * n)), with one factor per channel for each of g, x and 1.
    count = max(1, len(x))
    of_g = r * scale
    of_x = -of_g * r * products / count
    of_1 = -of_g * total / count
    combine(g, x, mean, of_g.astype(x.dtype), of_x.astype(x.dtype), of_1.astype(x.dtype), dx)


def _average(rows: Array) -> Array:
    column = sum_axes(rows, (1,), keepdims=True)
    return np.divide(column, rows.shape[1], out=column)


def _average_product(a: Array, b: Array) -> Array:
    return _average(np.multiply(a, b, out=scratch("products", a.shape, a.dtype)))


#: Of ``g, x, center, r, scale``: writes ``n = (x - center) * r``, ``g * n`` and ``g * scale`` to the last three.
Begin = Callable[[Array, Array, Array, Array, Array, Array, Array, Array], None]
#: Writes ``dx = (dx - mean - n * mean_product) * r`` in place; of ``dx, n, mean, mean_product, r``.
Subtract = Callable[[Array, Array, Array, Array, Array], None]


def _begin(
    g: Array, x: Array, center: Array, r: Array, scale: Array, normal: Array, product: Array, scaled: Array
) -> None:
    np.subtract(x, center, out=normal)
    np.multiply(normal, r, out=normal)
    np.multiply(g, normal, out=product)
    np.multiply(g, scale, out=scaled)


def _subtract(dx: Array, normal: Array, mean: Array, mean_product: Array, r: Array) -> None:
    np.subtract(dx, mean, out=dx)
    np.multiply(normal, mean_product, out=normal)
    np.subtract(dx, normal, out=dx)
    np.multiply(dx, r, out=dx)


@kernel(ops.LayerNorm)
@in_float32
def _layer_norm(operation: ops.LayerNorm, inputs: list[Array], outputs: list[Array]) -> None:
    width = math.prod(inputs[0].shape[-operation.axes :])
    x, y = _matrix(inputs[0], width), _matrix(outputs[0], width)
    mean, variance = (_matrix(statistic, 1) for statistic in outputs[1:])
    scale, shift = (array.reshape(-1) for array in inputs[1:])

    def compute(*rows: Array) -> None:
        for part, out, center, spread in row_blocks(*rows):
            rough = _average(part)
            np.subtract(part, rough, out=out)
            rest = _average(out)
            np.subtract(out, rest, out=out)
            np.add(rough, rest, out=center)
            spread[...] = _average_product(out, out)
            np.multiply(out, 1 / np.sqrt(spread + x.dtype.type(operation.epsilon)), out=out)
            np.multiply(out, scale, out=out)
            np.add(out, shift, out=out)

    by_rows([x, y, mean, variance], compute, 6)


@kernel(ops.LayerNormDown)
@in_float32
def _layer_norm_down(operation: ops.LayerNormDown, inputs: list[Array], outputs: list[Array]) -> None:
    layer_norm_down(operation, inputs, outputs, _begin, _subtract)


def layer_norm_down(
    operation: ops.LayerNormDown, inputs: list[Array], outputs: list[Array], begin: Begin, subtract: Subtract
) -> None:
    """Gradients of the normalization of samples; see `LayerNormDown`."""
    width = math.prod(inputs[1].shape[-operation.axes :])
    g, x, dx = (_matrix(array, width) for array in (*inputs[:2], outputs[0]))
    scale, (mean, variance) = inputs[2].reshape(-1), (_matrix(statistic, 1) for statistic in inputs[3:])

    def compute(*rows: Array) -> Array:
        sums = np.zeros((2, width))
        for g_part, x_part, out, center, spread in row_blocks(*rows):
            r = 1 / np.sqrt(spread + x.dtype.type(operation.epsilon))
            normal, product = (scratch(name, x_part.shape, x.dtype) for name in ("normal", "product"))
            begin(g_part, x_part, center, r, scale, normal, product, out)
            sums[0] += _sum(product)
            sums[1] += _sum(g_part)
            subtract(out, normal, _average(out), _average_product(out, normal), r)
        return sums

    outputs[1].reshape(-1)[...], outputs[2].reshape(-1)[...] = np.add.reduce(
        by_rows([g, x, dx, mean, variance], compute, 5)
    )
