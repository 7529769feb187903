"""Kernels of `actorflow.ops.convert`."""

from __future__ import annotations

import cupy

from actorflow.ops.convert import Cast, Transpose
from actorflow.ops.cuda.launch import ANYTHING, Array, kernel


@kernel(Cast, dtypes=ANYTHING)
def _cast(operation: Cast, inputs: list[Array], outputs: list[Array]) -> None:
    cupy.copyto(outputs[0], inputs[0], casting="unsafe")


@kernel(Transpose, dtypes=ANYTHING)
def _transpose(operation: Transpose, inputs: list[Array], outputs: list[Array]) -> None:
    cupy.copyto(outputs[0], inputs[0].transpose(operation.axes))
