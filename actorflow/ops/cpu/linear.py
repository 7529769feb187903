"""Kernels of `actorflow.ops.linear`."""

from __future__ import annotations

import math

import numpy as np

from actorflow.ops.cpu.buffers import Array, matrix, scratch
from actorflow.ops.cpu.parallel import element_ns, even_cuts, multiply, rowwise, spread
from actorflow.ops.linear import Bias, BiasDown, Inner, InnerDown, InnerWeight
from actorflow.ops.registry import kernel

#: Partial sums of a bias's gradient, at most, and the elements that each of them is of, at least.
_SUMS, _SUMMED = 8, 1 << 20


def _rows(x: Array) -> Array:
    """All axes but the last as one, as BLAS takes it."""
    return matrix(x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1]))


@kernel(Inner)
def _inner(operation: Inner, inputs: list[Array], outputs: list[Array]) -> None:
    x, weight = inputs
    multiply(_rows(x), matrix(weight).T, _rows(outputs[0]))


@kernel(InnerDown)
def _inner_down(operation: InnerDown, inputs: list[Array], outputs: list[Array]) -> None:
    g, weight = inputs
    multiply(_rows(g), matrix(weight), _rows(outputs[0]))


@kernel(InnerWeight)
def _inner_weight(operation: InnerWeight, inputs: list[Array], outputs: list[Array]) -> None:
    g, x = inputs
    multiply(_rows(g).T, _rows(x), outputs[0])


@kernel(Bias, inplace=True)
@rowwise
def _bias(operation: Bias, inputs: list[Array], outputs: list[Array]) -> None:
    np.add(inputs[0], inputs[1], out=outputs[0])


@kernel(BiasDown)
def _bias_down(operation: BiasDown, inputs: list[Array], outputs: list[Array]) -> None:
    y = outputs[0]
    rows = inputs[0].reshape(-1, y.size) if y.size else inputs[0].reshape(0, 0)
    parts = even_cuts(len(rows), min(_SUMS, rows.size // _SUMMED))
    sums = y[np.newaxis] if len(parts) == 1 else scratch("sums", (len(parts), y.size), y.dtype)

    def add_up(index: int) -> None:
        part = rows[parts[index]]
        # A product with ones: add.reduce takes ten times as long for few features.
        np.dot(np.ones(len(part), rows.dtype), part, out=sums[index])

    spread(range(len(parts)), add_up, element_ns(rows.size), multiplies=True)
    if len(parts) > 1:
        np.add.reduce(sums, axis=0, out=y)
