"""Elementwise functions of one array."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actorflow.array.namespace import ufuncs as uf
from actorflow.array.namespace.operate import unary

if TYPE_CHECKING:
    from actorflow.array.array import Array


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
    """The exponential function, ``e`` to this power."""
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
