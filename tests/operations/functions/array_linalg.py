"""Linear algebra and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.operations.functions.draws import ALL, COMPLEX, FLOATS, INEXACT, INTEGERS, NUMERIC, Call, Draws, function
from tests.operations.table import Row

_SIGNED = INTEGERS[:4]
_NORMS = ("backward", "ortho", "forward")
_MADE = {"blobs": "arrays are made of numbers"}


def _products(d: Draws) -> Call:
    """Operands of a product of matrices or vectors, or of several."""
    dtypes = INEXACT if d.is_smooth else d.one((_SIGNED, INTEGERS[4:], INEXACT))
    m, n, p = (d.whole(0 if not d.is_smooth else 1, 3) for _ in range(3))
    left, right = d.among(
        ((m, n), (n, p)), ((n,), (n,)), ((n,), (3, n, p)), ((2, m, n), (n,)), ((2, 1, m, n), (3, n, p))
    )
    a = d.array(dtypes, left, small=True)
    return d(a, d.array((d.dtype,) if d.is_smooth else dtypes, right, small=True))


def _vectors(d: Draws, axis: int = -1) -> Call:
    dtypes = INEXACT if axis == -1 or d.is_smooth else d.one((_SIGNED, INEXACT))
    shapes = (
        ((2, 3, 1), (3, 4)) if axis == -2 else d.one((((3,), (3,)), ((2, 3), (3,)), ((2, 1, 3), (4, 3)), ((0,), (0,))))
    )
    return d(*(d.array(dtypes, shape, small=True) for shape in shapes))


def square(d: Draws, dtypes: tuple[str, ...] = INEXACT) -> np.ndarray:
    """Matrices that are far from singular."""
    shape = (*d.one(((), (1,), (2,))), *[d.whole(1, 3 if d.is_smooth else 4)] * 2)
    x = d.array(dtypes, shape, small=True)
    return x + (3 if d.is_smooth else 30) * np.eye(shape[-1], dtype=x.dtype)


def _hermitian(xp: Any, x: Any) -> Any:
    return x + xp.conj(x.mT)


def _eigh(xp: Any, x: Any) -> Any:
    """What does not depend on the factors of magnitude 1 that vectors are determined up to."""
    w, v = xp.linalg.eigh(_hermitian(xp, x))
    return w, xp.linalg.eigvalsh(_hermitian(xp, x)), (v * w[..., None, :] ** 2.0) @ xp.conj(v.mT)


def _eig(xp: Any, x: Any) -> Any:
    """What does not depend on the order and the factors of vectors, either."""
    w, v = xp.linalg.eig(x)
    both = xp.sum(w, axis=-1), xp.sum(xp.linalg.eigvals(x) ** 2, axis=-1)
    return *both, xp.matmul(v * w[..., None, :], xp.linalg.inv(v)), (v * w[..., None, :]) @ xp.conj(v.mT)


def _drawn_eig(d: Draws) -> Call:
    x = square(d)
    return d(x + np.diag(np.arange(x.shape[-1]) * 20).astype(x.dtype))


def _svd(xp: Any, x: Any) -> Any:
    """What does not change where u and v turn together."""
    u, s, vh = xp.linalg.svd(x, full_matrices=False)
    return s, xp.linalg.svd(x).S, xp.linalg.svdvals(x), (u * s[..., None, :] ** 2.0) @ vh


def _whole_svd(xp: Any, x: Any) -> Any:
    found = xp.linalg.svd(x)
    return found.S, xp.zeros(found.U.shape), xp.zeros(found.Vh.shape)


def _matrix(d: Draws) -> Call:
    return d(d.array(INEXACT, (*d.among((), (2,)), *d.among((4, 3), (3, 5), (3, 3), (1, 2))), small=True))


def _drawn_qr(d: Draws) -> Call:
    mode = d.among("reduced", "complete")
    (x,), _ = _matrix(d)
    is_tall = x.shape[-2] > x.shape[-1]  # where what "complete" adds to q has no gradient
    return d(x.mT.copy() if d.is_smooth and is_tall and mode == "complete" else x, mode=mode)


def _tolerances(d: Draws) -> Call:
    x = d.array(INEXACT, (2, 3, 2), small=True)
    if d.among(False, True) and not d.is_smooth:
        x[..., 1] = x[..., 0] * 2
    rtol = 1e-3 if d.is_smooth else d.among(1e-3, 0.5)
    return d(x, rtol=rtol, rtols=(rtol, 1e-2 if not d.is_smooth else 1e-3))


def _pinv(xp: Any, x: Any, rtol: float, rtols: Any) -> Any:
    several = xp.asarray(rtols, dtype=xp.real(x).dtype)
    found = xp.linalg.pinv(x), xp.linalg.pinv(x, rtol=rtol), xp.linalg.pinv(x, rtol=several)
    return *found, *(xp.linalg.matrix_rank(x, **each) for each in ({}, {"rtol": rtol}, {"rtol": several}))


def _solved(d: Draws) -> Call:
    a = square(d, INEXACT if d.is_smooth else FLOATS)
    n = a.shape[-1]
    b = d.array((d.dtype,) if d.is_smooth else FLOATS, d.among((n,), (n, 2), (4, 1, n, 2)), small=True)
    return d(a, b)


def _tensordot(d: Draws) -> Call:
    a, b = (d.array(INEXACT, shape, small=True) for shape in ((2, 3, 4), (3, 4, 2)))
    return d(a, b, axes=d.among(0, 2, ((1,), (0,)), ((2, 0), (1, 2)), ((-1,), (-2,)), ((), ())))


def _of_both(name: str) -> Callable[..., Any]:
    """A function that stands in two places."""
    return lambda xp, *xs, **how: (getattr(xp, name)(*xs, **how), getattr(xp.linalg, name)(*xs, **how))


def _trace(d: Draws) -> Call:
    x = d.nonempty(NUMERIC, 2, small=True)
    return d(x, offset=d.whole(-3, 3), dtype=d.above(d.dtype))


def _diagonal(xp: Any, x: Any, offset: int, dtype: str | None) -> Any:
    kind = None if dtype is None else getattr(xp, dtype)
    found = xp.linalg.diagonal(x, offset=offset), xp.linalg.trace(x, offset=offset)
    return *found, xp.linalg.trace(x, offset=offset, dtype=kind)


def _crossed(d: Draws) -> Call:
    axis = d.among(-1, -2)
    shapes = ((1, 2, 3), (4, 1, 3)) if axis == -1 else ((3, 1), (2, 3, 4))
    dtypes = INEXACT if d.is_smooth else d.one((_SIGNED, FLOATS))
    return d(*(d.array(dtypes, shape, small=True) for shape in shapes), axis=axis)


def _outer(d: Draws) -> Call:
    dtypes = INEXACT if d.is_smooth else d.one((_SIGNED, INEXACT))
    return d(*(d.array(dtypes, shape, small=True) for shape in ((d.whole(0, 3),), (2,))))


def _vector_norm(d: Draws) -> Call:
    order = d.among(1, 2, 3, math.inf, -math.inf, 2.5, *((0.5, -1) if d.is_smooth else (0,)))
    keepdims = d.among(False, True)
    return d(d.nonempty(INEXACT, small=True), axis=d.axes(), keepdims=keepdims, ord=order)


def _matrix_norm(d: Draws) -> Call:
    order = d.among("fro", "nuc", math.inf, -math.inf, 1, -1, 2, -2)
    return d(d.array(INEXACT, (2, 3, 4), small=True), ord=order, keepdims=d.among(False, True))


def _transform(name: str, dtypes: tuple[str, ...]) -> Row:
    def draw(d: Draws) -> Call:
        n, norm = d.among(None, 1, 4, 5, 9), d.among(*_NORMS)
        kinds = INEXACT if d.is_smooth and name in ("fft", "ifft") else dtypes  # of real numbers, too
        x = d.array(kinds, (d.whole(2, 5), d.whole(2, 6)), small=True)
        return d(x, n=n, axis=d.one((-2, -1, 0, 1)), norm=norm)

    return function(f"fft.{name}", draw)


def _transforms(name: str, dtypes: tuple[str, ...]) -> Row:
    def draw(d: Draws) -> Call:
        s, axes = d.among(
            (None, None), (None, (0, 1)), (None, (2,)), ((4, 4), (-1, 0)), ((5, 3), (0, 2)), ((2, 4), (-1, 1))
        )
        return d(d.array(dtypes, (3, 2, 4), small=True), s=s, axes=axes, norm=d.among(*_NORMS))

    return function(f"fft.{name}", draw)


ROWS = [
    function("matmul", _products, lambda xp, a, b: (xp.matmul(a, b), a @ b, xp.linalg.matmul(a, b))),
    function("vecdot", _vectors, _of_both("vecdot")),
    function("vecdot along an axis", lambda d: _vectors(d, -2), lambda xp, a, b: _of_both("vecdot")(xp, a, b, axis=-2)),
    function("tensordot", _tensordot, _of_both("tensordot")),
    function(
        "matrix_transpose", lambda d: d(d.nonempty(ALL, 2)), lambda xp, x: (*_of_both("matrix_transpose")(xp, x), x.mT)
    ),
    *(function(f"linalg.{name}", lambda d: d(square(d))) for name in ("det", "inv", "svdvals", "matrix_norm", "pinv")),
    function("linalg.matrix_rank", lambda d: d(square(d)), differentiable=False),
    function("linalg.slogdet", lambda d: d(square(d)), lambda xp, x: tuple(xp.linalg.slogdet(x))),
    function(
        "linalg.cholesky",
        lambda d: d(square(d), upper=d.among(False, True)),
        lambda xp, x, upper: xp.linalg.cholesky(x @ xp.conj(x.mT), upper=upper),
    ),
    function("linalg.eigvalsh", lambda d: d(square(d)), lambda xp, x: xp.linalg.eigvalsh(_hermitian(xp, x))),
    function("linalg.eigh", lambda d: d(square(d)), _eigh),
    function("linalg.eig", _drawn_eig, _eig),
    function("linalg.svd", _matrix, _svd),
    function("linalg.svd of square factors", _matrix, _whole_svd, differentiable=False, without=_MADE),
    function("linalg.qr", _drawn_qr, lambda xp, x, mode: tuple(xp.linalg.qr(x, mode=mode))),
    function("linalg.pinv to a tolerance", _tolerances, _pinv, without=_MADE),
    function("linalg.solve", _solved),
    function(
        "linalg.matrix_power",
        lambda d: d(square(d) / (3 if d.is_smooth else 1), n=d.among(0, 1, 2, 3, 5, -1, -2, -3)),
        lambda xp, x, n: xp.linalg.matrix_power(x, n),
    ),
    function("linalg.diagonal", _trace, _diagonal),
    function("linalg.outer", _outer),
    function("linalg.cross", _crossed),
    function("linalg.matrix_norm of an order", _matrix_norm, lambda xp, x, **how: xp.linalg.matrix_norm(x, **how)),
    function("linalg.vector_norm", _vector_norm),
    *(_transform(name, COMPLEX) for name in ("fft", "ifft", "irfft", "hfft")),
    *(_transform(name, FLOATS) for name in ("rfft", "ihfft")),
    *(_transforms(name, COMPLEX) for name in ("fftn", "ifftn", "irfftn")),
    _transforms("rfftn", FLOATS),
    function(
        "fft.fftfreq",
        lambda d: d(n=d.whole(1, 9), d=d.among(1.0, 0.5), dtype=d.among(*FLOATS)),
        lambda xp, n, d, dtype: (
            *(getattr(xp.fft, name)(n, d=d, dtype=getattr(xp, dtype)) for name in ("fftfreq", "rfftfreq")),
            *(xp.fft.fftfreq(n, d=d), xp.fft.rfftfreq(n)),
        ),
        without=_MADE,
    ),
    function(
        "fft.fftshift",
        lambda d: d(d.array(INEXACT, (4, 5)), axes=d.among(None, 0, 1, (0, 1))),
        lambda xp, x, axes: (xp.fft.fftshift(x, axes=axes), xp.fft.ifftshift(x, axes=axes)),
    ),
]
