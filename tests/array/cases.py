"""Calls of the standard's other functions: each draws arrays, and gives what to do with them in a namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

from tests.array.families import ALL, BOOL, COMPLEX, FLOATS, INTEGERS, NUMERIC, REAL, Call, Draw, arrays, axes, pairs

CASES: dict[str, Draw] = {}


def case(draw: Draw) -> Draw:
    CASES[draw.__name__.rstrip("_")] = draw
    return draw


def call(values: list[np.ndarray], function: Callable[..., Any]) -> Call:
    return values, function


def nonempty(dtypes: tuple[str, ...] = ALL, dims: int = 0, most: int = 3, **options: Any) -> Any:
    return arrays(dtypes, hnp.array_shapes(min_dims=dims, max_dims=most, min_side=1, max_side=4), **options)


# -- statistics -------------------------------------------------------------------------------------------------


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
for _name in ("mean", "std", "var"):
    _reduction(_name, FLOATS)
for _name in ("all", "any", "count_nonzero"):
    _reduction(_name, ALL)


@case
def sum_to(draw: st.DrawFn) -> Call:
    x = draw(arrays(INTEGERS, small=True))
    dtype = draw(st.sampled_from(("int32", "float64")))
    return call([x], lambda xp, x: xp.sum(x, dtype=getattr(xp, dtype)))


@case
def var_corrected(draw: st.DrawFn) -> Call:
    x = draw(arrays(FLOATS, (draw(st.integers(3, 6)), 2), small=True))
    correction = draw(st.sampled_from((0, 1, 0.5)))
    return call([x], lambda xp, x: xp.std(x, axis=0, correction=correction))


def _cumulative(name: str) -> None:
    def draw(draw: st.DrawFn) -> Call:
        x = draw(nonempty(NUMERIC, 1, small=True))
        axis = draw(st.integers(-x.ndim, x.ndim - 1))
        first = draw(st.booleans())
        return call([x], lambda xp, x: getattr(xp, name)(x, axis=axis, include_initial=first))

    CASES[name] = draw


_cumulative("cumulative_sum")
_cumulative("cumulative_prod")


@case
def diff(draw: st.DrawFn) -> Call:
    x = draw(nonempty(NUMERIC, 1, small=True))
    axis, n = draw(st.integers(-x.ndim, x.ndim - 1)), draw(st.integers(0, 2))
    n = min(n, x.shape[axis] - 1)
    more = draw(st.booleans())
    return call([x], lambda xp, x: xp.diff(x, axis=axis, n=n, **({"append": x, "prepend": x} if more else {})))


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
        return call([x], lambda xp, x: getattr(xp, name)(x, axis=axis, descending=descending))

    CASES[name] = draw


_ordered("sort")
_ordered("argsort")


@case
def searchsorted(draw: st.DrawFn) -> Call:
    x1, x2 = draw(arrays(("float64",), (5,), small=True)), draw(arrays(("float64",), small=True))
    side, by = draw(st.sampled_from(("left", "right"))), draw(st.booleans())

    def search(xp: Any, x1: Any, x2: Any) -> Any:
        if by:
            return xp.searchsorted(x1, x2, side=side, sorter=xp.argsort(x1))
        return xp.searchsorted(xp.sort(x1), x2, side=side)

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
def clip(draw: st.DrawFn) -> Call:
    x = draw(arrays(REAL, small=True))
    low = draw(st.one_of(st.none(), st.integers(0, 1)))
    high = draw(st.one_of(st.none(), st.integers(1, 2)))
    return call([x], lambda xp, x: xp.clip(x, low, high))


@case
def pow_(draw: st.DrawFn) -> Call:
    x1, x2 = draw(pairs(NUMERIC, small=True))
    return call([x1, x2 if x2.dtype.kind not in "iu" else np.abs(x2)], lambda xp, a, b: xp.pow(a, b))


for _name in ("bitwise_left_shift", "bitwise_right_shift"):

    def _shifted(draw: st.DrawFn, name: str = _name) -> Call:
        x1, x2 = draw(pairs(INTEGERS))
        return call([x1, (np.abs(x2) % 7).astype(x2.dtype)], lambda xp, a, b: getattr(xp, name)(a, b))

    CASES[_name] = _shifted


# -- shapes -----------------------------------------------------------------------------------------------------


@case
def concat(draw: st.DrawFn) -> Call:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=3))
    axis = draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    one, other = draw(arrays(FLOATS, shape)), draw(arrays(FLOATS, shape))
    return call([one, other], lambda xp, a, b: xp.concat([a, b, a], axis=axis))


@case
def stack(draw: st.DrawFn) -> Call:
    x = draw(arrays())
    axis = draw(st.integers(-x.ndim - 1, x.ndim))
    return call([x], lambda xp, x: xp.stack([x, x], axis=axis))


@case
def unstack(draw: st.DrawFn) -> Call:
    x = draw(nonempty(ALL, 1))
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    return call([x], lambda xp, x: xp.unstack(x, axis=axis))


@case
def reshape(draw: st.DrawFn) -> Call:
    x = draw(nonempty(ALL, 1))
    shape = (-1, *x.shape[:1]) if draw(st.booleans()) else x.shape[::-1]
    return call([x], lambda xp, x: xp.reshape(x, shape))


@case
def expand_dims(draw: st.DrawFn) -> Call:
    x = draw(arrays())
    axis = draw(st.integers(-x.ndim - 1, x.ndim))
    return call([x], lambda xp, x: xp.squeeze(xp.expand_dims(x, axis=axis), axis))


@case
def permute_dims(draw: st.DrawFn) -> Call:
    x = draw(arrays())
    order = tuple(draw(st.permutations(range(x.ndim))))
    return call([x], lambda xp, x: xp.permute_dims(x, order))


@case
def moveaxis(draw: st.DrawFn) -> Call:
    x = draw(nonempty(ALL, 1))
    source, target = draw(st.integers(-x.ndim, x.ndim - 1)), draw(st.integers(-x.ndim, x.ndim - 1))
    return call([x], lambda xp, x: xp.moveaxis(x, source, target))


@case
def flip(draw: st.DrawFn) -> Call:
    x = draw(arrays())
    axis = draw(axes(x.ndim))
    return call([x], lambda xp, x: xp.flip(x, axis=axis))


@case
def roll(draw: st.DrawFn) -> Call:
    x = draw(nonempty(ALL, 1))
    shift = draw(st.integers(-5, 5))
    axis = draw(st.one_of(st.none(), st.integers(-x.ndim, x.ndim - 1)))
    return call([x], lambda xp, x: xp.roll(x, shift, axis=axis))


@case
def tile(draw: st.DrawFn) -> Call:
    times = tuple(draw(st.lists(st.integers(0, 3), min_size=0, max_size=3)))
    return call([draw(arrays())], lambda xp, x: xp.tile(x, times))


@case
def repeat(draw: st.DrawFn) -> Call:
    x = draw(nonempty(ALL, 1))
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    if draw(st.booleans()):
        counts = draw(hnp.arrays(np.int64, x.shape[axis], elements=st.integers(0, 3)))
        return call([x, counts], lambda xp, x, n: xp.repeat(x, n, axis=axis))
    times = draw(st.integers(0, 3))
    return call([x], lambda xp, x: xp.repeat(x, times, axis=axis))


@case
def broadcast_arrays(draw: st.DrawFn) -> Call:
    return call(draw(pairs(ALL)), lambda xp, a, b: tuple(xp.broadcast_arrays(a, b)))


@case
def broadcast_to(draw: st.DrawFn) -> Call:
    x = draw(arrays())
    return call([x], lambda xp, x: xp.broadcast_to(x, (2, *x.shape)))


# -- parts ------------------------------------------------------------------------------------------------------


@case
def getitem(draw: st.DrawFn) -> Call:
    x = draw(nonempty(ALL, 1))
    key = draw(hnp.basic_indices(x.shape, allow_newaxis=True))
    # The standard wants each axis named, or an ellipsis.
    key = key if isinstance(key, tuple) else (key,)
    key = key if any(part is Ellipsis for part in key) else (*key, Ellipsis)
    return call([x], lambda xp, x: x[key])


@case
def setitem(draw: st.DrawFn) -> Call:
    x = draw(nonempty(FLOATS, 1))
    key = draw(hnp.basic_indices(x.shape))
    key = key if isinstance(key, tuple) else (key,)
    key = key if any(part is Ellipsis for part in key) else (*key, Ellipsis)

    def assign(xp: Any, x: Any) -> Any:
        y = xp.asarray(x, copy=True)
        y[key] = 7.0
        return y, x

    return call([x], assign)


@case
def mask(draw: st.DrawFn) -> Call:
    x = draw(nonempty(FLOATS, 1, finite=True))

    def assign(xp: Any, x: Any) -> Any:
        y = xp.asarray(x, copy=True)
        y[y > 0] = -1.0
        return y, x[x > 0]

    return call([x], assign)


@case
def take(draw: st.DrawFn) -> Call:
    x = draw(nonempty(ALL, 1))
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    indices = draw(hnp.arrays(np.int64, st.integers(0, 4), elements=st.integers(0, x.shape[axis] - 1)))
    return call([x, indices], lambda xp, x, i: xp.take(x, i, axis=axis))


@case
def take_along_axis(draw: st.DrawFn) -> Call:
    x = draw(nonempty(REAL, 1, small=True))
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    return call([x], lambda xp, x: xp.take_along_axis(x, xp.argsort(x, axis=axis), axis=axis))


@case
def integer_index(draw: st.DrawFn) -> Call:
    x = draw(nonempty(ALL, 2, 2))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=3))
    rows = draw(hnp.arrays(np.int64, shape, elements=st.integers(0, x.shape[0] - 1)))
    columns = draw(hnp.arrays(np.int64, shape, elements=st.integers(0, x.shape[1] - 1)))
    return call([x, rows, columns], lambda xp, x, i, j: x[i, j])


# -- new arrays -------------------------------------------------------------------------------------------------


@case
def full(draw: st.DrawFn) -> Call:
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
    value = draw(st.sampled_from((True, 3, 2.5, 1j)))
    return call([], lambda xp: (xp.full(shape, value), xp.zeros(shape), xp.ones(shape, dtype=xp.int8)))


@case
def full_like(draw: st.DrawFn) -> Call:
    x = draw(arrays(NUMERIC))
    return call([x], lambda xp, x: (xp.full_like(x, 3), xp.zeros_like(x), xp.ones_like(x, dtype=xp.bool)))


@case
def arange(draw: st.DrawFn) -> Call:
    start, stop = draw(st.integers(-5, 5)), draw(st.integers(-5, 5))
    step = draw(st.sampled_from((1, 2, -1, -3)))
    return call([], lambda xp: (xp.arange(start, stop, step), xp.arange(float(start), stop, step), xp.arange(stop)))


@case
def linspace(draw: st.DrawFn) -> Call:
    start, stop, count = draw(st.integers(-5, 5)), draw(st.integers(-5, 5)), draw(st.integers(0, 9))
    endpoint = draw(st.booleans())
    return call([], lambda xp: xp.linspace(start, stop, count, endpoint=endpoint, dtype=xp.float32))


@case
def eye(draw: st.DrawFn) -> Call:
    rows, columns, k = draw(st.integers(0, 4)), draw(st.integers(0, 4)), draw(st.integers(-3, 3))
    return call([], lambda xp: xp.eye(rows, columns, k=k))


@case
def triangles(draw: st.DrawFn) -> Call:
    k = draw(st.integers(-3, 3))
    return call([draw(nonempty(ALL, 2))], lambda xp, x: (xp.tril(x, k=k), xp.triu(x, k=k)))


@case
def meshgrid(draw: st.DrawFn) -> Call:
    one, other = draw(arrays(FLOATS[:1], (3,))), draw(arrays(FLOATS[:1], (2,)))
    indexing = draw(st.sampled_from(("xy", "ij")))
    return call([one, other], lambda xp, a, b: tuple(xp.meshgrid(a, b, a, indexing=indexing)))


@case
def astype(draw: st.DrawFn) -> Call:
    x = draw(arrays((*BOOL, *REAL), small=True))
    dtype = draw(st.sampled_from(("int64", "float32", "complex128", "bool")))
    return call([x], lambda xp, x: xp.astype(x, getattr(xp, dtype)))


# -- linear algebra ---------------------------------------------------------------------------------------------

MATRICES = (*FLOATS, *COMPLEX)


@case
def matmul(draw: st.DrawFn) -> Call:
    shapes = draw(hnp.mutually_broadcastable_shapes(signature="(m?,n),(n,p?)->(m?,p?)", max_dims=2, max_side=3))
    values = [draw(arrays(NUMERIC[-4:], shape, small=True)) for shape in shapes.input_shapes]
    return call(values, lambda xp, a, b: xp.matmul(a, b))


@case
def vecdot(draw: st.DrawFn) -> Call:
    shapes = draw(hnp.mutually_broadcastable_shapes(signature="(n),(n)->()", max_dims=2, max_side=3))
    values = [draw(arrays(MATRICES, shape, small=True)) for shape in shapes.input_shapes]
    return call(values, lambda xp, a, b: xp.vecdot(a, b))


@case
def tensordot(draw: st.DrawFn) -> Call:
    a, b = draw(arrays(MATRICES, (2, 3, 4), small=True)), draw(arrays(MATRICES, (3, 4, 2), small=True))
    axes = draw(st.sampled_from((0, 2, ((1,), (0,)), ((2, 0), (1, 2)))) if True else st.none())
    return call([a, b], lambda xp, a, b: xp.tensordot(a, b, axes=axes) if axes != 2 else xp.tensordot(a, b))


@case
def matrix_transpose(draw: st.DrawFn) -> Call:
    return call([draw(nonempty(ALL, 2))], lambda xp, x: (xp.matrix_transpose(x), x.mT))


def _square(draw: st.DrawFn, dtypes: tuple[str, ...] = MATRICES) -> np.ndarray:
    """Matrices that are far from singular."""
    size, lead = draw(st.integers(1, 4)), draw(hnp.array_shapes(min_dims=0, max_dims=1, max_side=2))
    x = draw(arrays(dtypes, (*lead, size, size), small=True))
    return x + 30 * np.eye(size, dtype=x.dtype)


def _hermitian(draw: st.DrawFn) -> np.ndarray:
    x = _square(draw)
    return x + np.conj(np.swapaxes(x, -1, -2))


for _name in ("det", "inv"):
    CASES[_name] = lambda draw, name=_name: call([_square(draw)], lambda xp, x: getattr(xp.linalg, name)(x))
for _name in ("cholesky", "eigvalsh"):
    CASES[_name] = lambda draw, name=_name: call([_hermitian(draw)], lambda xp, x: getattr(xp.linalg, name)(x))
for _name in ("svdvals", "matrix_norm", "pinv", "matrix_rank"):
    CASES[_name] = lambda draw, name=_name: call([_square(draw)], lambda xp, x: getattr(xp.linalg, name)(x))
for _name in ("slogdet",):
    CASES[_name] = lambda draw, name=_name: call([_square(draw)], lambda xp, x: tuple(getattr(xp.linalg, name)(x)))


@case
def eigh(draw: st.DrawFn) -> Call:
    def rebuilt(xp: Any, x: Any) -> Any:
        values, vectors = xp.linalg.eigh(x)
        return values, xp.matmul(vectors * values[..., None, :], xp.conj(vectors.mT))

    return call([_hermitian(draw)], rebuilt)


@case
def svd(draw: st.DrawFn) -> Call:
    x = draw(arrays(MATRICES, (draw(st.integers(1, 4)), draw(st.integers(1, 4))), small=True))

    def rebuilt(xp: Any, x: Any) -> Any:
        u, s, vh = xp.linalg.svd(x, full_matrices=False)
        whole = xp.linalg.svd(x)
        return s, xp.matmul(u * s, vh), xp.zeros(whole.U.shape), xp.zeros(whole.Vh.shape)

    return call([x], rebuilt)


@case
def qr(draw: st.DrawFn) -> Call:
    x = draw(arrays(MATRICES, (draw(st.integers(1, 4)), draw(st.integers(1, 4))), small=True))
    mode = draw(st.sampled_from(("reduced", "complete")))
    return call([x], lambda xp, x: tuple(xp.linalg.qr(x, mode=mode)))


@case
def solve(draw: st.DrawFn) -> Call:
    a = _square(draw, FLOATS)
    b = draw(arrays(FLOATS, (a.shape[-1], 2) if draw(st.booleans()) else (a.shape[-1],), small=True))
    return call([a, b], lambda xp, a, b: xp.linalg.solve(a, b))


@case
def matrix_power(draw: st.DrawFn) -> Call:
    n = draw(st.integers(-2, 3))
    return call([_square(draw)], lambda xp, x: xp.linalg.matrix_power(x, n))


@case
def diagonal(draw: st.DrawFn) -> Call:
    offset = draw(st.integers(-3, 3))
    x = draw(nonempty(NUMERIC, 2, small=True))
    return call([x], lambda xp, x: (xp.linalg.diagonal(x, offset=offset), xp.linalg.trace(x, offset=offset)))


@case
def outer(draw: st.DrawFn) -> Call:
    one, other = draw(arrays(FLOATS, (3,), small=True)), draw(arrays(FLOATS, (2,), small=True))
    return call([one, other], lambda xp, a, b: xp.linalg.outer(a, b))


@case
def cross(draw: st.DrawFn) -> Call:
    one, other = draw(arrays(FLOATS, (2, 3), small=True)), draw(arrays(FLOATS, (2, 3), small=True))
    return call([one, other], lambda xp, a, b: xp.linalg.cross(a, b))


@case
def norms(draw: st.DrawFn) -> Call:
    x = draw(arrays(MATRICES, (3, 4), small=True))
    order = draw(st.sampled_from(("fro", "nuc", np.inf, -np.inf, 1, -1, 2, -2)))
    keepdims = draw(st.booleans())
    return call([x], lambda xp, x: xp.linalg.matrix_norm(x, ord=order, keepdims=keepdims))


@case
def vector_norm(draw: st.DrawFn) -> Call:
    x = draw(nonempty(MATRICES, 1, small=True))
    axis, keepdims = draw(axes(x.ndim)), draw(st.booleans())
    order = draw(st.sampled_from((1, 2, 3, np.inf, 0)))
    return call([x], lambda xp, x: xp.linalg.vector_norm(x, axis=axis, keepdims=keepdims, ord=order))


# -- Fourier transforms -----------------------------------------------------------------------------------------

for _name, _dtypes in (
    *((each, COMPLEX) for each in ("fft", "ifft", "irfft", "hfft")),
    *((each, FLOATS) for each in ("rfft", "ihfft")),
):

    def _transform(draw: st.DrawFn, name: str = _name, dtypes: tuple[str, ...] = _dtypes) -> Call:
        x = draw(arrays(dtypes, (draw(st.integers(2, 5)), draw(st.integers(2, 5))), small=True))
        axis, n = draw(st.integers(-2, 1)), draw(st.one_of(st.none(), st.integers(1, 6)))
        norm = draw(st.sampled_from(("backward", "ortho", "forward")))
        return call([x], lambda xp, x: getattr(xp.fft, name)(x, n=n, axis=axis, norm=norm))

    CASES[_name] = _transform

for _name, _dtypes in (("fftn", COMPLEX), ("ifftn", COMPLEX), ("irfftn", COMPLEX), ("rfftn", FLOATS)):

    def _transforms(draw: st.DrawFn, name: str = _name, dtypes: tuple[str, ...] = _dtypes) -> Call:
        x = draw(arrays(dtypes, (3, 2, 4), small=True))
        axes = draw(st.sampled_from((None, (0, 1), (2,), (-1, 0))))
        s = draw(st.sampled_from((None, 4))) if axes is not None else None
        lengths = None if s is None else (s,) * len(axes)
        return call([x], lambda xp, x: getattr(xp.fft, name)(x, s=lengths, axes=axes))

    CASES[_name] = _transforms


@case
def frequencies(draw: st.DrawFn) -> Call:
    n, d = draw(st.integers(1, 9)), draw(st.sampled_from((1.0, 0.5)))
    return call([], lambda xp: (xp.fft.fftfreq(n, d=d), xp.fft.rfftfreq(n, d=d)))


@case
def shifts(draw: st.DrawFn) -> Call:
    x = draw(arrays(FLOATS, (4, 5)))
    axis = draw(st.sampled_from((None, 0, 1, (0, 1))))
    return call([x], lambda xp, x: (xp.fft.fftshift(x, axes=axis), xp.fft.ifftshift(x, axes=axis)))
