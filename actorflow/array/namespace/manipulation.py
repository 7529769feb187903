"""Functions of the standard that arrange elements, where `actorflow.ops` has others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from actorflow.array.namespace.apply import applied_to
from actorflow.array.namespace.operate import broadcast, node_of
from actorflow.ops.shaping import Reshape, Transpose, broadcast_to
from actorflow.spec import integers

if TYPE_CHECKING:
    from actorflow.array.array import Array

Shape = tuple[int, ...]


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
