"""Elementwise functions of two arrays, or of more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.namespace import ufuncs as uf
from actorflow.array.namespace.operate import binary, broadcast, cast, node_of, pair, unary
from actorflow.array.record.node import record
from actorflow.errors import DTypeError

if TYPE_CHECKING:
    from actorflow.array.array import Array

#: What these functions take: arrays, of which all but one may be numbers.
Operand = Any


def add(x1: Operand, x2: Operand, /) -> Array:
    """``x1 + x2``."""
    return binary(uf.ADD, x1, x2)


def atan2(x1: Operand, x2: Operand, /) -> Array:
    """The angle of the point ``(x2, x1)``, in radians."""
    return binary(uf.ATAN2, x1, x2)


def bitwise_and(x1: Operand, x2: Operand, /) -> Array:
    """The bits that both have."""
    return binary(uf.BITWISE_AND, x1, x2)


def bitwise_left_shift(x1: Operand, x2: Operand, /) -> Array:
    """The bits moved up."""
    return binary(uf.BITWISE_LEFT_SHIFT, x1, x2)


def bitwise_or(x1: Operand, x2: Operand, /) -> Array:
    """The bits that one of them has."""
    return binary(uf.BITWISE_OR, x1, x2)


def bitwise_right_shift(x1: Operand, x2: Operand, /) -> Array:
    """The bits moved down."""
    return binary(uf.BITWISE_RIGHT_SHIFT, x1, x2)


def bitwise_xor(x1: Operand, x2: Operand, /) -> Array:
    """The bits that exactly one of them has."""
    return binary(uf.BITWISE_XOR, x1, x2)


def copysign(x1: Operand, x2: Operand, /) -> Array:
    """The magnitude of ``x1`` with the sign of ``x2``."""
    return binary(uf.COPYSIGN, x1, x2)


def divide(x1: Operand, x2: Operand, /) -> Array:
    """``x1 / x2``."""
    return binary(uf.DIVIDE, x1, x2)


def equal(x1: Operand, x2: Operand, /) -> Array:
    """``x1 == x2``."""
    return binary(uf.EQUAL, x1, x2)


def floor_divide(x1: Operand, x2: Operand, /) -> Array:
    """``x1 / x2``, rounded down."""
    return binary(uf.FLOOR_DIVIDE, x1, x2)


def greater(x1: Operand, x2: Operand, /) -> Array:
    """``x1 > x2``."""
    return binary(uf.GREATER, x1, x2)


def greater_equal(x1: Operand, x2: Operand, /) -> Array:
    """``x1 >= x2``."""
    return binary(uf.GREATER_EQUAL, x1, x2)


def hypot(x1: Operand, x2: Operand, /) -> Array:
    """``sqrt(x1**2 + x2**2)`` without overflow on the way."""
    return binary(uf.HYPOT, x1, x2)


def less(x1: Operand, x2: Operand, /) -> Array:
    """``x1 < x2``."""
    return binary(uf.LESS, x1, x2)


def less_equal(x1: Operand, x2: Operand, /) -> Array:
    """``x1 <= x2``."""
    return binary(uf.LESS_EQUAL, x1, x2)


def logaddexp(x1: Operand, x2: Operand, /) -> Array:
    """``log(exp(x1) + exp(x2))`` without overflow on the way."""
    return binary(uf.LOGADDEXP, x1, x2)


def logical_and(x1: Operand, x2: Operand, /) -> Array:
    """Whether both are true."""
    return binary(uf.LOGICAL_AND, x1, x2)


def logical_or(x1: Operand, x2: Operand, /) -> Array:
    """Whether one of them is true."""
    return binary(uf.LOGICAL_OR, x1, x2)


def logical_xor(x1: Operand, x2: Operand, /) -> Array:
    """Whether exactly one of them is true."""
    return binary(uf.LOGICAL_XOR, x1, x2)


def maximum(x1: Operand, x2: Operand, /) -> Array:
    """The greater one; what is not a number wins."""
    return binary(uf.MAXIMUM, x1, x2)


def minimum(x1: Operand, x2: Operand, /) -> Array:
    """The lesser one; what is not a number wins."""
    return binary(uf.MINIMUM, x1, x2)


def multiply(x1: Operand, x2: Operand, /) -> Array:
    """``x1 * x2``."""
    return binary(uf.MULTIPLY, x1, x2)


def nextafter(x1: Operand, x2: Operand, /) -> Array:
    """The number that follows ``x1`` on the way to ``x2``."""
    return binary(uf.NEXTAFTER, x1, x2)


def not_equal(x1: Operand, x2: Operand, /) -> Array:
    """``x1 != x2``."""
    return binary(uf.NOT_EQUAL, x1, x2)


def pow(x1: Operand, x2: Operand, /) -> Array:
    """``x1`` to the power of ``x2``."""
    return binary(uf.POW, x1, x2)


def remainder(x1: Operand, x2: Operand, /) -> Array:
    """What ``floor_divide`` leaves, with the sign of ``x2``."""
    return binary(uf.REMAINDER, x1, x2)


def subtract(x1: Operand, x2: Operand, /) -> Array:
    """``x1 - x2``."""
    return binary(uf.SUBTRACT, x1, x2)


def where(condition: Array, x1: Operand, x2: Operand, /) -> Array:
    """``x1`` where the condition is true, ``x2`` elsewhere; all three broadcast."""
    chosen = node_of("where", "condition", condition)
    if chosen.dtype != np.bool_:
        raise DTypeError(f"where: condition must be bool, got {chosen.dtype}")
    one, other = pair("where", x1, x2)
    shape = broadcast("where", chosen.shape, one.shape, other.shape)
    return record(uf.WHERE, (chosen, one, other), shape, uf.WHERE.dtype(chosen.dtype, one.dtype, other.dtype))


def clip(x: Array, /, min: Operand | None = None, max: Operand | None = None) -> Array:
    """``x`` kept within bounds, in its own dtype; None leaves a side open."""
    clipped = x
    if min is not None:
        clipped = binary(uf.CLIP_LOW, clipped, min)
    if max is not None:
        clipped = binary(uf.CLIP_HIGH, clipped, max)
    return cast(clipped, node_of("clip", "x", x).dtype) if clipped is not x else unary(uf.COPY, x)
