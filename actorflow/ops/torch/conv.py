"""Kernels of `actorflow.ops.nn.conv`: oneDNN for float32, im2col and MKL for float64.

Torch has no convolution that writes into a given buffer, so each result is copied once. An array too small for torch to
win, and images of one channel, are left to NumPy's kernels.
"""

from __future__ import annotations

import math
from typing import Any

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.cpu.conv import conv, conv_down, conv_weight
from actorflow.ops.nn.conv import Conv, ConvDown, ConvWeight
from actorflow.ops.nn.windows import is_even, pads_per_axis, per_axis
from actorflow.ops.torch.tensors import images, lies_last, torch, torch_kernel, turned, weights

#: A call costs torch some 50 us more than NumPy; with fewer products than this it takes longer in all.
LEAST_PRODUCTS = 5 << 20
#: Torch wants weights turned: with fewer windows than this that takes longer than it saves.
LEAST_WINDOWS = 64


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
    if gives == "g":
        images(g).copy_(torch.ops.aten.convolution(images(x), turned(weight), *how))
        return
    if gives == "x":
        to = images(x)  # also stands for x, of which only the type and the strides count
        factors, wanted = (to, turned(weight)), [True, False, False]
    else:
        to = weights(weight)
        memory_format = torch.channels_last if lies_last(weight) else torch.contiguous_format
        # Stands for the weight, of which only the type and the strides count; not every path takes those of `weight`.
        factors, wanted = (images(x), torch.empty_like(to, memory_format=memory_format)), [False, True, False]
    to.copy_(torch.ops.aten.convolution_backward(images(g), *factors, *how, wanted)[wanted.index(True)])


torch_kernel(Conv, lambda operation: is_even(operation.pad))(_compute)
torch_kernel(ConvDown, lambda operation: is_even(operation.pad))(_compute)
torch_kernel(ConvWeight, _is_sound)(_compute)
