"""Kernels of `actorflow.ops.basic`."""

from __future__ import annotations

import cupy

from actorflow.ops.basic import Copy, Dummy, Fill, Reshape
from actorflow.ops.cuda.launch import ANYTHING, Array, kernel
from actorflow.spec import TensorSpec


@kernel(Copy, dtypes=ANYTHING, inplace=True)
def _copy(operation: Copy, inputs: list[Array], outputs: list[Array]) -> None:
    if inputs[0] is not outputs[0]:
        cupy.copyto(outputs[0], inputs[0])


@kernel(Dummy, dtypes=ANYTHING, inplace=True)
def _dummy(operation: Dummy, inputs: list[Array], outputs: list[Array]) -> None:
    if inputs[0] is not outputs[0]:
        cupy.copyto(outputs[0], inputs[0])


@kernel(Fill, dtypes=ANYTHING)
def _fill(operation: Fill, inputs: list[Array], outputs: list[Array]) -> None:
    outputs[0].fill(operation.value)


@kernel(Reshape, dtypes=ANYTHING, returns=True)
def _reshape(operation: Reshape, inputs: list[Array], outputs: None) -> list[Array]:
    shape = operation.infer(*(TensorSpec(x.shape, x.dtype) for x in inputs))[0].shape
    return [inputs[0].reshape(shape)]
