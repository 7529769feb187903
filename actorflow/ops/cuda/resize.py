"""Kernels of `actorflow.ops.nn.resize`: a thread per element of the result, so nothing is added atomically."""

from __future__ import annotations

import math

import numpy as np

from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, kernel, launch_flat
from actorflow.ops.nn.resize import MODES, ROUNDINGS, Resize, ResizeDown


@kernel(Resize, dtypes=FLOATS)
@kernel(ResizeDown, dtypes=FLOATS)
def _resize(operation: Resize | ResizeDown, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (y,), is_down = inputs, outputs, isinstance(operation, ResizeDown)
    forward: Resize = operation.forward if isinstance(operation, ResizeDown) else operation
    inner, length = math.prod(y.shape[forward.axis + 1 :]), (y if is_down else x).shape[forward.axis]
    how = (MODES.index(forward.mode), [*ROUNDINGS].index(forward.rounding))
    numbers = map(np.float64, (forward.cubic, *forward.line(length)))
    args = (contiguous(x), y, y.size, length, forward.size, inner, *how, *numbers)
    launch_flat("resize", "resize_down" if is_down else "resize", y.size, args, y.dtype)
