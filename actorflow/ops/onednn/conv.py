"""Convolutions and their gradients, channels last, with what follows them as post-ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.cpu.kept import kept
from actorflow.ops.cpu.parallel import Finish, even_cuts, product_ns
from actorflow.ops.nn.conv import Conv, ConvDown, ConvWeight
from actorflow.ops.nn.windows import Windows
from actorflow.ops.onednn.library import (
    DIFF_DST,
    DIFF_SRC,
    DIFF_WEIGHTS,
    FORWARD_INFERENCE,
    FORWARD_TRAINING,
    SRC,
    WEIGHTS,
    Handle,
    dims,
    libdnnl,
)
from actorflow.ops.onednn.steps import Call, Compute, Reorder, kernel, plain, written
from actorflow.ops.onednn.weighted import Piece, Product, by_first_axis, part_of, product
from actorflow.spec import TensorSpec

_DIRECT = 1
#: Rows of an image in a piece, at least: of fewer, vectors of a primitive would be partly empty.
_LEAST_ROWS = 3


def images(shape: Sequence[int], dtype: Any = "float32") -> Handle:
    """Descriptor of images, whose channels lie last and are named second."""
    axes = (0, len(shape) - 1, *range(1, len(shape) - 1))
    steps = _steps(shape)
    return libdnnl().memory([shape[i] for i in axes], dtype, [steps[i] for i in axes])


def _weights(kernel: Sequence[int], own: int, out: int, groups: int) -> tuple[Handle, Handle]:
    """Descriptors of a weight as it lies, (*kernel, in, out), and as a primitive likes it best."""
    steps = _steps((*kernel, own, out))
    shape, strides = (out, own, *kernel), (1, out, *steps[:-2])
    if groups > 1:
        shape, strides = (groups, out // groups, own, *kernel), (out // groups, *strides)
    return libdnnl().memory(shape, "float32", strides), libdnnl().memory(shape, "float32")


def _steps(shape: Sequence[int]) -> list[int]:
    """Elements from one index to the next, axis by axis, in C order."""
    return [*accumulate(shape[:0:-1], mul, initial=1)][::-1]


def _geometry(w: Windows) -> tuple[Any, ...]:
    """Strides, dilations and borders as the library takes them."""
    return (
        dims(w.stride),
        dims([d - 1 for d in w.dilation]),
        dims([before for before, _ in w.pad]),
        dims([after for _, after in w.pad]),
    )


class _Described:
    """A convolution, as the library is told of it."""

    def __init__(self, operation: Any, x: Sequence[int], kernel: Sequence[int], columns: int) -> None:
        w = operation.windows(x[1:-1], kernel)
        self.geometry = _geometry(w)
        own, groups = x[-1] // operation.groups, operation.groups
        self.x, self.y = images(x), images((x[0], *w.out, columns))
        self.weight, self.any_weight = _weights(kernel, own, columns, groups)
        self.work_ns = product_ns(x[0] * math.prod(w.out), math.prod(kernel) * own, columns)

    def forward(
        self, weight: Handle | int, bias: Handle | None = None, attributes: Handle | None = None, *, kind: int
    ) -> Handle:
        """Descriptor of the primitive that computes the result."""
        memories = (self.x, weight, bias, self.y)
        return libdnnl().descriptor("convolution_forward", kind, _DIRECT, *memories, *self.geometry, attributes)

    @property
    def hint(self) -> Handle:
        """What gradients are described with."""
        return self.forward(self.any_weight, kind=FORWARD_TRAINING)


@product(Conv)
def _conv(operation: Conv, specs: Sequence[TensorSpec]) -> Product:
    x, weight = specs[0].shape, specs[1].shape
    told = _Described(operation, x, weight[:-2], weight[-1])
    describe, pieces = partial(told.forward, kind=FORWARD_INFERENCE), partial(_pieces, operation, specs)
    memories = (told.weight, told.any_weight, told.y)
    return Product(describe, *memories, len(x), weight[-1], False, told.work_ns, pieces)


def _pieces(operation: Conv, specs: Sequence[TensorSpec], count: int) -> list[Piece]:
    """Parts of a convolution: some of the images, or of one image some rows, with the border where that is."""
    x, weight = specs
    if x.shape[0] > 1:
        return by_first_axis(_conv, operation, specs, count)
    w = operation.windows(x.shape[1:-1], weight.shape[:-2])
    if len(w.out) == 1:  # what vectors go along would be cut
        return []
    n, step, apart, (before, _) = w.size[0], w.stride[0], w.dilation[0], w.pad[0]
    reach = (w.kernel[0] - 1) * apart + 1
    found = []
    for cut in even_cuts(w.out[0], min(count, w.out[0] // _LEAST_ROWS)):
        start, stop = cut.start * step - before, (cut.stop - 1) * step - before + reach
        own = slice(max(0, start), min(n, stop))
        if own.start >= own.stop:  # it sees the border alone
            return []
        pad = ((own.start - start, stop - own.stop), *w.pad[1:])
        part = _conv(replace(operation, pad=pad), [part_of(x, 1, own), weight])
        found.append(Piece(part, (slice(None), own), (slice(None), cut)))
    return found


@kernel(ConvDown, keeps=True)
def _conv_down(operation: ConvDown, specs: Sequence[TensorSpec]) -> Call:
    g, weight = specs[0].shape, specs[1].shape
    told = _Described(operation, (g[0], *operation.size, weight[-2] * operation.groups), weight[:-2], weight[-1])
    attributes, hint = libdnnl().attributes(), told.hint

    memories = (told.x, told.any_weight, told.y)
    how = (_DIRECT, *memories, *told.geometry, hint, attributes)
    compute = Compute(libdnnl().descriptor("convolution_backward_data", *how), [DIFF_DST, WEIGHTS, DIFF_SRC])
    reorder = Reorder(told.weight, libdnnl().memory_of(compute.descriptor, WEIGHTS))

    def call(operation: ConvDown, inputs: list[Array], outputs: list[Array], finish: Finish | None = None) -> None:
        g, weight = inputs
        dx = written(outputs[0])
        compute(plain(g), kept(operation).derived((weight,), lambda: reorder(plain(weight))), dx)
        if dx is not outputs[0]:
            np.copyto(outputs[0], dx)
        if finish is not None:
            finish(0, dx.size // dx.shape[-1])

    return call


@kernel(ConvWeight)
def _conv_weight(operation: ConvWeight, specs: Sequence[TensorSpec]) -> Call:
    g, x = specs[0].shape, specs[1].shape
    told = _Described(operation, x, operation.kernel, g[-1])
    attributes, hint = libdnnl().attributes(), told.hint

    memories = (told.x, told.any_weight, None, told.y)
    how = (_DIRECT, *memories, *told.geometry, hint, attributes)
    compute = Compute(libdnnl().descriptor("convolution_backward_weights", *how), [SRC, DIFF_DST, DIFF_WEIGHTS])
    reorder = Reorder(libdnnl().memory_of(compute.descriptor, DIFF_WEIGHTS), told.weight)
    size_bytes = libdnnl().size_bytes(libdnnl().memory_of(compute.descriptor, DIFF_WEIGHTS))

    def call(operation: ConvWeight, inputs: list[Array], outputs: list[Array]) -> None:
        g, x = inputs
        packed, dweight = scratch("packed", (size_bytes,), np.uint8), written(outputs[0])
        compute(plain(x), plain(g), packed)
        reorder(packed, dweight)
        if dweight is not outputs[0]:
            np.copyto(outputs[0], dweight)

    return call
