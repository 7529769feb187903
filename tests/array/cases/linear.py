"""Linear algebra."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

from tests.array.cases.registry import CASES, call, case, nonempty
from tests.array.families import ALL, COMPLEX, FLOATS, INTEGERS, NUMERIC, Call, arrays, axes, dtype_above

MATRICES = (*FLOATS, *COMPLEX)


@case
def matmul(draw: st.DrawFn) -> Call:
    shapes = draw(hnp.mutually_broadcastable_shapes(signature="(m?,n),(n,p?)->(m?,p?)", max_dims=2, max_side=3))
    dtypes = draw(st.sampled_from((INTEGERS[:4], INTEGERS[4:], NUMERIC[-4:])))
    values = [draw(arrays(dtypes, shape, small=True)) for shape in shapes.input_shapes]
    return call(values, lambda xp, a, b: (xp.matmul(a, b), a @ b, xp.linalg.matmul(a, b)))


@case
def matmul_of_nothing(draw: st.DrawFn) -> Call:
    shapes = draw(
        st.sampled_from((((0, 3), (3, 2)), ((2, 0), (0, 3)), ((2, 3), (3, 0)), ((0, 2, 3), (3, 1)), ((0,), (0,))))
    )
    values = [draw(arrays(NUMERIC[-4:], shape)) for shape in shapes]
    return call(values, lambda xp, a, b: xp.matmul(a, b))


@case
def vecdot(draw: st.DrawFn) -> Call:
    shapes = draw(hnp.mutually_broadcastable_shapes(signature="(n),(n)->()", max_dims=2, max_side=3))
    values = [draw(arrays(MATRICES, shape, small=True)) for shape in shapes.input_shapes]
    return call(values, lambda xp, a, b: xp.vecdot(a, b))


@case
def vecdot_along(draw: st.DrawFn) -> Call:
    dtypes = draw(st.sampled_from((INTEGERS[:4], MATRICES)))
    one, other = draw(arrays(dtypes, (2, 3, 1), small=True)), draw(arrays(dtypes, (3, 4), small=True))
    return call([one, other], lambda xp, a, b: (xp.vecdot(a, b, axis=-2), xp.linalg.vecdot(a, b, axis=-2)))


@case
def tensordot(draw: st.DrawFn) -> Call:
    a, b = draw(arrays(MATRICES, (2, 3, 4), small=True)), draw(arrays(MATRICES, (3, 4, 2), small=True))
    axes = draw(st.sampled_from((0, 2, ((1,), (0,)), ((2, 0), (1, 2)), ((-1,), (-2,)), ((), ()))))
    return call([a, b], lambda xp, a, b: (xp.tensordot(a, b, axes=axes), xp.linalg.tensordot(a, b, axes=axes)))


@case
def matrix_transpose(draw: st.DrawFn) -> Call:
    return call([draw(nonempty(ALL, 2))], lambda xp, x: (xp.matrix_transpose(x), x.mT, xp.linalg.matrix_transpose(x)))


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
    order = draw(st.sampled_from((1, 2, 3, np.inf, -np.inf, 0, 2.5)))
    return call([x], lambda xp, x: xp.linalg.vector_norm(x, axis=axis, keepdims=keepdims, ord=order))


@case
def cholesky_of_either(draw: st.DrawFn) -> Call:
    x, upper = _hermitian(draw), draw(st.booleans())
    return call([x], lambda xp, x: xp.linalg.cholesky(x, upper=upper))


@case
def slogdet(draw: st.DrawFn) -> Call:
    return call([_square(draw)], lambda xp, x: tuple(xp.linalg.slogdet(x)))


@case
def eig(draw: st.DrawFn) -> Call:
    def rebuilt(xp: Any, x: Any) -> Any:
        values, vectors = xp.linalg.eig(x)
        # In any order: what does not depend on it.
        both = xp.sum(values, axis=-1), xp.sum(xp.linalg.eigvals(x), axis=-1)
        return *both, xp.matmul(vectors * values[..., None, :], xp.linalg.inv(vectors))

    x = _square(draw)
    distinct = np.diag(np.arange(x.shape[-1]) * 20).astype(x.dtype)
    return call([x + distinct], rebuilt)


@case
def tolerances(draw: st.DrawFn) -> Call:
    x = draw(arrays(MATRICES, (2, 3, 2), small=True))
    x[..., 1] = x[..., 0] * 2 if draw(st.booleans()) else x[..., 1]
    rtol = draw(st.sampled_from((1e-3, 0.5)))
    rtols = np.asarray((rtol, 1e-2), x.real.dtype)

    def find(xp: Any, x: Any, rtols: Any) -> Any:
        one = xp.linalg.matrix_rank(x, rtol=rtol), xp.linalg.pinv(x, rtol=rtol)
        return *one, xp.linalg.matrix_rank(x, rtol=rtols), xp.linalg.pinv(x, rtol=rtols)

    return call([x, rtols], find)


@case
def trace_to(draw: st.DrawFn) -> Call:
    x = draw(nonempty(NUMERIC, 2, small=True))
    dtype = draw(dtype_above(x.dtype))
    return call([x], lambda xp, x: xp.linalg.trace(x, dtype=None if dtype is None else getattr(xp, dtype)))


@case
def outer_of_numbers(draw: st.DrawFn) -> Call:
    dtypes = draw(st.sampled_from((INTEGERS[:4], MATRICES)))
    one, other = draw(arrays(dtypes, (draw(st.integers(0, 3)),), small=True)), draw(arrays(dtypes, (2,), small=True))
    return call([one, other], lambda xp, a, b: xp.linalg.outer(a, b))


@case
def cross_along(draw: st.DrawFn) -> Call:
    dtypes = draw(st.sampled_from((INTEGERS[:4], FLOATS)))
    one, other = draw(arrays(dtypes, (3, 1), small=True)), draw(arrays(dtypes, (2, 3, 4), small=True))
    return call([one, other], lambda xp, a, b: xp.linalg.cross(a, b, axis=-2))
