"""Kernels of `actorflow.ops.clipping`."""

from __future__ import annotations

import math

import numpy as np

from actorflow.ops.clipping import NormFactor, ScaleBy, SquareSum
from actorflow.ops.cpu.buffers import Array, flat_blocks, scratch
from actorflow.ops.registry import kernel

#: Keeps a norm of 0 from being divided by.
_EPS = 1e-6


@kernel(SquareSum)
def _square_sum(operation: SquareSum, inputs: list[Array], outputs: list[Array]) -> None:
    total = 0.0
    for (part,) in flat_blocks(inputs[0]):
        wide = scratch("wide", part.shape, np.float64)
        np.copyto(wide, part)
        flat = wide.reshape(-1)
        total += float(np.dot(flat, flat))
    outputs[0][...] = total


@kernel(NormFactor)
def _norm_factor(operation: NormFactor, inputs: list[Array], outputs: list[Array]) -> None:
    norm = math.sqrt(sum(map(float, inputs)))
    outputs[0][...] = np.minimum(1.0, operation.max_norm / (norm + _EPS))


@kernel(ScaleBy, inplace=True)
def _scale_by(operation: ScaleBy, inputs: list[Array], outputs: list[Array]) -> None:
    # The factor is a Python number, so that it does not widen what it scales.
    np.multiply(inputs[0], float(inputs[1]), out=outputs[0])
