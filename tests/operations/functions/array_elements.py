"""Functions that make arrays, and those of each element."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.operations import elementwise
from tests.operations.functions.draws import ALL, BOOL, COMPLEX, FLOATS, NUMERIC, REAL, Call, Draws, function
from tests.operations.table import Row

#: Where dtypes of the standard are not those of blobs.
DTYPES = {"negative": NUMERIC, "imag": COMPLEX}
#: What is made of normal numbers so that a function is smooth there, of both operands or of the last one.
_DOMAINS = {
    "acos asin atanh tan": lambda x: 0.9 * np.tanh(x.real) + 0.5j * x.imag,
    "acosh": lambda x: abs(x.real) + 1.3 + 1j * x.imag,
    "log log10 log1p log2 sqrt": lambda x: abs(x.real) + 0.3 + 0.5j * x.imag,
    "tanh reciprocal": lambda x: np.tanh(x.real) + 1.5 + 1j * x.imag,
    "divide remainder floor_divide": lambda x: abs(x.real) + 2.0 + 1j * x.imag,
    "pow": lambda x: abs(x.real) + 0.3 + 1j * x.imag,
    "ceil floor round trunc": lambda x: np.floor(x.real) + 0.2 + 0.3 * np.tanh(x.real) + 1j * (np.floor(x.imag) + 0.2),
}
DOMAINS = {name: domain for names, domain in _DOMAINS.items() for name in names.split()}


def _within(d: Draws, name: str, x: np.ndarray) -> np.ndarray:
    """The array, with elements that suit the function."""
    if d.is_smooth and name in DOMAINS and x.dtype.kind in "fc":
        moved = DOMAINS[name](x)
        x = np.asarray(moved if x.dtype.kind == "c" else moved.real)
    if name.endswith("shift"):
        return np.asarray(abs(x % 7), x.dtype)
    return abs(x) if name == "pow" and x.dtype.kind == "i" else x


def _elementwise(name: str, count: int, dtypes: tuple[str, ...]) -> Row:
    def draw(d: Draws) -> Call:
        if count == 1:
            return d(_within(d, name, d.array(dtypes)))
        x, y = d.pair(dtypes, mixed=name != "nextafter", small=name == "pow")
        is_base = d.is_smooth and name == "pow"
        return d(_within(d, name, x) if is_base else x, y if is_base else _within(d, name, y))

    without = {"torch": "it has no derivative of it"} if name == "floor_divide" else {}
    return function(name, draw, differentiable=name != "nextafter", without=without)


_ROWS = [row for row in elementwise.ROWS if isinstance(row.standard, str)]


def _astype(xp: Any, x: Any, dtype: str, **options: Any) -> Any:
    return xp.astype(x, getattr(xp, dtype), **options)


def _drawn_astype(d: Draws) -> Call:
    x, dtype = d.array(ALL, small=True), d.among("float64", "complex128") if d.is_smooth else d.one(ALL)
    dtype = dtype if x.dtype.kind != "c" else "complex128" if d.is_smooth else d.one(COMPLEX)
    return d(abs(x) if dtype.startswith("u") and x.dtype.kind in "if" else x, dtype=dtype, copy=d.among(True, False))


def _drawn_asarray(d: Draws) -> Call:
    x, dtype = d.array(ALL, small=True), d.one((None, *ALL))
    dtype = None if x.dtype.kind == "c" and dtype and np.dtype(dtype).kind != "c" else dtype
    x = abs(x) if dtype and np.dtype(dtype).kind == "u" and x.dtype.kind in "if" else x
    return d(x, dtype=dtype, options=d.among({}, {"copy": True}, {"copy": None}))


def _asarray(xp: Any, x: Any, dtype: Any, options: Any) -> Any:
    kind = None if dtype is None else getattr(xp, dtype)
    return xp.asarray(x, dtype=kind, **options), xp.asarray(np.asarray(x).tolist())


def _number(d: Draws, dtype: str) -> Any:
    kind = np.dtype(dtype).kind
    real = d.whole(0 if kind == "u" else -9, 9)
    return {"b": bool(real % 2), "f": real + d.random.random(), "c": 2.5 - 1j}.get(kind, real)


def _drawn_full(d: Draws) -> Call:
    dtype = d.one(ALL)
    shape = tuple(d.whole(0, 4) for _ in range(d.whole(0, 3)))
    return d(shape=shape, value=d.among(True, 3, 2.5, 1j), number=_number(d, dtype), dtype=dtype)


def _full(xp: Any, shape: Any, value: Any, number: Any, dtype: str) -> Any:
    kind = getattr(xp, dtype)
    made = xp.full(shape, value), xp.full(shape, number, dtype=kind), xp.zeros(shape), xp.ones(shape)
    return *made, xp.zeros(shape, dtype=kind), xp.ones(shape, dtype=kind), xp.empty((2,), dtype=xp.int8) * 0


def _drawn_full_like(d: Draws) -> Call:
    x, dtype = d.array(NUMERIC), d.one(ALL)
    return d(x, number=_number(d, dtype), dtype=dtype)


def _full_like(xp: Any, x: Any, number: Any, dtype: str) -> Any:
    kind = getattr(xp, dtype)
    made = xp.full_like(x, 3), xp.full_like(x, number, dtype=kind), xp.zeros_like(x), xp.ones_like(x)
    empty = xp.empty_like(x, dtype=xp.int8)
    return *made, xp.zeros_like(x, dtype=kind), xp.ones_like(x, dtype=kind), empty - empty


def _arange(xp: Any, start: int, stop: int, step: int, dtype: str) -> Any:
    made = xp.arange(start, stop, step), xp.arange(float(start), stop, step), xp.arange(stop)
    return *made, xp.arange(start, stop, step, dtype=getattr(xp, dtype)), xp.arange(start, step=step, stop=stop)


def _linspace(xp: Any, start: int, stop: int, count: int, endpoint: bool, dtype: str) -> Any:
    typed = xp.linspace(start, stop, count, endpoint=endpoint, dtype=getattr(xp, dtype))
    return typed, xp.linspace(start, float(stop), count), xp.linspace(start * 1j, stop, count)


def _where(xp: Any, c: Any, x: Any, y: Any, number: int) -> Any:
    return xp.where(c, x, y), xp.where(c, x, number), xp.where(c, number, x)


def _drawn_where(d: Draws) -> Call:
    x, y = d.pair(NUMERIC)
    return d(d.elements(np.dtype(bool), d.shape, True), x, y, number=d.whole(0, 3))


def _drawn_clip(d: Draws) -> Call:
    return d(d.array(REAL, small=True), min=d.among(None, 0, 1), max=d.among(None, 1, 2))


def _drawn_clip_by_arrays(d: Draws) -> Call:
    x, one = d.pair(REAL, mixed=False)
    other = d.elements(x.dtype, d.one((one.shape, x.shape)), False)
    # NaN as a bound makes NaN of everything, but strict's checks of the bounds do not know it.
    low, high = (np.nan_to_num(each) for each in (np.fmin(one, other), np.fmax(one, other)))
    return d(x, *((low - 1.0, high + 1.5) if d.is_smooth else (low, high)))


ROWS = [
    *(
        _elementwise(
            row.standard,
            len(row.samples[0].drawn()),
            DTYPES.get(row.standard) or tuple(name for name in row.dtypes if name in ALL),
        )
        for row in _ROWS
        if isinstance(row.standard, str) and row.standard != "where"
    ),
    _elementwise("add", 2, NUMERIC),
    function("powers by numbers", lambda d: d(abs(d.array(FLOATS, small=True)) + 0.3), lambda xp, x: x**3.0 + 2.0**x),
    function("numbers beside arrays", lambda d: d(d.array(FLOATS) + 5), lambda xp, x: 1.0 - 2.0 / x - (x - 3.0) * 0.5),
    function("times a complex number", lambda d: d(d.array(("complex128",))), lambda xp, x: x * (1.0 + 2.0j) * x),
    function("where", _drawn_where, _where, without={"torch": "it does not mix real and complex numbers"}),
    function("where of a comparison", lambda d: d(*d.pair(FLOATS)), lambda xp, x, y: xp.where(x > y, x * y, y)),
    function("where of bool", lambda d: d(*d.pair(BOOL)), lambda xp, x, y: xp.where(x, y, x)),
    function("clip", _drawn_clip),
    function("clip by arrays", _drawn_clip_by_arrays, lambda xp, x, low, high: xp.clip(x, low, high)),
    function("astype", _drawn_astype, _astype),
    function("asarray", _drawn_asarray, _asarray, differentiable=False),
    function("full", _drawn_full, _full),
    function("full_like", _drawn_full_like, _full_like),
    function(
        "arange",
        lambda d: d(
            start=d.whole(-5, 5),
            stop=d.whole(-5, 5),
            step=d.among(1, 2, -1, -3),
            dtype=d.one(("int8", "int32", "float32", "float64")),
        ),
        _arange,
    ),
    function(
        "linspace",
        lambda d: d(
            start=d.whole(-5, 5),
            stop=d.whole(-5, 5),
            count=d.whole(0, 9),
            endpoint=d.among(True, False),
            dtype=d.one((*FLOATS, *COMPLEX)),
        ),
        _linspace,
    ),
    function(
        "eye",
        lambda d: d(rows=d.whole(0, 4), columns=d.whole(0, 4), k=d.whole(-9, 9), dtype=d.one(ALL)),
        lambda xp, rows, columns, k, dtype: (xp.eye(rows, columns, k=k), xp.eye(rows, k=k, dtype=getattr(xp, dtype))),
    ),
]
