"""Elementwise operations, with broadcasting: each is one row (`actorflow.ops.rows`), for graphs and lazy arrays alike.

The array API standard prefers ``floor(x1 / x2)`` to Python's floor division where an argument is infinite, powers of
-0 and -infinity that do not depend on how they are computed, and the special cases of C99 for complex numbers: where
NumPy differs, the function of a row is one of this module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import DTypeError, GraphError
from actorflow.ops.operation import Application, Grads, Operation, X, apply, blob_of, public_names
from actorflow.ops.rows import (
    ANYTHING,
    BITS,
    BOOL,
    BOOLS,
    FLOATING,
    NUMERIC,
    REAL,
    ZERO,
    DType,
    Elementwise,
    Value,
    binary,
    conjugated,
    fit,
    of_ufunc,
    operation_class,
    real_type,
    slope,
    unary,
)
from actorflow.ops.shaping import broadcast_shape
from actorflow.spec import TensorSpec

# -- what NumPy computes otherwise than the standard wants ----------------------------------------------------------


def _same(dtype: DType) -> DType:
    return dtype


def _copied(x: Value, out: Value) -> None:
    np.copyto(out, x)


def _rounded(ufunc: np.ufunc) -> Any:
    """Rounding leaves integers as they are."""

    def compute(x: Value, out: Value) -> None:
        if x.dtype.kind in "iub":
            np.copyto(out, x)
        else:
            ufunc(x, out=out)

    return compute


def _converted(x: Value, out: Value) -> None:
    """``x`` in the dtype of ``out``; as an integer cut off towards 0, NaN 0, and values too large the nearest one.

    The results of C and NumPy for the latter two differ by processor, by place in an array, and by size.
    """
    if out.dtype.kind not in "iu" or x.dtype.kind not in "fV":
        np.copyto(out, x, casting="unsafe")
        return
    if x.dtype.itemsize == 2:
        x = x.astype(np.float32)
    low, high, least, most = _limits(x.dtype, out.dtype)
    is_inside = not x.size or (np.minimum.reduce(x, None) >= low and np.maximum.reduce(x, None) < high)
    if is_inside:  # neither is so where there is a NaN
        np.copyto(out, x, casting="unsafe")
        return
    is_less, is_more = x < low, x >= high
    np.copyto(out, np.where((x == x) & ~(is_less | is_more), x, 0), casting="unsafe")
    np.copyto(out, least, where=is_less)
    np.copyto(out, most, where=is_more)


@cache
def _limits(given: DType, wanted: DType) -> tuple[Any, Any, Any, Any]:
    """The least floating-point number that an integer can be, the first that is too large, and these integers."""
    limits = np.iinfo(wanted)
    high = given.type(2.0 ** (8 * wanted.itemsize - (wanted.kind == "i")))
    return given.type(limits.min), high, wanted.type(limits.min), wanted.type(limits.max)


#: Integers with the bits of an element, by its bytes.
_INTEGERS = {size: np.dtype(f"i{size}") for size in (1, 2, 4, 8)}


def _choose(condition: Value, a: Value, b: Value, out: Value) -> None:
    bits = _INTEGERS.get(out.itemsize)
    if bits is None or not a.dtype == b.dtype == out.dtype:
        np.copyto(out, b)
        np.copyto(out, a, where=condition)
        return
    # Bits are chosen by masks, without branches: some ten times as fast where the condition has no pattern.
    mask = condition.astype(bits)
    np.negative(mask, out=mask)
    chosen, other = out.view(bits), b.view(bits)
    np.bitwise_xor(a.view(bits), other, out=chosen)
    np.bitwise_and(chosen, mask, out=chosen)
    np.bitwise_xor(chosen, other, out=chosen)


def _sign_of(x: Value, out: Value) -> None:
    """-1, 0 or 1; the sign of a zero is dropped, which NumPy does not promise."""
    if x.dtype.kind == "b":
        np.copyto(out, x)
        return
    np.sign(x, out=out)
    if out.dtype.kind in "fc":
        np.add(out, 0, out=out)


def _floor_quotient(a: Value, b: Value, out: Value) -> None:
    """``floor(a / b)`` for infinities, too: NumPy, like Python, has NaN for ``inf // 2``, -1 for ``1 // -inf``."""
    if out.dtype.kind != "f":
        np.floor_divide(a, b, out=out)
        return
    infinite = np.isinf(a) | np.isinf(b)
    quotient = np.true_divide(a, b) if infinite.any() else None  # ``out`` may be one of the arguments
    np.floor_divide(a, b, out=out)
    if quotient is not None:
        np.copyto(out, quotient, where=infinite, casting="same_kind")


def _truncated_quotient(a: Value, b: Value, out: Value) -> None:
    """The quotient of integers rounded towards 0; by 0 it is 0, as NumPy's."""
    if out.dtype.kind in "fV":
        np.trunc(np.true_divide(a, b), out=out)
        return
    rest = np.fmod(a, b)  # before ``out``, which may be one of the arguments
    np.floor_divide(np.subtract(a, rest), b, out=out)


def _power(a: Value, b: Value, out: Value) -> None:
    """C99's ``pow`` for square roots of -0 and -infinity, for which NumPy takes ``sqrt``'s results where it can."""
    roots = b == 0.5 if out.dtype.kind == "f" else np.False_
    if np.any(roots):
        roots = roots & ((a == 0) | (a == -np.inf))
        magnitude = np.absolute(a)
    np.power(a, b, out=out)
    if np.any(roots):
        np.copyto(out, magnitude, where=roots, casting="same_kind")


def _expm1_of(x: Value, out: Value) -> None:
    """``exp(x) - 1``, for complex numbers literally where a part is not finite, and real on the real axis."""
    if x.dtype.kind != "c":
        np.expm1(x, out=out)
        return
    odd, on_axis = ~np.isfinite(x), x.imag == 0
    limits = np.exp(x) - 1 if odd.any() else None
    along = np.expm1(x.real) + 0.0 if on_axis.any() else None
    imaginary = x.imag.copy() if along is not None else None
    np.expm1(x, out=out)
    if limits is not None:
        np.copyto(out, limits, where=odd)
    if along is not None and imaginary is not None:
        np.copyto(out.real, along, where=on_axis)
        np.copyto(out.imag, imaginary, where=on_axis)


def _tanh_of(x: Value, out: Value) -> None:
    """For complex numbers, the zero in ``±1 ± 0j`` at infinity has the sign of the imaginary part."""
    if x.dtype.kind != "c":
        np.tanh(x, out=out)
        return
    infinite = np.isinf(x.real) & np.isfinite(x.imag)
    zeros = np.copysign(0.0, x.imag) if np.any(infinite) else None
    np.tanh(x, out=out)
    if zeros is not None:
        np.copyto(out.imag, zeros, where=infinite, casting="same_kind")


# -- parts of rules ---------------------------------------------------------------------------------------------------


def _acosh_slope(x: Any) -> Any:
    if x.dtype.kind == "c":  # one root of the product would be on another branch
        return 1.0 / (sqrt(x - 1.0) * sqrt(x + 1.0))
    return 1.0 / sqrt(square(x) - 1.0)


def _of_sign(g: Any, x: Any, y: Any) -> Any:
    """On the unit circle only the part along it counts."""
    if x.dtype.kind != "c":
        return None
    size = absolute(x)
    turn = imag(conj(y) * g) / where(equal(size, 0.0), 1.0, size)
    return y * (turn * 1j)


def _by_base(g: Any, a: Any, b: Any) -> Any:
    """0 where the exponent is 0, as PyTorch's."""
    is_flat = equal(b, 0.0 if b.dtype.kind in "fc" else 0)
    return g * conjugated(where(is_flat, 0, b) * power(a, where(is_flat, 0, b - 1)))  # which is 1 of infinity, too


def _by_exponent(g: Any, a: Any, b: Any, y: Any) -> Any:
    """0 where the base is 0 and the exponent is not negative, as PyTorch's."""
    positive_ = greater_equal(real(b) if b.dtype.kind == "c" else b, 0)
    is_zero = logical_and(equal(a, 0), positive_)
    base = a if a.dtype.kind in "fcV" else cast(a, g.dtype)
    return g * conjugated(where(is_zero, 0.0, y * log(where(is_zero, 1.0, base))))


def _shared(g: Any, a: Any, b: Any) -> Any:
    return where(equal(a, b), g * 0.5, g)


def _of_arctan2(g: Any, a: Any, b: Any) -> Any:
    """0 at the origin, as PyTorch's."""
    size = square(a) + square(b)
    return g / where(equal(size, 0.0), 1.0, size)


# -- one operand ------------------------------------------------------------------------------------------------------


# fmt: off
Copy, copy = unary("copy", "A copy.", _copied, lambda g, x: g, kinds=ANYTHING, types=_same,
    example=("[1, 2]", "[1 2]"))
Negative, negative = unary("negative", "The negative: ``-x``.", np.negative, lambda g, x: -g, kinds="ifcV", cuda="-x",
    cuda_kinds="ifc",
    example=("[1.0, -2.0]", "[-1.  2.]"))
Positive, positive = unary("positive", "The operand itself: ``+x``.", np.positive, lambda g, x: g, kinds=NUMERIC,
    cuda="x",
    example=("[1.0, -2.0]", "[ 1. -2.]"))
Absolute, absolute = unary("absolute", "The absolute value; of complex numbers their magnitude.", np.absolute,
    lambda g, x: as_dtype(g, x.dtype) * sign(x), kinds=NUMERIC, result=real_type, cuda="x < T(0) ? T(-x) : x",
    example=("[-3.0, 3 + 4j]", "[3. 5.]"))
Sign, sign = unary("sign",
    "-1, 0 or 1, NaN where ``x`` is; of complex numbers, the number of magnitude 1 in their direction.", _sign_of,
    _of_sign, kinds=NUMERIC, types=_same, cuda="x > T(0) ? T(1) : x < T(0) ? T(-1) : x",
    example=("[-2.5, 0.0, 7.0]", "[-1.  0.  1.]"))
Square, square = unary("square", "The square: ``x * x``.", np.square, slope(lambda x: 2 * x), kinds=NUMERIC,
    cuda="x * x", cuda_kinds="iufc",
    example=("[-3, 4]", "[ 9 16]"))
Reciprocal, reciprocal = unary("reciprocal", "The reciprocal: ``1 / x``; infinite for 0.", np.reciprocal,
    slope(lambda x, y: -square(y)), cuda="W(1) / W(x)",
    example=("[4.0, 0.0]", "[0.25  inf]"))
Sqrt, sqrt = unary("sqrt", "The square root; NaN of negative numbers.", np.sqrt, slope(lambda x, y: 0.5 / y),
    cuda="sqrt(W(x))",
    example=("[9.0, 2.0]", "[3.         1.41421356]"))
Exp, exp = unary("exp", "The exponential: ``e ** x``.", np.exp, slope(lambda x, y: y), cuda="exp(W(x))",
    example=("[0.0, 1.0]", "[1.         2.71828183]"))
Expm1, expm1 = unary("expm1", "``exp(x) - 1``, exact near 0.", _expm1_of, slope(lambda x, y: y + 1.0),
    types=of_ufunc(np.expm1), cuda="expm1(W(x))",
    example=("[0.0, 1e-20]", "[0.e+00 1.e-20]"))
Log, log = unary("log", "The natural logarithm; minus infinity of 0, NaN of negative numbers.", np.log,
    lambda g, x: g / conjugated(x), cuda="log(W(x))",
    example=("[1.0, 0.0]", "[  0. -inf]"))
Log1p, log1p = unary("log1p", "``log(1 + x)``, exact near 0.", np.log1p, slope(lambda x: 1.0 / (1.0 + x)),
    cuda="log1p(W(x))",
    example=("[0.0, 1e-20]", "[0.e+00 1.e-20]"))
Log2, log2 = unary("log2", "The logarithm to the base 2.", np.log2, slope(lambda x: 1.0 / math.log(2) / x),
    cuda="log2(W(x))",
    example=("[8.0, 0.5]", "[ 3. -1.]"))
Log10, log10 = unary("log10", "The logarithm to the base 10.", np.log10, slope(lambda x: 1.0 / math.log(10) / x),
    cuda="log10(W(x))",
    example=("[1000.0, 0.1]", "[ 3. -1.]"))
Sin, sin = unary("sin", "The sine of radians.", np.sin, slope(lambda x: cos(x)), cuda="sin(W(x))",
    example=("[0.0, np.pi / 2]", "[0. 1.]"))
Cos, cos = unary("cos", "The cosine of radians.", np.cos, slope(lambda x: -sin(x)), cuda="cos(W(x))",
    example=("[0.0, 1.0]", "[1.         0.54030231]"))
Tan, tan = unary("tan", "The tangent of radians.", np.tan, slope(lambda x, y: 1.0 + square(y)), cuda="tan(W(x))",
    example=("[0.0, 1.0]", "[0.         1.55740772]"))
Asin, asin = unary("asin", "The inverse sine, in radians.", np.arcsin, slope(lambda x: 1.0 / sqrt(1.0 - square(x))),
    cuda="asin(W(x))",
    example=("[0.0, 1.0]", "[0.         1.57079633]"))
Acos, acos = unary("acos", "The inverse cosine, in radians.", np.arccos, slope(lambda x: -1.0 / sqrt(1.0 - square(x))),
    cuda="acos(W(x))",
    example=("[0.0, 1.0]", "[1.57079633 0.        ]"))
Atan, atan = unary("atan", "The inverse tangent, in radians.", np.arctan, slope(lambda x: 1.0 / (1.0 + square(x))),
    cuda="atan(W(x))",
    example=("[1.0, np.inf]", "[0.78539816 1.57079633]"))
Sinh, sinh = unary("sinh", "The hyperbolic sine.", np.sinh, slope(lambda x: cosh(x)), cuda="sinh(W(x))",
    example=("[0.0, 1.0]", "[0.         1.17520119]"))
Cosh, cosh = unary("cosh", "The hyperbolic cosine.", np.cosh, slope(lambda x: sinh(x)), cuda="cosh(W(x))",
    example=("[0.0, 1.0]", "[1.         1.54308063]"))
Tanh, tanh = unary("tanh", "The hyperbolic tangent.", _tanh_of, slope(lambda x, y: 1.0 - square(y)),
    types=of_ufunc(np.tanh), cuda="tanh(W(x))",
    example=("[0.0, 1.0, np.inf]", "[0.         0.76159416 1.        ]"))
Asinh, asinh = unary("asinh", "The inverse hyperbolic sine.", np.arcsinh, slope(lambda x: 1.0 / sqrt(1.0 + square(x))),
    cuda="asinh(W(x))",
    example=("[0.0, 1.0]", "[0.         0.88137359]"))
Acosh, acosh = unary("acosh", "The inverse hyperbolic cosine.", np.arccosh, slope(_acosh_slope), cuda="acosh(W(x))",
    example=("[1.0, 2.0]", "[0.        1.3169579]"))
Atanh, atanh = unary("atanh", "The inverse hyperbolic tangent.", np.arctanh, slope(lambda x: 1.0 / (1.0 - square(x))),
    cuda="atanh(W(x))",
    example=("[0.0, 0.5]", "[0.         0.54930614]"))
Erf, erf = unary("erf", "The error function.", None, slope(lambda x: math.sqrt(4 / math.pi) * exp(-square(x))),
    kinds="fV", cuda="erf(W(x))",
    example=("[0.0, 1.0]", "[0.         0.84270079]"))
Deviation, deviation = unary("deviation", "The square root of a variance: its gradient at 0, of equal numbers, is 0.",
    np.sqrt, lambda g, x, y: where(equal(y, 0), 0.0, g * 0.5 / where(equal(y, 0), 1.0, y)), kinds="fV",
    cuda="sqrt(W(x))",
    example=("[0.0, 4.0]", "[0. 2.]"))
Floor, floor = unary("floor", "The largest integer that is not more.", _rounded(np.floor), ZERO, kinds=REAL,
    types=_same, cuda="floor(W(x))", cuda_kinds="f",
    example=("[-1.5, 1.5]", "[-2.  1.]"))
Ceil, ceil = unary("ceil", "The smallest integer that is not less.", _rounded(np.ceil), ZERO, kinds=REAL, types=_same,
    cuda="ceil(W(x))", cuda_kinds="f",
    example=("[-1.5, 1.5]", "[-1.  2.]"))
Round, round = unary("round", "The nearest integer; of two that are equally near, the even one.", _rounded(np.rint),
    ZERO, kinds=NUMERIC, types=_same, cuda="rint(W(x))", cuda_kinds="f",
    example=("[0.5, 1.5, 2.6]", "[0. 2. 3.]"))
Trunc, trunc = unary("trunc", "The integer part.", _rounded(np.trunc), ZERO, kinds=REAL, types=_same,
    cuda="trunc(W(x))", cuda_kinds="f",
    example=("[-1.5, 1.5]", "[-1.  1.]"))
Real, real = unary("real", "The real part.", lambda x, out: np.copyto(out, x.real), lambda g, x: g, kinds=NUMERIC,
    result=real_type, types=real_type, aligned=False,
    example=("[1 + 2j, 3.0]", "[1. 3.]"))
Imag, imag = unary("imag", "The imaginary part.", lambda x, out: np.copyto(out, x.imag),
    lambda g, x: as_dtype(g, x.dtype) * 1j if x.dtype.kind == "c" else None, kinds=NUMERIC, result=real_type,
    types=real_type, aligned=False,
    example=("[1 + 2j, 3.0]", "[2. 0.]"))
Conj, conj = unary("conj", "The complex conjugate.", np.conjugate, lambda g, x: conjugated(g), kinds=NUMERIC,
    example=("[1 + 2j, 3.0]", "[1.-2.j 3.-0.j]"))
IsFinite, isfinite = unary("isfinite", "True where an element is neither infinite nor NaN.", np.isfinite,
    kind="IsFinite", kinds=NUMERIC, result=BOOL, cuda="isfinite(W(x))", cuda_kinds="f",
    example=("[1.0, np.inf, np.nan]", "[ True False False]"))
IsInf, isinf = unary("isinf", "True where an element is infinite.", np.isinf, kind="IsInf", kinds=NUMERIC, result=BOOL,
    cuda="isinf(W(x))", cuda_kinds="f",
    example=("[1.0, -np.inf, np.nan]", "[False  True False]"))
IsNan, isnan = unary("isnan", "True where an element is NaN.", np.isnan, kind="IsNan", kinds=NUMERIC, result=BOOL,
    cuda="isnan(W(x))", cuda_kinds="f",
    example=("[1.0, np.inf, np.nan]", "[False False  True]"))
SignBit, signbit = unary("signbit", "True where the sign bit is set.", np.signbit, kind="SignBit", kinds="fV",
    result=BOOL, cuda="signbit(W(x))",
    example=("[-1.0, -0.0, 0.0]", "[ True  True False]"))
LogicalNot, logical_not = unary("logical_not", "True where an element is false.", np.logical_not, kinds=BOOLS,
    cuda="!x",
    example=("[True, False]", "[False  True]"))
BitwiseInvert, bitwise_invert = unary("bitwise_invert", "Each bit inverted; of booleans, their opposite.", np.invert,
    kinds=BITS, cuda="~x", cuda_kinds="iu",
    example=("[0, 5]", "[-1 -6]"))

# -- two operands -----------------------------------------------------------------------------------------------------

Subtract, subtract = binary("subtract", "The difference: ``a - b``.", np.subtract, lambda g, a, b: g,
    lambda g, a, b: -g, kinds=NUMERIC, cuda="a - b", cuda_kinds="iufc",
    example=("[5, 7]", "[1, 10]", "[ 4 -3]"))
Multiply, multiply = binary("multiply", "The product: ``a * b``.", np.multiply, lambda g, a, b: g * conjugated(b),
    lambda g, a, b: g * conjugated(a), kinds=NUMERIC, cuda="a * b", cuda_kinds="iufc",
    example=("[1.0, 2.0]", "3", "[3. 6.]"))
Divide, divide = binary("divide", "The quotient: ``a / b``; by 0 it is infinite or NaN.", np.true_divide,
    lambda g, a, b: g / conjugated(b), lambda g, a, b, y: -g / conjugated(b) * conjugated(y), cuda="W(a) / W(b)",
    example=("[1.0, -1.0]", "[4.0, 0.0]", "[0.25 -inf]"))
FloorDivide, floor_divide = binary("floor_divide", "The quotient rounded down.", _floor_quotient, ZERO, ZERO,
    kinds=REAL, types=of_ufunc(np.floor_divide),
    example=("[7, -7]", "2", "[ 3 -4]"))
TruncDivide, trunc_divide = binary("trunc_divide", "The quotient rounded towards 0.", _truncated_quotient, ZERO, ZERO,
    kinds=REAL, types=of_ufunc(np.floor_divide),
    example=("[7, -7]", "2", "[ 3 -3]"))
Remainder, remainder = binary("remainder", "The remainder of `floor_divide`, with the sign of ``b``.", np.remainder,
    lambda g, a, b: g, lambda g, a, b: -g * floor_divide(a, b), kinds=REAL,
    example=("[7, -7]", "3", "[1 2]"))
Fmod, fmod = binary("fmod", "The remainder of `trunc_divide`, with the sign of ``a``.", np.fmod, lambda g, a, b: g,
    lambda g, a, b: -g * trunc_divide(a, b), kinds=REAL, cuda="fmod(W(a), W(b))", cuda_kinds="f",
    example=("[7, -7]", "3", "[ 1 -1]"))
Power, power = binary("power", "The power: ``a ** b``; integers are raised to powers that are not negative.", _power,
    _by_base, _by_exponent, kinds=NUMERIC, types=of_ufunc(np.power), cuda="pow(W(a), W(b))", cuda_kinds="f",
    example=("[2.0, 9.0]", "[3.0, 0.5]", "[8. 3.]"))
Maximum, maximum = binary("maximum", "The larger one; NaN if one is. Equal elements share the gradient by halves.",
    np.maximum, lambda g, a, b: where(less(a, b), 0.0, _shared(g, a, b)),
    lambda g, a, b: where(less(b, a), 0.0, _shared(g, a, b)), kinds=REAL, cuda="a > b || a != a ? a : b",
    example=("[1.0, 4.0, np.nan]", "2", "[ 2.  4. nan]"))
Minimum, minimum = binary("minimum", "The smaller one; NaN if one is. Equal elements share the gradient by halves.",
    np.minimum, lambda g, a, b: where(less(b, a), 0.0, _shared(g, a, b)),
    lambda g, a, b: where(less(a, b), 0.0, _shared(g, a, b)), kinds=REAL, cuda="a < b || a != a ? a : b",
    example=("[1.0, 4.0, np.nan]", "2", "[ 1.  2. nan]"))
AtLeast, at_least = binary("at_least", "``maximum``, whose gradient at the bound ``b`` is all that of ``a``.",
    np.maximum, lambda g, a, b, y: where(equal(a, y), g, 0.0), lambda g, a, b, y: where(equal(a, y), 0.0, g),
    kinds=REAL, cuda="a > b || a != a ? a : b",
    example=("[1.0, 4.0]", "2", "[2. 4.]"))
AtMost, at_most = binary("at_most", "``minimum``, whose gradient at the bound ``b`` is all that of ``a``.", np.minimum,
    lambda g, a, b, y: where(equal(a, y), g, 0.0), lambda g, a, b, y: where(equal(a, y), 0.0, g), kinds=REAL,
    cuda="a < b || a != a ? a : b",
    example=("[1.0, 4.0]", "2", "[1. 2.]"))
Atan2, atan2 = binary("atan2", "The angle of the point ``(b, a)``, in radians.", np.arctan2,
    lambda g, a, b: _of_arctan2(g, a, b) * b, lambda g, a, b: -_of_arctan2(g, a, b) * a, kinds="fV",
    cuda="atan2(W(a), W(b))",
    example=("[1.0, -1.0]", "[0.0, -1.0]", "[ 1.57079633 -2.35619449]"))
Hypot, hypot = binary("hypot",
    "``sqrt(a ** 2 + b ** 2)`` without overflow on the way; the gradient at the origin is 0.", np.hypot,
    lambda g, a, b, y: g / where(equal(y, 0.0), 1.0, y) * a, lambda g, a, b, y: g / where(equal(y, 0.0), 1.0, y) * b,
    kinds="fV", cuda="hypot(W(a), W(b))",
    example=("[3.0, 1e200]", "[4.0, 0.0]", "[5.e+000 1.e+200]"))
LogAddExp, logaddexp = binary("logaddexp", "``log(exp(a) + exp(b))`` without overflow on the way.", np.logaddexp,
    lambda g, a, b: g / (1.0 + exp(b - a)), lambda g, a, b: g / (1.0 + exp(a - b)), kind="LogAddExp", kinds="fV",
    cuda="a == b ? W(a) + W(0.6931471805599453) : (W(a) > W(b) ? W(a) : W(b)) + log1p(exp(-fabs(W(a) - W(b))))",
    example=("[0.0, 1000.0]", "[0.0, 1000.0]", "[6.93147181e-01 1.00069315e+03]"))
CopySign, copysign = binary("copysign", "The magnitude of ``a`` with the sign of ``b``.", np.copysign,
    lambda g, a, b, y: g * where(equal(a, 0.0), 0.0, sign(a) * sign(y)), ZERO, kind="CopySign", kinds="fV",
    cuda="copysign(W(a), W(b))",
    example=("[1.0, -2.0]", "[-3.0, 0.0]", "[-1.  2.]"))
NextAfter, nextafter = binary("nextafter", "The number next to ``a`` towards ``b``.", np.nextafter, kind="NextAfter",
    kinds="fV",
    example=("[0.0]", "[1.0]", "[5.e-324]"))
Equal, equal = binary("equal", "True where both are equal.", np.equal, kinds=ANYTHING, result=BOOL, cuda="a == b",
    cuda_kinds="biufc",
    example=("[1, 2, 3]", "[3, 2, 1]", "[False  True False]"))
NotEqual, not_equal = binary("not_equal", "True where they differ.", np.not_equal, kinds=ANYTHING, result=BOOL,
    cuda="a != b", cuda_kinds="biufc",
    example=("[1, 2, 3]", "[3, 2, 1]", "[ True False  True]"))
Less, less = binary("less", "True where ``a < b``.", np.less, kinds=REAL, result=BOOL, cuda="a < b",
    example=("[1, 2, 3]", "2", "[ True False False]"))
LessEqual, less_equal = binary("less_equal", "True where ``a <= b``.", np.less_equal, kinds=REAL, result=BOOL,
    cuda="a <= b",
    example=("[1, 2, 3]", "2", "[ True  True False]"))
Greater, greater = binary("greater", "True where ``a > b``.", np.greater, kinds=REAL, result=BOOL, cuda="a > b",
    example=("[1, 2, 3]", "2", "[False False  True]"))
GreaterEqual, greater_equal = binary("greater_equal", "True where ``a >= b``.", np.greater_equal, kinds=REAL,
    result=BOOL, cuda="a >= b",
    example=("[1, 2, 3]", "2", "[False  True  True]"))
LogicalAnd, logical_and = binary("logical_and", "True where both are true.", np.logical_and, kinds=BOOLS, cuda="a && b",
    example=("[True, True, False]", "[True, False, False]", "[ True False False]"))
LogicalOr, logical_or = binary("logical_or", "True where one of them is true.", np.logical_or, kinds=BOOLS,
    cuda="a || b",
    example=("[True, True, False]", "[True, False, False]", "[ True  True False]"))
LogicalXor, logical_xor = binary("logical_xor", "True where exactly one of them is true.", np.logical_xor, kinds=BOOLS,
    cuda="a != b",
    example=("[True, True, False]", "[True, False, False]", "[False  True False]"))
BitwiseAnd, bitwise_and = binary("bitwise_and", "The bits set in both.", np.bitwise_and, kinds=BITS, cuda="a & b",
    cuda_kinds="biu",
    example=("[12, 5]", "4", "[4 4]"))
BitwiseOr, bitwise_or = binary("bitwise_or", "The bits set in either.", np.bitwise_or, kinds=BITS, cuda="a | b",
    cuda_kinds="biu",
    example=("[12, 5]", "2", "[14  7]"))
BitwiseXor, bitwise_xor = binary("bitwise_xor", "The bits set in exactly one.", np.bitwise_xor, kinds=BITS,
    cuda="a ^ b", cuda_kinds="biu",
    example=("[12, 5]", "4", "[8 1]"))
BitwiseLeftShift, bitwise_left_shift = binary("bitwise_left_shift", "The bits moved up.", np.left_shift, kinds="iu",
    cuda="a << b",
    example=("[1, 3]", "4", "[16 48]"))
BitwiseRightShift, bitwise_right_shift = binary("bitwise_right_shift", "The bits moved down.", np.right_shift,
    kinds="iu", cuda="a >> b",
    example=("[16, 7]", "1", "[8 3]"))
# fmt: on

# -- more operands, and parameters ------------------------------------------------------------------------------------

Where = operation_class(
    "where",
    "``a`` where the condition holds, else ``b``.",
    _choose,
    None,
    lambda g, condition, a, b: where(condition, g, 0.0),
    lambda g, condition, a, b: where(condition, 0.0, g),
    arguments=("condition", "a", "b"),
    kinds=ANYTHING,
    types=lambda _, a, b: np.result_type(a, b),
    cuda="condition ? a : b",
    cuda_kinds="biufc",
    aligned=False,
    conditions=1,
    module=__name__,
    example=("[True, False]", "[1.0, 2.0]", "0", "[1. 0.]"),
)


_WHERE = Where()


def where(condition: X, a: X | complex, b: X | complex, /, name: str | None = None) -> X:
    """Elements of ``a`` where a condition holds, of ``b`` elsewhere.

    Args:
        condition: Any shape, bool.
        a: A shape that broadcasts with ``condition``, any dtype; a number has the dtype of ``b``.
        b: Likewise, the dtype of ``a``; or a number.
    Returns:
        Blob or array of the common shape, and the dtype of ``a``.
    Raises:
        ShapeError, DTypeError: if the operands do not fit.
    Gradient: da = g where the condition holds, else 0; db the other way round; summed over broadcast axes.
    Source: `numpy.where`.
    Example:
        >>> x = xp.asarray([-1.0, 2.0, np.nan])
        >>> af.ops.where(x > 0, x, 0.0)
        Array([0., 2., 0.], dtype=float64)
    """
    made: X = apply(_WHERE, condition, a, b, name=name)
    return made


def _summed(kind: str, kinds: str, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    first = inputs[0]
    if first.dtype.kind not in kinds:
        raise DTypeError(f"{kind}: terms[0] must be {'numeric' if kinds == NUMERIC else 'floating'}, got {first}")
    if all(spec == first for spec in inputs):
        return (first,)
    for i, spec in enumerate(inputs):
        if spec.dtype != first.dtype:
            raise DTypeError(f"{kind}: terms[{i}] must have terms[0]'s dtype {first.dtype}, got {spec}")
    shape = broadcast_shape(kind, **{f"terms[{i}]": spec for i, spec in enumerate(inputs)})
    return (TensorSpec(shape, first.dtype),)


class Sum(Elementwise):
    """``y = terms[0] + terms[1] + ...``, added in this order; see `add`. The sum along axes is `ReduceSum`."""

    arguments = ("*terms",)
    function_name = "add"
    function = staticmethod(np.add)
    kinds = NUMERIC

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return _summed("Sum", NUMERIC, inputs)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [fit(grads[0], x) if want else None for x, want in zip(op.inputs, wanted, strict=True)]


@dataclass(frozen=True)
class WeightedSum(Elementwise):
    """``y = weights[0] * terms[0] + weights[1] * terms[1] + ...``, added in this order; see `weighted_sum`."""

    arguments = ("*terms",)
    function_name = "weighted_sum"

    weights: tuple[float, ...]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if len(self.weights) != len(inputs):
            raise GraphError(f"WeightedSum: give a weight for each of {len(inputs)} terms, got {len(self.weights)}")
        return _summed("WeightedSum", FLOATING, inputs)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        terms = zip(op.inputs, self.weights, wanted, strict=True)
        return [scale(fit(grads[0], x), weight) if want else None for x, weight, want in terms]


_SUM = Sum()


def add(*terms: X | complex, name: str | None = None) -> X:
    """The sum of operands, added in the given order.

    Args:
        terms: One or more of shapes that broadcast and one numeric dtype; numbers have that dtype.
    Returns:
        Blob or array of the common shape and their dtype.
    Raises:
        ShapeError, DTypeError: if the terms do not fit.
    Gradient: g for each term, summed over broadcast axes.
    Source: Purine2 ``Sum``.
    Example:
        >>> a, b = xp.asarray([1, 2]), xp.asarray([[10], [20]])
        >>> af.ops.add(a, b, 100)
        Array([[111, 112],
               [121, 122]], dtype=int64)
    """
    made: X = apply(_SUM, *terms, name=name)
    return made


def weighted_sum(terms: Sequence[X], weights: Sequence[float], name: str | None = None) -> X:
    """The sum of operands times constants, added in the given order.

    Args:
        terms: One or more of shapes that broadcast and one floating dtype.
        weights: A constant for each.
    Returns:
        Blob or array of the common shape and their dtype.
    Raises:
        GraphError: if there is not one weight for each term.
        ShapeError, DTypeError: if the terms do not fit.
    Gradient: its weight times g for each term, summed over broadcast axes.
    Source: Purine2 ``WeightedSum``.
    Example:
        >>> a, b = xp.asarray([1.0, 2.0]), xp.asarray([10.0, 20.0])
        >>> af.ops.weighted_sum([a, b], [0.5, 0.25])
        Array([3., 6.], dtype=float64)
    """
    y: X = apply(WeightedSum(tuple([float(weight) for weight in weights])), *terms, name=name)
    return y


def average(*terms: X, name: str | None = None) -> X:
    """The average of operands; the mean of one along axes is `actorflow.ops.mean`.

    Args:
        terms: One or more of shapes that broadcast and one floating dtype.
    Returns:
        Blob or array of the common shape and their dtype.
    Raises:
        GraphError: if there are no terms.
        ShapeError, DTypeError: if they do not fit.
    Gradient: an equal share of g for each term, summed over broadcast axes.
    Source: Purine2 ``Average``.
    Example:
        >>> af.ops.average(xp.asarray([1.0, 2.0]), xp.asarray([3.0, 6.0]))
        Array([2., 4.], dtype=float64)
    """
    return weighted_sum(terms, [1.0 / len(terms) for _ in terms], name=name or "average")


Scale = operation_class(
    "scale",
    "The operand times a constant.",
    lambda x, out, factor: np.multiply(x, factor, out=out),
    lambda g, x, *, factor: scale(g, factor),
    cuda="x * T(factor)",
    parameters={"factor": 1.0},
    module=__name__,
)


def scale(x: X, factor: float, name: str | None = None) -> X:
    """An operand, floating, times a constant.

    Args:
        x: Any shape, floating.
        factor: A number.
    Returns:
        Blob or array of the type of ``x``.
    Raises:
        DTypeError: if ``x`` is not floating.
    Gradient: g times the factor.
    Source: Purine2 ``Scale``.
    Example:
        >>> af.ops.scale(xp.asarray([1.0, 2.0]), 10)
        Array([10., 20.], dtype=float64)
    """
    return blob_of(Scale(factor), x, name=name)


def clip(x: X, low: X | float | None = None, high: X | float | None = None, name: str | None = None) -> X:
    """Values within bounds: ``min(max(x, low), high)``.

    Args:
        x: Any shape, integer or floating.
        low: Least value: a number, or a blob or array that broadcasts with ``x``; None for no bound.
        high: Largest value, likewise.
    Returns:
        Blob or array of the dtype of ``x``.
    Raises:
        GraphError: if ``low`` is a number more than that of ``high``.
        ShapeError, DTypeError: if the bounds do not fit.
    Gradient: g where low <= x <= high, else 0; for a bound g where it is the result and ``x`` is not.
    Source: `numpy.clip`.
    Example:
        >>> af.ops.clip(xp.asarray([-5.0, 0.5, 5.0]), -1.0, 1.0)
        Array([-1. ,  0.5,  1. ], dtype=float64)
    """
    if isinstance(low, int | float) and isinstance(high, int | float) and not low <= high:
        raise GraphError(f"clip: low must not be more than high, got {low} and {high}")
    if low is None and high is None:
        return copy(x, name=name or "clip")
    y = x
    if low is not None:
        y = at_least(y, low, name=(name or "clip") if high is None else None)
    if high is not None:
        y = at_most(y, high, name=name or "clip")
    return y


@dataclass(frozen=True)
class Cast(Elementwise):
    """``y = x`` in another dtype; see `cast`."""

    function_name = "astype"
    aligned = False
    rules = (lambda g, x, *, dtype: g,)

    dtype: DType

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    @staticmethod
    def function(x: Value, out: Value, dtype: DType) -> None:  # noqa: ARG004  that of ``out``
        """Convert the elements."""
        _converted(x, out)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if inputs[0].dtype.hasobject:
            raise DTypeError(f"Cast: x must be of numbers, got {inputs[0]}")
        return (TensorSpec(inputs[0].shape, self.dtype),)


def cast(x: X, dtype: npt.DTypeLike, *, name: str | None = None) -> X:
    """``x`` in another dtype, rounded or cut off as NumPy's ``astype`` does.

    An integer that is made of a floating-point number out of its range is the nearest one there is, and 0 of NaN, on
    all devices, alone and in an array; NumPy's results for these differ by processor.

    Args:
        x: Any shape, any dtype of numbers.
        dtype: The dtype of the result.
    Returns:
        Blob or array of the shape of ``x``.
    Raises:
        DTypeError: if NumPy does not know the dtype.
    Gradient: g in the dtype of ``x``, where both are floating.
    Source: `numpy.ndarray.astype`.
    Example:
        >>> af.ops.cast(xp.asarray([1.9, -1.9]), "int32")
        Array([ 1, -1], dtype=int32)
    """
    return blob_of(Cast(TensorSpec.of((), dtype).dtype), x, name=name)


def as_dtype(x: X, dtype: DType) -> X:
    """An operand in a dtype; itself if it has that."""
    return x if x.dtype == dtype else cast(x, dtype)


class Dummy(Operation):
    """``y = x``, once everything in ``after`` has been computed; see `dummy`."""

    arguments = ("x", "*after")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return inputs[:1]

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [grads[0] if wanted[0] else None, *[None] * (len(wanted) - 1)]


def dummy(x: X, *after: X, name: str | None = None) -> X:
    """An operand, once others have been computed: nothing but an order.

    Args:
        x: Any shape and dtype.
        after: One or more of any type, of which only the end is waited for.
    Returns:
        One of the type of ``x``; its readers run after the producers of ``after``. On the CPU nothing is copied
        where nothing else reads ``x``.
    Raises:
        GraphError: if ``after`` is missing.
    Gradient: dx = g; none for ``after``.
    Source: Purine2 ``Dummy``.
    Example:
        >>> graph = af.Graph("order")
        >>> x, y = graph.blob("x", shape=1), graph.blob("y", shape=1)
        >>> later = af.ops.dummy(x, af.ops.exp(y))  # x, once exp(y) is there
        >>> print(graph.run_sync({x: [1], y: [2]})[later])
        [1.]
    """
    return blob_of(Dummy(), x, *after, name=name)


def plus(*terms: X) -> X:
    """The sum of one or more operands."""
    return terms[0] if len(terms) == 1 else add(*terms)


def scaled(x: X, factor: float) -> X:
    """An operand times a constant."""
    return x if factor == 1 else scale(x, factor)


if not TYPE_CHECKING:  # which takes all public names
    __all__ = public_names(  # noqa: PLE0605
        globals(), without=("as_dtype", "plus", "scaled")
    )
