"""Kernels of `actorflow.ops.indexing`, and the radix sort that they need.

Backwards, parts that one index picked several times are added up in the order of the indices, without atomics: indices
are sorted, which keeps equal ones in their order, and one thread adds all parts of an element of the result. CuPy's
sort is Thrust's, which makes the host wait for the stream, and cannot be captured.
"""

from __future__ import annotations

import math

import cupy
import numpy as np

from actorflow.ops import indexing as ops
from actorflow.ops.cpu.indexing import border, inside
from actorflow.ops.cuda.launch import ANYTHING, FLOATS, REALS, Array, contiguous, kernel, launch, launch_flat
from actorflow.ops.cuda.reductions import sum_axes
from actorflow.ops.operation import wide_dtype

# As in kernels/sort.cuh.
_DIGIT_BITS = 6
_THREADS = 128
_TILE = _THREADS * 32


def sorted_places(keys: Array, bound: int) -> tuple[Array, Array]:
    """Keys in their order, and the place that each had before; equal ones in the order of these places.

    The work is linear in the number of keys, and the order in which it is done depends on nothing but the keys. It
    takes one launch for a few thousand keys, and three for each digit of more.

    Args:
        keys: int64, from 0 to ``bound``; overwritten.
        bound: The largest key there may be.
    """
    count, bits = keys.size, max(1, bound.bit_length())
    tiles, rounds = -(-count // _TILE), -(-bits // _DIGIT_BITS)
    pairs = (keys, *(cupy.empty((count,), np.int64) for _ in range(3)))
    if tiles <= 1:
        _launch("sort_tile", tiles, *pairs, count, bits)
        return (pairs[2], pairs[3]) if rounds % 2 else (pairs[0], pairs[1])
    table = cupy.empty((tiles << _DIGIT_BITS,), np.int64)
    for shift in range(0, bits, _DIGIT_BITS):
        _launch("count_digits", tiles, pairs[0], table, count, tiles, shift)
        _launch("add_up", 1, table, table.size)
        _launch("place", tiles, *pairs, table, count, tiles, shift)
        pairs = (*pairs[2:], *pairs[:2])
    return pairs[0], pairs[1]


def _launch(function: str, grid: int, *args: Array | int) -> None:
    launch("sort", function, grid, _THREADS, args, np.dtype(np.float32))


@kernel(ops.Gather, dtypes=ANYTHING, captures=False)
@kernel(ops.Slice, dtypes=ANYTHING)
def _slice(operation: ops.Slice | ops.Gather, inputs: list[Array], outputs: list[Array]) -> None:
    cupy.copyto(outputs[0], operation.compute(*inputs))


@kernel(ops.AddAt, dtypes=ANYTHING, supports=lambda operation: ops.INDEX not in operation.key)
def _add_at(operation: ops.AddAt, inputs: list[Array], outputs: list[Array]) -> None:
    outputs[0].fill(0)
    cupy.copyto(outputs[0][ops.numpy_key(operation.key)], inputs[0])


@kernel(ops.Flip, dtypes=ANYTHING)
def _flip(operation: ops.Flip, inputs: list[Array], outputs: list[Array]) -> None:
    cupy.copyto(outputs[0], inputs[0][operation.key(inputs[0].ndim)])


@kernel(ops.Pad, dtypes=ANYTHING)
def _pad(operation: ops.Pad, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (y,) = inputs, outputs
    if operation.mode == "constant":
        y.fill(operation.value)
    cupy.copyto(y[inside(operation, y.shape)], x)
    if operation.mode != "constant" and y.size:
        for axis, (widths, n) in enumerate(zip(operation.widths, y.shape, strict=True)):
            for part, made_of in border(operation.mode, axis, widths, n):
                cupy.copyto(y[part], cupy.broadcast_to(y[made_of], y[part].shape))


@kernel(ops.PadDown, dtypes=FLOATS)
def _pad_down(operation: ops.PadDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g,), (dx,) = inputs, outputs
    whole = cupy.empty(g.shape, wide_dtype(g.dtype))
    cupy.copyto(whole, g)
    for axis, (widths, n) in reversed(list(enumerate(zip(operation.widths, g.shape, strict=True)))):
        for part, made_of in border(operation.mode, axis, widths, n):
            share, target = whole[part], whole[made_of]
            if operation.mode == "edge":
                total = cupy.empty(target.shape, whole.dtype)
                sum_axes(share, (axis,), total)
                share = total
            cupy.add(target, share, out=target)
    cupy.copyto(dx, whole[inside(operation, g.shape)], casting="unsafe")


_INTEGERS = tuple(name for name in REALS if name not in FLOATS)
_PICKED = ("bool", *REALS)


def _bytes(x: Array) -> Array:
    x = contiguous(x)
    return x.view(np.uint8) if x.dtype == np.bool_ else x


@kernel(ops.Take, dtypes=_PICKED)
def _take(operation: ops.Take, inputs: list[Array], outputs: list[Array]) -> None:
    x, y, indices = _bytes(inputs[0]), _bytes(outputs[0]), contiguous(inputs[1])
    axis = operation.axis % x.ndim
    args = (x, indices, y, y.size, indices.size, x.shape[axis], math.prod(x.shape[axis + 1 :]))
    launch_flat("indexing", "take", y.size, args, x.dtype, LABEL=indices.dtype)


def _add_up(g: Array, indices: Array, dx: Array, columns: tuple[int, int, int], axis: tuple[int, int]) -> None:
    """Add the parts of ``g`` where they were picked.

    Args:
        g: (outer, parts, inner).
        indices: One for each part.
        dx: (outer, length, inner); written.
        columns: ``picked``, ``length`` and ``inner``: indices are (outer, picked, inner), and each means an element of
            (outer, length, inner), whose number is that of a place along the axis of ``dx``.
        axis: ``length`` and ``inner`` of ``dx``.
    """
    keys = cupy.empty((indices.size,), np.int64)
    length, inner = axis
    types = {"dtype": g.dtype, "LABEL": indices.dtype}
    launch_flat("indexing", "places", keys.size, (indices, keys, keys.size, *columns, length), **types)
    keys, parts = sorted_places(keys, length)
    dx.fill(0)
    launch_flat("indexing", "sum_equal", g.size, (g, keys, parts, dx, g.size, keys.size, length, inner), **types)


@kernel(ops.TakeDown, dtypes=REALS)
def _take_down(operation: ops.TakeDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g, indices), (dx,), length = (contiguous(x) for x in inputs), outputs, operation.length
    inner = math.prod(dx.shape[operation.axis + 1 :])
    _add_up(g, indices, dx, (indices.size, length, 1), (length, inner))


@kernel(ops.TakeAlongAxis, dtypes=_PICKED)
def _take_along_axis(operation: ops.TakeAlongAxis, inputs: list[Array], outputs: list[Array]) -> None:
    x, y, indices = _bytes(inputs[0]), _bytes(outputs[0]), contiguous(inputs[1])
    axis = operation.axis % x.ndim
    args = (x, indices, y, y.size, y.shape[axis], x.shape[axis], math.prod(x.shape[axis + 1 :]))
    launch_flat("indexing", "take_along", y.size, args, x.dtype, LABEL=indices.dtype)


@kernel(ops.TakeAlongAxisDown, dtypes=REALS)
def _take_along_axis_down(operation: ops.TakeAlongAxisDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g, indices), (dx,), axis = (contiguous(x) for x in inputs), outputs, operation.axis
    inner = math.prod(dx.shape[axis + 1 :])
    _add_up(g, indices, dx, (g.shape[axis], operation.length, inner), (dx.size, 1))


@kernel(ops.OneHot, dtypes=_INTEGERS)
def _one_hot(operation: ops.OneHot, inputs: list[Array], outputs: list[Array]) -> None:
    y, indices = _bytes(outputs[0]), contiguous(inputs[0])
    args = (indices, y, y.size, operation.depth)
    launch_flat("indexing", "one_hot", y.size, args, y.dtype, LABEL=indices.dtype)
