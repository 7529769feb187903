"""Kernels of `actorflow.ops.nn.conv`: columns gathered by a kernel of our own, then cuBLAS.

The windows of all images are one range, cut into pieces whose columns fit in a fixed amount of scratch memory, so a
product has many rows whatever the size of the images, and the memory does not grow with the batch. A 1x1 convolution is
its own columns: one product, no scratch. Groups are products of a batch of matrices; where each has one input channel
(depthwise), there are no products of matrices: a thread computes an element, without columns but for the weight.

float32 products are exact ones, unless ``CUPY_TF32=1`` asks CuPy for TF32; float16 ones are added up in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cupy

from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, elementwise, kernel, launch_flat
from actorflow.ops.cuda.reductions import sum_axes
from actorflow.ops.cuda.windows import arguments
from actorflow.ops.nn.conv import Conv, ConvDown, ConvWeight
from actorflow.ops.nn.windows import Windows

#: Most bytes of columns in one piece: some thousand rows of the widest layers, which is what cuBLAS wants. Columns are
#: written once and read once, so a piece that fits in the device's cache (50 MB on the large ones) saves the way back.
_SCRATCH_BYTES = 64 << 20

_PRODUCTS = elementwise("depthwise_weight", "T column, T g", "T product", "product = T(W(column) * W(g))")


@dataclass(frozen=True, slots=True)
class _Geometry:
    """One convolution: its windows, its groups, and the input channels of each."""

    windows: Windows
    groups: int
    channels: int

    @property
    def is_depthwise(self) -> bool:
        """Whether each of several groups has one input channel."""
        return self.channels == 1 and self.groups > 1

    @property
    def is_pointwise(self) -> bool:
        """True if the images are their own columns."""
        return self.groups == 1 and self.windows.is_pointwise

    @property
    def columns(self) -> int:
        return math.prod(self.windows.kernel) * self.channels

    def pieces(self, batch: int, itemsize: int) -> Iterator[slice]:
        """Ranges of windows: several whole images, or a part of one."""
        windows = math.prod(self.windows.out)
        fitting = max(1, _SCRATCH_BYTES // max(1, self.groups * self.columns * itemsize))
        if windows <= fitting:
            step = fitting // max(1, windows) * windows
            for first in range(0, batch * windows, max(1, step)):
                yield slice(first, min(first + step, batch * windows))
            return
        for image in range(0, batch * windows, windows):
            for first in range(image, image + windows, fitting):
                yield slice(first, min(first + fitting, image + windows))

    def gather(self, x: Array, piece: slice) -> Array:
        """The columns of a piece, (groups, windows, columns)."""
        count = piece.stop - piece.start
        columns = cupy.empty((self.groups, count, self.columns), x.dtype)
        args = (x, columns, columns.size, piece.start, count, self.groups, self.channels, *arguments(self.windows))
        launch_flat("columns", "gather_columns", columns.size, args, x.dtype)
        return columns

    def scatter(self, columns: Array, piece: slice, dx: Array) -> None:
        """Add the columns of a piece to the images that they stand for; the first piece of an image overwrites it."""
        windows = math.prod(self.windows.out)
        image = piece.start // windows
        images = dx[image : -(-piece.stop // windows)]
        more = int(piece.start % windows != 0)
        count = piece.stop - piece.start
        args = (columns, images, images.size, image, piece.start, count, more, self.groups, self.channels)
        launch_flat("columns", "scatter_columns", images.size, (*args, *arguments(self.windows)), dx.dtype)

    def grouped(self, rows: Array) -> Array:
        """A matrix (row, group and what it has) as matrices (group, row, what it has), contiguous."""
        return contiguous(rows.reshape(len(rows), self.groups, rows.shape[1] // self.groups).transpose(1, 0, 2))


def _flat(array: Array) -> Array:
    return contiguous(array).reshape(math.prod(array.shape[:-1]), array.shape[-1])


def _multiply(g: _Geometry, a: Array, b: Array, rows: Array) -> None:
    """The products of matrices (group, ...), to a matrix (row, group and what it has)."""
    if g.groups == 1:
        cupy.dot(a[0], b[0], out=rows)
    else:
        cupy.copyto(rows.reshape(len(rows), g.groups, b.shape[2]), _products(a, b).transpose(1, 0, 2))


def _products(a: Array, b: Array) -> Array:
    products = cupy.empty((len(a), a.shape[1], b.shape[2]), a.dtype)
    cupy.matmul(a, b, out=products)
    return products


@kernel(Conv, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def conv(operation: Conv, inputs: list[Array], outputs: list[Array]) -> None:
    """The convolution; see `Conv`."""
    (x, weight), (y,) = (contiguous(array) for array in inputs), outputs
    g = _geometry(operation, weight.shape, x.shape)
    if g.is_depthwise:
        _depthwise("depthwise", g.windows, x, weight, y)
        return
    if g.is_pointwise:
        cupy.dot(_flat(x), _flat(weight), out=_flat(y))
        return
    matrices, rows = g.grouped(weight.reshape(g.columns, weight.shape[-1])), _flat(y)
    for piece in g.pieces(len(x), x.itemsize):
        _multiply(g, g.gather(x, piece), matrices, rows[piece])


@kernel(ConvWeight, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def conv_weight(operation: ConvWeight, inputs: list[Array], outputs: list[Array]) -> None:
    """The weight gradient; see `ConvWeight`."""
    (dy, x), (dweight,) = (contiguous(array) for array in inputs), outputs
    g = _geometry(operation, dweight.shape, x.shape)
    rows, flat = _flat(dy), dweight.reshape(g.columns, dweight.shape[-1])
    if g.is_pointwise:
        cupy.dot(_flat(x).T, rows, out=flat)
        return
    pieces = list(g.pieces(len(x), x.itemsize))
    if not pieces:
        flat.fill(0)
    for i, piece in enumerate(pieces):
        target = flat if i == 0 else cupy.empty(flat.shape, flat.dtype)
        _weight_of_piece(g, x, rows[piece], piece, target)
        if i:
            cupy.add(flat, target, out=flat)


def _weight_of_piece(g: _Geometry, x: Array, rows: Array, piece: slice, flat: Array) -> None:
    if g.is_depthwise:
        whole = _Geometry(g.windows, 1, g.groups)
        shape = (len(rows), g.columns, g.groups)
        _depthwise_products(whole.gather(x, piece).reshape(shape), rows, flat)
    else:
        _multiply(g, g.gather(x, piece).transpose(0, 2, 1), g.grouped(rows), flat)


@kernel(ConvDown, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def conv_down(operation: ConvDown, inputs: list[Array], outputs: list[Array]) -> None:
    """The data gradient; see `ConvDown`."""
    (dy, weight), (dx,) = (contiguous(array) for array in inputs), outputs
    g = _geometry(operation, weight.shape, dx.shape)
    if g.is_depthwise:
        _depthwise("depthwise_down", g.windows, dy, weight, dx)
        return
    rows = _flat(dy)
    if g.is_pointwise:
        cupy.dot(rows, _flat(weight).T, out=_flat(dx))
        return
    matrices = g.grouped(weight.reshape(g.columns, weight.shape[-1])).transpose(0, 2, 1)
    for piece in g.pieces(len(dx), dx.itemsize):
        count = piece.stop - piece.start
        if g.groups == 1:
            columns = cupy.dot(rows[piece], matrices[0]).reshape(1, count, g.columns)
        else:
            columns = _products(g.grouped(rows[piece]), matrices)
        g.scatter(columns, piece, dx)


def _geometry(operation: Any, weight_shape: tuple[int, ...], image_shape: tuple[int, ...]) -> _Geometry:
    windows = operation.windows(image_shape[1:-1], weight_shape[:-2])
    return _Geometry(windows, operation.groups, weight_shape[-2])


def _depthwise(function: str, w: Windows, x: Array, weight: Array, y: Array) -> None:
    channels, outputs = sorted((x.shape[-1], y.shape[-1]))
    args = (x, weight, y, y.size, channels, outputs // max(1, channels), *arguments(w))
    launch_flat("depthwise", function, y.size, args, y.dtype)


def _depthwise_products(columns: Array, g: Array, dweight: Array) -> None:
    """The weight gradient of a piece, whose columns are (windows, kernel offsets, channels)."""
    windows, offsets, channels = columns.shape
    times = g.shape[1] // channels
    found = cupy.empty((windows, offsets, channels, times), columns.dtype)
    _PRODUCTS(columns.reshape(windows, offsets, channels, 1), g.reshape(windows, 1, channels, times), found)
    sum_axes(found, (0,), dweight.reshape(offsets, channels, times))
