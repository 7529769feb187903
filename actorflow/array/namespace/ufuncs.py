"""The elementwise operations: NumPy's ufuncs, and what the standard wants otherwise where they differ.

The array API standard prefers ``floor(x1 / x2)`` to Python's floor division where an argument is infinite, powers of
-0 and -infinity that do not depend on how they are computed, and the special cases of C99 for complex numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow.array.record.primitives import DType, Elementwise, Value


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


#: Integers with the bits of an element of so many bytes.
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


def _chosen_type(condition: DType, x1: DType, x2: DType) -> DType:  # noqa: ARG001  all inputs have one
    return np.result_type(x1, x2)


def _sign(x: Value, out: Value) -> None:
    """-1, 0 or 1; the sign of a zero is dropped, which NumPy does not promise."""
    if x.dtype.kind == "b":
        np.copyto(out, x)
        return
    np.sign(x, out=out)
    if out.dtype.kind in "fc":
        np.add(out, 0, out=out)


def _floor_divide(x1: Value, x2: Value, out: Value) -> None:
    """As ``floor(x1 / x2)`` for infinities, too: NumPy, like Python, has NaN for ``inf // 2``, -1 for ``1 // -inf``."""
    if out.dtype.kind != "f":
        np.floor_divide(x1, x2, out=out)
        return
    infinite = np.isinf(x1) | np.isinf(x2)
    quotient = np.true_divide(x1, x2) if infinite.any() else None  # ``out`` may be one of the arguments
    np.floor_divide(x1, x2, out=out)
    if quotient is not None:
        np.copyto(out, quotient, where=infinite, casting="same_kind")


def _power(x1: Value, x2: Value, out: Value) -> None:
    """As C99's ``pow`` for square roots of -0 and -infinity, for which NumPy takes ``sqrt``'s results where it can."""
    roots = x2 == 0.5 if out.dtype.kind == "f" else np.False_
    if np.any(roots):
        roots = roots & ((x1 == 0) | (x1 == -np.inf))
        magnitude = np.absolute(x1)
    np.power(x1, x2, out=out)
    if np.any(roots):
        np.copyto(out, magnitude, where=roots, casting="same_kind")


def _expm1(x: Value, out: Value) -> None:
    """For complex numbers as ``exp(x) - 1`` where a part is not finite, and real on the real axis."""
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
EXPM1 = Elementwise("expm1", _expm1, like=np.expm1)
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
TANH = Elementwise("tanh", _tanh, like=np.tanh)
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
FLOOR_DIVIDE = Elementwise("floor_divide", _floor_divide, like=np.floor_divide)
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
POW = Elementwise("pow", _power, like=np.power)
REMAINDER = Elementwise("remainder", np.remainder)
SUBTRACT = Elementwise("subtract", np.subtract)
WHERE = Elementwise("where", _choose, aligned=False, types=_chosen_type)
COPY = Elementwise("copy", _copy, types=_same)
#: As maximum and minimum, but for the gradient: at the bound it is the array's.
CLIP_LOW = Elementwise("clip", np.maximum)
CLIP_HIGH = Elementwise("clip", np.minimum)
