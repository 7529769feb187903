"""Rules of reductions."""

from __future__ import annotations

import math

from actorflow.array import namespace as xp
from actorflow.array.array import Array
from actorflow.array.transforms.derivatives.rules import Application, conj, rule

Grads = list["Array | None"]


def spread(x: Array, like: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The result of a reduction over ``axes``, with these axes of length 1."""
    if keepdims:
        return x
    return xp.reshape(x, tuple([1 if i in axes else n for i, n in enumerate(like.shape)]))


@rule("sum")
def _sum(at: Application, g: Array) -> Grads:
    [x], (axes, keepdims, _) = at.inputs, at.params
    return [xp.broadcast_to(spread(g, x, axes, keepdims), x.shape)]


@rule("max", "min")
def _extreme(at: Application, g: Array) -> Grads:
    """The elements that are the extreme share the gradient equally, as in PyTorch's ``amax``."""
    [x], (axes, keepdims, _) = at.inputs, at.params
    found = xp.astype(x == spread(at.output, x, axes, keepdims), x.dtype)
    return [found * (spread(g, x, axes, keepdims) / xp.sum(found, axis=axes, keepdims=True))]


@rule("prod")
def _prod(at: Application, g: Array) -> Grads:
    """The product of the other elements is that of those before times that of those behind: zeros do no harm."""
    [x], (axes, keepdims, _) = at.inputs, at.params
    rest = [i for i in range(x.ndim) if i not in axes]
    count = math.prod([x.shape[i] for i in axes])
    order = [*rest, *axes]
    lines = xp.reshape(xp.permute_dims(x, order), (*[x.shape[i] for i in rest], count))
    ones = xp.ones_like(lines[..., :1])
    before = xp.cumulative_prod(xp.concat([ones, lines[..., :-1]], axis=-1), axis=-1)
    behind = xp.flip(xp.cumulative_prod(xp.flip(xp.concat([lines[..., 1:], ones], axis=-1), axis=-1), axis=-1), axis=-1)
    back = [order.index(i) for i in range(x.ndim)]
    others = xp.permute_dims(xp.reshape(before * behind, tuple([x.shape[i] for i in order])), back)
    return [spread(g, x, axes, keepdims) * conj(others)]
