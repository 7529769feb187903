"""Sets of values. Where the result's shape depends on values, it is computed at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actorflow.array.namespace.operate import node_of, pair
from actorflow.array.record.node import Node, given, record
from actorflow.array.record.primitives import Primitive, Value
from actorflow.errors import ShapeError

if TYPE_CHECKING:
    from actorflow.array.array import Array


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


_ISIN = Primitive("isin", lambda x1, x2, invert: np.isin(x1, x2, invert=invert))


def isin(x1: Array | complex, x2: Array | complex, /, *, invert: bool = False) -> Array:
    """Whether each element of ``x1`` is one of the elements of ``x2``, or none of them with ``invert``.

    NaN is equal to nothing. One of the two may be a number.
    """
    if type(x1) is not Node.array_type:
        node_of("isin", "x2", x2)
    one, other = pair("isin", x1, x2)
    return record(_ISIN, (one, other), one.shape, np.dtype(np.bool_), (bool(invert),), work=other.size)


def _given(like: Array, value: Any) -> Array:
    return given(np.array(value), like._node.evaluator, place=like.device)


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
