"""Rules of products of vectors and matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from actorflow.array import namespace as xp
from actorflow.array.transforms.derivatives.backward import pulled_back
from actorflow.array.transforms.derivatives.rules import Application, conj, rule, transposed

if TYPE_CHECKING:
    from actorflow.array.array import Array

Grads = list["Array | None"]


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
    """The array with its axes at these places."""
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


@rule("trace")
def _trace(at: Application, g: Array) -> Grads:
    [x], offset = at.inputs, at.params[0]
    return [g[..., None, None] * xp.eye(*x.shape[-2:], k=offset, dtype=x.dtype)]


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
