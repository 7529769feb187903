"""Convolutions whose groups have one input channel: products of elements, one pass per kernel offset over pieces.

A product of matrices per group would have a matrix of one column; here a pass multiplies all channels at once. Where a
group has several output channels, the images are repeated, so that each output channel has an input channel of its own.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from actorflow.ops.cpu.buffers import Array, loops_for, scratch
from actorflow.ops.cpu.parallel import product_ns
from actorflow.ops.cpu.windows import Piece, as_matrix, geometry, loop_by_images, pieces, taps
from actorflow.ops.nn.windows import Windows
from actorflow.ops.operation import wide_dtype

_PIECE_BYTES = 256 << 10


def is_depthwise(groups: int, channels: int) -> bool:
    """Return whether these kernels are for it, by the number of input channels of each group."""
    return channels == 1 and groups > 1


def _pieces(cut: tuple[int, ...], other: tuple[int, ...], images: Array) -> list[Piece]:
    """Pieces of images of the first size; to each belongs its share of images of the other size."""
    ratio = 1 + math.prod(other) / max(1, math.prod(cut))
    item_bytes = images.shape[-1] * wide_dtype(images.dtype).itemsize * ratio
    return list(pieces((len(images), *cut), item_bytes, _PIECE_BYTES, _PIECE_BYTES))


def _repeated(images: Array, outputs: int) -> Array:
    times = outputs // images.shape[-1]
    return images if times == 1 else np.repeat(images, times, axis=-1)


def _kernels(weights: Array) -> Array:
    """(*kernel, output channel)."""
    return weights[..., 0, :].astype(wide_dtype(weights.dtype), copy=False)


def forward(w: Windows, x: Array, weights: Array, y: Array) -> None:
    """``y`` of `Conv`."""
    factors = _kernels(weights)
    for piece in _pieces(w.out, w.size, y):
        part = y[piece]
        images = _repeated(x[piece[0]], y.shape[-1])
        total = part if y.dtype == factors.dtype else scratch("total", part.shape, factors.dtype)
        total.fill(0)
        for offset, window, element in taps(w, piece):
            here = total[window]
            share = scratch("share", here.shape, factors.dtype)
            np.multiply(images[element], factors[offset], out=share)
            np.add(here, share, out=here)
        if total is not part:
            np.copyto(part, total, casting="unsafe")


def weight(w: Windows, g: Array, x: Array, dweights: Array) -> None:
    """``dweight`` of `ConvWeight`: sums over the windows of a row, the rows of a piece, and the pieces."""
    loops = loops_for(g, x, dweights)
    if loops is not None and x.shape[-1] == g.shape[-1]:
        sums = scratch("sums", (len(x), *w.kernel, x.shape[-1]), np.float32)
        compute = partial(loops.depthwise_weight, geometry(w))
        loop_by_images(compute, product_ns(math.prod(g.shape[:-1]), math.prod(w.kernel), g.shape[-1]), g, x, sums)
        np.add.reduce(sums, axis=0, out=dweights[..., 0, :])
        return
    dtype = wide_dtype(g.dtype)
    total = np.zeros((*w.kernel, g.shape[-1]), dtype)
    for piece in _pieces(w.out, w.size, g):  # of each there is one sum
        part, images = g[piece], _repeated(x[piece[0]], g.shape[-1])
        for offset, window, element in taps(w, piece):
            share = scratch("share", part[window].shape, dtype)
            np.multiply(part[window], images[element], out=share, dtype=dtype)
            rows = np.add.reduce(share, axis=-2)
            total[offset] += np.add.reduce(as_matrix(rows), axis=0)
    np.copyto(dweights[..., 0, :], total, casting="unsafe")


def down(w: Windows, g: Array, weights: Array, dx: Array) -> None:
    """``dx`` of `ConvDown`; each element is a sum in the order of the kernel, whatever the pieces."""
    factors = _kernels(weights)
    times = g.shape[-1] // max(1, dx.shape[-1])
    is_direct = times == 1 and dx.dtype == factors.dtype
    windows = tuple(slice(0, n) for n in w.out)
    for piece in _pieces(w.size, w.out, dx):
        part = dx[piece]
        total = part if is_direct else scratch("total", (*part.shape[:-1], g.shape[-1]), factors.dtype)
        total.fill(0)
        # The windows of all the image, on the part of it that is here.
        pad = tuple((before + cut.start, after) for (before, after), cut in zip(w.pad, piece[1:], strict=True))
        here = replace(w, size=part.shape[1:-1], pad=pad)
        for offset, window, element in taps(here, (piece[0], *windows)):
            grads = g[piece[0]][window]
            share = scratch("share", grads.shape, factors.dtype)
            np.multiply(grads, factors[offset], out=share)
            to = total[element]
            np.add(to, share, out=to)
        if not is_direct:
            summed = total.reshape(*part.shape, times).sum(axis=-1) if times > 1 else total
            np.copyto(part, summed, casting="unsafe")
