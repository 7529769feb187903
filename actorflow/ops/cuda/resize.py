"""Kernels of `actorflow.ops.nn.resize`: a thread per element of the result, so nothing is added atomically."""

from __future__ import annotations

import math

import numpy as np

from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, kernel, launch_flat
from actorflow.ops.nn.resize import MODES, ROUNDINGS, Resize, ResizeDown


def _launch(function: str, operation: Resize, length: int, x: Array, y: Array) -> None:
    inner = math.prod(y.shape[operation.axis + 1 :])
    how = (MODES.index(operation.mode), [*ROUNDINGS].index(operation.rounding))
    numbers = map(np.float64, (operation.cubic, *operation.line(length)))
    args = (contiguous(x), y, y.size, length, operation.size, inner, *how, *numbers)
    launch_flat("resize", function, y.size, args, y.dtype)


@kernel(Resize, dtypes=FLOATS)
def _resize(operation: Resize, inputs: list[Array], outputs: list[Array]) -> None:
    _launch("resize", operation, inputs[0].shape[operation.axis], inputs[0], outputs[0])


@kernel(ResizeDown, dtypes=FLOATS)
def _resize_down(operation: ResizeDown, inputs: list[Array], outputs: list[Array]) -> None:
    _launch("resize_down", operation.forward, operation.length, inputs[0], outputs[0])
