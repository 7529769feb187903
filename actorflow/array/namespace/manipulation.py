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
    """The array repeated along new axes and along those of length 1, to this shape."""
    return applied_to(x, BroadcastTo, integers(shape))


def broadcast_shapes(*shapes: Sequence[int]) -> Shape:
    """The shape that arrays of these shapes broadcast to.

    Raises:
        ShapeError: if they do not.
    """
    return broadcast("broadcast_shapes", (), *map(tuple, shapes))


def broadcast_arrays(*arrays: Array) -> list[Array]:
    """The arrays, all of the shape that they broadcast to."""
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
    """The elements in another shape; one length may be -1, and is what the others leave."""
    return applied_to(x, Reshape, integers(shape))


def expand_dims(x: Array, /, axis: int = 0) -> Array:
    """The array with a new axis of length 1, at this position of the result."""
    return applied_to(x, Reshape, shaping.expanded(node_of("expand_dims", "x", x).shape, integers(axis)))


def squeeze(x: Array, /, axis: int | Sequence[int]) -> Array:
    """The array without these axes, which have length 1."""
    return applied_to(x, Reshape, shaping.squeezed(node_of("squeeze", "x", x).shape, integers(axis)))


def permute_dims(x: Array, /, axes: Sequence[int]) -> Array:
    """The array with its axes in another order."""
    return applied_to(x, Transpose, integers(axes))


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """The arrays joined along an axis; flattened first if that is None."""
    if axis is None or not arrays:
        return shaping.concat(arrays, axis)
    return applied_to_all(arrays, Concat, axis)


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """The arrays, all of one shape, along a new axis at this position of the result."""
    return applied_to_all(arrays, Concat, axis, True) if arrays else shaping.stack(arrays, axis)


def tril(x: Array, /, *, k: int = 0) -> Array:
    """The matrices with zeros above a diagonal."""
    return _triangle("tril", x, k)


def triu(x: Array, /, *, k: int = 0) -> Array:
    """The matrices with zeros below a diagonal."""
    return _triangle("triu", x, k)


_WHERE = elementwise_primitive(Where())


def _triangle(name: str, x: Array, k: int) -> Array:
    node = node_of(name, "x", x)
    mask, zero = triangle(name, node.shape, node.dtype, k)
    return record(_WHERE, (mask, node, zero), node.shape, node.dtype, (), node.evaluator)


def flip(x: Array, /, *, axis: int | Sequence[int] | None = None) -> Array:
    """The elements in reverse order along axes; along all if none is named."""
    return applied_to(x, Flip, None if axis is None else integers(axis))


def repeat(x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    """Each element repeated along an axis, or of the flattened array; an array of counts is computed at once."""
    counts: Any = repeats._value() if type(repeats) is Record.array_type else repeats
    return repeat_counted(x, counts, axis)
