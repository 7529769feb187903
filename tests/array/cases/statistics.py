"""Statistical, searching, sorting and set functions."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

from tests.array.cases.registry import CASES, call, case, nonempty
from tests.array.families import (
    ALL,
    BOOL,
    COMPLEX,
    FLOATS,
    INTEGERS,
    NUMERIC,
    REAL,
    Call,
    arrays,
    axes,
    dtype_above,
    pairs,
)


def _reduction(name: str, dtypes: tuple[str, ...], **options: Any) -> None:
    def draw(draw: st.DrawFn) -> Call:
        x = draw(nonempty(dtypes, small=True))
        axis, keepdims = draw(axes(x.ndim)), draw(st.booleans())
        return call([x], lambda xp, x: getattr(xp, name)(x, axis=axis, keepdims=keepdims, **options))

    CASES["_".join([name, *options])] = draw


for _name in ("sum", "prod"):
    _reduction(_name, NUMERIC)
for _name in ("max", "min"):
    _reduction(_name, REAL)
_reduction("mean", (*FLOATS, *COMPLEX))
for _name in ("std", "var"):
    _reduction(_name, FLOATS)
for _name in ("all", "any", "count_nonzero"):
    _reduction(_name, ALL)


def _named(xp: Any, dtype: str | None) -> Any:
    return None if dtype is None else getattr(xp, dtype)


def _accumulated(name: str) -> None:
    def draw(draw: st.DrawFn) -> Call:
        x = draw(nonempty(NUMERIC, small=True))
        axis, dtype = draw(axes(x.ndim)), draw(dtype_above(x.dtype))
        return call([x], lambda xp, x: getattr(xp, name)(x, axis=axis, dtype=_named(xp, dtype)))

    CASES[f"{name}_to"] = draw


_accumulated("sum")
_accumulated("prod")


@case
def no_elements(draw: st.DrawFn) -> Call:
    x = draw(arrays(NUMERIC, draw(st.sampled_from(((0,), (2, 0), (0, 3))))))
    axis = draw(st.sampled_from((None, 0)))
    names = ("sum", "prod", "all", "any")
    return call([x], lambda xp, x: tuple(getattr(xp, name)(x, axis=axis) for name in names))


@case
def spread_corrected(draw: st.DrawFn) -> Call:
    x = draw(arrays(FLOATS, (draw(st.integers(3, 6)), 2), small=True))
    correction, keepdims = draw(st.sampled_from((0, 1, 0.5, 2.0))), draw(st.booleans())

    def spread(xp: Any, x: Any) -> Any:
        found = xp.var(x, axis=0, correction=correction, keepdims=keepdims)
        return found, xp.std(x, axis=0, correction=correction, keepdims=keepdims)

    return call([x], spread)


def _cumulative(name: str) -> None:
    def draw(draw: st.DrawFn) -> Call:
        x = draw(nonempty(NUMERIC, 1, small=True))
        axis = draw(st.integers(-x.ndim, x.ndim - 1))
        axis = draw(st.sampled_from((None, axis))) if x.ndim == 1 else axis
        options = {"axis": axis, "include_initial": draw(st.booleans())}
        dtype = draw(dtype_above(x.dtype))
        return call([x], lambda xp, x: getattr(xp, name)(x, **options, dtype=_named(xp, dtype)))

    CASES[name] = draw


_cumulative("cumulative_sum")
_cumulative("cumulative_prod")


@case
def diff(draw: st.DrawFn) -> Call:
    x = draw(nonempty(NUMERIC, 1, small=True))
    axis, n = draw(st.integers(-x.ndim, x.ndim - 1)), draw(st.integers(0, 2))
    n = min(n, x.shape[axis] - 1)
    before, after = draw(st.booleans()), draw(st.booleans())

    def differences(xp: Any, x: Any) -> Any:
        return xp.diff(x, axis=axis, n=n, prepend=x if before else None, append=x if after else None)

    return call([x], differences)


def _position(name: str) -> None:
    def draw(draw: st.DrawFn) -> Call:
        x = draw(nonempty(REAL, 1))
        axis = draw(st.one_of(st.none(), st.integers(-x.ndim, x.ndim - 1)))
        keepdims = draw(st.booleans())
        return call([x], lambda xp, x: getattr(xp, name)(x, axis=axis, keepdims=keepdims))

    CASES[name] = draw


_position("argmax")
_position("argmin")


def _ordered(name: str) -> None:
    def draw(draw: st.DrawFn) -> Call:
        x = draw(nonempty(REAL, 1, small=True))
        axis, descending = draw(st.integers(-x.ndim, x.ndim - 1)), draw(st.booleans())
        # Which of equal elements is first is left open where ``stable`` is false: so it is for `sort` alone.
        options = {"stable": draw(st.booleans())} if name == "sort" else draw(st.sampled_from(({"stable": True}, {})))
        return call([x], lambda xp, x: getattr(xp, name)(x, axis=axis, descending=descending, **options))

    CASES[name] = draw


_ordered("sort")
_ordered("argsort")


@case
def searchsorted(draw: st.DrawFn) -> Call:
    dtype = draw(st.sampled_from(REAL))
    x1, x2 = draw(arrays((dtype,), (5,), small=True)), draw(arrays((dtype,), small=True))
    side, by = draw(st.sampled_from(("left", "right"))), draw(st.booleans())

    def search(xp: Any, x1: Any, x2: Any) -> Any:
        if by:
            return xp.searchsorted(x1, x2, side=side, sorter=xp.argsort(x1))
        return xp.searchsorted(xp.sort(x1), x2, side=side, sorter=None), xp.searchsorted(xp.sort(x1), 1, side=side)

    return call([x1, x2], search)


@case
def nonzero(draw: st.DrawFn) -> Call:
    return call([draw(nonempty(ALL, 1))], lambda xp, x: xp.nonzero(x))


for _name in ("unique_all", "unique_counts", "unique_inverse"):

    def _unique(draw: st.DrawFn, name: str = _name) -> Call:
        return call([draw(nonempty(REAL, 1, small=True))], lambda xp, x: tuple(getattr(xp, name)(x)))

    CASES[_name] = _unique


@case
def unique_values(draw: st.DrawFn) -> Call:
    # In any order, the standard says.
    return call([draw(nonempty(REAL, 1, small=True))], lambda xp, x: xp.sort(xp.unique_values(x)))


@case
def where(draw: st.DrawFn) -> Call:
    x1, x2 = draw(pairs(ALL))
    condition = draw(arrays(BOOL, np.broadcast_shapes(x1.shape, x2.shape)))
    return call([condition, x1, x2], lambda xp, c, a, b: xp.where(c, a, b))


@case
def where_number(draw: st.DrawFn) -> Call:
    x = draw(arrays(NUMERIC))
    condition = draw(arrays(BOOL, x.shape))
    number = draw(st.integers(0, 3))
    return call([condition, x], lambda xp, c, x: (xp.where(c, x, number), xp.where(c, number, x)))


@case
def isin(draw: st.DrawFn) -> Call:
    x1, x2 = draw(pairs(INTEGERS, small=True))
    # array-api-strict takes `invert`, and does nothing with it.
    return call([x1, x2], lambda xp, a, b: (xp.isin(a, b), xp.isin(a, 1), xp.isin(1, b)))


@case
def clip(draw: st.DrawFn) -> Call:
    x = draw(arrays(REAL, small=True))
    low = draw(st.one_of(st.none(), st.integers(0, 1)))
    high = draw(st.one_of(st.none(), st.integers(1, 2)))
    return call([x], lambda xp, x: xp.clip(x, min=low, max=high))


@case
def clip_by_arrays(draw: st.DrawFn) -> Call:
    dtype = draw(st.sampled_from(REAL))
    shapes = draw(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=2, max_side=3)).input_shapes
    x, one, other = [draw(arrays((dtype,), shape)) for shape in shapes]
    # NaN as a bound makes NaN of everything, but strict's checks of the bounds do not know it.
    low, high = [np.nan_to_num(each) for each in (np.fmin(one, other), np.fmax(one, other))]
    return call([x, low, high], lambda xp, x, low, high: xp.clip(x, low, high))


@case
def pow_(draw: st.DrawFn) -> Call:
    x1, x2 = draw(pairs(NUMERIC, small=True))
    return call([x1, x2 if x2.dtype.kind not in "iu" else np.abs(x2)], lambda xp, a, b: xp.pow(a, b))


for _name in ("bitwise_left_shift", "bitwise_right_shift"):

    def _shifted(draw: st.DrawFn, name: str = _name) -> Call:
        x1, x2 = draw(pairs(INTEGERS))
        return call([x1, (np.abs(x2) % 7).astype(x2.dtype)], lambda xp, a, b: getattr(xp, name)(a, b))

    CASES[_name] = _shifted
