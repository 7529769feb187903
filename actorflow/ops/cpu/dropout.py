"""Kernels of `actorflow.ops.nn.dropout`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.cpu.buffers import BLOCK, Array, flat_blocks, keep_where, scratch
from actorflow.ops.cpu.fills import stream
from actorflow.ops.nn.dropout import Dropout
from actorflow.ops.registry import kernel


@kernel(Dropout, random=True, inplace=True)
def _dropout(operation: Dropout, inputs: list[Array], outputs: list[Array], frame: int) -> None:
    (x,), (y, mask) = inputs, outputs
    random, flat = stream(operation.seed, frame), mask.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        drawn = random.random(dtype=np.float32, out=scratch("drawn", part.shape, np.float32))
        np.greater_equal(drawn, operation.rate, out=part)
    for kept, value, result in flat_blocks(mask, x, y):
        keep_where(kept, value, result)
        np.multiply(result, 1.0 / (1.0 - operation.rate), out=result)
