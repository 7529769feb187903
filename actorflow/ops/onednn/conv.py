"""Convolutions and their gradients, channels last, with what follows them as post-ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from actorflow.devices.team import WORTH_NS, team
from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.cpu.depthwise import is_depthwise
from actorflow.ops.cpu.kept import kept
from actorflow.ops.cpu.parallel import even_cuts, product_ns
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
    UnsupportedError,
    dims,
    libdnnl,
)
from actorflow.ops.onednn.steps import (
    LIBRARY,
    Call,
    Compute,
    Divisible,
    Indirect,
    Piece,
    Reorder,
    images,
    kernel,
    part_of,
    plain,
    steps,
)
from actorflow.ops.onednn.weighted import Part, Product, by_first_axis, product
from actorflow.spec import TensorSpec

_DIRECT = 1
#: Rows of an image in a piece, at least: of fewer, vectors of a primitive would be partly empty.
_LEAST_ROWS = 3
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
        """The type of value that gradients are described with."""
        return self.forward(self.any_weight, kind=FORWARD_TRAINING)


@product(Conv)
def _conv(operation: Conv, specs: Sequence[TensorSpec]) -> Product:
    x, weight = specs[0].shape, specs[1].shape
    told = _Described(operation, x, weight[:-2], weight[-1])
    describe, pieces = partial(told.forward, kind=FORWARD_INFERENCE), partial(_pieces, operation, specs)
    memories = (told.weight, told.any_weight, told.y)
    return Product(describe, *memories, len(x), weight[-1], False, told.work_ns, pieces)


def _pieces(operation: Conv, specs: Sequence[TensorSpec], count: int) -> list[Part]:
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
        found.append(Part(part, (slice(None), own), (slice(None), cut)))
    return found


@kernel(ConvDown, keeps=True)
def _conv_down(operation: ConvDown, specs: Sequence[TensorSpec]) -> Call:
    weight = specs[1].shape
    if weight[-2] < _LEAST_CHANNELS and not is_depthwise(operation.groups, weight[-2]):
        raise UnsupportedError("few channels")
    whole, told = _down(operation, specs[0].shape, weight)
    packed = libdnnl().memory_of(whole.descriptor, WEIGHTS)
    reorder = Reorder(told.weight, packed)
    derived = kept(operation).derived((LIBRARY, libdnnl().order_of(packed)))

    def order(weight: Array) -> Array:
        return reorder(plain(weight))

    def cut(count: int) -> list[Piece]:
        """Some of the images each."""
        batch, *rest = specs[0].shape
        cuts = even_cuts(batch, count)
        parts = [_down(operation, (each.stop - each.start, *rest), weight, packed)[0] for each in cuts]
        return [(part, [(each,), None, (each,)]) for part, each in zip(parts, cuts, strict=True)]

    compute = Divisible(whole, 2, told.work_ns, cut)

    def call(operation: ConvDown, inputs: list[Array], outputs: list[Array]) -> None:
        (g, weight), (dx,) = inputs, outputs
        compute(plain(g), derived.of((weight,), order), dx)

    return Indirect(call)


def _down(
    operation: ConvDown, g: Sequence[int], weight: Sequence[int], packed: int | None = None
) -> tuple[Compute, _Described]:
    """The primitive of a data gradient, for a weight as it likes it, or as it is packed."""
    told = _Described(operation, (g[0], *operation.size, weight[-2] * operation.groups), weight[:-2], weight[-1])
    memories = (told.x, packed or told.any_weight, told.y)
    how = (_DIRECT, *memories, *told.geometry, told.hint, libdnnl().attributes())
    return Compute(libdnnl().descriptor("convolution_backward_data", *how), [DIFF_DST, WEIGHTS, DIFF_SRC]), told


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
        packed = found.memory_of(next(iter(made.values())).descriptor, DIFF_WEIGHTS) if made else told.any_weight
        how = (_DIRECT, told.x, packed, None, told.y, *told.geometry, told.hint, found.attributes())
        slow = ("ref", "simple", *["jit:"] * is_depthwise(operation.groups, x[-1] // operation.groups))
        descriptor = found.descriptor("convolution_backward_weights", *how, slow=slow)
        made[count] = Compute(descriptor, [SRC, DIFF_DST, DIFF_WEIGHTS])
    memory = found.memory_of(next(iter(made.values())).descriptor, DIFF_WEIGHTS)
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
