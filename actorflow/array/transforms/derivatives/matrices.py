"""Rules of the products, decompositions and norms of matrices.

Sources: Giles, Collected matrix derivative results for forward and reverse mode algorithmic differentiation (2008);
Townsend, Differentiating the singular value decomposition (2016); Walter, Lehmann, On the automatic differentiation of
the QR decomposition (2010).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from actorflow.array import namespace as xp
from actorflow.array.array import Array
from actorflow.array.namespace.operate import node_of
from actorflow.array.record.primitives import DType, Primitive, Value
from actorflow.array.record.record import record
from actorflow.array.transforms.derivatives.rules import Application, conj, pulled_back, rule, transposed
from actorflow.array.transforms.derivatives.statistics import spread
from actorflow.errors import GraphError

Grads = Sequence["Array | None"]


def _real(dtype: DType) -> DType:
    return np.empty(0, dtype).real.dtype


def _columns(x: Array) -> Array:
    """Vectors as factors of the columns of matrices."""
    return x[..., None, :]


def _rows(x: Array) -> Array:
    return x[..., :, None]


@rule("matmul")
def _matmul(at: Application, g: Array) -> Grads:
    a, b = at.inputs
    if a.ndim == b.ndim == 1:
        return [g * conj(b), g * conj(a)]
    if b.ndim == 1:
        return [g[..., None] * conj(b), xp.sum(g[..., None] * conj(a), axis=tuple(range(a.ndim - 1)))]
    if a.ndim == 1:
        return [xp.vecdot(b, g[..., None, :]), conj(a)[:, None] * g[..., None, :]]
    return [g @ transposed(b), transposed(a) @ g]


@rule("vecdot")
def _vecdot(at: Application, g: Array) -> Grads:
    (a, b), [axis] = at.inputs, at.params
    line = xp.expand_dims(g, axis=axis)
    return [conj(line) * b, line * a]


@rule("tensordot")
def _tensordot(at: Application, g: Array) -> Grads:
    (a, b), [(ones, others)] = at.inputs, at.params
    left = [i for i in range(a.ndim) if i not in ones]
    right = [i for i in range(b.ndim) if i not in others]
    # What is summed over comes in the order of the other array's axes.
    by_a = xp.tensordot(g, conj(b), axes=(range(len(left), g.ndim), right))
    by_b = xp.tensordot(conj(a), g, axes=(left, range(len(left))))
    places_a = [*left, *[ones[others.index(axis)] for axis in sorted(others)]]
    places_b = [*[others[ones.index(axis)] for axis in sorted(ones)], *right]
    return [_placed(by_a, places_a), _placed(by_b, places_b)]


def _placed(x: Array, places: list[int]) -> Array:
    return xp.permute_dims(x, [places.index(i) for i in range(len(places))])


@rule("outer")
def _outer(at: Application, g: Array) -> Grads:
    a, b = at.inputs
    return [g @ conj(b), conj(a) @ g]


@rule("cross")
def _cross(at: Application, g: Array) -> Grads:
    (a, b), [axis] = at.inputs, at.params
    a, b = (xp.broadcast_to(conj(x), g.shape) for x in (a, b))
    return [xp.linalg.cross(b, g, axis=axis), xp.linalg.cross(g, a, axis=axis)]


@rule("diagonal")
def _diagonal(at: Application, g: Array) -> Grads:
    [x], [offset] = at.inputs, at.params
    at_ = np.arange(g.shape[-1])
    found = xp.zeros_like(x)
    found[..., at_ + max(0, -offset), at_ + max(0, offset)] = g
    return [found]


@rule("matrix_power")
def _matrix_power(at: Application, g: Array) -> Grads:
    n = at.params[0]
    if n == 0:
        return [None]
    return pulled_back(lambda x: _power(x if n > 0 else xp.linalg.inv(x), abs(n)), at.inputs, g)


def _power(x: Array, n: int) -> Array:
    if n == 1:
        return x
    half = _power(x, n // 2)
    return half @ half @ x if n % 2 else half @ half


# -- inverses ---------------------------------------------------------------------------------------------------


@rule("inv")
def _inv(at: Application, g: Array) -> Grads:
    outer = transposed(at.output)
    return [-(outer @ g @ outer)]


@rule("solve")
def _solve(at: Application, g: Array) -> Grads:
    a, b = at.inputs
    back = xp.linalg.solve(transposed(a), g)
    if b.ndim == 1:
        return [-(_rows(back) * _columns(conj(at.output))), back]
    return [-(back @ transposed(at.output)), back]


# -- determinants -----------------------------------------------------------------------------------------------


def _cofactors(x: Value) -> Value:
    """The matrix of cofactors, conjugated: ``conj(det(x)) inv(x).H`` where there is an inverse."""
    u, s, vh = np.linalg.svd(x)
    n = s.shape[-1]
    others = np.where(np.eye(n, dtype=bool), 1.0, s[..., None, :]).prod(axis=-1).astype(x.dtype)
    turn = np.linalg.det(u) * np.linalg.det(vh)
    return np.asarray(turn.conj()[..., None, None] * ((u * others[..., None, :]) @ vh), x.dtype)


_COFACTORS = Primitive("cofactors", _cofactors)


@rule("det")
def _det(at: Application, g: Array) -> Grads:
    [x] = at.inputs
    node = node_of("cofactors", "x", x)
    return [_rows(g[..., None]) * record(_COFACTORS, (node,), x.shape, x.dtype, (), node.evaluator, node.size)]


@rule("cofactors")
def _of_cofactors(at: Application, g: Array) -> Grads:
    return pulled_back(lambda x: _rows(conj(xp.linalg.det(x))[..., None]) * transposed(xp.linalg.inv(x)), at.inputs, g)


@rule("slogdet")
def _slogdet(at: Application, grads: tuple[Array | None, ...]) -> Grads:
    [x], (sign, _), (by_sign, by_log) = at.inputs, at.output, grads
    slope: Any = by_log
    if x.dtype.kind == "c" and by_sign is not None:
        turn = xp.imag(by_sign * conj(sign)) * 1j
        slope = turn if slope is None else slope + turn
    return [None] if slope is None else [_rows(slope[..., None]) * transposed(xp.linalg.inv(x))]


# -- factors ----------------------------------------------------------------------------------------------------


def _half(x: Array) -> Array:
    return xp.tril(x) - 0.5 * (x * xp.eye(x.shape[-1], dtype=_real(x.dtype)))


@rule("cholesky")
def _cholesky(at: Application, g: Array) -> Grads:
    """The gradient by symmetric changes of a symmetric matrix."""
    is_upper = at.params[0]
    factor = transposed(at.output) if is_upper else at.output
    by_factor = transposed(g) if is_upper else g
    inner = _half(transposed(factor) @ xp.tril(by_factor))
    outer = xp.linalg.inv(factor)
    found = transposed(outer) @ inner @ outer
    return [0.5 * (found + transposed(found))]


@rule("eigh")
def _eigh(at: Application, grads: tuple[Array | None, ...]) -> Grads:
    (values, vectors), (by_values, by_vectors) = at.output, grads
    inner: Any = 0.0
    if by_vectors is not None:
        inner = (transposed(vectors) @ by_vectors) / _gaps(values)
    if by_values is not None:
        inner = inner + _columns(by_values) * xp.eye(values.shape[-1], dtype=values.dtype)
    return [vectors @ inner @ transposed(vectors)]


def _gaps(values: Array) -> Array:
    """``values[j] - values[i]``; infinite on the diagonal, so that a division by it gives 0 there."""
    gaps = _columns(values) - _rows(values)
    return xp.where(xp.eye(values.shape[-1], dtype=xp.bool), math.inf, gaps)


@rule("eigvalsh")
def _eigvalsh(at: Application, g: Array) -> Grads:
    vectors = xp.linalg.eigh(at.inputs[0]).eigenvectors
    return [(vectors * _columns(g)) @ transposed(vectors)]


@rule("eig")
def _eig(at: Application, grads: tuple[Array | None, ...]) -> Grads:
    """The gradient of eigenvectors of norm 1."""
    (values, vectors), (by_values, by_vectors) = at.output, grads
    inner: Any = 0.0
    if by_vectors is not None:
        turn = transposed(vectors) @ by_vectors
        along = xp.real(xp.linalg.diagonal(turn))
        inner = (turn - transposed(vectors) @ (vectors * _columns(along))) / conj(_gaps(values))
    if by_values is not None:
        inner = inner + _columns(by_values) * xp.eye(values.shape[-1])
    return [xp.linalg.solve(transposed(vectors), inner @ transposed(vectors))]


@rule("eigvals")
def _eigvals(at: Application, g: Array) -> Grads:
    vectors = xp.linalg.eig(at.inputs[0]).eigenvectors
    return [xp.linalg.solve(transposed(vectors), _rows(g) * transposed(vectors))]


@rule("qr")
def _qr(at: Application, grads: tuple[Array | None, ...]) -> Grads:
    [x], (q, r), (by_q, by_r) = at.inputs, at.output, grads
    rows, columns = x.shape[-2:]
    if at.params[0] == "complete" and rows > columns:
        raise GraphError(
            "qr: mode='complete' of tall matrices has no gradient, since Q is not determined: use 'reduced'"
        )
    by_q = xp.zeros_like(q) if by_q is None else by_q
    by_r = xp.zeros_like(r) if by_r is None else by_r
    if rows >= columns:
        return [_of_qr(q, r, by_q, by_r)]
    # Q is determined by the first columns; the others are Q times theirs in R.
    by_rest = by_r[..., rows:]
    by_q = by_q + x[..., rows:] @ transposed(by_rest)
    return [xp.concat([_of_qr(q, r[..., :rows], by_q, by_r[..., :rows]), q @ by_rest], axis=-1)]


def _of_qr(q: Array, r: Array, by_q: Array, by_r: Array) -> Array:
    lower = _half(transposed(by_r @ transposed(r) - transposed(q) @ by_q))
    return transposed(xp.linalg.solve(r, transposed(by_q + q @ (lower + transposed(lower)))))


@rule("svd")
def _svd(at: Application, grads: tuple[Array | None, ...]) -> Grads:
    [x], (u, s, vh), (by_u, by_s, by_vh) = at.inputs, at.output, grads
    inner = s.shape[-1]
    if u.shape[-1] != vh.shape[-2]:
        if by_u is not None or by_vh is not None:
            raise GraphError("svd: full_matrices=True has a gradient only for S, or for square matrices")
        u, s, vh = xp.linalg.svd(x, full_matrices=False)
    terms: list[Array] = []
    v = transposed(vh)
    middle: Any = 0.0
    if by_s is not None:
        middle = _columns(by_s) * xp.eye(inner, dtype=s.dtype)
    if by_u is not None or by_vh is not None:
        gaps = _gaps(xp.square(s))
        if by_u is not None:
            turn = transposed(u) @ by_u
            middle = middle + (_skew(turn) / gaps) * _columns(s)
            if x.dtype.kind == "c":
                middle = middle + (0.5 * _skew(turn) / _columns(s)) * xp.eye(inner, dtype=s.dtype)
            terms.append(((by_u - u @ turn) / _columns(s)) @ vh)
        if by_vh is not None:
            by_v = transposed(by_vh)
            turn = vh @ by_v
            middle = middle + _rows(s) * (_skew(turn) / gaps)
            terms.append((u / _columns(s)) @ transposed(by_v - v @ turn))
    found = u @ middle @ vh
    for term in terms:
        found = found + term
    return [found]


def _skew(x: Array) -> Array:
    return x - transposed(x)


@rule("svdvals")
def _svdvals(at: Application, g: Array) -> Grads:
    u, _, vh = xp.linalg.svd(at.inputs[0], full_matrices=False)
    return [(u * _columns(g)) @ vh]


@rule("pinv")
def _pinv(at: Application, g: Array) -> Grads:
    """The gradient where the rank does not change."""
    x, *rest = at.inputs
    y = at.output
    by_y, outer = transposed(g), transposed(y)
    if x.shape[-2] <= x.shape[-1]:
        inner = by_y @ y
        turned = inner @ outer
        found = -transposed(y @ inner) + turned - (x @ y) @ turned + (outer @ y) @ (by_y - inner @ x)
    else:
        inner = y @ by_y
        turned = outer @ inner
        found = -transposed(inner @ y) + (by_y - x @ inner) @ y @ outer + turned - (turned @ y) @ x
    return [found, *[None] * len(rest)]


# -- norms ------------------------------------------------------------------------------------------------------


@rule("vector_norm")
def _vector_norm(at: Application, g: Array) -> Grads:
    """The gradient at the origin is 0."""
    [x], (axes, keepdims, order) = at.inputs, at.params
    if order == 0:
        return [None]
    if math.isinf(order):
        extreme = xp.max if order > 0 else xp.min
        return pulled_back(lambda x: extreme(xp.abs(x), axis=axes, keepdims=keepdims), [x], g)
    g, y = spread(g, x, axes, keepdims), spread(at.output, x, axes, keepdims)
    if order == 1:
        return [g * xp.sign(x)]
    share = g / xp.where(y == 0.0, 1.0, y)
    if order == 2:
        return [x * share]
    part = xp.abs(x) / xp.where(y == 0.0, 1.0, y)
    if order < 1:  # steep at 0, where there is no slope
        part = xp.where(part == 0.0, 1.0, part)
    return [g * xp.sign(x) * part ** (order - 1.0)]


@rule("matrix_norm")
def _matrix_norm(at: Application, g: Array) -> Grads:
    [x], (order, keepdims) = at.inputs, at.params

    def norm(x: Array) -> Array:
        if order == "fro":
            return xp.linalg.vector_norm(x, axis=(-2, -1), keepdims=keepdims)
        if order in ("nuc", 2, -2):
            values = xp.linalg.svdvals(x)
            fold = {"nuc": xp.sum, 2: xp.max, -2: xp.min}[order]
            found = fold(values, axis=-1)
        else:
            sums = xp.sum(xp.abs(x), axis=-2 if abs(order) == 1 else -1)
            found = (xp.max if order > 0 else xp.min)(sums, axis=-1)
        return found[..., None, None] if keepdims else found

    return pulled_back(norm, [x], g)
