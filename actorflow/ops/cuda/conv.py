"""Kernels of `actorflow.ops.conv`: columns gathered by a kernel of our own, then cuBLAS.

The windows of all images are one range, cut into pieces whose columns fit in a fixed amount of scratch memory, so a
product has many rows whatever the size of the images, and the memory does not grow with the batch. A 1x1 convolution is
its own columns: one product, no scratch.

float32 products are exact ones, unless ``CUPY_TF32=1`` asks CuPy for TF32; float16 ones are added up in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import cupy

from actorflow.ops.conv import Conv2d, Conv2dDown, Conv2dWeight
from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, kernel, launch_flat

__all__ = ["conv2d", "conv2d_down", "conv2d_weight"]

#: Most bytes of columns in one piece: some thousand rows of the widest layers, which is what cuBLAS wants. Columns are
#: written once and read once, so a piece that fits in the device's cache (50 MB on the large ones) saves the way back.
_SCRATCH_BYTES = 64 << 20


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
    def arguments(self) -> tuple[int, ...]:
        """What the functions of columns.cuh end with."""
        return (*self.size, self.channels, *self.out, *self.kernel, *self.stride, *self.pad)

    def pieces(self, batch: int, itemsize: int) -> Iterator[slice]:
        """Ranges of windows: several whole images, or a part of one."""
        windows, fitting = math.prod(self.out), max(1, _SCRATCH_BYTES // max(1, self.columns * itemsize))
        if windows <= fitting:
            step = fitting // max(1, windows) * windows
            for first in range(0, batch * windows, max(1, step)):
                yield slice(first, min(first + step, batch * windows))
            return
        for image in range(0, batch * windows, windows):
            for first in range(image, image + windows, fitting):
                yield slice(first, min(first + fitting, image + windows))

    def gather(self, x: Array, piece: slice) -> Array:
        """The columns of a piece, (windows, columns)."""
        columns = cupy.empty((piece.stop - piece.start, self.columns), x.dtype)
        args = (x, columns, columns.size, piece.start, *self.arguments)
        launch_flat("columns", "gather_columns", columns.size, args, x.dtype)
        return columns

    def scatter(self, columns: Array, piece: slice, dx: Array) -> None:
        """Add the columns of a piece to the images that they stand for; the first piece of an image overwrites it."""
        windows = math.prod(self.out)
        image = piece.start // windows
        images = dx[image : -(-piece.stop // windows)]
        more = int(piece.start % windows != 0)
        args = (columns, images, images.size, image, piece.start, len(columns), more, *self.arguments)
        launch_flat("columns", "scatter_columns", images.size, args, dx.dtype)


def _flat(array: Array) -> Array:
    """(..., channels) as a matrix."""
    return contiguous(array).reshape(math.prod(array.shape[:-1]), array.shape[-1])


@kernel(Conv2d, dtypes=FLOATS)
def conv2d(operation: Conv2d, inputs: list[Array], outputs: list[Array]) -> None:
    """The convolution; see `Conv2d`."""
    (x, weight), (y,) = (contiguous(array) for array in inputs), outputs
    g = _Geometry(x.shape[1:3], x.shape[3], weight.shape[:2], operation.stride, operation.pad, y.shape[1:3])
    if g.pointwise:
        cupy.dot(_flat(x), _flat(weight), out=_flat(y))
        return
    for piece in g.pieces(len(x), x.itemsize):
        cupy.dot(g.gather(x, piece), _flat(weight), out=_flat(y)[piece])


@kernel(Conv2dWeight, dtypes=FLOATS)
def conv2d_weight(operation: Conv2dWeight, inputs: list[Array], outputs: list[Array]) -> None:
    """The weight gradient; see `Conv2dWeight`."""
    (dy, x), (dweight,) = (contiguous(array) for array in inputs), outputs
    g = _Geometry(x.shape[1:3], x.shape[3], operation.kernel, operation.stride, operation.pad, dy.shape[1:3])
    flat, rows = _flat(dweight), _flat(dy)
    if g.pointwise:
        cupy.dot(_flat(x).T, rows, out=flat)
        return
    pieces = list(g.pieces(len(x), x.itemsize))
    if not pieces:
        flat.fill(0)
    for i, piece in enumerate(pieces):
        if i == 0:
            cupy.dot(g.gather(x, piece).T, rows[piece], out=flat)
        else:
            cupy.add(flat, cupy.dot(g.gather(x, piece).T, rows[piece]), out=flat)


@kernel(Conv2dDown, dtypes=FLOATS)
def conv2d_down(operation: Conv2dDown, inputs: list[Array], outputs: list[Array]) -> None:
    """The data gradient; see `Conv2dDown`."""
    (dy, weight), (dx,) = (contiguous(array) for array in inputs), outputs
    g = _Geometry(operation.size, dx.shape[3], weight.shape[:2], operation.stride, operation.pad, dy.shape[1:3])
    rows, flat = _flat(dy), _flat(weight).T
    if g.pointwise:
        cupy.dot(rows, flat, out=_flat(dx))
        return
    for piece in g.pieces(len(dx), dx.itemsize):
        g.scatter(cupy.dot(rows[piece], flat), piece, dx)
