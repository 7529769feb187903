"""Kernels of `actorflow.ops.matmul`."""

from __future__ import annotations

import math

import numpy as np

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.cpu.precision import in_float32
from actorflow.ops.matmul import Matmul
from actorflow.ops.registry import kernel


@kernel(Matmul)
@in_float32
def _matmul(operation: Matmul, inputs: list[Array], outputs: list[Array]) -> None:
    a, b = (x if x.flags.c_contiguous else np.ascontiguousarray(x) for x in inputs)
    (y,) = outputs
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if y.shape[:-2] == batch:
        _multiply(operation, a, b, y)
    elif a.shape[:-2] == b.shape[:-2] and math.prod(y.shape[:-2]) == 1:
        _multiply_and_add(operation, a, b, y.reshape(y.shape[-2:]))
    else:
        products = np.empty((*batch, *y.shape[-2:]), y.dtype)
        _multiply(operation, a, b, products)
        np.copyto(y, _sum_to(products, y.shape))


def _multiply(operation: Matmul, a: Array, b: Array, out: Array) -> None:
    if b.ndim == 2 and not operation.transpose_a and a.ndim > 2:  # one product instead of many small ones
        a = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
        out = out.reshape(a.shape[0], out.shape[-1])
    left = a.swapaxes(-1, -2) if operation.transpose_a else a
    np.matmul(left, b.swapaxes(-1, -2) if operation.transpose_b else b, out=out)


def _multiply_and_add(operation: Matmul, a: Array, b: Array, out: Array) -> None:
    """The sum of all products of a stack is one product along what they have in common."""
    depth = math.prod(a.shape[:-2]) * a.shape[-2 if operation.transpose_a else -1]
    if operation.transpose_a:
        left = a.reshape(depth, a.shape[-1]).T
    else:
        left = np.moveaxis(a, -2, 0).reshape(a.shape[-2], depth)
    if operation.transpose_b:
        right = np.moveaxis(b, -2, 0).reshape(b.shape[-2], depth).T
    else:
        right = b.reshape(depth, b.shape[-1])
    np.matmul(left, right, out=out)


def _sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    """The sum over axes that a shape lacks or has length 1 on."""
    new = x.ndim - len(shape)
    axes = (*range(new), *(i + new for i, n in enumerate(shape) if i + new >= 0 and n == 1 and x.shape[i + new] != 1))
    summed = x.sum(axis=axes, keepdims=True) if axes else x
    return summed.reshape(summed.shape[max(new, 0) :])
