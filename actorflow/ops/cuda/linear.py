"""Kernels of `actorflow.ops.linear`."""

from __future__ import annotations

import math

import cupy

from actorflow.ops.cuda.launch import FLOATS, Array, elementwise, kernel
from actorflow.ops.cuda.reduce import sum_axes
from actorflow.ops.linear import Bias, BiasDown, Inner, InnerDown, InnerWeight

_BIAS = elementwise("bias", "T x, T bias", "T y", "y = x + bias")


def _rows(x: Array) -> Array:
    """All axes but the last as one."""
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


@kernel(Inner, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def _inner(operation: Inner, inputs: list[Array], outputs: list[Array]) -> None:
    x, weight = inputs
    cupy.dot(_rows(x), weight.T, out=_rows(outputs[0]))


@kernel(InnerDown, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def _inner_down(operation: InnerDown, inputs: list[Array], outputs: list[Array]) -> None:
    g, weight = inputs
    cupy.dot(_rows(g), weight, out=_rows(outputs[0]))


@kernel(InnerWeight, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def _inner_weight(operation: InnerWeight, inputs: list[Array], outputs: list[Array]) -> None:
    g, x = inputs
    cupy.dot(_rows(g).T, _rows(x), out=outputs[0])


@kernel(Bias, dtypes=FLOATS, inplace=True)
def _bias(operation: Bias, inputs: list[Array], outputs: list[Array]) -> None:
    _BIAS(*inputs, outputs[0])


@kernel(BiasDown, dtypes=FLOATS)
def _bias_down(operation: BiasDown, inputs: list[Array], outputs: list[Array]) -> None:
    sum_axes(inputs[0], range(inputs[0].ndim - 1), outputs[0])
