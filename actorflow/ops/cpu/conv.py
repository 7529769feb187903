"""Kernels of `actorflow.ops.nn.conv`: im2col in cache-sized pieces, then BLAS.

The columns of a piece, one row per output element, are copied from a strided view of the padded images. Channels last
make that copy cheap: each row consists of runs of ``kernel_width * channels`` contiguous elements. A piece is several
whole images when they are small, so that the products are not tiny, and a part of one image when it is large.

A 1x1 convolution is one product. Where each group has one input channel (depthwise), there is nothing to multiply
matrices for: see `actorflow.ops.cpu.depthwise`.

Arrays narrower than float32 are multiplied in float32: columns are widened as they are gathered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from actorflow.devices.team import team
from actorflow.ops.cpu import depthwise
from actorflow.ops.cpu.buffers import Array, matrix, scratch
from actorflow.ops.cpu.parallel import even_cuts, multiply, product_ns, product_pieces
from actorflow.ops.cpu.windows import Piece, as_matrix, by_images, is_first, is_last, pieces, put_in_border
from actorflow.ops.nn.conv import Conv, ConvDown, ConvWeight
from actorflow.ops.nn.windows import Windows
from actorflow.ops.operation import wide_dtype
from actorflow.ops.registry import kernel

#: Columns of whole images are gathered up to this size; BLAS wants some hundred rows, the cache less than a few MB.
_PIECE_BYTES = 2 << 20
#: Windows in a piece, about, unless it has to be smaller; where columns are added up, additions want long runs.
_PIECE_WINDOWS, _SCATTERED_WINDOWS = 512, 1024
#: Fewer images than this are cut into bands, for several cores.
_FEW_IMAGES = 4
#: Runs of pieces that are computed one after the other, at most. A weight gradient has a partial sum for each; the
#: pieces of a run, at least, pay for adding it up.
_RUNS, _SUMMED_PIECES = 8, 3
#: An image whose columns are larger is cut into bands.
_IMAGE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class _Geometry:
    """One convolution, with the input channels of a group, and the dtype to compute in."""

    windows: Windows
    groups: int
    channels: int
    dtype: np.dtype[Any]

    @property
    def columns(self) -> int:
        return math.prod(self.windows.kernel) * self.channels

    def pieces(self, batch: int, outputs: int, piece_windows: int) -> Iterator[Piece]:
        """Pieces that fit the cache; more of them, where there is enough to multiply, for several cores."""
        sizes = (batch, *self.windows.out)
        item_bytes = max(1, self.groups * self.columns * self.dtype.itemsize)
        total_bytes = math.prod(sizes) * item_bytes
        count = product_pieces(math.prod(sizes), self.columns, outputs, piece_windows)
        if batch < min(count, _FEW_IMAGES):
            piece_bytes = image_bytes = total_bytes // count
        else:
            piece_bytes, image_bytes = total_bytes // max(1, batch) * -(-batch // count), _IMAGE_BYTES
        return pieces(sizes, item_bytes, min(_PIECE_BYTES, piece_bytes), min(_IMAGE_BYTES, image_bytes))

    def work_ns(self, batch: int, outputs: int) -> float:
        """About how long one thread takes for all products."""
        return product_ns(batch * math.prod(self.windows.out), self.columns, outputs)

    def weight(self, weight: Array) -> Array:
        """A weight as matrices (group, column, output channel of a group)."""
        return self.grouped(self.rows(weight.reshape(self.columns, weight.shape[-1])))

    def rows(self, array: Array) -> Array:
        """(..., channels) as a matrix that BLAS takes, widened."""
        return matrix(as_matrix(array).astype(self.dtype, copy=False))

    def grouped(self, rows: Array) -> Array:
        """A matrix (row, group and what it has) as matrices (group, row, what it has), a view."""
        return rows.reshape(len(rows), self.groups, rows.shape[1] // self.groups).transpose(1, 0, 2)

    @property
    def run(self) -> int:
        """Number of elements of a column that lie side by side in the images."""
        w = self.windows
        return self.channels * (w.kernel[-1] if self.groups == 1 and w.dilation[-1] == 1 else 1)

    def padded(self, images: Array) -> Array:
        """The images with their border of zeros."""
        w = self.windows
        if w.size == w.padded_size:
            return images
        padded = scratch("padded", (len(images), *w.padded_size, images.shape[-1]), images.dtype)
        put_in_border(images, padded, w)
        return padded

    def shared(self, x: Array) -> Array | None:
        """The padded image, if there is one alone: runs of its bands then need not make one each."""
        return self.padded(x) if len(x) == 1 else None

    def gathered(self, padded: Array, piece: Piece) -> Array:
        """The columns of a piece, (window, group and its column), in scratch memory."""
        w, (image, *axes, channel) = self.windows, padded.strides
        counts = [cut.stop - cut.start for cut in piece[1:]]
        # Axes of the windows, then those of a column.
        shape = (len(padded), *counts, self.groups, *w.kernel, self.channels)
        strides = (image, *(s * axis for s, axis in zip(w.stride, axes, strict=True)))
        strides += (self.channels * channel, *(d * axis for d, axis in zip(w.dilation, axes, strict=True)), channel)
        # Stays inside: the last window of an axis ends within the padded size by the definition of `out`.
        starts = [slice(cut.start * s, None) for cut, s in zip(piece[1:], w.stride, strict=True)]
        first = padded[(slice(None), *starts)]
        columns = scratch("columns", shape, self.dtype)
        if self.run and padded.dtype == self.dtype and channel == padded.itemsize:
            # Of a view, as of mirrored images, pixels that follow each other need not lie side by side.
            run = self.run if axes[-1] == self.channels * channel else self.channels
            before = len(shape) - (1 if run == self.channels else 2)
            found = as_strided(first, (*shape[:before], run), (*strides[:before], channel), writeable=False)
            np.copyto(_as_runs(columns.reshape(found.shape)), _as_runs(found))
        else:
            np.copyto(columns, as_strided(first, shape, strides, writeable=False), casting="unsafe")
        return columns.reshape(len(padded) * math.prod(counts), self.groups * self.columns)

    def column_pieces(self, x: Array, run: Sequence[Piece], padded: Array | None) -> Iterator[tuple[Piece, Array]]:
        """The columns of some pieces of ``x``, one after the other, in scratch memory that the next one overwrites.

        ``padded``: what `shared` gives.
        """
        for piece in run:
            if padded is None or (is_first(piece) and len(x) > 1):
                padded = self.padded(x[piece[0]])
            yield piece, self.gathered(padded, piece)


def _as_runs(array: Array) -> Array:
    """An array whose elements are the rows along another one's last axis: short ones are copied in half the time."""
    return array.view(np.dtype((np.void, array.shape[-1] * array.itemsize)))[..., 0]


def _geometry(operation: Any, weight_shape: tuple[int, ...], size: tuple[int, ...], dtype: np.dtype[Any]) -> _Geometry:
    *kernel_size, channels, _ = weight_shape
    return _Geometry(operation.windows(size, kernel_size), operation.groups, channels, wide_dtype(dtype))


def _multiply(a: Array, b: Array, out: Array, product: Callable[..., Any] = np.matmul) -> None:
    """``out = a @ b``, rounded to the dtype of ``out``."""
    if out.dtype == a.dtype:
        product(a, b, out=out)
    else:
        wide = scratch("product", out.shape, a.dtype)
        product(a, b, out=wide)
        np.copyto(out, wide, casting="unsafe")


@kernel(Conv)
def conv(operation: Conv, inputs: list[Array], outputs: list[Array]) -> None:
    """The convolution; see `Conv`."""
    (x, weight), (y,) = inputs, outputs
    if depthwise.is_depthwise(operation.groups, weight.shape[-2]):
        depthwise.forward(operation.windows(x.shape[1:-1], weight.shape[:-2]), x, weight, y)
        return
    g = _geometry(operation, weight.shape, x.shape[1:-1], x.dtype)
    matrices = g.weight(weight)
    if g.windows.is_pointwise:
        _pointwise(g, x, matrices, y)
        return
    found, padded = list(g.pieces(len(x), y.shape[-1], _PIECE_WINDOWS)), g.shared(x)
    product = np.matmul if len(found) > 1 else multiply

    def compute(run: Sequence[Piece]) -> None:
        for piece, columns in g.column_pieces(x, run, padded):
            _multiply(g.grouped(columns), matrices, g.grouped(as_matrix(y[piece])), product)

    team.spread(_runs(found, _RUNS), compute, g.work_ns(len(x), y.shape[-1]), multiplies=True)


def _pointwise(g: _Geometry, x: Array, matrices: Array, y: Array) -> None:
    _multiply(g.grouped(g.rows(x)), matrices, g.grouped(as_matrix(y)), multiply)


def _runs(found: Sequence[Piece], count: int) -> list[Sequence[Piece]]:
    return [found[part] for part in even_cuts(len(found), count)]


@kernel(ConvWeight)
def conv_weight(operation: ConvWeight, inputs: list[Array], outputs: list[Array]) -> None:
    """The weight gradient; see `ConvWeight`."""
    (dy, x), (dweight,) = inputs, outputs
    if depthwise.is_depthwise(operation.groups, dweight.shape[-2]):
        depthwise.weight(operation.windows(x.shape[1:-1], operation.kernel), dy, x, dweight)
        return
    g = _geometry(operation, dweight.shape, x.shape[1:-1], x.dtype)
    flat = g.grouped(dweight.reshape(g.columns, dweight.shape[-1]))
    if g.windows.is_pointwise:
        _multiply(g.grouped(g.rows(x)).transpose(0, 2, 1), g.grouped(g.rows(dy)), flat, multiply)
        return
    found = list(g.pieces(len(x), dy.shape[-1], _PIECE_WINDOWS))
    if not found:
        flat.fill(0)
        return
    padded = g.shared(x)
    runs = _runs(found, max(2, min(_RUNS, len(found) // _SUMMED_PIECES)))
    partial = scratch("partial", (len(runs), *flat.shape), g.dtype)
    sums = [flat if dweight.dtype == g.dtype else partial[0], *partial[1:]]

    def add_up(index: int) -> None:
        for number, (piece, columns) in enumerate(g.column_pieces(x, runs[index], padded)):
            product = scratch("product", flat.shape, g.dtype) if number else sums[index]
            by_rows = np.matmul if len(found) > 1 else multiply
            by_rows(g.grouped(columns).transpose(0, 2, 1), g.grouped(g.rows(dy[piece])), out=product)
            if number:
                np.add(sums[index], product, out=sums[index])

    team.spread(range(len(runs)), add_up, g.work_ns(len(x), dy.shape[-1]), multiplies=True)
    for other in sums[1:]:
        np.add(sums[0], other, out=sums[0])
    if sums[0] is not flat:
        np.copyto(flat, sums[0], casting="unsafe")


@kernel(ConvDown)
def conv_down(operation: ConvDown, inputs: list[Array], outputs: list[Array]) -> None:
    """The data gradient; see `ConvDown`."""
    (dy, weight), (dx,) = inputs, outputs
    if depthwise.is_depthwise(operation.groups, weight.shape[-2]):
        depthwise.down(operation.windows(dx.shape[1:-1], weight.shape[:-2]), dy, weight, dx)
        return
    g = _geometry(operation, weight.shape, dx.shape[1:-1], dy.dtype)
    matrices = g.weight(weight).transpose(0, 2, 1)
    if g.windows.is_pointwise:
        _pointwise(g, dy, matrices, dx)
        return
    inside = tuple(slice(before, before + n) for n, (before, _) in zip(g.windows.size, g.windows.pad, strict=True))

    def compute(run: Sequence[Piece]) -> None:
        for piece in run:
            images = dx[piece[0]]
            rows = g.rows(dy[piece])
            columns = scratch("columns", (len(rows), g.groups * g.columns), g.dtype)
            np.matmul(g.grouped(rows), matrices, out=g.grouped(columns))
            padded = scratch("padded", (len(images), *g.windows.padded_size, images.shape[-1]), g.dtype)
            if is_first(piece):
                padded.fill(0)
            _scatter(g, columns.reshape(*dy[piece].shape[:-1], g.groups, *g.windows.kernel, g.channels), padded, piece)
            if is_last(piece, g.windows):
                np.copyto(images, padded[(slice(None), *inside)], casting="unsafe")

    runs = by_images(g.pieces(len(dx), dy.shape[-1], _SCATTERED_WINDOWS), g.windows)
    team.spread(runs, compute, g.work_ns(len(dx), dy.shape[-1]), multiplies=True)


def _scatter(g: _Geometry, columns: Array, padded: Array, piece: Piece) -> None:
    """Add each column to the elements that it was copied from, one kernel offset at a time."""
    w = g.windows
    target, whole = padded.reshape(*padded.shape[:-1], g.groups, g.channels), [slice(None)] * (len(piece) + 1)
    for offset in np.ndindex(*w.kernel):
        where = []
        for i, d, s, cut in zip(offset, w.dilation, w.stride, piece[1:], strict=True):
            first = cut.start * s + i * d
            where.append(slice(first, first + (cut.stop - cut.start - 1) * s + 1, s))
        part = target[(slice(None), *where)]
        np.add(part, columns[(*whole, *offset)], out=part)
