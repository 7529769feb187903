"""Convolutions and their gradients, channels last, with what follows them as post-ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from actorflow.devices.team import WORTH_NS, team
from actorflow.ops.cpu.buffers import Array, plain, scratch
from actorflow.ops.cpu.depthwise import is_depthwise
from actorflow.ops.cpu.kept import kept
from actorflow.ops.cpu.parallel import even_cuts, product_ns
from actorflow.ops.nn.conv import Conv, ConvDown, ConvWeight
from actorflow.ops.onednn import library as dnnl
from actorflow.ops.onednn.library import Handle, UnsupportedError, dims, libdnnl
from actorflow.ops.onednn.steps import (
    LIBRARY,
    Call,
    Compute,
    Indirect,
    Reorder,
    Shared,
    images,
    kernel,
    steps,
)
from actorflow.ops.onednn.weighted import Product, product
from actorflow.spec import TensorSpec

_DIRECT = 1
#: Channels that a group of images has, of which gradients are computed here: of fewer, the library's vectors are mostly
#: empty, and weight gradients of more take BLAS less time.
_LEAST_CHANNELS, _MOST_CHANNELS = 8, 32
#: Parts of a batch whose weight gradients are added up, at most.
_SUMS = 4


def _weights(kernel: Sequence[int], own: int, out: int, groups: int) -> tuple[Handle, Handle]:
    """Descriptors of a weight as it lies, (*kernel, in, out), and as a primitive likes it best."""
    lengths = steps((*kernel, own, out))
    shape, strides = (out, own, *kernel), (1, out, *lengths[:-2])
    if groups > 1:
        shape, strides = (groups, out // groups, own, *kernel), (out // groups, *strides)
    return libdnnl().memory(shape, strides), libdnnl().memory(shape)


class _Described:
    """A convolution, as the library is told of it.

    It computes several columns of an image at once. Where there is one, as of sounds that are images, rows are columns.
    """

    def __init__(self, operation: Any, x: Sequence[int], kernel: Sequence[int], columns: int) -> None:
        w = operation.windows(x[1:-1], kernel)
        order = -1 if {*x[2:-1], *kernel[1:], *w.out[1:]} == {1} else 1
        before, after = zip(*w.pad[::order], strict=True)
        self.geometry = [*map(dims, (w.stride[::order], [d - 1 for d in w.dilation[::order]], before, after))]
        own, groups = x[-1] // operation.groups, operation.groups
        self.x, self.y = images((x[0], *x[1:-1][::order], x[-1])), images((x[0], *w.out[::order], columns))
        kernel = kernel[::order]
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
        """The type of value that gradients are described with."""
        return self.forward(self.any_weight, kind=dnnl.FORWARD_TRAINING)


@product(Conv)
def _conv(operation: Conv, specs: Sequence[TensorSpec]) -> Product:
    x, weight = specs[0].shape, specs[1].shape
    told = _Described(operation, x, weight[:-2], weight[-1])
    describe, memories = partial(told.forward, kind=dnnl.FORWARD_INFERENCE), (told.weight, told.any_weight, told.y)
    return Product(describe, *memories, len(x), weight[-1], False, told.work_ns)


@kernel(ConvDown, keeps=True)
def _conv_down(operation: ConvDown, specs: Sequence[TensorSpec]) -> Call:
    weight = specs[1].shape
    if weight[-2] < _LEAST_CHANNELS and not is_depthwise(operation.groups, weight[-2]):
        raise UnsupportedError("few channels")
    told = _Described(
        operation, (specs[0].shape[0], *operation.size, weight[-2] * operation.groups), weight[:-2], weight[-1]
    )

    def describe(weight: Handle | int) -> Handle:
        how = (_DIRECT, told.x, weight, told.y, *told.geometry, told.hint, libdnnl().attributes())
        return libdnnl().descriptor("convolution_backward_data", *how)

    compute = Shared(describe, [dnnl.DIFF_DST, dnnl.WEIGHTS, dnnl.DIFF_SRC], 2, told.work_ns, told.any_weight)
    reorder = Reorder(told.weight, compute.weight)
    derived = kept(operation).derived((LIBRARY, libdnnl().order_of(compute.weight)))

    def order(weight: Array) -> Array:
        return reorder(plain(weight))

    def call(operation: ConvDown, inputs: list[Array], outputs: list[Array]) -> None:
        (g, weight), (dx,) = inputs, outputs
        compute(plain(g), derived.of((weight,), order), dx)

    return Indirect(call)


@kernel(ConvWeight)
def _conv_weight(operation: ConvWeight, specs: Sequence[TensorSpec]) -> Call:
    """In pieces of a batch that shapes alone decide on, whose sums are added up in their order."""
    g, x = specs[0].shape, specs[1].shape
    if x[-1] // operation.groups > _MOST_CHANNELS:
        raise UnsupportedError("many channels")
    work_ns = _Described(operation, x, operation.kernel, g[-1]).work_ns
    cuts = even_cuts(x[0], max(1, min(_SUMS, int(work_ns / WORTH_NS))))
    found = libdnnl()
    made: dict[int, Compute] = {}
    for count in {cut.stop - cut.start for cut in cuts}:
        told = _Described(operation, (count, *x[1:]), operation.kernel, g[-1])
        packed = found.memory_of(next(iter(made.values())).descriptor, dnnl.DIFF_WEIGHTS) if made else told.any_weight
        how = (_DIRECT, told.x, packed, None, told.y, *told.geometry, told.hint, found.attributes())
        slow = ("ref", "simple", *["jit:"] * is_depthwise(operation.groups, x[-1] // operation.groups))
        descriptor = found.descriptor("convolution_backward_weights", *how, slow=slow)
        made[count] = Compute(descriptor, [dnnl.SRC, dnnl.DIFF_DST, dnnl.DIFF_WEIGHTS])
    memory = found.memory_of(next(iter(made.values())).descriptor, dnnl.DIFF_WEIGHTS)
    reorder, size_bytes = Reorder(memory, told.weight), found.size_bytes(memory)

    def call(operation: ConvWeight, inputs: list[Array], outputs: list[Array]) -> None:
        g, x = map(plain, inputs)
        sums = scratch("sums", (len(cuts), size_bytes // 4), np.float32)

        def part(index: int) -> None:
            cut = cuts[index]
            made[cut.stop - cut.start](x[cut], g[cut], sums[index])

        team.spread(range(len(cuts)), part, work_ns)
        for each in sums[1:]:
            np.add(sums[0], each, out=sums[0])
        reorder(sums[0], outputs[0])

    return Indirect(call)
