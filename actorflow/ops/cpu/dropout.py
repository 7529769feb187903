"""Kernels of `actorflow.ops.nn.dropout`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.cpu.buffers import Array, flat_blocks, keep_where
from actorflow.ops.cpu.fills import spread_uniform
from actorflow.ops.cpu.parallel import elementwise
from actorflow.ops.nn.dropout import Dropout
from actorflow.ops.registry import kernel


@kernel(Dropout, random=True, inplace=True)
def _dropout(operation: Dropout, inputs: list[Array], outputs: list[Array], frame: int) -> None:
    (x,), (y, mask) = inputs, outputs
    flat = mask.reshape(-1)

    def use(places: slice, drawn: Array) -> None:
        np.greater_equal(drawn, operation.rate, out=flat[places])

    spread_uniform(operation.seed, frame, flat.size, np.dtype(np.float32), use)
    _keep(operation, [mask, x], [y])


@elementwise
def _keep(operation: Dropout, inputs: list[Array], outputs: list[Array]) -> None:
    for kept, value, result in flat_blocks(*inputs, outputs[0]):
        keep_where(kept, value, result)
        np.multiply(result, 1.0 / (1.0 - operation.rate), out=result)
