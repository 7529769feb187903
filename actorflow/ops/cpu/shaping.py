"""Kernels of `actorflow.ops.shaping`; kernels of broadcasting and sums are in `actorflow.ops.cpu.reductions`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.registry import kernel
from actorflow.ops.shaping import Concat, Reshape, Split, Transpose
from actorflow.spec import TensorSpec


@kernel(Reshape, returns=True)
def _reshape(operation: Reshape, inputs: list[Array], outputs: None) -> list[Array]:
    (x,) = inputs
    if x.flags.c_contiguous:
        return [x.reshape(operation.shape)]
    # NumPy would give a view of a copy, whose memory could not be told from that of the pool.
    y = np.empty(operation.infer(TensorSpec(x.shape, x.dtype))[0].shape, x.dtype)
    np.copyto(y.reshape(x.shape), x)
    return [y]


@kernel(Transpose)
def _transpose(operation: Transpose, inputs: list[Array], outputs: list[Array]) -> None:
    np.copyto(outputs[0], inputs[0].transpose(operation.axes))


@kernel(Concat)
def _concat(operation: Concat, inputs: list[Array], outputs: list[Array]) -> None:
    (y,), axis = outputs, operation.axis
    if operation.new:
        shape = [*y.shape]
        shape[axis] = 1
        inputs = [x.reshape(shape) for x in inputs]  # `numpy.stack` takes ten times as long as what it does
    np.concatenate(inputs, axis=axis, out=y)


@kernel(Split, returns=True)
def _split(operation: Split, inputs: list[Array], outputs: None) -> list[Array]:
    (x,) = inputs
    before, pieces, start = (slice(None),) * (operation.axis % x.ndim), [], 0
    for length in operation.lengths:
        pieces.append(x[(*before, slice(start, start + length))])
        start += length
    return pieces
