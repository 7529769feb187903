"""Kernels of `actorflow.ops.nn.norm`.

They take blocks of rows, (rows, channels) for batches and (samples, elements) for layers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array, in_float32, row_blocks
from actorflow.ops.cpu.parallel import by_rows, rowwise
from actorflow.ops.cpu.reductions import sum_axes
from actorflow.ops.nn import norm as ops
from actorflow.ops.registry import kernel


def _sum(rows: Array) -> Array:
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
            centered = part - rough
            found += _sum(centered), _sum(centered * centered)
        return found

    rest, squares = np.add.reduce(by_rows([x], moments, 6)) / len(x)
    return rough + rest, np.maximum(squares - rest * rest, 0)


def _normalize(x: Array, center: Array, factor: Array, shift: Array, y: Array) -> None:
    """Write ``(x - center) * factor + shift`` to ``y``; of rows, and vectors of their width."""

    def compute(rows: Array, results: Array) -> None:
        for part, out in row_blocks(rows, results):
            np.add((part - center) * factor, shift, out=out)

    by_rows([x, y], compute, 3)


def _combine(g: Array, x: Array, mean: Array, of_g: Array, of_x: Array, of_1: Array, dx: Array) -> None:
    """Write ``(x - mean) * of_x + g * of_g + of_1`` to ``dx``."""

    def compute(*rows: Array) -> None:
        for g_part, x_part, out in row_blocks(*rows):
            np.add(g_part * of_g + (x_part - mean) * of_x, of_1, out=out)

    by_rows([g, x, dx], compute, 3)


def _factor(scale: Array, variance: Array, epsilon: float, dtype: np.dtype[Any]) -> Array:
    factor: Array = (scale / np.sqrt(variance + epsilon)).astype(dtype)
    return factor


@kernel(ops.BatchNorm)
@in_float32
def _batch_norm(operation: ops.BatchNorm, inputs: list[Array], outputs: list[Array]) -> None:
    x, scale, shift, running_mean, running_variance = inputs
    y, mean, variance, new_mean, new_variance = outputs
    rows = _matrix(x, x.shape[-1])
    exact_mean, exact_variance = _statistics(rows) if rows.size else (np.zeros(0), np.zeros(0))
    mean[...], variance[...] = exact_mean, exact_variance
    factor = _factor(scale, exact_variance, operation.epsilon, x.dtype)
    _normalize(rows, exact_mean.astype(x.dtype), factor, shift, _matrix(y, x.shape[-1]))
    momentum, unbiased = operation.momentum, len(rows) / max(1, len(rows) - 1)
    new_mean[...] = (1 - momentum) * running_mean + momentum * exact_mean
    new_variance[...] = (1 - momentum) * running_variance + momentum * unbiased * exact_variance


@kernel(ops.BatchNormInference, inplace=True)
@rowwise
@in_float32
def _batch_norm_inference(operation: ops.BatchNormInference, inputs: list[Array], outputs: list[Array]) -> None:
    x, scale, shift, mean, variance = inputs
    width, factor = x.shape[-1], _factor(scale, variance, operation.epsilon, x.dtype)
    _normalize(_matrix(x, width), mean.astype(x.dtype), factor, shift, _matrix(outputs[0], width))


def _channel_sums(g: Array, x: Array, mean: Array) -> Array:
    """Sums of ``g * (x - mean)`` and of ``g``, in float64."""

    def sums(g_rows: Array, x_rows: Array) -> Array:
        found = np.zeros((2, x.shape[1]))
        for g_part, x_part in row_blocks(g_rows, x_rows):
            found += _sum((x_part - mean) * g_part), _sum(g_part)
        return found

    total: Array = np.add.reduce(by_rows([g, x], sums, 3))
    return total


@kernel(ops.BatchNormInferenceDown)
@kernel(ops.BatchNormDown)
@in_float32
def _batch_norm_down(operation: ops.BatchNormDown, inputs: list[Array], outputs: list[Array]) -> None:
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
    _combine(g, x, mean, of_g.astype(x.dtype), of_x.astype(x.dtype), of_1.astype(x.dtype), dx)


def _average(rows: Array) -> Array:
    return np.asarray(sum_axes(rows, (1,), keepdims=True) / rows.dtype.type(rows.shape[1]))


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
            centered = part - rough
            rest = _average(centered)
            centered -= rest
            np.add(rough, rest, out=center)
            spread[...] = _average(centered * centered)
            centered *= 1 / np.sqrt(spread + x.dtype.type(operation.epsilon))
            np.add(centered * scale, shift, out=out)

    by_rows([x, y, mean, variance], compute, 6)


@kernel(ops.LayerNormDown)
@in_float32
def _layer_norm_down(operation: ops.LayerNormDown, inputs: list[Array], outputs: list[Array]) -> None:
    width = math.prod(inputs[1].shape[-operation.axes :])
    g, x, dx = (_matrix(array, width) for array in (*inputs[:2], outputs[0]))
    scale, (mean, variance) = inputs[2].reshape(-1), (_matrix(statistic, 1) for statistic in inputs[3:])

    def compute(*rows: Array) -> Array:
        sums = np.zeros((2, width))
        for g_part, x_part, out, center, spread in row_blocks(*rows):
            r = 1 / np.sqrt(spread + x.dtype.type(operation.epsilon))
            normal = (x_part - center) * r
            sums += _sum(g_part * normal), _sum(g_part)
            scaled = g_part * scale
            np.multiply(scaled - _average(scaled) - normal * _average(scaled * normal), r, out=out)
        return sums

    outputs[1].reshape(-1)[...], outputs[2].reshape(-1)[...] = np.add.reduce(
        by_rows([g, x, dx, mean, variance], compute, 5)
    )
