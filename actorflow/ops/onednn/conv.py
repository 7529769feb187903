"""Convolutions and their gradients, channels last, with what follows them as post-ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.cpu.kept import kept
from actorflow.ops.cpu.parallel import Finish, product_ns
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
from actorflow.ops.onednn.weighted import Product, product
from actorflow.spec import TensorSpec

_DIRECT = 1


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

    def forward(self, kind: int, bias: Handle | None = None, attributes: Handle | None = None) -> Handle:
        """Descriptor of the primitive that computes the result."""
        memories = (self.x, self.any_weight, bias, self.y)
        return libdnnl().descriptor("convolution_forward", kind, _DIRECT, *memories, *self.geometry, attributes)


@product(Conv)
def _conv(operation: Conv, specs: Sequence[TensorSpec]) -> Product:
    x, weight = specs[0].shape, specs[1].shape
    told = _Described(operation, x, weight[:-2], weight[-1])

    def describe(bias: Handle | None, attributes: Handle) -> Handle:
        return told.forward(FORWARD_INFERENCE, bias, attributes)

    return Product(describe, told.weight, told.y, len(x), weight[-1], False, told.work_ns)


@kernel(ConvDown, keeps=True)
def _conv_down(operation: ConvDown, specs: Sequence[TensorSpec]) -> Call:
    g, weight = specs[0].shape, specs[1].shape
    told = _Described(operation, (g[0], *operation.size, weight[-2] * operation.groups), weight[:-2], weight[-1])
    attributes, hint = libdnnl().attributes(), told.forward(FORWARD_TRAINING)

    def describe() -> Handle:
        memories = (told.x, told.any_weight, told.y)
        name = "convolution_backward_data"
        return libdnnl().descriptor(name, _DIRECT, *memories, *told.geometry, hint, attributes)

    compute = Compute(describe, [DIFF_DST, WEIGHTS, DIFF_SRC], told.work_ns)
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
    attributes, hint = libdnnl().attributes(), told.forward(FORWARD_TRAINING)

    def describe() -> Handle:
        memories = (told.x, told.any_weight, None, told.y)
        name = "convolution_backward_weights"
        return libdnnl().descriptor(name, _DIRECT, *memories, *told.geometry, hint, attributes)

    compute = Compute(describe, [SRC, DIFF_DST, DIFF_WEIGHTS])
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
