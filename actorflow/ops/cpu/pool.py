"""Kernels of `actorflow.ops.nn.pool`: one pass per kernel offset over pieces of images that fit in the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache, partial, reduce
from typing import Any

import numpy as np

from actorflow.devices.team import team
from actorflow.ops.cpu.buffers import Array, keep_where, loops_for, scratch
from actorflow.ops.cpu.parallel import by_rows, element_ns
from actorflow.ops.cpu.reductions import sum_axes
from actorflow.ops.cpu.windows import Piece, by_images, geometry, is_first, is_last, loop_by_images, pieces, taps
from actorflow.ops.nn import pool as ops
from actorflow.ops.nn.windows import Windows
from actorflow.ops.operation import wide_dtype
from actorflow.ops.registry import kernel

#: Passes of pieces that are smaller are so short that threads wait for each other; down to the second number, there are
#: pieces for two of them.
_PIECE_BYTES, _LEAST_BYTES = 2 << 20, 512 << 10
#: An image that is larger is cut into bands.
_IMAGE_BYTES = 4 << 20


def _image_pieces(w: Windows, images: Array) -> Iterator[Piece]:
    item_bytes = images.shape[-1] * images.itemsize * math.prod(w.size) / math.prod(w.out)
    piece_bytes = min(_PIECE_BYTES, max(_LEAST_BYTES, images.nbytes // 2))
    return pieces((len(images), *w.out), item_bytes, piece_bytes, _IMAGE_BYTES)


def _work_ns(w: Windows, results: Array) -> float:
    """About how long one thread takes for all windows, whose number and channels ``results`` has."""
    return element_ns(3 * results.size * math.prod(w.kernel))


def _is_seen_once(w: Windows) -> bool:
    """Return whether no element is seen by two windows."""
    return all(d * (k - 1) < s for k, d, s in zip(w.kernel, w.dilation, w.stride, strict=True))


@kernel(ops.MaxPool)
def max_pool(operation: ops.MaxPool, inputs: list[Array], outputs: list[Array]) -> None:
    """The maxima, and where they are; see `MaxPool`."""
    (images,), (results, *indices) = inputs, outputs
    w = operation.windows(images.shape[1:-1])
    least = np.iinfo(results.dtype).min if results.dtype.kind in "iu" else -np.inf

    def compute(piece: Piece) -> None:
        x, y = images[piece[0]], results[piece]
        y.fill(least)
        for _, window, element in taps(w, piece):
            np.maximum(y[window], x[element], out=y[window])

    loops = loops_for(images, results) if indices else None
    if loops is not None:
        compute = partial(loops.maxima, geometry(w))
        loop_by_images(compute, _work_ns(w, results), images, results, indices[0])
        return
    if w.kernel == w.size == w.padded_size:  # the only window is the image
        np.max(images, axis=tuple(range(1, images.ndim - 1)), keepdims=True, out=results)
    else:
        team.spread(list(_image_pieces(w, images)), compute, _work_ns(w, results))
    for found in indices:
        _find_maxima(w, images, results, found)


def _find_maxima(w: Windows, images: Array, maxima: Array, found: Array) -> None:
    """Write where the first maximum, or NaN, of each window is in its image; -1 where a window sees no element."""
    steps = [math.prod(w.size[axis + 1 :]) for axis in range(len(w.size))]
    axes = zip(w.out, w.stride, w.pad, steps, strict=True)
    starts = reduce(np.add.outer, [(np.arange(n) * s - before) * step for n, s, (before, _), step in axes])[..., None]
    for piece in _image_pieces(w, images):
        y, seen = maxima[piece], taps(w, piece)
        or_nan = y.dtype.kind in "fV" and bool(np.isnan(y).any())
        numbers = scratch("numbers", y.shape, np.min_scalar_type(len(seen)))  # of the taps that see it, from 1 on
        numbers.fill(0)
        for number, (window, _, hit) in enumerate(_first_maxima(w, piece, images[piece[0]], y, or_nan), 1):
            share = np.multiply(hit, numbers.dtype.type(number), out=scratch("share", hit.shape, numbers.dtype))
            np.add(numbers[window], share, out=numbers[window])
        ways = [sum(map(math.prod, zip(tap.offset, w.dilation, steps, strict=True))) for tap in seen]
        np.add(starts[piece[1:]], np.array([0, *ways]).take(numbers), out=found[piece])
        if not numbers.all():
            found[piece][numbers == 0] = -1


def _first_maxima(
    w: Windows, piece: Piece, x: Array, y: Array, or_nan: bool = False
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...], Array]]:
    """(windows, the elements they see, where these are the windows' first maxima) for each kernel offset."""
    left = scratch("left", y.shape, np.bool_)  # windows whose first maximum is still to come
    left.fill(True)
    for _, window, element in taps(w, piece):
        hit = scratch("hit", y[window].shape, np.bool_)
        np.equal(x[element], y[window], out=hit)
        if or_nan:
            np.logical_or(hit, np.isnan(x[element]), out=hit)
        np.logical_and(hit, left[window], out=hit)
        np.logical_xor(left[window], hit, out=left[window])
        yield window, element, hit


@kernel(ops.MaxPoolDown)
def max_pool_down(operation: ops.MaxPoolDown, inputs: list[Array], outputs: list[Array]) -> None:
    """The gradient of the maxima; see `MaxPoolDown`."""
    (grads, images, maxima), (results,) = inputs, outputs
    w = operation.windows(images.shape[1:-1])
    keeps_bits = _is_seen_once(w)
    loops = loops_for(grads, images, maxima, results)
    if loops is not None:
        results.fill(0)
        arrays = (grads, images, maxima, results)
        loop_by_images(lambda *parts: loops.maxima_down(geometry(w), *parts, keeps_bits), _work_ns(w, maxima), *arrays)
        return

    def compute(run: list[Piece]) -> None:
        for piece in run:
            g, y, dx = grads[piece], maxima[piece], results[piece[0]]
            if is_first(piece):
                dx.fill(0)
            for window, element, hit in _first_maxima(w, piece, images[piece[0]], y):
                if keeps_bits:
                    keep_where(hit, g[window], dx[element])
                    continue
                share = scratch("share", hit.shape, dx.dtype)
                keep_where(hit, g[window], share)
                np.add(dx[element], share, out=dx[element])

    team.spread(by_images(_image_pieces(w, images), w), compute, 3 * _work_ns(w, maxima))


@lru_cache(maxsize=256)
def inverse_counts(w: Windows, count_pad: bool, dtype: np.dtype[Any]) -> Array:
    """1 / (number of elements that count, or 1) of each window, shape (*out, 1)."""
    lengths = []
    for n, count, k, s, (before, after), d in zip(w.size, w.out, w.kernel, w.stride, w.pad, w.dilation, strict=True):
        start = np.arange(count) * s - before
        first = np.zeros_like(start) if count_pad else np.maximum(0, -(start // d))
        end = n + after if count_pad else n
        lengths.append(np.maximum(0, np.minimum(k, (end - 1 - start) // d + 1) - first))
    counts: Array = reduce(np.multiply.outer, lengths)[..., np.newaxis]
    return (1.0 / np.maximum(counts, 1)).astype(dtype)


@kernel(ops.AveragePool)
def average_pool(operation: ops.AveragePool, inputs: list[Array], outputs: list[Array]) -> None:
    """The averages; see `AveragePool`."""
    (images,), (results,) = inputs, outputs
    w, dtype = operation.windows(images.shape[1:-1]), wide_dtype(results.dtype)
    inverse = inverse_counts(w, operation.count_pad, dtype)

    def compute(piece: Piece) -> None:
        x, y = images[piece[0]], results[piece]
        total = y if y.dtype == dtype else scratch("total", y.shape, dtype)
        total.fill(0)
        for _, window, element in taps(w, piece):
            np.add(total[window], x[element], out=total[window])
        np.multiply(total, inverse[piece[1:]], out=total)
        if total is not y:
            np.copyto(y, total, casting="unsafe")

    team.spread(list(_image_pieces(w, images)), compute, _work_ns(w, results))


@kernel(ops.AveragePoolDown)
def average_pool_down(operation: ops.AveragePoolDown, inputs: list[Array], outputs: list[Array]) -> None:
    """The gradient of the averages; see `AveragePoolDown`."""
    (grads,), (results,) = inputs, outputs
    w, dtype = operation.windows(results.shape[1:-1]), wide_dtype(results.dtype)
    inverse = inverse_counts(w, operation.count_pad, dtype)

    def compute(run: list[Piece]) -> None:
        total = results
        for piece in run:
            g, dx = grads[piece], results[piece[0]]
            share = np.multiply(g, inverse[piece[1:]], out=scratch("share", g.shape, dtype))
            if is_first(piece):
                total = dx if dx.dtype == dtype else scratch("total", dx.shape, dtype)
                total.fill(0)
            for _, window, element in taps(w, piece):
                np.add(total[element], share[window], out=total[element])
            if dx.dtype != dtype and is_last(piece, w):
                np.copyto(dx, total, casting="unsafe")

    team.spread(by_images(_image_pieces(w, results), w), compute, _work_ns(w, grads))


@kernel(ops.GlobalAverage)
def _global_average(operation: ops.GlobalAverage, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (y,) = inputs, outputs
    axes = tuple(range(1, x.ndim - 1))

    def compute(images: Array, means: Array) -> None:
        total = sum_axes(images, axes)
        np.copyto(means, total / total.dtype.type(math.prod(x.shape[1:-1])), casting="unsafe")

    with np.errstate(all="ignore"):
        by_rows([x, y], compute)
