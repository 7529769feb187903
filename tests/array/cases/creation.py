"""Functions that make arrays."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

from tests.array.cases.registry import call, case, nonempty
from tests.array.families import ALL, COMPLEX, NUMERIC, Call, arrays

NUMBERS = {"b": st.booleans(), "i": st.integers(-9, 9), "u": st.integers(0, 9), "f": st.floats(-9, 9)}


def _number(dtype: str) -> Any:
    """A Python number for a dtype."""
    return NUMBERS.get(np.dtype(dtype).kind, st.just(2.5 - 1j))


@case
def asarray(draw: st.DrawFn) -> Call:
    x, dtype = draw(arrays(ALL, small=True)), draw(st.sampled_from((None, *ALL)))
    if x.dtype.kind == "c" and dtype is not None and np.dtype(dtype).kind != "c":
        dtype = None
    if x.dtype.kind in "if" and dtype is not None and np.dtype(dtype).kind == "u":
        x = np.abs(x)
    options = draw(st.sampled_from(({}, {"copy": True}, {"copy": None})))

    def convert(xp: Any, x: Any) -> Any:
        kind = None if dtype is None else getattr(xp, dtype)
        return xp.asarray(x, dtype=kind, **options), xp.asarray(np.asarray(x).tolist())

    return call([x], convert)


@case
def full(draw: st.DrawFn) -> Call:
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
    value, dtype = draw(st.sampled_from((True, 3, 2.5, 1j))), draw(st.sampled_from(ALL))
    number = draw(_number(dtype))

    def make(xp: Any) -> Any:
        kind = getattr(xp, dtype)
        made = xp.full(shape, value), xp.full(shape, number, dtype=kind), xp.zeros(shape), xp.ones(shape)
        return *made, xp.zeros(shape, dtype=kind), xp.ones(shape, dtype=kind), xp.empty((2,), dtype=xp.int8) * 0

    return call([], make)


@case
def full_like(draw: st.DrawFn) -> Call:
    x, dtype = draw(arrays(NUMERIC)), draw(st.sampled_from(ALL))
    number = draw(_number(dtype))

    def make(xp: Any, x: Any) -> Any:
        kind = getattr(xp, dtype)
        made = xp.full_like(x, 3), xp.full_like(x, number, dtype=kind), xp.zeros_like(x), xp.ones_like(x)
        empty = xp.empty_like(x, dtype=xp.int8)
        return *made, xp.zeros_like(x, dtype=kind), xp.ones_like(x, dtype=kind), empty - empty

    return call([x], make)


@case
def arange(draw: st.DrawFn) -> Call:
    start, stop = draw(st.integers(-5, 5)), draw(st.integers(-5, 5))
    step = draw(st.sampled_from((1, 2, -1, -3)))
    dtype = draw(st.sampled_from(("int8", "int32", "float32", "float64")))

    def make(xp: Any) -> Any:
        made = xp.arange(start, stop, step), xp.arange(float(start), stop, step), xp.arange(stop)
        return *made, xp.arange(start, stop, step, dtype=getattr(xp, dtype)), xp.arange(start, step=step, stop=stop)

    return call([], make)


@case
def linspace(draw: st.DrawFn) -> Call:
    start, stop, count = draw(st.integers(-5, 5)), draw(st.integers(-5, 5)), draw(st.integers(0, 9))
    endpoint, dtype = draw(st.booleans()), draw(st.sampled_from(("float32", "float64", "complex64", "complex128")))

    def make(xp: Any) -> Any:
        typed = xp.linspace(start, stop, count, endpoint=endpoint, dtype=getattr(xp, dtype))
        return typed, xp.linspace(start, float(stop), count), xp.linspace(start * 1j, stop, count)

    return call([], make)


@case
def eye(draw: st.DrawFn) -> Call:
    rows, columns, k = draw(st.integers(0, 4)), draw(st.integers(0, 4)), draw(st.integers(-9, 9))
    dtype = draw(st.sampled_from(ALL))
    return call([], lambda xp: (xp.eye(rows, columns, k=k), xp.eye(rows, k=k, dtype=getattr(xp, dtype))))


@case
def triangles(draw: st.DrawFn) -> Call:
    k = draw(st.integers(-3, 3))
    return call([draw(nonempty(ALL, 2))], lambda xp, x: (xp.tril(x, k=k), xp.triu(x, k=k), xp.tril(x), xp.triu(x)))


@case
def meshgrid(draw: st.DrawFn) -> Call:
    dtype = draw(st.sampled_from(NUMERIC))
    one, other = draw(arrays((dtype,), (3,))), draw(arrays((dtype,), (draw(st.integers(0, 2)),)))
    indexing = draw(st.sampled_from(("xy", "ij")))
    return call([one, other], lambda xp, a, b: tuple(xp.meshgrid(a, b, a, indexing=indexing)))


@case
def astype(draw: st.DrawFn) -> Call:
    x, dtype = draw(arrays(ALL, small=True)), draw(st.sampled_from(ALL))
    if x.dtype.kind == "c":
        dtype = draw(st.sampled_from(COMPLEX))
    if np.dtype(dtype).kind == "u":
        x = np.abs(x)
    copy = draw(st.booleans())
    return call([x], lambda xp, x: xp.astype(x, getattr(xp, dtype), copy=copy))
