"""Sums and other reductions, scans, sorting, searching, sets."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.operations.functions.draws import ALL, FLOATS, INEXACT, INTEGERS, NUMERIC, REAL, Call, Draws, function
from tests.operations.table import Row


def _named(xp: Any, dtype: str | None) -> Any:
    return None if dtype is None else getattr(xp, dtype)


def _reduction(name: str, dtypes: tuple[str, ...], **more: Any) -> Row:
    def draw(d: Draws) -> Call:
        keepdims = d.among(False, True)
        x = d.nonempty(dtypes, 0, small=True)
        if d.is_smooth and name == "prod":
            x = np.where(d.random.random(x.shape) < 0.2, 0.0, x)
        return d(x, axis=d.axes(), keepdims=keepdims)

    return function(name, draw, **more)


def _accumulated(name: str) -> Row:
    return function(
        f"{name} to a dtype",
        lambda d: d(d.array(NUMERIC, least=1, small=True), axis=d.axes(), dtype=d.above(d.dtype)),
        lambda xp, x, axis, dtype: getattr(xp, name)(x, axis=axis, dtype=_named(xp, dtype)),
    )


def _spread(xp: Any, x: Any, correction: float, **how: Any) -> Any:
    found = xp.var(x, axis=0, correction=correction, **how), xp.std(x, axis=0, correction=correction, **how)
    return *found, xp.std(x, correction=correction), xp.var(x, axis=1)


def _cumulative(name: str) -> Row:
    def draw(d: Draws) -> Call:
        x = d.nonempty(NUMERIC, small=True)
        if d.is_smooth and d.among(False, True):
            x = np.where(d.random.random(x.shape) < 0.3, 0.0, x)
        axis = d.one((None, d.axis())) if x.ndim == 1 else d.axis()
        return d(x, axis=axis, include_initial=d.among(False, True), dtype=d.above(d.dtype))

    return function(
        name, draw, lambda xp, x, dtype, **options: getattr(xp, name)(x, **options, dtype=_named(xp, dtype))
    )


def _differences(xp: Any, x: Any, axis: int, n: int, before: bool, after: bool) -> Any:
    return xp.diff(x, axis=axis, n=n, prepend=x if before else None, append=x * 2 if after else None)


def _drawn_differences(d: Draws) -> Call:
    x = d.nonempty(NUMERIC, small=True)
    axis = d.axis()
    n = min(d.whole(0, 2), x.shape[axis] - 1)
    return d(x, axis=axis, n=n, before=d.among(False, True), after=d.among(False, True))


def _drawn_place(d: Draws) -> Call:
    x = d.nonempty(REAL)
    return d(x, axis=d.one((None, d.axis())), keepdims=d.among(False, True))


def _ordered(name: str, *stable: dict[str, bool]) -> Row:
    def draw(d: Draws) -> Call:
        x = d.nonempty(REAL, small=True)
        return d(x, axis=d.axis(), descending=d.among(False, True), **d.among(*stable))

    return function(name, draw)


def _search(xp: Any, x1: Any, x2: Any, side: str, by: bool) -> Any:
    if by:
        return xp.searchsorted(x1, x2, side=side, sorter=xp.argsort(x1))
    return xp.searchsorted(xp.sort(x1), x2, side=side, sorter=None), xp.searchsorted(xp.sort(x1), 1, side=side)


def _drawn_search(d: Draws) -> Call:
    x1 = d.array(REAL, (5,), small=True)
    return d(x1, d.array((d.dtype,), small=True), side=d.among("left", "right"), by=d.among(False, True))


def _of_nothing(xp: Any, x: Any, axis: Any) -> Any:
    return tuple(getattr(xp, name)(x, axis=axis) for name in ("sum", "prod", "all", "any"))


ROWS = [
    *(_reduction(name, NUMERIC) for name in ("sum", "prod")),
    *(_reduction(name, REAL) for name in ("max", "min")),
    _reduction("mean", INEXACT),
    *(_reduction(name, FLOATS) for name in ("var", "std")),
    *(_reduction(name, ALL) for name in ("all", "any", "count_nonzero")),
    *map(_accumulated, ("sum", "prod")),
    function(
        "no elements", lambda d: d(d.array(NUMERIC, d.one(((0,), (2, 0), (0, 3)))), axis=d.among(None, 0)), _of_nothing
    ),
    function(
        "spread",
        lambda d: d(
            d.array(FLOATS, (d.whole(3, 6), 2), small=True),
            correction=d.among(0, 1) if d.is_smooth else d.among(0, 1, 0.5, 2.0),
            keepdims=d.among(False, True),
        ),
        _spread,
    ),
    *map(_cumulative, ("cumulative_sum", "cumulative_prod")),
    function("diff", _drawn_differences, _differences),
    *(function(name, _drawn_place) for name in ("argmax", "argmin")),
    # Which of equal elements is first is left open where ``stable`` is false: so it is for `sort` alone.
    _ordered("sort", {"stable": True}, {"stable": False}),
    _ordered("argsort", {"stable": True}, {}),
    function("searchsorted", _drawn_search, _search),
    function("nonzero", lambda d: d(d.nonempty()), differentiable=False),
    *(
        function(
            name,
            lambda d: d(d.nonempty(REAL, small=True)),
            lambda xp, x, name=name: tuple(getattr(xp, name)(x)),
            differentiable=False,
        )
        for name in ("unique_all", "unique_counts", "unique_inverse")
    ),
    # In any order, the standard says.
    function(
        "unique_values",
        lambda d: d(d.nonempty(REAL, small=True)),
        lambda xp, x: xp.sort(xp.unique_values(x)),
        differentiable=False,
    ),
    # array-api-strict takes `invert`, and does nothing with it.
    function(
        "isin",
        lambda d: d(*d.pair(INTEGERS, small=True)),
        lambda xp, a, b: (xp.isin(a, b), xp.isin(a, 1), xp.isin(1, b)),
    ),
]
