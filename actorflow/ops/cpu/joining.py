"""Kernels of `actorflow.ops.joining`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.joining import Concat, Split
from actorflow.ops.registry import kernel


@kernel(Concat)
def _concat(operation: Concat, inputs: list[Array], outputs: list[Array]) -> None:
    np.concatenate(inputs, axis=operation.axis, out=outputs[0])


@kernel(Split, returns=True)
def _split(operation: Split, inputs: list[Array], outputs: None) -> list[Array]:
    (x,) = inputs
    before, pieces, start = (slice(None),) * (operation.axis % x.ndim), [], 0
    for length in operation.lengths:
        pieces.append(x[(*before, slice(start, start + length))])
        start += length
    return pieces
