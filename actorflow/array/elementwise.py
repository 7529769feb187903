"""Elementwise functions of the standard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array import ufuncs as uf
from actorflow.array.operate import binary, broadcast, cast, node_of, pair, unary
from actorflow.array.records import record
from actorflow.errors import DTypeError

if TYPE_CHECKING:
    from actorflow.array.arrays import Array

__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "ceil",
    "clip",
    "conj",
    "copysign",
    "cos",
    "cosh",
    "divide",
    "equal",
    "exp",
    "expm1",
    "floor",
    "floor_divide",
    "greater",
    "greater_equal",
    "hypot",
    "imag",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "log",
    "log10",
    "log1p",
    "log2",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "nextafter",
    "not_equal",
    "positive",
    "pow",
    "real",
    "reciprocal",
    "remainder",
    "round",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "trunc",
    "where",
]

#: What an elementwise function takes: arrays, of which all but one may be numbers.
Operand = Any


def abs(x: Array, /) -> Array:
    """Absolute value; of complex numbers, their magnitude."""
    return unary(uf.ABS, x)


def acos(x: Array, /) -> Array:
    """Inverse cosine, in radians."""
    return unary(uf.ACOS, x)


def acosh(x: Array, /) -> Array:
    """Inverse hyperbolic cosine."""
    return unary(uf.ACOSH, x)


def asin(x: Array, /) -> Array:
    """Inverse sine, in radians."""
    return unary(uf.ASIN, x)


def asinh(x: Array, /) -> Array:
    """Inverse hyperbolic sine."""
    return unary(uf.ASINH, x)


def atan(x: Array, /) -> Array:
    """Inverse tangent, in radians."""
    return unary(uf.ATAN, x)


def atanh(x: Array, /) -> Array:
    """Inverse hyperbolic tangent."""
    return unary(uf.ATANH, x)


def bitwise_invert(x: Array, /) -> Array:
    """Each bit inverted; of booleans, their opposite."""
    return unary(uf.BITWISE_INVERT, x)


def conj(x: Array, /) -> Array:
    """Complex conjugate."""
    return unary(uf.CONJ, x)


def cos(x: Array, /) -> Array:
    """Cosine of radians."""
    return unary(uf.COS, x)


def cosh(x: Array, /) -> Array:
    """Hyperbolic cosine."""
    return unary(uf.COSH, x)


def exp(x: Array, /) -> Array:
    """E to this power."""
    return unary(uf.EXP, x)


def expm1(x: Array, /) -> Array:
    """``exp(x) - 1``, exact near 0."""
    return unary(uf.EXPM1, x)


def isfinite(x: Array, /) -> Array:
    """Whether it is a number, and finite."""
    return unary(uf.ISFINITE, x)


def isinf(x: Array, /) -> Array:
    """Whether it is infinite."""
    return unary(uf.ISINF, x)


def isnan(x: Array, /) -> Array:
    """Whether it is not a number."""
    return unary(uf.ISNAN, x)


def log(x: Array, /) -> Array:
    """Natural logarithm."""
    return unary(uf.LOG, x)


def log10(x: Array, /) -> Array:
    """Logarithm to the base 10."""
    return unary(uf.LOG10, x)


def log1p(x: Array, /) -> Array:
    """``log(1 + x)``, exact near 0."""
    return unary(uf.LOG1P, x)


def log2(x: Array, /) -> Array:
    """Logarithm to the base 2."""
    return unary(uf.LOG2, x)


def logical_not(x: Array, /) -> Array:
    """Whether it is false."""
    return unary(uf.LOGICAL_NOT, x)


def negative(x: Array, /) -> Array:
    """``-x``."""
    return unary(uf.NEGATIVE, x)


def positive(x: Array, /) -> Array:
    """``+x``."""
    return unary(uf.POSITIVE, x)


def reciprocal(x: Array, /) -> Array:
    """``1 / x``."""
    return unary(uf.RECIPROCAL, x)


def signbit(x: Array, /) -> Array:
    """Whether the sign bit is set."""
    return unary(uf.SIGNBIT, x)


def sin(x: Array, /) -> Array:
    """Sine of radians."""
    return unary(uf.SIN, x)


def sinh(x: Array, /) -> Array:
    """Hyperbolic sine."""
    return unary(uf.SINH, x)


def sqrt(x: Array, /) -> Array:
    """Square root."""
    return unary(uf.SQRT, x)


def square(x: Array, /) -> Array:
    """``x * x``."""
    return unary(uf.SQUARE, x)


def tan(x: Array, /) -> Array:
    """Tangent of radians."""
    return unary(uf.TAN, x)


def tanh(x: Array, /) -> Array:
    """Hyperbolic tangent."""
    return unary(uf.TANH, x)


def ceil(x: Array, /) -> Array:
    """The least integer that is not less."""
    return unary(uf.CEIL, x)


def floor(x: Array, /) -> Array:
    """The greatest integer that is not greater."""
    return unary(uf.FLOOR, x)


def round(x: Array, /) -> Array:
    """The nearest integer; halves go to the even one."""
    return unary(uf.ROUND, x)


def trunc(x: Array, /) -> Array:
    """The integer part."""
    return unary(uf.TRUNC, x)


def sign(x: Array, /) -> Array:
    """-1, 0 or 1; of complex numbers, the number of magnitude 1 in their direction."""
    return unary(uf.SIGN, x)


def real(x: Array, /) -> Array:
    """Real part."""
    return unary(uf.REAL, x)


def imag(x: Array, /) -> Array:
    """Imaginary part."""
    return unary(uf.IMAG, x)


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
