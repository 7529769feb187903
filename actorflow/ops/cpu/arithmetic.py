"""Kernels of `actorflow.ops.arithmetic`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from actorflow.ops.arithmetic import Divide, Maximum, Minimum, Multiply, Scale, Subtract, Sum, WeightedSum
from actorflow.ops.cpu.buffers import Array, flat_blocks, scratch
from actorflow.ops.cpu.parallel import elementwise
from actorflow.ops.cpu.ufuncs import register_ufuncs
from actorflow.ops.registry import kernel


def _are_alike(arrays: Sequence[Array]) -> bool:
    return all(array.shape == arrays[0].shape for array in arrays)


@kernel(Sum, inplace=True)
@elementwise
def _sum(operation: Sum, inputs: list[Array], outputs: list[Array]) -> None:
    if len(inputs) == 1:
        np.copyto(outputs[0], inputs[0])
    elif len(inputs) == 2:
        np.add(inputs[0], inputs[1], out=outputs[0])
    else:
        arrays = (*inputs, outputs[0])
        for first, second, *rest, y in flat_blocks(*arrays) if _are_alike(arrays) else (arrays,):
            np.add(first, second, out=y)
            for term in rest:
                np.add(y, term, out=y)


@kernel(WeightedSum, inplace=True)
@elementwise
def _weighted_sum(operation: WeightedSum, inputs: list[Array], outputs: list[Array]) -> None:
    arrays = (*inputs, outputs[0])
    for first, *rest, y in flat_blocks(*arrays) if _are_alike(arrays) else (arrays,):
        np.multiply(first, operation.weights[0], out=y)
        for term, weight in zip(rest, operation.weights[1:], strict=True):
            weighted = np.multiply(term, weight, out=scratch("weighted", term.shape, term.dtype))
            np.add(y, weighted, out=y)


@kernel(Scale, inplace=True)
@elementwise
def _scale(operation: Scale, inputs: list[Array], outputs: list[Array]) -> None:
    np.multiply(inputs[0], operation.factor, out=outputs[0])


register_ufuncs(
    {Subtract: np.subtract, Multiply: np.multiply, Divide: np.divide, Maximum: np.maximum, Minimum: np.minimum},
    inplace=True,
)
