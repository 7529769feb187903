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
from actorflow.ops.nn.windows import Windows, is_even, pads_per_axis, per_axis
from actorflow.ops.torch.tensors import images, lies_last, torch, torch_kernel, turned, weights

#: A call costs torch some 50 us more than NumPy; with fewer products than this it takes longer in all.
LEAST_PRODUCTS = 5 << 20
#: Torch wants weights turned: with fewer windows than this that takes longer than it saves.
LEAST_WINDOWS = 64


def _has_even_pad(operation: Conv | ConvDown | ConvWeight) -> bool:
    return is_even(operation.pad)


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
    return _has_even_pad(operation) and not (rank == 3 and wide)


def _is_for_numpy(x: Array, weight: Array, y: Array) -> bool:
    windows = math.prod(y.shape[:-1])
    return x.shape[-1] == 1 or windows < LEAST_WINDOWS or windows * weight.size < LEAST_PRODUCTS


def _how(operation: Any, w: Windows) -> tuple[Any, ...]:
    rank = len(w.size)
    return w.stride, tuple(before for before, _ in w.pad), w.dilation, False, (0,) * rank, operation.groups


@torch_kernel(Conv, supports=_has_even_pad)
def _conv(operation: Conv, inputs: list[Array], outputs: list[Array]) -> None:
    (x, weight), (y,) = inputs, outputs
    if _is_for_numpy(x, weight, y):
        conv(operation, inputs, outputs)
        return
    how = _how(operation, operation.windows(x.shape[1:-1], weight.shape[:-2]))
    images(y).copy_(torch.ops.aten.convolution(images(x), turned(weight), None, *how))


@torch_kernel(ConvDown, supports=_has_even_pad)
def _conv_down(operation: ConvDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g, weight), (dx,) = inputs, outputs
    if _is_for_numpy(dx, weight, g):
        conv_down(operation, inputs, outputs)
        return
    w = operation.windows(dx.shape[1:-1], weight.shape[:-2])
    to = images(dx)  # also stands for x, of which only the type and the strides count
    to.copy_(_backward(operation, w, images(g), to, turned(weight), [True, False, False])[0])


@torch_kernel(ConvWeight, supports=_is_sound)
def _conv_weight(operation: ConvWeight, inputs: list[Array], outputs: list[Array]) -> None:
    (g, x), (dweight,) = inputs, outputs
    if _is_for_numpy(x, dweight, g):
        conv_weight(operation, inputs, outputs)
        return
    w = operation.windows(x.shape[1:-1], operation.kernel)
    to = weights(dweight)
    memory_format = torch.channels_last if lies_last(dweight) else torch.contiguous_format
    # Stands for the weight, of which only the type and the strides count; not every path takes those of `dweight`.
    weight = torch.empty_like(to, memory_format=memory_format)
    to.copy_(_backward(operation, w, images(g), images(x), weight, [False, True, False])[1])


def _backward(operation: Any, w: Windows, g: Any, x: Any, weight: Any, wanted: list[bool]) -> Any:
    return torch.ops.aten.convolution_backward(g, x, weight, None, *_how(operation, w), wanted)
