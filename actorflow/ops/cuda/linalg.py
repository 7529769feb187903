"""Kernels of `actorflow.ops.linalg`."""

from __future__ import annotations

import math

import cupy
import numpy as np

from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, elementwise, kernel
from actorflow.ops.cuda.reductions import sum_axes
from actorflow.ops.linalg import Bias, BiasDown, Inner, InnerDown, InnerWeight, Matmul

_BIAS = elementwise("bias", "T x, T bias", "T y", "y = x + bias")


def rows(x: Array) -> Array:
    """(..., features) as a matrix."""
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


@kernel(Inner, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def _inner(operation: Inner, inputs: list[Array], outputs: list[Array]) -> None:
    x, weight = inputs
    cupy.dot(rows(x), weight.T, out=rows(outputs[0]))


@kernel(InnerDown, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def _inner_down(operation: InnerDown, inputs: list[Array], outputs: list[Array]) -> None:
    g, weight = inputs
    cupy.dot(rows(g), weight, out=rows(outputs[0]))


@kernel(InnerWeight, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def _inner_weight(operation: InnerWeight, inputs: list[Array], outputs: list[Array]) -> None:
    g, x = inputs
    cupy.dot(rows(g).T, rows(x), out=outputs[0])


@kernel(Bias, dtypes=FLOATS, inplace=True)
def _bias(operation: Bias, inputs: list[Array], outputs: list[Array]) -> None:
    _BIAS(*inputs, outputs[0])


@kernel(BiasDown, dtypes=FLOATS)
def _bias_down(operation: BiasDown, inputs: list[Array], outputs: list[Array]) -> None:
    sum_axes(inputs[0], range(inputs[0].ndim - 1), outputs[0])


@kernel(Matmul, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def _matmul(operation: Matmul, inputs: list[Array], outputs: list[Array]) -> None:
    a, b = (contiguous(x) for x in inputs)
    a, b, y = operation.as_matrices(a, b, outputs[0])
    if not a.shape[-2 if operation.transpose_a else -1]:
        y.fill(0)
        return
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if y.shape[:-2] == batch:
        _multiply(operation, a, b, y)
    elif a.shape[:-2] == b.shape[:-2] and math.prod(y.shape[:-2]) == 1 and operation.transpose_a:
        # The sum of all products of a stack is one product along what they have in common.
        depth = math.prod(a.shape[:-2]) * a.shape[-2]
        right = b.swapaxes(-1, -2) if operation.transpose_b else b
        left, right = a.reshape(depth, a.shape[-1]), contiguous(right).reshape(depth, right.shape[-1])
        dot(left.T, right, y.reshape(y.shape[-2:]))
    else:
        products = cupy.empty((*batch, *y.shape[-2:]), y.dtype)
        _multiply(operation, a, b, products)
        _sum_to(products, y)


def dot(left: Array, right: Array, out: Array) -> None:
    """``out = left @ right``, of any sizes."""
    if not left.shape[1]:
        out.fill(0)
    elif out.size:
        cupy.dot(left, right, out=out)


def _multiply(operation: Matmul, a: Array, b: Array, out: Array) -> None:
    if not out.size:
        return
    left = a.swapaxes(-1, -2) if operation.transpose_a else a
    right = b.swapaxes(-1, -2) if operation.transpose_b else b
    if left.ndim == 2 and right.ndim == 2:
        dot(left, right, out)
    elif right.ndim == 2 and not operation.transpose_a:
        dot(rows(left), right, rows(out))
    else:
        cupy.matmul(left, right, out=out)


def _sum_to(x: Array, y: Array) -> None:
    new = x.ndim - y.ndim
    axes = (*range(new), *(i + new for i, n in enumerate(y.shape) if i + new >= 0 and n == 1 and x.shape[i + new] != 1))
    if axes:
        kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
        summed = cupy.empty(kept, x.dtype)
        sum_axes(x, axes, summed)
        x = summed.reshape(kept[max(new, 0) :])
    cupy.copyto(y, x)
