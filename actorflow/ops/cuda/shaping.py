"""Kernels of `actorflow.ops.shaping`; those of broadcasting and sums are in `actorflow.ops.cuda.reductions`.

Parts are copied here, where the CPU gives views: consumers want contiguous arrays, and what a CUDA graph captures must
not make arrays of its own.
"""

from __future__ import annotations

import cupy

from actorflow.ops.cuda.launch import ANYTHING, Array, kernel
from actorflow.ops.shaping import Concat, Reshape, Split, Transpose
from actorflow.spec import TensorSpec


@kernel(Reshape, dtypes=ANYTHING, returns=True)
def _reshape(operation: Reshape, inputs: list[Array], outputs: None) -> list[Array]:
    shape = operation.infer(*(TensorSpec(x.shape, x.dtype) for x in inputs))[0].shape
    return [inputs[0].reshape(shape)]


@kernel(Transpose, dtypes=ANYTHING)
def _transpose(operation: Transpose, inputs: list[Array], outputs: list[Array]) -> None:
    cupy.copyto(outputs[0], inputs[0].transpose(operation.axes))


@kernel(Concat, dtypes=ANYTHING)
def _concat(operation: Concat, inputs: list[Array], outputs: list[Array]) -> None:
    (y,), start = outputs, 0
    before = (slice(None),) * (operation.axis % y.ndim)
    for part in inputs:
        length = 1 if operation.new else part.shape[len(before)]
        place = y[(*before, slice(start, start + length))]
        cupy.copyto(place, part.reshape(place.shape) if operation.new else part)
        start += length


@kernel(Split, dtypes=ANYTHING)
def _split(operation: Split, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), start = inputs, 0
    before = (slice(None),) * (operation.axis % x.ndim)
    for length, piece in zip(operation.lengths, outputs, strict=True):
        cupy.copyto(piece, x[(*before, slice(start, start + length))])
        start += length
