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
from dataclasses import dataclass, replace
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
#: Small groups are joined up to this many input channels, their weights standing side by side among zeros: BLAS does
#: several times as many operations in less time.
_JOINED_CHANNELS = 16
#: Data gradients of fewer channels than this are added up with the channels first, so that additions have long runs.
_FEW_CHANNELS = 16
#: Where a row has fewer windows than this, runs go through all images of a piece. Turning the result then pays for
#: fewer channels than this times the elements of a kernel.
_SHORT_ROW, _CHANNELS_PER_ELEMENT = 16, 3
#: A data gradient of stride 1 is computed as a convolution for this many channels at least, results of so many times
#: the channels at most, and so many windows for each result at least: the weight has to be copied.
_TURNED_CHANNELS, _TURNED_RATIO, _TURNED_WINDOWS = 8, 3, 1
#: Columns are gathered plane by plane where what they take from an image in one piece is less.
_SHORT_RUN_BYTES = 40


@dataclass(frozen=True, slots=True)
class _Geometry:
    """One convolution.

    Attributes:
        windows: Positions of the kernel.
        groups: Number of groups, after small ones are joined.
        joined: Number of groups that are joined in one.
        channels: Input channels of a group.
        dtype: Dtype to compute in.
    """

    windows: Windows
    groups: int
    joined: int
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

    @property
    def is_planar(self) -> bool:
        """True if columns are gathered plane by plane: rows of a plane are longer runs than those of few channels."""
        w = self.windows
        is_short = self.run * self.dtype.itemsize < _SHORT_RUN_BYTES and self.run < w.out[-1]
        return self.groups == 1 and w.stride[-1] == 1 and is_short

    def padded(self, images: Array) -> Array:
        """The images with their border of zeros; the channels come first in memory if the columns are planar."""
        w = self.windows
        if self.is_planar:
            planes = np.moveaxis(images, -1, 0)
            if w.size == w.padded_size and planes.flags.c_contiguous:
                return images
            shape = (images.shape[-1], len(images), *w.padded_size)
            padded = np.moveaxis(scratch("padded", shape, images.dtype), 0, -1)
        elif w.size == w.padded_size:
            return images
        else:
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
        windows_shape = (len(padded), *counts)
        windows_strides = (image, *(s * axis for s, axis in zip(w.stride, axes, strict=True)))
        shape = (self.groups, *w.kernel, self.channels)
        strides = (self.channels * channel, *(d * axis for d, axis in zip(w.dilation, axes, strict=True)), channel)
        # Stays inside: the last window of an axis ends within the padded size by the definition of `out`.
        starts = [slice(cut.start * s, None) for cut, s in zip(piece[1:], w.stride, strict=True)]
        first = padded[(slice(None), *starts)]
        rows, length = math.prod(windows_shape), self.groups * self.columns
        if self.is_planar:
            shape, strides = (*shape, *windows_shape), (*strides, *windows_strides)
        else:
            shape, strides = (*windows_shape, *shape), (*windows_strides, *strides)
        columns = scratch("columns", shape, self.dtype)
        if self.run and not self.is_planar and padded.dtype == self.dtype and channel == padded.itemsize:
            # Of a view, as of mirrored images, pixels that follow each other need not lie side by side.
            run = self.run if axes[-1] == self.channels * channel else self.channels
            before = len(shape) - (1 if run == self.channels else 2)
            found = as_strided(first, (*shape[:before], run), (*strides[:before], channel), writeable=False)
            np.copyto(_as_runs(columns.reshape(found.shape)), _as_runs(found))
        else:
            np.copyto(columns, as_strided(first, shape, strides, writeable=False), casting="unsafe")
        return columns.reshape(length, rows).T if self.is_planar else columns.reshape(rows, length)

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


def _geometry(
    operation: Any, weight_shape: tuple[int, ...], size: tuple[int, ...], seen: Array, is_exact: bool = False
) -> _Geometry:
    """The convolution with its small groups joined; ``seen`` is the array that the weight is multiplied with."""
    *kernel_size, channels, _ = weight_shape
    joined = _joined(operation.groups, channels)
    if joined > 1 and not is_exact:
        # An infinite value of one group would make others NaN, where its products with the weight's zeros are used.
        with np.errstate(all="ignore"):
            joined = joined if np.isfinite(np.add.reduce(seen, axis=None)) else 1
    windows = operation.windows(size, kernel_size)
    return _Geometry(windows, operation.groups // joined, joined, channels * joined, wide_dtype(seen.dtype))


def _joined(groups: int, channels: int) -> int:
    most = max(1, _JOINED_CHANNELS // max(1, channels))
    return next(count for count in range(min(most, groups), 0, -1) if groups % count == 0)


def _parts(g: _Geometry, wide: Array, weight: Array) -> Iterator[tuple[Array, Array]]:
    """For each of the groups that are joined, its part of their weight, and its own one."""
    *kernel_size, channels, outputs = weight.shape
    blocks = weight.reshape(*kernel_size, channels, g.groups, g.joined, outputs // (g.groups * g.joined))
    full = wide.reshape(*kernel_size, g.joined, *blocks.shape[len(kernel_size) :])
    for i in range(g.joined):
        yield full[..., i, :, :, i, :], blocks[..., i, :]


def _join(g: _Geometry, weight: Array) -> Array:
    """A weight for joined groups: zeros where a group's output would see another group's input."""
    if g.joined == 1:
        return weight
    wide = np.zeros((*weight.shape[:-2], g.channels, weight.shape[-1]), weight.dtype)
    for part, own in _parts(g, wide, weight):
        part[...] = own
    return wide


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
    g = _geometry(operation, weight.shape, x.shape[1:-1], x)
    matrices = g.weight(_join(g, weight))
    if g.windows.is_pointwise:
        _pointwise(g, x, matrices, y)
        return
    _forward(g, x, matrices, y)


def _pointwise(g: _Geometry, x: Array, matrices: Array, y: Array) -> None:
    _multiply(g.grouped(g.rows(x)), matrices, g.grouped(as_matrix(y)), multiply)


def _forward(g: _Geometry, x: Array, matrices: Array, y: Array) -> None:
    found, padded = list(g.pieces(len(x), y.shape[-1], _PIECE_WINDOWS)), g.shared(x)
    product = np.matmul if len(found) > 1 else multiply

    def compute(run: Sequence[Piece]) -> None:
        for piece, columns in g.column_pieces(x, run, padded):
            _multiply(g.grouped(columns), matrices, g.grouped(as_matrix(y[piece])), product)

    team.spread(_runs(found, _RUNS), compute, g.work_ns(len(x), y.shape[-1]), multiplies=True)


def _runs(found: Sequence[Piece], count: int) -> list[Sequence[Piece]]:
    return [found[part] for part in even_cuts(len(found), count)]


@kernel(ConvWeight)
def conv_weight(operation: ConvWeight, inputs: list[Array], outputs: list[Array]) -> None:
    """The weight gradient; see `ConvWeight`."""
    (dy, x), (dweight,) = inputs, outputs
    if depthwise.is_depthwise(operation.groups, dweight.shape[-2]):
        depthwise.weight(operation.windows(x.shape[1:-1], operation.kernel), dy, x, dweight)
        return
    g = _geometry(operation, dweight.shape, x.shape[1:-1], x, is_exact=True)
    if g.joined == 1:
        _weight_gradient(g, dy, x, dweight.reshape(g.columns, dweight.shape[-1]))
    else:
        wide = scratch("wide", (g.columns, dweight.shape[-1]), dweight.dtype)
        _weight_gradient(g, dy, x, wide)
        for part, own in _parts(g, wide, dweight):
            own[...] = part


def _weight_gradient(g: _Geometry, dy: Array, x: Array, dweight: Array) -> None:
    flat = g.grouped(dweight)
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
    g = _geometry(operation, weight.shape, dx.shape[1:-1], dy)
    if _pays_turned(g, weight, dy):
        turned = _turned(g, weight.shape[-1])
        _forward(turned, dy, turned.weight(_turned_weight(g, weight)), dx)
        return
    matrices = g.weight(_join(g, weight)).transpose(0, 2, 1)
    if g.windows.is_pointwise:
        _pointwise(g, dy, matrices, dx)
        return
    inside = tuple(slice(before, before + n) for n, (before, _) in zip(g.windows.size, g.windows.pad, strict=True))
    order = _order(g)

    def compute(run: Sequence[Piece]) -> None:
        for piece in run:
            images = dx[piece[0]]
            columns = _columns(g, dy[piece], matrices) if order is None else _columns_in(order, g, dy[piece], matrices)
            padded = _padded_gradients(g, images, order)
            if is_first(piece):
                padded.fill(0)
            _scatter(g, columns, padded, piece)
            if is_last(piece, g.windows):
                np.copyto(images, padded[(slice(None), *inside)], casting="unsafe")

    runs = by_images(g.pieces(len(dx), dy.shape[-1], _SCATTERED_WINDOWS), g.windows)
    team.spread(runs, compute, g.work_ns(len(dx), dy.shape[-1]), multiplies=True)


def _pays_turned(g: _Geometry, weight: Array, dy: Array) -> bool:
    """Return whether the data gradient is best computed as a convolution: what is not added up, but gathered."""
    w, outputs = g.windows, weight.shape[-1] // g.groups
    if w.is_pointwise or g.joined > 1 or math.prod(w.size) > math.prod(w.out) or any(s > 1 for s in w.stride):
        return False
    reach = [d * (k - 1) for d, k in zip(w.dilation, w.kernel, strict=True)]
    if any(max(pads) > far for pads, far in zip(w.pad, reach, strict=True)):
        return False
    if g.channels < _TURNED_CHANNELS or outputs > _TURNED_RATIO * g.channels:
        return False
    if math.prod(dy.shape[:-1]) < _TURNED_WINDOWS * outputs:
        return False
    with np.errstate(all="ignore"):  # an infinite weight times the border's zeros would be NaN
        return bool(np.isfinite(np.add.reduce(weight, axis=None, dtype=g.dtype)))


def _turned(g: _Geometry, outputs: int) -> _Geometry:
    """The convolution that takes gradients of the results to those of the images; its strides are 1."""
    w = g.windows
    reach = [d * (k - 1) for d, k in zip(w.dilation, w.kernel, strict=True)]
    pad = tuple((far - before, far - after) for far, (before, after) in zip(reach, w.pad, strict=True))
    return replace(g, windows=replace(w, size=w.out, pad=pad, out=w.size), channels=outputs // g.groups)


def _turned_weight(g: _Geometry, weight: Array) -> Array:
    """The weight of `_turned`: the kernel back to front, inputs and outputs changed over within each group."""
    *kernel_size, channels, outputs = weight.shape
    rank = len(kernel_size)
    flipped = weight[(slice(None, None, -1),) * rank].reshape(*kernel_size, channels, g.groups, outputs // g.groups)
    return flipped.swapaxes(rank, rank + 2).reshape(*kernel_size, outputs // g.groups, g.groups * channels)


def _order(g: _Geometry) -> tuple[int, ...] | None:
    """The axes (image, *spatial, channel) in the order in which data gradients are added up; None for the usual one."""
    rank = len(g.windows.size)
    spatial, channels = tuple(range(1, rank + 1)), g.channels
    if g.groups == 1 and g.windows.out[-1] < _SHORT_ROW:
        return (rank + 1, *spatial, 0) if channels < _CHANNELS_PER_ELEMENT * math.prod(g.windows.kernel) else None
    return (rank + 1, 0, *spatial) if g.groups == 1 and channels < _FEW_CHANNELS else None


def _padded_gradients(g: _Geometry, images: Array, order: tuple[int, ...] | None) -> Array:
    """Scratch memory for the gradients of some images and their border, its axes in some order."""
    shape = (len(images), *g.windows.padded_size, images.shape[-1])
    order = order or tuple(range(len(shape)))
    return scratch("padded", [shape[axis] for axis in order], g.dtype).transpose(np.argsort(order))


def _columns(g: _Geometry, dy: Array, matrices: Array) -> Array:
    """Gradients of the columns of a piece, (image, *window, *kernel, group, channel), a view of scratch memory."""
    rows = g.rows(dy)
    columns = scratch("columns", (len(rows), g.groups * g.columns), g.dtype)
    np.matmul(g.grouped(rows), matrices, out=g.grouped(columns))
    turned = columns.reshape(*dy.shape[:-1], g.groups, *g.windows.kernel, g.channels)
    return np.moveaxis(turned, dy.ndim - 1, -2)


def _columns_in(order: tuple[int, ...], g: _Geometry, dy: Array, matrices: Array) -> Array:
    """Like `_columns`, with what an element of the kernel sees side by side in memory, its axes in some order."""
    windows = order[1:]
    rows = g.rows(dy.transpose(*windows, -1))
    columns = scratch("columns", (g.columns, len(rows)), g.dtype)
    np.matmul(matrices[0].T, rows.T, out=columns)
    turned = columns.reshape(*g.windows.kernel, 1, g.channels, *[dy.shape[axis] for axis in windows])
    before = turned.ndim - len(windows)
    return turned.transpose(*[before + windows.index(axis) for axis in range(len(windows))], *range(before))


def _scatter(g: _Geometry, columns: Array, padded: Array, piece: Piece) -> None:
    """Add each column to the elements that it was copied from, one kernel offset at a time."""
    w = g.windows
    target = padded.reshape(*padded.shape[:-1], g.groups, g.channels)
    for offset in np.ndindex(*w.kernel):
        where = []
        for i, d, s, cut in zip(offset, w.dilation, w.stride, piece[1:], strict=True):
            first = cut.start * s + i * d
            where.append(slice(first, first + (cut.stop - cut.start - 1) * s + 1, s))
        part = target[(slice(None), *where)]
        np.add(part, columns[(*[slice(None)] * len(piece), *offset)], out=part)
