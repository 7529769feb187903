"""Kernels of `actorflow.ops.nn.conv`: oneDNN for float32, im2col and MKL for float64.

Torch has no convolution that writes into a given buffer, so each result is copied once. An array too small for torch to
win, and images of one channel, are left to NumPy's kernels.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.cpu.conv import conv, conv_down, conv_weight
from actorflow.ops.cpu.parallel import product_ns, spread
from actorflow.ops.nn.conv import Conv, ConvDown, ConvWeight
from actorflow.ops.nn.windows import is_even, pads_per_axis, per_axis
from actorflow.ops.torch.tensors import (
    image_cuts,
    images,
    lies_last,
    torch,
    torch_kernel,
    turned,
    weights,
    within_share,
)

#: A call costs torch some 50 us more than NumPy; with fewer products than this it takes longer in all.
LEAST_PRODUCTS = 5 << 20
#: Torch wants weights turned: with fewer windows than this that takes longer than it saves.
LEAST_WINDOWS = 64
#: Products in a piece for several cores: with less, torch takes other ways, up to twice as long.
_PIECE_PRODUCTS = 64 << 20
#: Images in a piece for 1x1 kernels, at least: torch leaves oneDNN for fewer, and takes twice as long.
_POINTWISE_IMAGES = 16


def _is_sound(operation: ConvWeight) -> bool:
    """Return whether torch stays within its memory.

    Torch 2.13 (oneDNN 3.12) with AVX-512 does not, for float32 volumes of any channels and groups, where the border in
    front is deeper than a stride of 2 or more: it then reads and writes planes beside what it was given. What comes out
    is wrong, or the process dies, at once or later. Such borders above and at the sides have not been seen to do harm,
    and are left to NumPy all the same.
    """
    rank = len(operation.kernel)
    strides = per_axis(operation.kind, "stride", operation.stride, rank, 1)
    pads = pads_per_axis(operation.kind, operation.pad, rank)
    wide = any(1 < stride < before for stride, (before, _) in zip(strides, pads, strict=True))
    return is_even(operation.pad) and not (rank == 3 and wide)


def _compute(operation: Conv | ConvDown | ConvWeight, inputs: list[Array], outputs: list[Array]) -> None:
    (g, x, weight), gives = operation.factors(inputs, outputs), operation.gives
    windows = math.prod(g.shape[:-1])
    if x.shape[-1] == 1 or windows < LEAST_WINDOWS or windows * weight.size < LEAST_PRODUCTS:
        numpys: Any = {"g": conv, "x": conv_down, "weight": conv_weight}[gives]
        numpys(operation, inputs, outputs)
        return
    w = operation.windows(x.shape[1:-1], weight.shape[:-2])
    pad, extra = tuple(before for before, _ in w.pad), (0,) * len(w.pad)
    how = (None, w.stride, pad, w.dilation, False, extra, operation.groups)
    products = windows, weight.size // weight.shape[-1], weight.shape[-1]
    few = w.is_pointwise and len(g) < 2 * _POINTWISE_IMAGES
    cuts = image_cuts(len(g), 1 if few else math.prod(products) // _PIECE_PRODUCTS)
    aten = torch.ops.aten
    if gives == "weight":
        sums = weight[np.newaxis] if len(cuts) == 1 else scratch("weights", (len(cuts), *weight.shape), weight.dtype)
        memory_format = torch.channels_last if lies_last(weight) else torch.contiguous_format
        # Stands for the weight, of which only the type and the strides count; not every path takes those of `weight`.
        like = torch.empty_like(weights(weight), memory_format=memory_format)
    else:
        factor = turned(weight)

    def compute(index: int) -> None:
        some_g, some_x = images(g[cuts[index]]), images(x[cuts[index]])
        if gives == "g":
            some_g.copy_(aten.convolution(some_x, factor, *how))
        elif gives == "x":  # which also stands for itself: only the type and the strides count
            some_x.copy_(aten.convolution_backward(some_g, some_x, factor, *how, [True, False, False])[0])
        else:
            found = aten.convolution_backward(some_g, some_x, like, *how, [False, True, False])
            weights(sums[index]).copy_(found[1])

    spread(range(len(cuts)), within_share(compute), product_ns(*products))
    if gives == "weight" and len(cuts) > 1:
        np.add.reduce(sums, axis=0, out=weight)


torch_kernel(Conv, lambda operation: is_even(operation.pad))(_compute)
torch_kernel(ConvDown, lambda operation: is_even(operation.pad))(_compute)
torch_kernel(ConvWeight, _is_sound)(_compute)
