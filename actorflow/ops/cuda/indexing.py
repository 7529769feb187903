"""Kernels of `actorflow.ops.indexing`, and the radix sort that they need.

What is put at one place several times is added up (or replaced, multiplied, ...) in the order of the indices, without
atomics: indices are sorted, which keeps equal ones in their order, and one thread takes all parts of an element of the
result. For n parts of m elements and places below p that is work for n * ceil(log2(p) / 6) pairs of the sort and for
n * m elements, each once. CuPy's sort is Thrust's, which makes the host wait for the stream, and cannot be captured.

A key with arrays is brought to indices along the middle axis of (outer, length, inner), as those of `take` are: the
axes that it has indices of become one, in front of the others where they are not neighbours, as in NumPy. A mask's
places are counted by the host, so a segment with one is launched op by op.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import cupy
import numpy as np

from actorflow.ops import indexing as ops
from actorflow.ops.cpu.indexing import border, inside
from actorflow.ops.cuda.launch import (
    ANYTHING,
    FLOATS,
    NUMBERS,
    REALS,
    Array,
    contiguous,
    elementwise_of_any,
    kernel,
    launch,
    launch_flat,
)
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


@kernel(ops.Slice, dtypes=ANYTHING)
def _slice(operation: ops.Slice, inputs: list[Array], outputs: list[Array]) -> None:
    cupy.copyto(outputs[0], operation.compute(*inputs))


#: As in kernels/indexing.cuh.
_MODES = ("set", *ops.UFUNCS)
_NO_ORDER = tuple(name for name in ANYTHING if name not in REALS)

_PLACES = elementwise_of_any(
    "places",
    "int64 before, T index, int64 length, int64 nowhere",
    "int64 place",
    "const long long own = (long long)index + (index < T(0) ? length : 0);"
    "const bool is_there = index < T(0) ? own >= 0 : (unsigned long long)index < (unsigned long long)length;"
    "place = before != nowhere && is_there ? before * length + own : nowhere",
)


class _Placed(NamedTuple):
    """A key's part of an array, by indices along the middle axis of (outer, length, inner)."""

    part: Array  # a view: the array with only the slices of the key, and its axes in this order
    sizes: tuple[int, int, int]  # in numbers that kernels have
    keys: Array  # for each index its place along the middle axis; ``length`` if it is out of range
    picked: tuple[int, ...]  # shape of what is picked

    @classmethod
    def of(cls, array: Array, key: ops.Key, indices: Sequence[Array]) -> _Placed:
        given = iter(indices)
        arrays: list[tuple[Array, int]] = []  # and the axis of the part that each has indices of
        basic: list[Any] = []
        taken: list[int] = []  # axes of the part that have indices, and where these are in the key
        at: list[int] = []
        for i, each in enumerate(key):
            if each is None or type(each) is tuple:
                basic.append(None if each is None else slice(*each))
                continue
            at.append(i)
            if each != ops.INDEX:
                start = each % array.shape[len(basic) - basic.count(None)]
                taken.append(len(basic))
                basic.append(slice(start, start + 1))
                continue
            index = next(given)
            is_mask, is_flag = index.dtype == np.bool_, index.dtype == np.bool_ and not index.ndim
            for own in cupy.nonzero(index.reshape(index.shape or 1)) if is_mask else (index,):
                arrays.append((own, len(basic)))
                taken.append(len(basic))
                basic.append(None if is_flag else slice(None))
        part = array[(*basic, ...)]
        first = taken[0] if taken and at[-1] - at[0] == len(at) - 1 else 0
        rest = [axis for axis in range(part.ndim) if axis not in taken]
        before, length, after = ([part.shape[axis] for axis in axes] for axes in (rest[:first], taken, rest[first:]))
        sizes = math.prod(before), math.prod(length), math.prod(after) * (2 if array.dtype.kind == "c" else 1)
        keys = cupy.empty(np.broadcast_shapes(*[own.shape for own, _ in arrays]), np.int64)
        if not arrays:
            keys.fill(0)
        so_far: Any = np.int64(0)
        for own, axis in arrays:
            line = cupy.broadcast_to(own, keys.shape)
            _PLACES(so_far, line, np.int64(part.shape[axis]), np.int64(sizes[1]), keys)
            so_far = keys
        picked = (*before, *keys.shape, *after)
        return cls(part.transpose(*rest[:first], *taken, *rest[first:]), sizes, keys.reshape(keys.size), picked)

    def combine(self, function: str, values: Array, *how: int) -> None:
        """Combine what the array has with values, of those for one place one after the other."""
        total, flat, (_, length, inner) = _plain(self.part), _plain(values), self.sizes
        keys, parts = sorted_places(self.keys, length)
        args = (flat, keys, parts, total, flat.size, keys.size, length, inner, *how)
        launch_flat("indexing", function, flat.size, args, flat.dtype, LABEL=keys.dtype)
        if not self.part.flags.c_contiguous:
            cupy.copyto(self.part, total.view(self.part.dtype).reshape(self.part.shape))


def _plain(x: Array) -> Array:
    """Numbers that kernels have, flat: bytes for bools, pairs for complex numbers."""
    x = contiguous(x).reshape(x.size)
    if x.dtype == np.bool_:
        return x.view(np.uint8)
    return x.view(x.real.dtype) if x.dtype.kind == "c" else x


@kernel(ops.Gather, dtypes=ANYTHING)
def _gather(operation: ops.Gather, inputs: list[Array], outputs: list[Array]) -> None:
    (x, *indices), (y,) = inputs, outputs
    placed = _Placed.of(x, operation.key, indices)
    part, y, keys = _plain(placed.part), _plain(y), placed.keys
    args = (part, keys, y, y.size, keys.size, *placed.sizes[1:])
    launch_flat("indexing", "take", y.size, args, y.dtype, LABEL=keys.dtype)


@kernel(ops.AddAt, dtypes="bool", supports=lambda operation: ops.INDEX not in operation.key)
@kernel(ops.AddAt, dtypes=NUMBERS)
def _add_at(operation: ops.AddAt, inputs: list[Array], outputs: list[Array]) -> None:
    (g, *indices), (y,) = inputs, outputs
    y.fill(0)
    if indices:
        _Placed.of(y, operation.key, indices).combine("sum_equal", g)
    else:
        cupy.copyto(y[ops.numpy_key(operation.key)], g)


@kernel(ops.Scatter, dtypes=_NO_ORDER, inplace=True, supports=lambda operation: operation.mode == "set")
@kernel(ops.Scatter, dtypes=REALS, inplace=True)
def _scatter(operation: ops.Scatter, inputs: list[Array], outputs: list[Array]) -> None:
    (x, values, *indices), (y,) = inputs, outputs
    if y is not x:
        cupy.copyto(y, x)
    if operation.mode == "set" and not indices:
        part = y[ops.numpy_key(operation.key)]
        cupy.copyto(part, _without_ones(values, part.ndim))
        return
    placed = _Placed.of(y, operation.key, indices)
    values = cupy.broadcast_to(_without_ones(values, len(placed.picked)), placed.picked)
    placed.combine("put_equal", values, _MODES.index(operation.mode))


def _without_ones(values: Array, rank: int) -> Array:
    """Values without axes of length 1 in front that make them too many."""
    return values.reshape(values.shape[max(values.ndim - rank, 0) :])


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


@kernel(ops.Take, dtypes=_PICKED)
def _take(operation: ops.Take, inputs: list[Array], outputs: list[Array]) -> None:
    x, y, indices = _plain(inputs[0]), _plain(outputs[0]), contiguous(inputs[1])
    shape = inputs[0].shape
    axis = operation.axis % len(shape)
    args = (x, indices, y, y.size, indices.size, shape[axis], math.prod(shape[axis + 1 :]))
    launch_flat("indexing", "take", y.size, args, x.dtype, LABEL=indices.dtype)


def _add_up(g: Array, indices: Array, dx: Array, columns: tuple[int, int, int], axis: tuple[int, int]) -> None:
    """Add the parts of ``g`` (outer, parts, inner) to ``dx`` (outer, length, inner) where they were picked.

    ``columns`` are ``picked``, ``length`` and ``inner``: indices are (outer, picked, inner), and each means an element
    of (outer, length, inner), whose number is that of a place along the axis of ``dx``, of ``length`` and ``inner``.
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
    x, y, indices = _plain(inputs[0]), _plain(outputs[0]), contiguous(inputs[1])
    shape = inputs[0].shape
    axis = operation.axis % len(shape)
    args = (x, indices, y, y.size, indices.shape[axis], shape[axis], math.prod(shape[axis + 1 :]))
    launch_flat("indexing", "take_along", y.size, args, x.dtype, LABEL=indices.dtype)


@kernel(ops.TakeAlongAxisDown, dtypes=REALS)
def _take_along_axis_down(operation: ops.TakeAlongAxisDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g, indices), (dx,), axis = (contiguous(x) for x in inputs), outputs, operation.axis
    inner = math.prod(dx.shape[axis + 1 :])
    _add_up(g, indices, dx, (g.shape[axis], operation.length, inner), (dx.size, 1))


@kernel(ops.OneHot, dtypes=_INTEGERS)
def _one_hot(operation: ops.OneHot, inputs: list[Array], outputs: list[Array]) -> None:
    y, indices = _plain(outputs[0]), contiguous(inputs[0])
    args = (indices, y, y.size, operation.depth)
    launch_flat("indexing", "one_hot", y.size, args, y.dtype, LABEL=indices.dtype)
