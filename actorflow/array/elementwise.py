"""Elementwise functions of the standard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.operate import binary, broadcast, cast, constant, node_of, unary
from actorflow.array.primitives import DType, Elementwise, Value
from actorflow.array.records import Input, Node, record
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


def _copy(x: Value, out: Value) -> None:
    np.copyto(out, x)


def _real_part(x: Value, out: Value) -> None:
    np.copyto(out, x.real)


def _imaginary_part(x: Value, out: Value) -> None:
    np.copyto(out, x.imag)


def _real_type(dtype: DType) -> DType:
    return np.empty(0, dtype).real.dtype


def _rounded(ufunc: np.ufunc) -> Any:
    """Rounding leaves integers as they are."""

    def compute(x: Value, out: Value) -> None:
        if x.dtype.kind in "iub":
            np.copyto(out, x)
        else:
            ufunc(x, out=out)

    return compute


def _same(dtype: DType) -> DType:
    return dtype


def _choose(condition: Value, x1: Value, x2: Value, out: Value) -> None:
    np.copyto(out, x2)
    np.copyto(out, x1, where=condition)


def _chosen_type(condition: DType, x1: DType, x2: DType) -> DType:  # noqa: ARG001  all inputs have one
    return np.result_type(x1, x2)


def _sign(x: Value, out: Value) -> None:
    if x.dtype.kind == "b":
        np.copyto(out, x)
    else:
        np.sign(x, out=out)


ABS = Elementwise("abs", np.absolute)
ACOS = Elementwise("acos", np.arccos)
ACOSH = Elementwise("acosh", np.arccosh)
ASIN = Elementwise("asin", np.arcsin)
ASINH = Elementwise("asinh", np.arcsinh)
ATAN = Elementwise("atan", np.arctan)
ATANH = Elementwise("atanh", np.arctanh)
BITWISE_INVERT = Elementwise("bitwise_invert", np.invert)
CONJ = Elementwise("conj", np.conjugate)
COS = Elementwise("cos", np.cos)
COSH = Elementwise("cosh", np.cosh)
EXP = Elementwise("exp", np.exp)
EXPM1 = Elementwise("expm1", np.expm1)
ISFINITE = Elementwise("isfinite", np.isfinite)
ISINF = Elementwise("isinf", np.isinf)
ISNAN = Elementwise("isnan", np.isnan)
LOG = Elementwise("log", np.log)
LOG10 = Elementwise("log10", np.log10)
LOG1P = Elementwise("log1p", np.log1p)
LOG2 = Elementwise("log2", np.log2)
LOGICAL_NOT = Elementwise("logical_not", np.logical_not)
NEGATIVE = Elementwise("negative", np.negative)
POSITIVE = Elementwise("positive", np.positive)
RECIPROCAL = Elementwise("reciprocal", np.reciprocal)
SIGNBIT = Elementwise("signbit", np.signbit)
SIN = Elementwise("sin", np.sin)
SINH = Elementwise("sinh", np.sinh)
SQRT = Elementwise("sqrt", np.sqrt)
SQUARE = Elementwise("square", np.square)
TAN = Elementwise("tan", np.tan)
TANH = Elementwise("tanh", np.tanh)
CEIL = Elementwise("ceil", _rounded(np.ceil), types=_same)
FLOOR = Elementwise("floor", _rounded(np.floor), types=_same)
ROUND = Elementwise("round", _rounded(np.rint), types=_same)
TRUNC = Elementwise("trunc", _rounded(np.trunc), types=_same)
SIGN = Elementwise("sign", _sign, types=_same)
REAL = Elementwise("real", _real_part, aligned=False, types=_real_type)
IMAG = Elementwise("imag", _imaginary_part, aligned=False, types=_real_type)
ADD = Elementwise("add", np.add)
ATAN2 = Elementwise("atan2", np.arctan2)
BITWISE_AND = Elementwise("bitwise_and", np.bitwise_and)
BITWISE_LEFT_SHIFT = Elementwise("bitwise_left_shift", np.left_shift)
BITWISE_OR = Elementwise("bitwise_or", np.bitwise_or)
BITWISE_RIGHT_SHIFT = Elementwise("bitwise_right_shift", np.right_shift)
BITWISE_XOR = Elementwise("bitwise_xor", np.bitwise_xor)
COPYSIGN = Elementwise("copysign", np.copysign)
DIVIDE = Elementwise("divide", np.true_divide)
EQUAL = Elementwise("equal", np.equal)
FLOOR_DIVIDE = Elementwise("floor_divide", np.floor_divide)
GREATER = Elementwise("greater", np.greater)
GREATER_EQUAL = Elementwise("greater_equal", np.greater_equal)
HYPOT = Elementwise("hypot", np.hypot)
LESS = Elementwise("less", np.less)
LESS_EQUAL = Elementwise("less_equal", np.less_equal)
LOGADDEXP = Elementwise("logaddexp", np.logaddexp)
LOGICAL_AND = Elementwise("logical_and", np.logical_and)
LOGICAL_OR = Elementwise("logical_or", np.logical_or)
LOGICAL_XOR = Elementwise("logical_xor", np.logical_xor)
MAXIMUM = Elementwise("maximum", np.maximum)
MINIMUM = Elementwise("minimum", np.minimum)
MULTIPLY = Elementwise("multiply", np.multiply)
NEXTAFTER = Elementwise("nextafter", np.nextafter)
NOT_EQUAL = Elementwise("not_equal", np.not_equal)
POW = Elementwise("pow", np.power)
REMAINDER = Elementwise("remainder", np.remainder)
SUBTRACT = Elementwise("subtract", np.subtract)
WHERE = Elementwise("where", _choose, aligned=False, types=_chosen_type)
COPY = Elementwise("copy", _copy, types=_same)


def abs(x: Array, /) -> Array:
    """Absolute value; of complex numbers, their magnitude."""
    return unary(ABS, x)


def acos(x: Array, /) -> Array:
    """Inverse cosine, in radians."""
    return unary(ACOS, x)


def acosh(x: Array, /) -> Array:
    """Inverse hyperbolic cosine."""
    return unary(ACOSH, x)


def asin(x: Array, /) -> Array:
    """Inverse sine, in radians."""
    return unary(ASIN, x)


def asinh(x: Array, /) -> Array:
    """Inverse hyperbolic sine."""
    return unary(ASINH, x)


def atan(x: Array, /) -> Array:
    """Inverse tangent, in radians."""
    return unary(ATAN, x)


def atanh(x: Array, /) -> Array:
    """Inverse hyperbolic tangent."""
    return unary(ATANH, x)


def bitwise_invert(x: Array, /) -> Array:
    """Each bit inverted; of booleans, their opposite."""
    return unary(BITWISE_INVERT, x)


def conj(x: Array, /) -> Array:
    """Complex conjugate."""
    return unary(CONJ, x)


def cos(x: Array, /) -> Array:
    """Cosine of radians."""
    return unary(COS, x)


def cosh(x: Array, /) -> Array:
    """Hyperbolic cosine."""
    return unary(COSH, x)


def exp(x: Array, /) -> Array:
    """E to this power."""
    return unary(EXP, x)


def expm1(x: Array, /) -> Array:
    """``exp(x) - 1``, exact near 0."""
    return unary(EXPM1, x)


def isfinite(x: Array, /) -> Array:
    """Whether it is a number, and finite."""
    return unary(ISFINITE, x)


def isinf(x: Array, /) -> Array:
    """Whether it is infinite."""
    return unary(ISINF, x)


def isnan(x: Array, /) -> Array:
    """Whether it is not a number."""
    return unary(ISNAN, x)


def log(x: Array, /) -> Array:
    """Natural logarithm."""
    return unary(LOG, x)


def log10(x: Array, /) -> Array:
    """Logarithm to the base 10."""
    return unary(LOG10, x)


def log1p(x: Array, /) -> Array:
    """``log(1 + x)``, exact near 0."""
    return unary(LOG1P, x)


def log2(x: Array, /) -> Array:
    """Logarithm to the base 2."""
    return unary(LOG2, x)


def logical_not(x: Array, /) -> Array:
    """Whether it is false."""
    return unary(LOGICAL_NOT, x)


def negative(x: Array, /) -> Array:
    """``-x``."""
    return unary(NEGATIVE, x)


def positive(x: Array, /) -> Array:
    """``+x``."""
    return unary(POSITIVE, x)


def reciprocal(x: Array, /) -> Array:
    """``1 / x``."""
    return unary(RECIPROCAL, x)


def signbit(x: Array, /) -> Array:
    """Whether the sign bit is set."""
    return unary(SIGNBIT, x)


def sin(x: Array, /) -> Array:
    """Sine of radians."""
    return unary(SIN, x)


def sinh(x: Array, /) -> Array:
    """Hyperbolic sine."""
    return unary(SINH, x)


def sqrt(x: Array, /) -> Array:
    """Square root."""
    return unary(SQRT, x)


def square(x: Array, /) -> Array:
    """``x * x``."""
    return unary(SQUARE, x)


def tan(x: Array, /) -> Array:
    """Tangent of radians."""
    return unary(TAN, x)


def tanh(x: Array, /) -> Array:
    """Hyperbolic tangent."""
    return unary(TANH, x)


def ceil(x: Array, /) -> Array:
    """The least integer that is not less."""
    return unary(CEIL, x)


def floor(x: Array, /) -> Array:
    """The greatest integer that is not greater."""
    return unary(FLOOR, x)


def round(x: Array, /) -> Array:
    """The nearest integer; halves go to the even one."""
    return unary(ROUND, x)


def trunc(x: Array, /) -> Array:
    """The integer part."""
    return unary(TRUNC, x)


def sign(x: Array, /) -> Array:
    """-1, 0 or 1; of complex numbers, the number of magnitude 1 in their direction."""
    return unary(SIGN, x)


def real(x: Array, /) -> Array:
    """Real part."""
    return unary(REAL, x)


def imag(x: Array, /) -> Array:
    """Imaginary part."""
    return unary(IMAG, x)


def add(x1: Operand, x2: Operand, /) -> Array:
    """``x1 + x2``."""
    return binary(ADD, x1, x2)


def atan2(x1: Operand, x2: Operand, /) -> Array:
    """The angle of the point ``(x2, x1)``, in radians."""
    return binary(ATAN2, x1, x2)


def bitwise_and(x1: Operand, x2: Operand, /) -> Array:
    """The bits that both have."""
    return binary(BITWISE_AND, x1, x2)


def bitwise_left_shift(x1: Operand, x2: Operand, /) -> Array:
    """The bits moved up."""
    return binary(BITWISE_LEFT_SHIFT, x1, x2)


def bitwise_or(x1: Operand, x2: Operand, /) -> Array:
    """The bits that one of them has."""
    return binary(BITWISE_OR, x1, x2)


def bitwise_right_shift(x1: Operand, x2: Operand, /) -> Array:
    """The bits moved down."""
    return binary(BITWISE_RIGHT_SHIFT, x1, x2)


def bitwise_xor(x1: Operand, x2: Operand, /) -> Array:
    """The bits that exactly one of them has."""
    return binary(BITWISE_XOR, x1, x2)


def copysign(x1: Operand, x2: Operand, /) -> Array:
    """The magnitude of ``x1`` with the sign of ``x2``."""
    return binary(COPYSIGN, x1, x2)


def divide(x1: Operand, x2: Operand, /) -> Array:
    """``x1 / x2``."""
    return binary(DIVIDE, x1, x2)


def equal(x1: Operand, x2: Operand, /) -> Array:
    """``x1 == x2``."""
    return binary(EQUAL, x1, x2)


def floor_divide(x1: Operand, x2: Operand, /) -> Array:
    """``x1 / x2``, rounded down."""
    return binary(FLOOR_DIVIDE, x1, x2)


def greater(x1: Operand, x2: Operand, /) -> Array:
    """``x1 > x2``."""
    return binary(GREATER, x1, x2)


def greater_equal(x1: Operand, x2: Operand, /) -> Array:
    """``x1 >= x2``."""
    return binary(GREATER_EQUAL, x1, x2)


def hypot(x1: Operand, x2: Operand, /) -> Array:
    """``sqrt(x1**2 + x2**2)`` without overflow on the way."""
    return binary(HYPOT, x1, x2)


def less(x1: Operand, x2: Operand, /) -> Array:
    """``x1 < x2``."""
    return binary(LESS, x1, x2)


def less_equal(x1: Operand, x2: Operand, /) -> Array:
    """``x1 <= x2``."""
    return binary(LESS_EQUAL, x1, x2)


def logaddexp(x1: Operand, x2: Operand, /) -> Array:
    """``log(exp(x1) + exp(x2))`` without overflow on the way."""
    return binary(LOGADDEXP, x1, x2)


def logical_and(x1: Operand, x2: Operand, /) -> Array:
    """Whether both are true."""
    return binary(LOGICAL_AND, x1, x2)


def logical_or(x1: Operand, x2: Operand, /) -> Array:
    """Whether one of them is true."""
    return binary(LOGICAL_OR, x1, x2)


def logical_xor(x1: Operand, x2: Operand, /) -> Array:
    """Whether exactly one of them is true."""
    return binary(LOGICAL_XOR, x1, x2)


def maximum(x1: Operand, x2: Operand, /) -> Array:
    """The greater one; what is not a number wins."""
    return binary(MAXIMUM, x1, x2)


def minimum(x1: Operand, x2: Operand, /) -> Array:
    """The lesser one; what is not a number wins."""
    return binary(MINIMUM, x1, x2)


def multiply(x1: Operand, x2: Operand, /) -> Array:
    """``x1 * x2``."""
    return binary(MULTIPLY, x1, x2)


def nextafter(x1: Operand, x2: Operand, /) -> Array:
    """The number that follows ``x1`` on the way to ``x2``."""
    return binary(NEXTAFTER, x1, x2)


def not_equal(x1: Operand, x2: Operand, /) -> Array:
    """``x1 != x2``."""
    return binary(NOT_EQUAL, x1, x2)


def pow(x1: Operand, x2: Operand, /) -> Array:
    """``x1`` to the power of ``x2``."""
    return binary(POW, x1, x2)


def remainder(x1: Operand, x2: Operand, /) -> Array:
    """What ``floor_divide`` leaves, with the sign of ``x2``."""
    return binary(REMAINDER, x1, x2)


def subtract(x1: Operand, x2: Operand, /) -> Array:
    """``x1 - x2``."""
    return binary(SUBTRACT, x1, x2)


def where(condition: Array, x1: Operand, x2: Operand, /) -> Array:
    """``x1`` where the condition is true, ``x2`` elsewhere; all three broadcast."""
    chosen = node_of("where", "condition", condition)
    if chosen.dtype != np.bool_:
        raise DTypeError(f"where: condition must be bool, got {chosen.dtype}")
    one, other = _pair("where", x1, x2)
    shape = broadcast("where", chosen.shape, one.shape, other.shape)
    return record(WHERE, (chosen, one, other), shape, WHERE.dtype(chosen.dtype, one.dtype, other.dtype))


def clip(x: Array, /, min: Operand | None = None, max: Operand | None = None) -> Array:
    """``x`` kept within bounds, in its own dtype; None leaves a side open."""
    clipped = x
    if min is not None:
        clipped = binary(MAXIMUM, clipped, min)
    if max is not None:
        clipped = binary(MINIMUM, clipped, max)
    return cast(clipped, node_of("clip", "x", x).dtype) if clipped is not x else unary(COPY, x)


def _pair(name: str, x1: Operand, x2: Operand) -> tuple[Input, Input]:
    """Two operands, of which one may be a number."""
    if isinstance(x1, Node.array_type):
        one = x1._node
        return one, x2._node if isinstance(x2, Node.array_type) else constant(name, x2, one.dtype)
    if isinstance(x2, Node.array_type):
        other = x2._node
        return constant(name, x1, other.dtype), other
    kind = np.result_type(x1, x2)
    return np.array(x1, kind), np.array(x2, kind)
