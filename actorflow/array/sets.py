"""Functions whose results' shapes depend on values: they are computed at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actorflow.array.operate import node_of
from actorflow.array.primitives import Value
from actorflow.array.records import given
from actorflow.errors import ShapeError

if TYPE_CHECKING:
    from actorflow.array.arrays import Array

__all__ = ["nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"]


class UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Array
    inverse_indices: Array


def _given(like: Array, value: Any) -> Array:
    return given(np.array(value), like._node.session)


def _value(name: str, x: Array) -> Value:
    node_of(name, "x", x)
    return x._value()


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """The indices of the elements that are not zero, one array per axis.

    Raises:
        ShapeError: for a 0-d array.
    """
    value = _value("nonzero", x)
    if not value.ndim:
        raise ShapeError("nonzero: expected at least one axis, got a 0-d array")
    return tuple(_given(x, each) for each in np.nonzero(value))


def unique_all(x: Array, /) -> UniqueAll:
    """The distinct elements, in order, where each is first, which one each element is, and how many there are."""
    return UniqueAll(*(_given(x, each) for each in np.unique_all(_value("unique_all", x))))


def unique_counts(x: Array, /) -> UniqueCounts:
    """The distinct elements, in order, and how many of each there are."""
    return UniqueCounts(*(_given(x, each) for each in np.unique_counts(_value("unique_counts", x))))


def unique_inverse(x: Array, /) -> UniqueInverse:
    """The distinct elements, in order, and which one each element is."""
    return UniqueInverse(*(_given(x, each) for each in np.unique_inverse(_value("unique_inverse", x))))


def unique_values(x: Array, /) -> Array:
    """The distinct elements, in order."""
    return _given(x, np.unique(_value("unique_values", x), equal_nan=False))
