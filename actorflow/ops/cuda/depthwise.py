"""Convolutions whose groups have one input channel: a thread per element, no columns but for the weight."""

from __future__ import annotations

import cupy

from actorflow.ops.cuda.launch import Array, elementwise, launch_flat
from actorflow.ops.cuda.reductions import sum_axes
from actorflow.ops.cuda.windows import arguments
from actorflow.ops.nn.windows import Windows

_PRODUCTS = elementwise("depthwise_weight", "T column, T g", "T product", "product = T(W(column) * W(g))")


def is_depthwise(groups: int, channels: int) -> bool:
    """Return whether these kernels are for it, by the number of input channels of each group."""
    return channels == 1 and groups > 1


def forward(w: Windows, x: Array, weight: Array, y: Array) -> None:
    """``y`` of `Conv`, of contiguous arrays."""
    channels = x.shape[-1]
    args = (x, weight, y, y.size, channels, y.shape[-1] // max(1, channels), *arguments(w))
    launch_flat("depthwise", "depthwise", y.size, args, y.dtype)


def down(w: Windows, g: Array, weight: Array, dx: Array) -> None:
    """``dx`` of `ConvDown`, of contiguous arrays."""
    channels = dx.shape[-1]
    args = (g, weight, dx, dx.size, channels, g.shape[-1] // max(1, channels), *arguments(w))
    launch_flat("depthwise", "depthwise_down", dx.size, args, dx.dtype)


def products(columns: Array, g: Array, dweight: Array) -> None:
    """The weight gradient of a piece.

    Args:
        columns: (windows, kernel offsets, channels).
        g: (windows, output channels).
        dweight: (kernel offsets, output channels), contiguous; written.
    """
    windows, offsets, channels = columns.shape
    times = g.shape[1] // channels
    found = cupy.empty((windows, offsets, channels, times), columns.dtype)
    _PRODUCTS(columns.reshape(windows, offsets, channels, 1), g.reshape(windows, 1, channels, times), found)
    sum_axes(found, (0,), dweight.reshape(offsets, channels, times))
