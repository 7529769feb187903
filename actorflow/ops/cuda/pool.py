"""Kernels of `actorflow.ops.pool`: a thread per output element forwards, per image element backwards.

Backwards nothing is added atomically, so results do not depend on timing; a thread reads the few windows that see its
element instead, from the cache.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, elementwise, kernel, launch_flat
from actorflow.ops.cuda.reduce import sum_axes
from actorflow.ops.pool import (
    AveragePool2d,
    AveragePool2dDown,
    GlobalAverage,
    GlobalAverageDown,
    MaxPool2d,
    MaxPool2dDown,
)

__all__: list[str] = []

_SPREAD = elementwise("global_average_down", "T g, float64 count", "T dx", "dx = T(W(g) / W(count))")


def _launch(
    function: str, operation: Any, inputs: list[Array], output: Array, images: Array, windows: Array, *more: int
) -> None:
    """Launch a function of pool.cuh: a thread per element of the output."""
    sizes = (output.size, *images.shape[1:], *windows.shape[1:3], *operation.kernel, *operation.stride, *operation.pad)
    args = (*(contiguous(array) for array in inputs), output, *sizes, *more)
    launch_flat("pool", function, output.size, args, output.dtype)


@kernel(MaxPool2d, dtypes=FLOATS)
def _max_pool(operation: MaxPool2d, inputs: list[Array], outputs: list[Array]) -> None:
    _launch("max_pool", operation, inputs, outputs[0], inputs[0], outputs[0])


@kernel(MaxPool2dDown, dtypes=FLOATS)
def _max_pool_down(operation: MaxPool2dDown, inputs: list[Array], outputs: list[Array]) -> None:
    _launch("max_pool_down", operation, inputs, outputs[0], inputs[1], inputs[2])


@kernel(AveragePool2d, dtypes=FLOATS)
def _average_pool(operation: AveragePool2d, inputs: list[Array], outputs: list[Array]) -> None:
    _launch("average_pool", operation, inputs, outputs[0], inputs[0], outputs[0], int(operation.count_pad))


@kernel(AveragePool2dDown, dtypes=FLOATS)
def _average_pool_down(operation: AveragePool2dDown, inputs: list[Array], outputs: list[Array]) -> None:
    _launch("average_pool_down", operation, inputs, outputs[0], outputs[0], inputs[0], int(operation.count_pad))


@kernel(GlobalAverage, dtypes=FLOATS)
def _global_average(operation: GlobalAverage, inputs: list[Array], outputs: list[Array]) -> None:
    height, width = inputs[0].shape[1:3]
    sum_axes(inputs[0], (1, 2), outputs[0], height * width)


@kernel(GlobalAverageDown, dtypes=FLOATS)
def _global_average_down(operation: GlobalAverageDown, inputs: list[Array], outputs: list[Array]) -> None:
    height, width = operation.size
    g = cupy.broadcast_to(inputs[0][:, np.newaxis, np.newaxis, :], outputs[0].shape)
    _SPREAD(g, np.float64(height * width), outputs[0])
