"""The functions of the standard by family, and what to call them with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

Call = tuple[list[np.ndarray], Callable[..., Any]]
Draw = Callable[[st.DrawFn], Call]

BOOL = ("bool",)
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SIGNED = INTEGERS[:4]
FLOATS = ("float32", "float64")
COMPLEX = ("complex64", "complex128")
REAL = (*INTEGERS, *FLOATS)
NUMERIC = (*REAL, *COMPLEX)
ALL = (*BOOL, *NUMERIC)
KINDS = ((*BOOL,), INTEGERS, FLOATS, COMPLEX)
SPECIAL = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, 2.5, -3.5, 1e-30, 1e30)


def specials(dtype: np.dtype) -> tuple[float, ...]:
    """Special values of a floating dtype, its extremes and subnormal numbers among them."""
    info = np.finfo(dtype)
    extremes = (info.max, info.smallest_normal, info.smallest_subnormal, info.eps)
    return (*SPECIAL, *[float(each) for each in extremes], *[-float(each) for each in extremes])


@st.composite
def arrays(
    draw: st.DrawFn, dtypes: tuple[str, ...] = ALL, shape: Any = None, finite: bool = False, small: bool = False
) -> np.ndarray:
    """An array with special values; ``small`` keeps numbers such that sums and products of some are exact enough."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    if shape is None:
        shape = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    return draw(hnp.arrays(dtype, shape, elements=elements(dtype, finite, small)))


def elements(dtype: np.dtype, finite: bool = False, small: bool = False) -> st.SearchStrategy[Any]:
    if dtype.kind == "b":
        return st.booleans()
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low, high = (max(-3, info.min), 3) if small else (info.min, info.max)
        return st.one_of(st.integers(max(info.min, -3), 3), st.integers(low, high))
    if finite or small:
        real = st.one_of(st.integers(-4, 4).map(float), st.sampled_from((0.5, -1.5, 2.25)))
    else:
        real = st.one_of(st.sampled_from(specials(dtype)), st.floats(-100, 100, width=32))
    return st.builds(complex, real, real) if dtype.kind == "c" else real


@st.composite
def pairs(draw: st.DrawFn, dtypes: tuple[str, ...], mixed: bool = True, small: bool = False) -> list[np.ndarray]:
    """Two arrays that broadcast, of dtypes that the standard promotes."""
    shapes = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=4, min_side=0)).input_shapes
    one = draw(st.sampled_from(dtypes))
    other = draw(st.sampled_from([each for each in dtypes if mixed and promotes(one, each)] or [one]))
    return [draw(arrays((one,), shapes[0], small=small)), draw(arrays((other,), shapes[1], small=small))]


def promotes(one: str, other: str) -> bool:
    kinds = {np.dtype(one).kind, np.dtype(other).kind}
    mixed_signs = kinds == {"i", "u"} and "uint64" in (one, other)
    return not mixed_signs and (len(kinds) == 1 or kinds in ({"i", "u"}, {"f", "c"}))


@st.composite
def dtype_above(draw: st.DrawFn, dtype: np.dtype) -> str | None:
    """A dtype that a sum or product of this one may be formed in, or None."""
    above = [each for each in NUMERIC if promotes(dtype.name, each) and np.result_type(dtype, each) == each]
    return draw(st.one_of(st.none(), st.sampled_from([each for each in above if np.dtype(each).kind == dtype.kind])))


@st.composite
def axes(draw: st.DrawFn, rank: int) -> Any:
    options: list[st.SearchStrategy[Any]] = [st.none()]
    if rank:
        options.append(st.integers(-rank, rank - 1))
        options.append(st.lists(st.integers(0, rank - 1), unique=True, max_size=rank).map(tuple))
    return draw(st.one_of(options))


UNARY = {
    **dict.fromkeys(("abs", "negative", "positive", "sign", "square"), NUMERIC),
    **dict.fromkeys(("ceil", "floor", "trunc"), REAL),
    "round": NUMERIC,
    **dict.fromkeys(
        ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log", "log1p", "log2"),
        (*FLOATS, *COMPLEX),
    ),
    **dict.fromkeys(("log10", "reciprocal", "sin", "sinh", "sqrt", "tan", "tanh"), (*FLOATS, *COMPLEX)),
    **dict.fromkeys(("isfinite", "isinf", "isnan"), NUMERIC),
    **dict.fromkeys(("conj", "real"), NUMERIC),
    "imag": COMPLEX,
    "signbit": FLOATS,
    "logical_not": BOOL,
    "bitwise_invert": (*BOOL, *INTEGERS),
}
BINARY = {
    **dict.fromkeys(("add", "multiply", "subtract"), NUMERIC),
    **dict.fromkeys(("atan2", "copysign", "hypot", "logaddexp"), FLOATS),
    "divide": (*FLOATS, *COMPLEX),
    "nextafter": FLOATS,
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), (*BOOL, *INTEGERS)),
    **dict.fromkeys(("equal", "not_equal"), ALL),
    **dict.fromkeys(("floor_divide", "remainder", "greater", "greater_equal", "less", "less_equal"), REAL),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), BOOL),
    **dict.fromkeys(("maximum", "minimum"), REAL),
}
SAME_DTYPE = ("nextafter",)
