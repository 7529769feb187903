"""Kernels of `actorflow.ops.clipping`."""

from __future__ import annotations

import cupy
import numpy as np

from actorflow.ops.clipping import NormFactor, ScaleBy, SquareSum
from actorflow.ops.cuda.launch import FLOATS, Array, elementwise, kernel
from actorflow.ops.cuda.reduce import sum_axes

_SQUARE = elementwise("square", "T x", "float64 y", "y = double(x) * double(x)")
_ADD_SQUARES = elementwise("add_squares", "T a, T b", "T y", "y = a + b")
_NORM_FACTOR = elementwise(
    "norm_factor",
    "T square, float64 max_norm",
    "T y",
    "double factor = max_norm / (sqrt(double(square)) + 1e-6); y = factor > 1 ? 1 : factor;",
)
_SCALE_BY = elementwise("scale_by", "T x, float64 factor", "T y", "y = T(W(factor) * W(x))")


@kernel(SquareSum, dtypes=FLOATS)
def _square_sum(operation: SquareSum, inputs: list[Array], outputs: list[Array]) -> None:
    squares = cupy.empty(inputs[0].size, np.float64)
    _SQUARE(inputs[0].reshape(-1), squares)
    sum_axes(squares, (0,), outputs[0])


@kernel(NormFactor, dtypes="float64")
def _norm_factor(operation: NormFactor, inputs: list[Array], outputs: list[Array]) -> None:
    total = inputs[0]
    for square in inputs[1:]:
        summed = cupy.empty((), np.float64)
        _ADD_SQUARES(total, square, summed)
        total = summed
    _NORM_FACTOR(total, np.float64(operation.max_norm), outputs[0])


@kernel(ScaleBy, dtypes=FLOATS, inplace=True)
def _scale_by(operation: ScaleBy, inputs: list[Array], outputs: list[Array]) -> None:
    _SCALE_BY(*inputs, outputs[0])
