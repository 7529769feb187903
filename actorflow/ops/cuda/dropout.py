"""Kernels of `actorflow.ops.nn.dropout`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, elementwise, kernel, launch_flat
from actorflow.ops.nn.dropout import Dropout, DropoutDown
from actorflow.ops.operation import wide_dtype

_DROPOUT_DOWN = elementwise("dropout_down", "T g, bool mask, T factor", "T dx", "dx = mask ? T(g * factor) : T(0)")

_WORD = (1 << 64) - 1


@kernel(Dropout, dtypes=FLOATS, random=True, inplace=True)
def _dropout(operation: Dropout, inputs: list[Array], outputs: list[Array], frame: int) -> None:
    (x,), (y, mask) = inputs, outputs
    words = (np.uint64(frame), np.uint64(operation.seed & _WORD), np.uint64(operation.seed >> 64))
    # Rounded to the dtype first, as the CPU's is.
    factor = wide_dtype(x.dtype).type(x.dtype.type(1 / (1 - operation.rate)))
    groups = -(-x.size // 8)
    args = (contiguous(x), y, mask, groups, x.size, *words, np.float32(operation.rate), factor)
    launch_flat("noise", "dropout", groups, args, x.dtype)


@kernel(DropoutDown, dtypes=FLOATS, inplace=True)
def _dropout_down(operation: DropoutDown, inputs: list[Array], outputs: list[Array]) -> None:
    g, mask = inputs
    _DROPOUT_DOWN(g, mask, g.dtype.type(1 / (1 - operation.rate)), outputs[0])
