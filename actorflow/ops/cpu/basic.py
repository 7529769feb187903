"""Kernels of `actorflow.ops.basic`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.basic import Copy, Fill, Mul, Reshape, Scale, Sum
from actorflow.ops.cpu.buffers import Array, flat_blocks
from actorflow.ops.registry import kernel
from actorflow.spec import TensorSpec

__all__: list[str] = []


@kernel(Copy, inplace=True)
def _copy(operation: Copy, inputs: list[Array], outputs: list[Array]) -> None:
    np.copyto(outputs[0], inputs[0])


@kernel(Sum, inplace=True)
def _sum(operation: Sum, inputs: list[Array], outputs: list[Array]) -> None:
    if len(inputs) == 1:
        np.copyto(outputs[0], inputs[0])
    elif len(inputs) == 2:
        np.add(inputs[0], inputs[1], out=outputs[0])
    else:
        for first, second, *rest, y in flat_blocks(*inputs, outputs[0]):
            np.add(first, second, out=y)
            for term in rest:
                np.add(y, term, out=y)


@kernel(Mul, inplace=True)
def _mul(operation: Mul, inputs: list[Array], outputs: list[Array]) -> None:
    np.multiply(inputs[0], inputs[1], out=outputs[0])


@kernel(Scale, inplace=True)
def _scale(operation: Scale, inputs: list[Array], outputs: list[Array]) -> None:
    np.multiply(inputs[0], operation.factor, out=outputs[0])


@kernel(Fill)
def _fill(operation: Fill, inputs: list[Array], outputs: list[Array]) -> None:
    outputs[0].fill(operation.value)


@kernel(Reshape, returns=True)
def _reshape(operation: Reshape, inputs: list[Array], outputs: None) -> list[Array]:
    shape = operation.infer(*(TensorSpec(x.shape, x.dtype) for x in inputs))[0].shape
    return [inputs[0].reshape(shape)]
