"""Kernels of `actorflow.ops.linear`."""

from __future__ import annotations

import math

import numpy as np

from actorflow.ops.cpu.buffers import Array, matrix
from actorflow.ops.linear import Bias, BiasDown, Inner, InnerDown, InnerWeight
from actorflow.ops.registry import kernel

__all__: list[str] = []


def _rows(x: Array) -> Array:
    """All axes but the last as one, as BLAS takes it."""
    return matrix(x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1]))


@kernel(Inner)
def _inner(operation: Inner, inputs: list[Array], outputs: list[Array]) -> None:
    x, weight = inputs
    np.matmul(_rows(x), matrix(weight).T, out=_rows(outputs[0]))


@kernel(InnerDown)
def _inner_down(operation: InnerDown, inputs: list[Array], outputs: list[Array]) -> None:
    g, weight = inputs
    np.matmul(_rows(g), matrix(weight), out=_rows(outputs[0]))


@kernel(InnerWeight)
def _inner_weight(operation: InnerWeight, inputs: list[Array], outputs: list[Array]) -> None:
    g, x = inputs
    np.matmul(_rows(g).T, _rows(x), out=outputs[0])


@kernel(Bias, inplace=True)
def _bias(operation: Bias, inputs: list[Array], outputs: list[Array]) -> None:
    np.add(inputs[0], inputs[1], out=outputs[0])


@kernel(BiasDown)
def _bias_down(operation: BiasDown, inputs: list[Array], outputs: list[Array]) -> None:
    rows = inputs[0].reshape(-1, outputs[0].size) if outputs[0].size else inputs[0].reshape(0, 0)
    # A product with ones: add.reduce takes ten times as long for few features.
    np.dot(np.ones(len(rows), rows.dtype), rows, out=outputs[0])
