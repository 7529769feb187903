"""Kernels of `actorflow.ops.conv`: im2col in cache-sized pieces, then BLAS.

The columns of a piece, one row per output pixel, are copied from a strided view of the padded images. NHWC makes that
copy cheap: each row consists of runs of ``kernel_width * channels`` contiguous elements. A piece is several whole
images when they are small, so that the products are not tiny, and a band of output rows of one image when it is large.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from actorflow.ops.conv import Conv2d, Conv2dDown, Conv2dWeight
from actorflow.ops.cpu.buffers import Array, matrix, scratch
from actorflow.ops.registry import kernel

__all__: list[str] = []

#: Columns of whole images are gathered up to this size; BLAS wants some hundred rows, the cache less than a few MB.
_PIECE_BYTES = 2 << 20
#: An image whose columns are larger is cut into bands.
_IMAGE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Sizes of one convolution, and its pieces."""

    size: tuple[int, int]
    channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]
    out: tuple[int, int]

    @property
    def pointwise(self) -> bool:
        """Whether the images are their own columns."""
        return self.kernel == self.stride == (1, 1) and self.pad == (0, 0)

    @property
    def columns(self) -> int:
        return math.prod(self.kernel) * self.channels

    @property
    def padded_size(self) -> tuple[int, int]:
        return self.size[0] + 2 * self.pad[0], self.size[1] + 2 * self.pad[1]

    def pieces(self, batch: int, itemsize: int) -> Iterator[tuple[slice, slice]]:
        """(images, output rows) of each piece; rows are not all only where there is one image."""
        height, width = self.out
        image_bytes = max(1, height * width * self.columns * itemsize)
        if image_bytes <= _IMAGE_BYTES:
            step = max(1, _PIECE_BYTES // image_bytes)
            for first in range(0, batch, step):
                yield slice(first, min(first + step, batch)), slice(0, height)
            return
        bands = min(height, -(-image_bytes // _PIECE_BYTES))
        for image in range(batch):
            for band in range(bands):
                yield slice(image, image + 1), slice(height * band // bands, height * (band + 1) // bands)

    def padded(self, images: Array) -> Array:
        """The images with their border of zeros."""
        (pv, ph), (height, width) = self.pad, self.size
        if pv == ph == 0:
            return images
        padded = scratch("padded", (len(images), *self.padded_size, self.channels), images.dtype)
        padded[:, :pv] = 0
        padded[:, pv + height :] = 0
        padded[:, pv : pv + height, :ph] = 0
        padded[:, pv : pv + height, ph + width :] = 0
        padded[:, pv : pv + height, ph : ph + width] = images
        return padded

    def windows(self, padded: Array, rows: slice) -> Array:
        """View (image, output row, output column, kernel row, kernel column, channel) of padded images."""
        image, row, column, channel = padded.strides
        (sv, sh), (kv, kh) = self.stride, self.kernel
        shape = (len(padded), rows.stop - rows.start, self.out[1], kv, kh, self.channels)
        # Stays inside: the last window of an axis ends within the padded size by the definition of `out`.
        first = padded[:, rows.start * sv :]
        return as_strided(first, shape, (image, sv * row, sh * column, row, column, channel), writeable=False)

    def column_pieces(self, x: Array) -> Iterator[tuple[slice, slice, Array]]:
        """The columns of ``x`` piece by piece, in scratch memory that the next piece overwrites."""
        done, padded = -1, x
        for images, rows in self.pieces(len(x), x.itemsize):
            if images.start != done:
                done, padded = images.start, self.padded(x[images])
            windows = self.windows(padded, rows)
            columns = scratch("columns", windows.shape, x.dtype)
            np.copyto(columns, windows)
            yield images, rows, columns.reshape(math.prod(windows.shape[:3]), self.columns)


def _flat(array: Array) -> Array:
    """(..., channels) as a matrix, a view where the array is contiguous."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def _rows(array: Array) -> Array:
    """(..., channels) as a matrix that BLAS takes."""
    return matrix(_flat(array))


@kernel(Conv2d)
def _conv2d(operation: Conv2d, inputs: list[Array], outputs: list[Array]) -> None:
    (x, weight), (y,) = inputs, outputs
    g = _Geometry(x.shape[1:3], x.shape[3], weight.shape[:2], operation.stride, operation.pad, y.shape[1:3])
    flat = _rows(weight)
    if g.pointwise:
        np.matmul(_rows(x), flat, out=_flat(y))
        return
    for images, rows, columns in g.column_pieces(x):
        np.matmul(columns, flat, out=_flat(y[images, rows]))


@kernel(Conv2dWeight)
def _conv2d_weight(operation: Conv2dWeight, inputs: list[Array], outputs: list[Array]) -> None:
    (dy, x), (dweight,) = inputs, outputs
    g = _Geometry(x.shape[1:3], x.shape[3], operation.kernel, operation.stride, operation.pad, dy.shape[1:3])
    flat = dweight.reshape(g.columns, dweight.shape[3])
    if g.pointwise:
        np.matmul(_rows(x).T, _rows(dy), out=flat)
        return
    flat.fill(0)
    product = scratch("product", flat.shape, flat.dtype)
    for images, rows, columns in g.column_pieces(x):
        np.matmul(columns.T, _rows(dy[images, rows]), out=product)
        np.add(flat, product, out=flat)


@kernel(Conv2dDown)
def _conv2d_down(operation: Conv2dDown, inputs: list[Array], outputs: list[Array]) -> None:
    (dy, weight), (dx,) = inputs, outputs
    g = _Geometry(operation.size, dx.shape[3], weight.shape[:2], operation.stride, operation.pad, dy.shape[1:3])
    flat = _rows(weight).T
    if g.pointwise:
        np.matmul(_rows(dy), flat, out=_flat(dx))
        return
    (pv, ph), (height, width) = g.pad, g.size
    for images, rows in g.pieces(len(dx), dx.itemsize):
        count = images.stop - images.start
        columns = scratch("columns", (count, rows.stop - rows.start, g.out[1], *g.kernel, g.channels), dx.dtype)
        np.matmul(_rows(dy[images, rows]), flat, out=columns.reshape(math.prod(columns.shape[:3]), g.columns))
        padded = scratch("padded", (count, *g.padded_size, g.channels), dx.dtype)
        if rows.start == 0:
            padded.fill(0)
        _scatter(g, columns, padded, rows.start)
        if rows.stop == g.out[0]:
            np.copyto(dx[images], padded[:, pv : pv + height, ph : ph + width])


def _scatter(g: _Geometry, columns: Array, padded: Array, first_row: int) -> None:
    """Add each column to the pixel that it was copied from, one kernel offset at a time."""
    (sv, sh), (rows, width) = g.stride, columns.shape[1:3]
    for kv in range(g.kernel[0]):
        top = first_row * sv + kv
        for kh in range(g.kernel[1]):
            target = padded[:, top : top + (rows - 1) * sv + 1 : sv, kh : kh + (width - 1) * sh + 1 : sh]
            np.add(target, columns[:, :, :, kv, kh], out=target)
