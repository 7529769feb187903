"""The elementwise operations and functions: NumPy's ufuncs, and what the standard wants otherwise where they differ.

The array API standard prefers ``floor(x1 / x2)`` to Python's floor division where an argument is infinite, powers of
-0 and -infinity that do not depend on how they are computed, and the special cases of C99 for complex numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.namespace.operate import binary, broadcast, cast, node_of, pair, unary
from actorflow.array.record.primitives import DType, Elementwise, Value
from actorflow.array.record.record import record
from actorflow.errors import DTypeError

if TYPE_CHECKING:
    from actorflow.array.array import Array

#: An argument of a function of two: an array, or a number beside an array.
Operand = Any


def _copy(x: Value, out: Value) -> None:
    np.copyto(out, x)


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


#: Integers with the bits of an element, by its bytes.
_BITS = {size: np.dtype(f"i{size}") for size in (1, 2, 4, 8)}


def _choose(condition: Value, x1: Value, x2: Value, out: Value) -> None:
    bits = _BITS.get(out.itemsize)
    if bits is None or not x1.dtype == x2.dtype == out.dtype:
        np.copyto(out, x2)
        np.copyto(out, x1, where=condition)
        return
    # Bits are chosen by masks, without branches: some ten times as fast where the condition has no pattern.
    mask = condition.astype(bits)
    np.negative(mask, out=mask)
    chosen, other = out.view(bits), x2.view(bits)
    np.bitwise_xor(x1.view(bits), other, out=chosen)
    np.bitwise_and(chosen, mask, out=chosen)
    np.bitwise_xor(chosen, other, out=chosen)


def _sign(x: Value, out: Value) -> None:
    """-1, 0 or 1; the sign of a zero is dropped, which NumPy does not promise."""
    if x.dtype.kind == "b":
        np.copyto(out, x)
        return
    np.sign(x, out=out)
    if out.dtype.kind in "fc":
        np.add(out, 0, out=out)


def _floor_divide(x1: Value, x2: Value, out: Value) -> None:
    """``floor(x1 / x2)`` for infinities, too: NumPy, like Python, has NaN for ``inf // 2``, -1 for ``1 // -inf``."""
    if out.dtype.kind != "f":
        np.floor_divide(x1, x2, out=out)
        return
    infinite = np.isinf(x1) | np.isinf(x2)
    quotient = np.true_divide(x1, x2) if infinite.any() else None  # ``out`` may be one of the arguments
    np.floor_divide(x1, x2, out=out)
    if quotient is not None:
        np.copyto(out, quotient, where=infinite, casting="same_kind")


def _power(x1: Value, x2: Value, out: Value) -> None:
    """C99's ``pow`` for square roots of -0 and -infinity, for which NumPy takes ``sqrt``'s results where it can."""
    roots = x2 == 0.5 if out.dtype.kind == "f" else np.False_
    if np.any(roots):
        roots = roots & ((x1 == 0) | (x1 == -np.inf))
        magnitude = np.absolute(x1)
    np.power(x1, x2, out=out)
    if np.any(roots):
        np.copyto(out, magnitude, where=roots, casting="same_kind")


def _expm1(x: Value, out: Value) -> None:
    """``exp(x) - 1``, for complex numbers literally where a part is not finite, and real on the real axis."""
    if x.dtype.kind != "c":
        np.expm1(x, out=out)
        return
    odd, real = ~np.isfinite(x), x.imag == 0
    limits = np.exp(x) - 1 if odd.any() else None
    on_axis = np.expm1(x.real) + 0.0 if real.any() else None
    imaginary = x.imag.copy() if on_axis is not None else None
    np.expm1(x, out=out)
    if limits is not None:
        np.copyto(out, limits, where=odd)
    if on_axis is not None and imaginary is not None:
        np.copyto(out.real, on_axis, where=real)
        np.copyto(out.imag, imaginary, where=real)


def _tanh(x: Value, out: Value) -> None:
    """For complex numbers, the zero in ``±1 ± 0j`` at infinity has the sign of the imaginary part."""
    infinite = np.isinf(x.real) & np.isfinite(x.imag) if x.dtype.kind == "c" else np.False_
    zeros = np.copysign(0.0, x.imag) if np.any(infinite) else None
    np.tanh(x, out=out)
    if zeros is not None:
        np.copyto(out.imag, zeros, where=infinite, casting="same_kind")


def _of_one(
    name: str, doc: str, function: Callable[..., Any], **options: Any
) -> tuple[Elementwise, Callable[[Array], Array]]:
    """An operation on the elements of one array, and the function that records it."""
    op = Elementwise(name, function, **options)

    def recorded(x: Array, /) -> Array:
        return unary(op, x)

    return op, _named(recorded, name, doc)


def _of_two(
    name: str, doc: str, function: Callable[..., Any], **options: Any
) -> tuple[Elementwise, Callable[[Operand, Operand], Array]]:
    """An operation on pairs of elements, and the function that records it."""
    op = Elementwise(name, function, **options)

    def recorded(x1: Operand, x2: Operand, /) -> Array:
        return binary(op, x1, x2)

    return op, _named(recorded, name, doc)


def _named(function: Any, name: str, doc: str) -> Any:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


ABS, abs = _of_one("abs", "Absolute value; of complex numbers, their magnitude.", np.absolute)
ACOS, acos = _of_one("acos", "Inverse cosine, in radians.", np.arccos)
ACOSH, acosh = _of_one("acosh", "Inverse hyperbolic cosine.", np.arccosh)
ASIN, asin = _of_one("asin", "Inverse sine, in radians.", np.arcsin)
ASINH, asinh = _of_one("asinh", "Inverse hyperbolic sine.", np.arcsinh)
ATAN, atan = _of_one("atan", "Inverse tangent, in radians.", np.arctan)
ATANH, atanh = _of_one("atanh", "Inverse hyperbolic tangent.", np.arctanh)
BITWISE_INVERT, bitwise_invert = _of_one("bitwise_invert", "Each bit inverted; of booleans, their opposite.", np.invert)
CEIL, ceil = _of_one("ceil", "The least integer that is not less.", _rounded(np.ceil), types=_same)
CONJ, conj = _of_one("conj", "Complex conjugate.", np.conjugate)
COS, cos = _of_one("cos", "Cosine of radians.", np.cos)
COSH, cosh = _of_one("cosh", "Hyperbolic cosine.", np.cosh)
EXP, exp = _of_one("exp", "The exponential function, ``e`` to this power.", np.exp)
EXPM1, expm1 = _of_one("expm1", "``exp(x) - 1``, exact near 0.", _expm1, like=np.expm1)
FLOOR, floor = _of_one("floor", "The greatest integer that is not greater.", _rounded(np.floor), types=_same)
IMAG, imag = _of_one("imag", "Imaginary part.", lambda x, out: np.copyto(out, x.imag), aligned=False, types=_real_type)
ISFINITE, isfinite = _of_one("isfinite", "True where an element is neither infinite nor NaN.", np.isfinite)
ISINF, isinf = _of_one("isinf", "True where an element is infinite.", np.isinf)
ISNAN, isnan = _of_one("isnan", "True where an element is NaN.", np.isnan)
LOG, log = _of_one("log", "Natural logarithm.", np.log)
LOG10, log10 = _of_one("log10", "Logarithm to the base 10.", np.log10)
LOG1P, log1p = _of_one("log1p", "``log(1 + x)``, exact near 0.", np.log1p)
LOG2, log2 = _of_one("log2", "Logarithm to the base 2.", np.log2)
LOGICAL_NOT, logical_not = _of_one("logical_not", "True where an element is false.", np.logical_not)
NEGATIVE, negative = _of_one("negative", "``-x``.", np.negative)
POSITIVE, positive = _of_one("positive", "``+x``.", np.positive)
REAL, real = _of_one("real", "Real part.", lambda x, out: np.copyto(out, x.real), aligned=False, types=_real_type)
RECIPROCAL, reciprocal = _of_one("reciprocal", "``1 / x``.", np.reciprocal)
ROUND, round = _of_one("round", "The nearest integer; halves go to the even one.", _rounded(np.rint), types=_same)
SIGN, sign = _of_one(
    "sign", "-1, 0 or 1; of complex numbers, the number of magnitude 1 in their direction.", _sign, types=_same
)
SIGNBIT, signbit = _of_one("signbit", "True where the sign bit is set.", np.signbit)
SIN, sin = _of_one("sin", "Sine of radians.", np.sin)
SINH, sinh = _of_one("sinh", "Hyperbolic sine.", np.sinh)
SQRT, sqrt = _of_one("sqrt", "Square root.", np.sqrt)
SQUARE, square = _of_one("square", "``x * x``.", np.square)
TAN, tan = _of_one("tan", "Tangent of radians.", np.tan)
TANH, tanh = _of_one("tanh", "Hyperbolic tangent.", _tanh, like=np.tanh)
TRUNC, trunc = _of_one("trunc", "The integer part.", _rounded(np.trunc), types=_same)

ADD, add = _of_two("add", "``x1 + x2``.", np.add)
ATAN2, atan2 = _of_two("atan2", "The angle of the point ``(x2, x1)``, in radians.", np.arctan2)
BITWISE_AND, bitwise_and = _of_two("bitwise_and", "The bits set in both.", np.bitwise_and)
BITWISE_LEFT_SHIFT, bitwise_left_shift = _of_two("bitwise_left_shift", "The bits moved up.", np.left_shift)
BITWISE_OR, bitwise_or = _of_two("bitwise_or", "The bits set in either.", np.bitwise_or)
BITWISE_RIGHT_SHIFT, bitwise_right_shift = _of_two("bitwise_right_shift", "The bits moved down.", np.right_shift)
BITWISE_XOR, bitwise_xor = _of_two("bitwise_xor", "The bits set in exactly one.", np.bitwise_xor)
COPYSIGN, copysign = _of_two("copysign", "The magnitude of ``x1`` with the sign of ``x2``.", np.copysign)
DIVIDE, divide = _of_two("divide", "``x1 / x2``.", np.true_divide)
EQUAL, equal = _of_two("equal", "``x1 == x2``.", np.equal)
FLOOR_DIVIDE, floor_divide = _of_two("floor_divide", "``x1 / x2``, rounded down.", _floor_divide, like=np.floor_divide)
GREATER, greater = _of_two("greater", "``x1 > x2``.", np.greater)
GREATER_EQUAL, greater_equal = _of_two("greater_equal", "``x1 >= x2``.", np.greater_equal)
HYPOT, hypot = _of_two("hypot", "``sqrt(x1**2 + x2**2)`` without overflow on the way.", np.hypot)
LESS, less = _of_two("less", "``x1 < x2``.", np.less)
LESS_EQUAL, less_equal = _of_two("less_equal", "``x1 <= x2``.", np.less_equal)
LOGADDEXP, logaddexp = _of_two("logaddexp", "``log(exp(x1) + exp(x2))`` without overflow on the way.", np.logaddexp)
LOGICAL_AND, logical_and = _of_two("logical_and", "True where both are true.", np.logical_and)
LOGICAL_OR, logical_or = _of_two("logical_or", "True where one of them is true.", np.logical_or)
LOGICAL_XOR, logical_xor = _of_two("logical_xor", "True where exactly one of them is true.", np.logical_xor)
MAXIMUM, maximum = _of_two("maximum", "The greater one, or NaN.", np.maximum)
MINIMUM, minimum = _of_two("minimum", "The lesser one, or NaN.", np.minimum)
MULTIPLY, multiply = _of_two("multiply", "``x1 * x2``.", np.multiply)
NEXTAFTER, nextafter = _of_two("nextafter", "The number next to ``x1`` towards ``x2``.", np.nextafter)
NOT_EQUAL, not_equal = _of_two("not_equal", "``x1 != x2``.", np.not_equal)
POW, pow = _of_two("pow", "``x1`` to the power of ``x2``.", _power, like=np.power)
REMAINDER, remainder = _of_two("remainder", "The remainder of ``floor_divide``, with the sign of ``x2``.", np.remainder)
SUBTRACT, subtract = _of_two("subtract", "``x1 - x2``.", np.subtract)

WHERE = Elementwise("where", _choose, aligned=False, types=lambda _, x1, x2: np.result_type(x1, x2))
COPY = Elementwise("copy", _copy, types=_same)
#: As maximum and minimum, but for the gradient: at the bound it is the array's.
CLIP_LOW = Elementwise("clip", np.maximum)
CLIP_HIGH = Elementwise("clip", np.minimum)


def where(condition: Array, x1: Operand, x2: Operand, /) -> Array:
    """``x1`` where the condition is true, ``x2`` elsewhere; all three broadcast."""
    chosen = node_of("where", "condition", condition)
    if chosen.dtype != np.bool_:
        raise DTypeError(f"where: condition must be bool, got {chosen.dtype}")
    one, other = pair("where", x1, x2)
    shape = broadcast("where", chosen.shape, one.shape, other.shape)
    return record(WHERE, (chosen, one, other), shape, WHERE.dtype(chosen.dtype, one.dtype, other.dtype))


def clip(x: Array, /, min: Operand | None = None, max: Operand | None = None) -> Array:
    """``x`` kept within bounds, in its own dtype; None leaves a side open."""
    clipped = x
    if min is not None:
        clipped = binary(CLIP_LOW, clipped, min)
    if max is not None:
        clipped = binary(CLIP_HIGH, clipped, max)
    return cast(clipped, node_of("clip", "x", x).dtype) if clipped is not x else unary(COPY, x)
