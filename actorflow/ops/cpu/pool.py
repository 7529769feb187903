"""Kernels of `actorflow.ops.pool`: one pass per kernel offset over blocks of images that fit in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array, keep_where, scratch
from actorflow.ops.pool import (
    AveragePool2d,
    AveragePool2dDown,
    GlobalAverage,
    GlobalAverageDown,
    MaxPool2d,
    MaxPool2dDown,
)
from actorflow.ops.registry import kernel

__all__: list[str] = []

_BLOCK_BYTES = 512 << 10


def _image_blocks(images: Array) -> Iterator[slice]:
    step = max(1, _BLOCK_BYTES * len(images) // max(1, images.nbytes))
    for first in range(0, len(images), step):
        yield slice(first, first + step)


def _span(offset: int, stride: int, pad: int, size: int, count: int) -> tuple[slice, slice]:
    """Which of ``count`` windows see an image element at this kernel offset, and which elements those are."""
    shift = offset - pad
    first = max(0, -(shift // stride))
    stop = max(first, min(count, (size - 1 - shift) // stride + 1))
    start = first * stride + shift
    return slice(first, stop), slice(start, start + (stop - first) * stride, stride)


def _offsets(operation: Any, size: tuple[int, ...], out: tuple[int, ...]) -> Iterator[tuple[Any, Any]]:
    """For each kernel offset, row by row: index of the windows and index of the image elements that they see."""
    (kv, kh), (sv, sh), (pv, ph) = operation.kernel, operation.stride, operation.pad
    columns = [_span(offset, sh, ph, size[1], out[1]) for offset in range(kh)]
    for offset in range(kv):
        window_rows, rows = _span(offset, sv, pv, size[0], out[0])
        for window_columns, image_columns in columns:
            if window_rows.start < window_rows.stop and window_columns.start < window_columns.stop:
                yield (slice(None), window_rows, window_columns), (slice(None), rows, image_columns)


@kernel(MaxPool2d)
def _max_pool(operation: MaxPool2d, inputs: list[Array], outputs: list[Array]) -> None:
    offsets = list(_offsets(operation, inputs[0].shape[1:3], outputs[0].shape[1:3]))
    for block in _image_blocks(inputs[0]):
        x, y = inputs[0][block], outputs[0][block]
        y.fill(-np.inf)
        for window, element in offsets:
            np.maximum(y[window], x[element], out=y[window])


@kernel(MaxPool2dDown)
def _max_pool_down(operation: MaxPool2dDown, inputs: list[Array], outputs: list[Array]) -> None:
    offsets = list(_offsets(operation, inputs[1].shape[1:3], inputs[2].shape[1:3]))
    for block in _image_blocks(inputs[1]):
        (g, x, y), dx = (array[block] for array in inputs), outputs[0][block]
        dx.fill(0)
        left = scratch("left", y.shape, np.bool_)  # windows whose first maximum is still to come
        left.fill(True)
        for window, element in offsets:
            hit = scratch("hit", y[window].shape, np.bool_)
            np.equal(x[element], y[window], out=hit)
            np.logical_and(hit, left[window], out=hit)
            np.logical_xor(left[window], hit, out=left[window])
            share = scratch("share", hit.shape, dx.dtype)
            keep_where(hit, g[window], share)
            np.add(dx[element], share, out=dx[element])


def _inverse_counts(operation: AveragePool2d, size: tuple[int, ...], out: tuple[int, ...], dtype: Any) -> Array:
    """1 / (number of elements that count) of each window, shape (out_height, out_width, 1)."""
    lengths = []
    for n, count, k, s, p in zip(size, out, operation.kernel, operation.stride, operation.pad, strict=True):
        start = np.arange(count) * s - p
        stop = np.minimum(start + k, n + p)
        lengths.append(stop - start if operation.count_pad else np.minimum(stop, n) - np.maximum(start, 0))
    counts: Array = np.multiply.outer(*lengths)[:, :, np.newaxis]
    return (1.0 / counts).astype(dtype)


@kernel(AveragePool2d)
def _average_pool(operation: AveragePool2d, inputs: list[Array], outputs: list[Array]) -> None:
    size, out = inputs[0].shape[1:3], outputs[0].shape[1:3]
    offsets, inverse = list(_offsets(operation, size, out)), _inverse_counts(operation, size, out, outputs[0].dtype)
    for block in _image_blocks(inputs[0]):
        x, y = inputs[0][block], outputs[0][block]
        y.fill(0)
        for window, element in offsets:
            np.add(y[window], x[element], out=y[window])
        np.multiply(y, inverse, out=y)


@kernel(AveragePool2dDown)
def _average_pool_down(operation: AveragePool2dDown, inputs: list[Array], outputs: list[Array]) -> None:
    size, out = outputs[0].shape[1:3], inputs[0].shape[1:3]
    offsets, inverse = list(_offsets(operation, size, out)), _inverse_counts(operation, size, out, outputs[0].dtype)
    for block in _image_blocks(outputs[0]):
        g, dx = inputs[0][block], outputs[0][block]
        share = np.multiply(g, inverse, out=scratch("share", g.shape, g.dtype))
        dx.fill(0)
        for window, element in offsets:
            np.add(dx[element], share[window], out=dx[element])


@kernel(GlobalAverage)
def _global_average(operation: GlobalAverage, inputs: list[Array], outputs: list[Array]) -> None:
    np.mean(inputs[0], axis=(1, 2), out=outputs[0])


@kernel(GlobalAverageDown)
def _global_average_down(operation: GlobalAverageDown, inputs: list[Array], outputs: list[Array]) -> None:
    g, dx = inputs[0], outputs[0]
    height, width = operation.size
    share = np.multiply(g, 1.0 / (height * width), out=scratch("share", g.shape, g.dtype))
    np.copyto(dx, share[:, np.newaxis, np.newaxis, :])
