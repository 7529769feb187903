"""Kernels of `actorflow.ops.nn.dropout`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.cpu.buffers import BLOCK, Array, flat_blocks, keep_where, scratch
from actorflow.ops.cpu.fills import stream
from actorflow.ops.nn.dropout import Dropout, DropoutDown
from actorflow.ops.registry import kernel


@kernel(Dropout, random=True, inplace=True)
def _dropout(operation: Dropout, inputs: list[Array], outputs: list[Array], frame: int) -> None:
    (x,), (y, mask) = inputs, outputs
    random, flat = stream(operation.seed, frame), mask.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        drawn = random.random(dtype=np.float32, out=scratch("drawn", part.shape, np.float32))
        np.greater_equal(drawn, operation.rate, out=part)
    _keep_and_scale(mask, x, operation.rate, y)


@kernel(DropoutDown, inplace=True)
def _dropout_down(operation: DropoutDown, inputs: list[Array], outputs: list[Array]) -> None:
    _keep_and_scale(inputs[1], inputs[0], operation.rate, outputs[0])


def _keep_and_scale(mask: Array, values: Array, rate: float, out: Array) -> None:
    for kept, value, result in flat_blocks(mask, values, out):
        keep_where(kept, value, result)
        np.multiply(result, 1.0 / (1.0 - rate), out=result)
