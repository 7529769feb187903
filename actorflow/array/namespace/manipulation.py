"""Functions of the standard that arrange elements: those of `actorflow.ops`, the frequent ones by a shorter way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from actorflow.array.namespace.apply import applied_to, applied_to_all
from actorflow.array.namespace.operate import broadcast, node_of
from actorflow.array.record.primitives import elementwise_primitive
from actorflow.array.record.record import Record, record
from actorflow.ops import shaping
from actorflow.ops.elementwise import Where
from actorflow.ops.indexing import Flip, triangle
from actorflow.ops.indexing import repeat as repeat_counted
from actorflow.ops.shaping import (
    BroadcastTo,
    Concat,
    Reshape,
    Transpose,
    moveaxis,
    roll,
    tile,
    unstack,
)
from actorflow.spec import integers

if TYPE_CHECKING:
    from actorflow.array.array import Array

__all__ = ["broadcast_arrays", "broadcast_shapes", "broadcast_to", "concat", "expand_dims", "flip", "moveaxis"]
__all__ += ["permute_dims", "repeat", "reshape", "roll", "squeeze", "stack", "tile", "tril", "triu", "unstack"]

Shape = tuple[int, ...]


def broadcast_to(x: Array, /, shape: Sequence[int]) -> Array:
    """As `numpy.broadcast_to`.

    Raises:
        ShapeError: if ``x`` does not broadcast to this shape.
    Gradient: the sum of g over what was repeated.
    Example:
        >>> xp.broadcast_to(xp.asarray([1, 2]), (2, 2))
        Array([[1, 2],
               [1, 2]], dtype=int64)
    """
    return applied_to(x, BroadcastTo, integers(shape))


def broadcast_shapes(*shapes: Sequence[int]) -> Shape:
    """As `numpy.broadcast_shapes`.

    Raises:
        ShapeError: if they do not broadcast.
    Example:
        >>> xp.broadcast_shapes((3, 1), (4,), ())
        (3, 4)
    """
    return broadcast("broadcast_shapes", (), *map(tuple, shapes))


def broadcast_arrays(*arrays: Array) -> list[Array]:
    """As `numpy.broadcast_arrays`, a list of arrays.

    Raises:
        ShapeError: if they do not broadcast.
    Gradient: the sum of g over what was repeated.
    Example:
        >>> a, b = xp.broadcast_arrays(xp.asarray([1, 2]), xp.asarray([[10], [20]]))
        >>> print(a.shape, b.shape)
        (2, 2) (2, 2)
    """
    if not arrays:
        return []
    shape = broadcast("broadcast_arrays", *(node_of("broadcast_arrays", "each argument", x).shape for x in arrays))
    return [broadcast_to(x, shape) for x in arrays]


def reshape(
    x: Array,
    /,
    shape: Sequence[int],
    *,
    copy: bool | None = None,  # noqa: ARG001  makes no difference: arrays are values of their own
) -> Array:
    """As `numpy.reshape`; one length may be -1. ``copy`` makes no difference: each array is a value of its own.

    Raises:
        ShapeError: if the number of elements does not fit.
    Gradient: g in the shape of ``x``.
    Example:
        >>> xp.reshape(xp.arange(6), (2, -1))
        Array([[0, 1, 2],
               [3, 4, 5]], dtype=int64)
    """
    return applied_to(x, Reshape, integers(shape))


def expand_dims(x: Array, /, axis: int = 0) -> Array:
    """As `numpy.expand_dims`, with the first axis by default.

    Raises:
        AxisError: if the result has no such axis.
    Gradient: g in the shape of ``x``.
    Example:
        >>> xp.expand_dims(xp.asarray([1, 2, 3]), axis=1).shape
        (3, 1)
    """
    return applied_to(x, Reshape, shaping.expanded(node_of("expand_dims", "x", x).shape, integers(axis)))


def squeeze(x: Array, /, axis: int | Sequence[int]) -> Array:
    """As `numpy.squeeze`, of axes that are named.

    Raises:
        ShapeError: if ``x`` has no such axis, or it is not of length 1.
    Gradient: g in the shape of ``x``.
    Example:
        >>> xp.squeeze(xp.zeros((1, 3, 1)), axis=2).shape
        (1, 3)
    """
    return applied_to(x, Reshape, shaping.squeezed(node_of("squeeze", "x", x).shape, integers(axis)))


def permute_dims(x: Array, /, axes: Sequence[int]) -> Array:
    """As `numpy.permute_dims`; all axes are named.

    Raises:
        ShapeError: if ``axes`` is not a permutation of the axes.
    Gradient: g with the inverse permutation.
    Example:
        >>> xp.permute_dims(xp.zeros((2, 3, 4)), (2, 0, 1)).shape
        (4, 2, 3)
    """
    return applied_to(x, Transpose, integers(axes))


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """As `numpy.concat`; None for ``axis`` joins the flattened arrays.

    Raises:
        ShapeError, DTypeError: if they do not fit, or there are none.
    Gradient: g taken apart.
    Example:
        >>> xp.concat([xp.asarray([[1, 2]]), xp.asarray([[3, 4], [5, 6]])])
        Array([[1, 2],
               [3, 4],
               [5, 6]], dtype=int64)
    """
    if axis is None or not arrays:
        return shaping.concat(arrays, axis)
    return applied_to_all(arrays, Concat, axis)


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """As `numpy.stack`.

    Raises:
        ShapeError, DTypeError: if the shapes differ, the dtypes have none in common, or there are none.
    Gradient: g taken apart.
    Example:
        >>> xp.stack([xp.asarray([1, 2]), xp.asarray([3, 4])], axis=1)
        Array([[1, 3],
               [2, 4]], dtype=int64)
    """
    return applied_to_all(arrays, Concat, axis, True) if arrays else shaping.stack(arrays, axis)


def tril(x: Array, /, *, k: int = 0) -> Array:
    """As `numpy.tril`.

    Raises:
        ShapeError: if ``x`` has less than two axes.
    Gradient: g with the same zeros.
    Example:
        >>> xp.tril(xp.ones((3, 3)), k=-1)
        Array([[0., 0., 0.],
               [1., 0., 0.],
               [1., 1., 0.]], dtype=float64)
    """
    return _triangle("tril", x, k)


def triu(x: Array, /, *, k: int = 0) -> Array:
    """As `numpy.triu`. Errors and gradient: those of `tril`.

    Example:
        >>> xp.triu(xp.ones((3, 3)))
        Array([[1., 1., 1.],
               [0., 1., 1.],
               [0., 0., 1.]], dtype=float64)
    """
    return _triangle("triu", x, k)


_WHERE = elementwise_primitive(Where())


def _triangle(name: str, x: Array, k: int) -> Array:
    node = node_of(name, "x", x)
    mask, zero = triangle(name, node.shape, node.dtype, k)
    return record(_WHERE, (mask, node, zero), node.shape, node.dtype, (), node.evaluator)


def flip(x: Array, /, *, axis: int | Sequence[int] | None = None) -> Array:
    """As `numpy.flip`.

    Raises:
        AxisError: if ``x`` does not have the axes.
    Gradient: g, turned back.
    Example:
        >>> xp.flip(xp.asarray([[1, 2], [3, 4]]), axis=0)
        Array([[3, 4],
               [1, 2]], dtype=int64)
    """
    return applied_to(x, Flip, None if axis is None else integers(axis))


def repeat(x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    """As `numpy.repeat`; an array of counts is computed at once.

    Raises:
        ShapeError: if ``x`` does not have the axis, or as many parts as there are counts.
    Gradient: the sum of g over what was repeated.
    Example:
        >>> xp.repeat(xp.asarray([1, 2, 3]), 2)
        Array([1, 1, 2, 2, 3, 3], dtype=int64)
    """
    counts: Any = repeats._value() if type(repeats) is Record.array_type else repeats
    return repeat_counted(x, counts, axis)
