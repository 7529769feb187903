"""Kernels of `actorflow.ops.nn.dropout`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, kernel, launch_flat
from actorflow.ops.nn.dropout import Dropout
from actorflow.ops.operation import wide_dtype

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
