"""Kernels of `actorflow.ops.basic`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.basic import Copy, Dummy, Fill, Reshape
from actorflow.ops.cpu.buffers import Array
from actorflow.ops.registry import kernel
from actorflow.spec import TensorSpec


@kernel(Copy, inplace=True)
def _copy(operation: Copy, inputs: list[Array], outputs: list[Array]) -> None:
    if outputs[0] is not inputs[0]:
        np.copyto(outputs[0], inputs[0])


@kernel(Dummy, inplace=True)
def _dummy(operation: Dummy, inputs: list[Array], outputs: list[Array]) -> None:
    if outputs[0] is not inputs[0]:
        np.copyto(outputs[0], inputs[0])


@kernel(Fill)
def _fill(operation: Fill, inputs: list[Array], outputs: list[Array]) -> None:
    outputs[0].fill(operation.value)


@kernel(Reshape, returns=True)
def _reshape(operation: Reshape, inputs: list[Array], outputs: None) -> list[Array]:
    (x,) = inputs
    shape = operation.infer(TensorSpec(x.shape, x.dtype))[0].shape
    if x.flags.c_contiguous:
        return [x.reshape(shape)]
    # NumPy would give a view of a copy, whose memory nobody could tell from that of the pool.
    y = np.empty(shape, x.dtype)
    np.copyto(y.reshape(x.shape), x)
    return [y]
