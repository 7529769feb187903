"""Kernels of `actorflow.ops.convert`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.convert import Cast, Transpose
from actorflow.ops.cpu.buffers import Array
from actorflow.ops.registry import kernel


@kernel(Cast)
def _cast(operation: Cast, inputs: list[Array], outputs: list[Array]) -> None:
    with np.errstate(over="ignore", invalid="ignore"):  # to infinity, and from NaN
        np.copyto(outputs[0], inputs[0], casting="unsafe")


@kernel(Transpose)
def _transpose(operation: Transpose, inputs: list[Array], outputs: list[Array]) -> None:
    np.copyto(outputs[0], inputs[0].transpose(operation.axes))
