"""Depthwise convolutions: groups with one input channel, in the order of additions of NumPy's kernels."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.cpu.depthwise import is_depthwise
from actorflow.ops.nn.conv import Conv, ConvDown
from actorflow.ops.nn.windows import MOST_AXES, Windows
from actorflow.ops.numba.kernels import are_plain, kernel
from actorflow.ops.numba.taps import MOST_TAPS, Fold, Slide, forwards, slide, volumes

_PRODUCTS = Fold("products", "0", "{t} + {v} * f", "{t}", weighted=True, border=0.0)


def _has_groups(operation: Conv | ConvDown) -> bool:
    return operation.groups > 1


def _can(operation: Conv | ConvDown, weight: Array) -> bool:
    """Return whether the weight is of a depthwise convolution, and a border of zeros adds nothing."""
    if not is_depthwise(operation.groups, weight.shape[-2]) or math.prod(weight.shape[:-2]) > MOST_TAPS:
        return False
    return bool(np.isfinite(weight).all())


@lru_cache(maxsize=4096)
def _backwards(w: Windows) -> Slide:
    """The windows of an image's elements over the gradients that reach them, between which there are gaps."""
    axes = zip(w.pad, w.kernel, w.dilation, strict=True)
    start = tuple(before - (k - 1) * d for (before, _), k, d in axes)
    return Slide(
        volumes(w.out, 1),
        volumes(w.stride, 1),
        volumes(w.kernel, 1),
        volumes(start, 0),
        (1,) * MOST_AXES,
        volumes(w.dilation, 1),
        volumes(w.size, 1),
        is_turned=True,
    )


@kernel(Conv, supports=_has_groups)
def _conv(operation: Conv, inputs: list[Array], outputs: list[Array]) -> bool:
    (x, weight), (y,) = inputs, outputs
    if not _can(operation, weight) or not are_plain([x, weight, y], x.dtype):
        return False
    return slide(_PRODUCTS, forwards(operation.windows(x.shape[1:-1], weight.shape[:-2])), x, weight, y)


@kernel(ConvDown, supports=_has_groups)
def _conv_down(operation: ConvDown, inputs: list[Array], outputs: list[Array]) -> bool:
    (g, weight), (dx,) = inputs, outputs
    if g.shape[-1] != dx.shape[-1] or not _can(operation, weight) or not are_plain([g, weight, dx], g.dtype):
        return False
    return slide(_PRODUCTS, _backwards(operation.windows(dx.shape[1:-1], weight.shape[:-2])), g, weight, dx)
