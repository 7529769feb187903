"""Kernels cut into pieces that idle cores take part in.

The pieces, and the order in which their sums are added up, follow from the shapes alone, so that a result is the same
bit for bit however many threads there were; which thread computes a piece is the team's concern (`devices/team.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import compress
from typing import Any, TypeVar

import numpy as np

from actorflow.devices.team import team
from actorflow.ops.cpu.buffers import BLOCK, Array, is_half, scratch
from actorflow.spec import TensorSpec

_R = TypeVar("_R")
_F = TypeVar("_F", bound=Callable[..., None])

#: Rough times of one thread: of an element that is read or written, of a product of two numbers that is added up.
_ELEMENT_NS, _PRODUCT_NS = 0.3, 0.02
#: Elements of all arrays in a piece of an elementwise kernel: some blocks.
_PIECE_ELEMENTS = 1 << 20
#: Products in a piece of a product of matrices, at least, and about how many rows or columns, of which two pieces may
#: have half as many: BLAS copies the other matrix for each, which takes as long as products with some 40 rows.
_PIECE_PRODUCTS, _PIECE_ROWS = 10 << 20, 256
#: Where sums are cut: how long a part of them is at least, and they themselves, in rows or columns of the result.
_PIECE_DEPTH, _DEEP = 1024, 4
#: Results of any kernel, at most.
_MOST_OUTPUTS = 8
#: Pieces of rows begin at a multiple of this, so that they begin where a line of the cache does.
_ROWS = 16
#: More pieces would be too small for large caches; a multiple of most numbers of cores.
MOST_PIECES = 24


def even_cuts(count: int, pieces: int, unit: int = 1) -> list[slice]:
    """``count`` rows in at most ``pieces`` pieces of nearly the same size, of whole units but for the last."""
    units = -(-count // unit)
    pieces = max(1, min(pieces, units))
    return [slice(units * i // pieces * unit, min(count, units * (i + 1) // pieces * unit)) for i in range(pieces)]


def element_ns(elements: int) -> float:
    """Estimated time of one thread to read or write a number of elements."""
    return elements * _ELEMENT_NS


def product_ns(rows: int, depth: int, columns: int) -> float:
    """Estimated time of one thread for a product of matrices."""
    return rows * depth * columns * _PRODUCT_NS


def product_pieces(rows: int, depth: int, columns: int, piece_rows: int) -> int:
    """In how many pieces of about so many rows a product of matrices is worth being computed by several threads.

    It is an even number, since most numbers of cores are: of three pieces two cores compute two at once, and then one.
    """
    count = min(MOST_PIECES, rows * depth * columns // _PIECE_PRODUCTS, 1 + rows // piece_rows)
    return max(1, count - count % 2)


def multiply(a: Array, b: Array, out: Array) -> None:
    """``out = a @ b`` for (stacks of) matrices of one dtype, in pieces.

    They are pieces of the stack, of the rows of ``a`` or the columns of ``b``, or of sums much longer than both.
    """
    (rows, depth), columns = a.shape[-2:], b.shape[-1]
    products = out.size * depth
    if products < 2 * _PIECE_PRODUCTS:
        (np.multiply if depth == 1 else np.matmul)(a, b, out=out)  # BLAS takes several times as long for one row
        return
    if out.ndim > 2:
        _multiply_stacks(a, b, out, products)
        return
    a, b = a.reshape(rows, depth), b.reshape(depth, columns)
    along = max(rows, columns)
    is_deep = depth > _DEEP * along and not is_half(out)
    length, least = (depth, _PIECE_DEPTH) if is_deep else (along, _PIECE_ROWS)
    cuts = even_cuts(length, product_pieces(length, products // length, 1, least))
    sums = scratch("sums of products", (len(cuts) * is_deep, *out.shape), out.dtype)

    def part(index: int) -> None:
        cut = cuts[index]
        if is_deep:
            np.matmul(a[:, cut], b[cut], out=sums[index])
        elif rows >= columns:
            np.matmul(a[cut], b, out=out[cut])
        else:
            np.matmul(a, b[:, cut], out=out[:, cut])

    team.spread(range(len(cuts)), part, products * _PRODUCT_NS, multiplies=True)
    if is_deep:
        np.add.reduce(sums, axis=0, out=out)


def _multiply_stacks(a: Array, b: Array, out: Array, products: int) -> None:
    axis = next((i for i, length in enumerate(out.shape[:-2]) if length > 1), None)
    if axis is None:
        multiply(a, b, out.reshape(out.shape[-2:]))
        return
    cuts = even_cuts(out.shape[axis], min(MOST_PIECES, products // _PIECE_PRODUCTS))

    def part(cut: slice) -> None:
        left, right, result = (_cut_along(x, axis - out.ndim, cut) for x in (a, b, out))
        np.matmul(left, right, out=result)

    team.spread(cuts, part, products * _PRODUCT_NS, multiplies=True)


def _cut_along(x: Array, axis: int, cut: slice) -> Array:
    """A part of an array that may be broadcast along an axis, which is counted from the end."""
    return x if -axis > x.ndim or x.shape[axis] == 1 else x.swapaxes(axis, 0)[cut].swapaxes(0, axis)


def by_rows(arrays: Sequence[Array], work: Callable[..., _R], passes: int = 1) -> list[_R]:
    """Results of ``work(*parts)`` for pieces of the rows of arrays, in their order; computed on idle cores, too.

    Args:
        arrays: Of as many rows.
        work: Computes one piece.
        passes: About how many times it reads or writes each element.
    """
    elements = passes * sum(array.size for array in arrays)
    cuts = even_cuts(len(arrays[0]), min(MOST_PIECES, elements // _PIECE_ELEMENTS), _ROWS)
    if len(cuts) == 1:
        return [work(*arrays)]
    results: list[Any] = [None] * len(cuts)

    def part(index: int) -> None:
        results[index] = work(*[array[cuts[index]] for array in arrays])

    team.spread(range(len(cuts)), part, element_ns(elements), multiplies=True)
    return results


def elementwise(kernel: _F, passes: int = 1) -> _F:
    """A kernel each of whose outputs' elements depends on the elements of the inputs at the same place, in pieces.

    It is called with flat pieces of the arrays of the first output's shape, and whole arrays of a single element.
    Arrays of other shapes, and arrays that do not lie flat in memory, are given whole. ``passes``: about how many times
    it reads or writes each element.
    """
    return _in_pieces(kernel, passes, by_rows=False)


def rowwise(kernel: _F, passes: int = 1) -> _F:
    """A kernel whose outputs' last axes depend on the inputs' at the same place, in pieces; else as `elementwise`.

    It is called with pieces of (rows, last axis) of the arrays that have the first output's leading axes. Arrays of one
    axis belong to every row and are given whole.
    """
    return _in_pieces(kernel, passes, by_rows=True)


def _in_pieces(kernel: _F, passes: int, by_rows: bool) -> _F:
    @wraps(kernel)
    def compute(operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
        elements = passes * outputs[0].size * (len(inputs) + len(outputs))
        count = min(MOST_PIECES, elements // _PIECE_ELEMENTS)
        if count < 2:
            kernel(operation, inputs, outputs)
            return
        arrays, shape = [*inputs, *outputs], outputs[0].shape
        alike = len(shape) - by_rows  # axes that arrays have in common
        is_cut = [array.ndim > 1 if by_rows else array.size > 1 for array in arrays]
        if alike < by_rows or not all(
            array.ndim == len(shape) and array.shape[:alike] == shape[:alike] and array.flags.c_contiguous
            for array in compress(arrays, is_cut)
        ):
            kernel(operation, inputs, outputs)
            return
        parted = [
            array.reshape(-1, *array.shape[alike:]) if cut else array if by_rows else array.reshape(())
            for array, cut in zip(arrays, is_cut, strict=True)
        ]

        def part(piece: slice) -> None:
            parts = [array[piece] if cut else array for array, cut in zip(parted, is_cut, strict=True)]
            kernel(operation, parts[: len(inputs)], parts[len(inputs) :])

        cuts = even_cuts(len(parted[-1]), count, _ROWS if by_rows else BLOCK)
        team.spread(cuts, part, element_ns(elements))

    def bind(operation: Any, inputs: Sequence[TensorSpec]) -> _F:
        """Where all is surely in one piece, as most often: no look at that in each call."""
        sizes = {spec.shape: spec.size for spec in inputs}
        is_small = math.prod(sizes.values()) * passes * (len(inputs) + _MOST_OUTPUTS) < 2 * _PIECE_ELEMENTS
        return getattr(kernel, "where_quiet", kernel) if is_small else compute  # type: ignore[return-value]

    marks: Any = compute
    marks.in_one_piece = kernel  # for what cuts the arrays itself
    marks.bind = bind
    return compute  # type: ignore[return-value]
