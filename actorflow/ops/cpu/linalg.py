"""Kernels of `actorflow.ops.linalg`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from actorflow.devices.team import team
from actorflow.ops.cpu.buffers import Array, in_float32, matrix, narrow, plain, put_rounded, scratch, widened
from actorflow.ops.cpu.kept import kept
from actorflow.ops.cpu.parallel import element_ns, even_cuts, multiply, product_ns, product_pieces, rowwise
from actorflow.ops.cpu.reductions import sum_axes, sum_rows
from actorflow.ops.linalg import Bias, BiasDown, Inner, InnerDown, InnerWeight, Matmul, VectorNorm
from actorflow.ops.registry import kernel

#: Partial sums of a bias's gradient, at most, and the elements that each of them is of, at least.
_SUMS, _SUMMED = 8, 1 << 20


def _rows(x: Array) -> Array:
    return matrix(x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1]))


@kernel(Inner)
def _inner(operation: Inner, inputs: list[Array], outputs: list[Array]) -> None:
    x, weight = inputs
    multiply(_rows(x), matrix(weight).T, _rows(outputs[0]))


@kernel(InnerDown)
def _inner_down(operation: InnerDown, inputs: list[Array], outputs: list[Array]) -> None:
    g, weight = inputs
    multiply(_rows(g), matrix(weight), _rows(outputs[0]))


def _by_float32(product: Callable[..., None]) -> Callable[..., None]:
    """A product of half precision by one of float32, rounded once; a weight that stays is converted once.

    NumPy has no BLAS for half precision, and takes a hundred times as long.
    """

    def compute(operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
        (x, weight), (y,) = inputs, outputs
        wide = kept(operation).derived("float32").of((weight,), widened)
        sums = scratch("sums of halves", y.shape, np.float32)
        product(operation, [widened(x), wide], [sums])
        put_rounded(sums, y)

    return compute


for _operation, _product in ((Inner, _inner), (InnerDown, _inner_down)):
    kernel(_operation, dtypes=("float16", "bfloat16"), keeps=True)(_by_float32(_product))


@kernel(InnerWeight)
@in_float32
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
        sum_rows(part, sums[index])

    team.spread(range(len(parts)), add_up, element_ns(rows.size), multiplies=True)
    if len(parts) > 1:
        sum_rows(sums, y)


_PLAIN = Matmul()
#: Products of integers that are worth a look at all of them.
_LEAST_INTEGERS = 1 << 14
_MOST_INT8, _MOST_INT16, _MOST_INT32 = (1 << 7) - 1, (1 << 15) - 1, (1 << 31) - 1
#: Rows of integers of 16 bits that are multiplied at once.
_NARROW_ROWS = 6


@kernel(Matmul, threaded=True)
def _matmul(operation: Matmul, inputs: list[Array], outputs: list[Array]) -> None:
    (a, b), (y,) = inputs, outputs
    if a.dtype.kind in "iu" and _multiply_integers(operation, a, b, y):
        return
    if a.ndim == b.ndim == y.ndim == 2 and a.itemsize != 2:
        left, right = a.T if operation.transpose_a else a, b.T if operation.transpose_b else b
        multiply(_stack(left), _stack(right), y)
    elif a.ndim + b.ndim == 3 and y.ndim == 1 and a.itemsize != 2 and operation == _PLAIN:
        np.matmul(_stack(a), _stack(b), out=y)
    else:
        _matmul_of_stacks(operation, inputs, outputs)


@kernel(Matmul, dtypes=("int32",), threaded=True, keeps=True)
def _matmul_of_int32(operation: Matmul, inputs: list[Array], outputs: list[Array]) -> None:
    (a, b), (y,) = inputs, outputs
    if operation != _PLAIN or b.ndim != 2 or a.ndim < 2 or y.size * len(b) < _LEAST_INTEGERS or narrow() is None:
        _matmul(operation, inputs, outputs)
        return
    panels, most = kept(operation).derived("int16").of((b,), _packed)
    out, (depth, columns) = y.reshape(-1, y.shape[-1]), b.shape
    rows = scratch("int16", (len(out), depth + depth % 2), np.int16)
    largest = narrow().to_int16(plain(a).reshape(-1, depth), rows)
    if panels is None or largest > _MOST_INT16 or depth * largest * most > _MOST_INT32:
        _matmul(operation, inputs, outputs)
        return
    # Each piece reads the whole other matrix.
    pieces = product_pieces(len(out), depth, columns, 4 * _NARROW_ROWS) if team.threads > 1 else 1
    cuts = even_cuts(len(out), pieces, _NARROW_ROWS)

    def part(cut: slice) -> None:
        narrow().multiply(rows[cut], panels, out[cut])

    team.spread(cuts, part, product_ns(len(out), depth, columns))


def _packed(b: Array) -> tuple[Array | None, int]:
    """A matrix for products of 16 bits, and the largest size of its elements; None if they have more."""
    most = _largest(b)
    return narrow().pack(plain(b), 1 + (most > _MOST_INT8)) if most <= _MOST_INT16 else None, most


def _largest(x: Array) -> int:
    return max(abs(int(x.min())), abs(int(x.max())))


def _multiply_integers(operation: Matmul, a: Array, b: Array, y: Array) -> bool:
    """Products of integers by BLAS, in the narrowest floating dtype that has all their sums; False if none has.

    NumPy multiplies integers one by one. Products that may be beyond that range are left to it; results wrap as its do.
    """
    depth = a.shape[-2 if operation.transpose_a else -1]
    if y.size * depth < _LEAST_INTEGERS:
        return False
    if operation.batch is not None:  # sums of as many products, too
        depth *= math.prod(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    largest = depth * math.prod(map(_largest, (a, b)))
    dtype = next((dtype for dtype, digits in ((np.float32, 24), (np.float64, 53)) if largest <= 1 << digits), None)
    if dtype is None:
        return False
    sums = np.empty(y.shape, dtype)
    _matmul_of_stacks(operation, [a.astype(dtype), b.astype(dtype)], [sums])
    np.copyto(y, sums.astype(np.int64), casting="same_kind" if y.dtype.kind == "i" else "unsafe")
    return True


@in_float32
def _matmul_of_stacks(operation: Matmul, inputs: list[Array], outputs: list[Array]) -> None:
    a, b, y = operation.as_matrices(*map(_stack, inputs), *outputs)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if y.shape[:-2] == batch:
        _multiply(operation, a, b, y)
    elif a.shape[:-2] == b.shape[:-2] and math.prod(y.shape[:-2]) == 1:
        _multiply_and_add(operation, a, b, y.reshape(y.shape[-2:]))
    else:
        products = np.empty((*batch, *y.shape[-2:]), y.dtype)
        _multiply(operation, a, b, products)
        np.copyto(y, _sum_to(products, y.shape))


def product(a: Array, b: Array) -> Array:
    """The product of two matrices of one dtype of at least 4 bytes, as the kernel computes it."""
    found: Array = np.matmul(_stack(a), _stack(b))
    return found


def _stack(x: Array) -> Array:
    """Matrices as BLAS takes them: rows or columns contiguous."""
    flags = x.flags
    if flags.c_contiguous or (x.mT.flags.c_contiguous if x.ndim > 2 else flags.f_contiguous):
        return x
    return matrix(x) if x.ndim == 2 else np.ascontiguousarray(x)


def _multiply(operation: Matmul, a: Array, b: Array, out: Array) -> None:
    if b.ndim == 2 and not operation.transpose_a and a.ndim > 2:  # one product instead of many small ones
        a = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
        out = out.reshape(a.shape[0], out.shape[-1])
    left = a.swapaxes(-1, -2) if operation.transpose_a else a
    multiply(left, b.swapaxes(-1, -2) if operation.transpose_b else b, out)


def _multiply_and_add(operation: Matmul, a: Array, b: Array, out: Array) -> None:
    """The sum of all products of a stack is one product along their common axes."""
    depth = math.prod(a.shape[:-2]) * a.shape[-2 if operation.transpose_a else -1]
    if operation.transpose_a:
        left = a.reshape(depth, a.shape[-1]).T
    else:
        left = np.moveaxis(a, -2, 0).reshape(a.shape[-2], depth)
    if operation.transpose_b:
        right = np.moveaxis(b, -2, 0).reshape(b.shape[-2], depth).T
    else:
        right = b.reshape(depth, b.shape[-1])
    multiply(left, right, out)


def _sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    new = x.ndim - len(shape)
    axes = (*range(new), *(i + new for i, n in enumerate(shape) if i + new >= 0 and n == 1 and x.shape[i + new] != 1))
    summed = sum_axes(x, axes, keepdims=True) if axes else x
    return summed.reshape(summed.shape[max(new, 0) :])


@kernel(VectorNorm)
@in_float32
def _vector_norm(operation: VectorNorm, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), order = inputs, operation.order
    with np.errstate(all="ignore"):
        if order != 2:
            terms = np.abs(x) ** order
        elif x.dtype.kind == "c":
            terms = x.real**2 + x.imag**2
        else:
            terms = x * x
        total = sum_axes(terms, operation.axes(x.ndim), operation.keepdims)
        outputs[0][...] = np.sqrt(total) if order == 2 else total ** (1 / order)
