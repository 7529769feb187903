"""Functions of the standard that arrange elements: those of `actorflow.ops`, the frequent ones by a shorter way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from actorflow.array.namespace.apply import applied_to
from actorflow.array.namespace.operate import broadcast, node_of
from actorflow.array.record.record import Record
from actorflow.ops import shaping
from actorflow.ops.indexing import Flip, tril, triu
from actorflow.ops.indexing import repeat as repeat_counted
from actorflow.ops.shaping import (
    BroadcastTo,
    Reshape,
    Transpose,
    concat,
    integers,
    moveaxis,
    roll,
    stack,
    tile,
    unstack,
)

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


def flip(x: Array, /, *, axis: int | Sequence[int] | None = None) -> Array:
    """The elements in reverse order along axes; along all if none is named."""
    return applied_to(x, Flip, None if axis is None else integers(axis))


def repeat(x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    """Each element repeated along an axis, or of the flattened array; an array of counts is computed at once."""
    counts: Any = repeats._value() if type(repeats) is Record.array_type else repeats
    return repeat_counted(x, counts, axis)
