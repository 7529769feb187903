"""Rules of reductions, and of operations along an axis."""

from __future__ import annotations

import math

import numpy as np

from actorflow.array import namespace as xp
from actorflow.array.array import Array
from actorflow.array.namespace.operate import node_of
from actorflow.array.record.primitives import Primitive, Value
from actorflow.array.record.record import record
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


@rule("cumulative_sum")
def _cumulative_sum(at: Application, g: Array) -> Grads:
    axis = at.params[0]
    return [xp.flip(xp.cumulative_sum(xp.flip(g, axis=axis), axis=axis), axis=axis)]


@rule("cumulative_prod")
def _cumulative_prod(at: Application, g: Array) -> Grads:
    """``dx[k] = (x[0] ... x[k-1]) (g[k] + x[k+1] (g[k+1] + x[k+2] (...)))``: nothing is divided by elements."""
    [x], axis = at.inputs, at.params[0]
    first = _part(x, axis, slice(None, 1))
    before = xp.cumulative_prod(xp.concat([xp.ones_like(first), _part(x, axis, slice(None, -1))], axis=axis), axis=axis)
    following = xp.concat([_part(x, axis, slice(1, None)), xp.zeros_like(first)], axis=axis)
    sums = xp.flip(_recurrence(xp.flip(g, axis=axis), xp.flip(conj(following), axis=axis), axis), axis=axis)
    return [conj(before) * sums]


def _part(x: Array, axis: int, part: slice) -> Array:
    return x[(*[slice(None)] * axis, part)]


def _recur(x: Value, factors: Value, axis: int) -> Value:
    found = np.array(x)
    lines, scales = np.moveaxis(found, axis, 0), np.moveaxis(factors, axis, 0)
    for i in range(1, len(lines)):
        lines[i] += scales[i] * lines[i - 1]
    return found


_RECURRENCE = Primitive("recurrence", _recur)


def _recurrence(x: Array, factors: Array, axis: int) -> Array:
    """``y[0] = x[0]``, ``y[k] = x[k] + factors[k] y[k-1]`` along an axis; ``factors[0]`` is not used."""
    nodes = node_of("recurrence", "x", x), node_of("recurrence", "factors", factors)
    return record(_RECURRENCE, nodes, x.shape, np.result_type(x.dtype, factors.dtype), (axis,))


@rule("recurrence")
def _recurrence_rule(at: Application, g: Array) -> Grads:
    factors, axis = at.inputs[1], at.params[0]
    following = xp.concat(
        [_part(factors, axis, slice(1, None)), xp.zeros_like(_part(factors, axis, slice(None, 1)))], axis=axis
    )
    back = xp.flip(_recurrence(xp.flip(g, axis=axis), xp.flip(conj(following), axis=axis), axis), axis=axis)
    first = xp.zeros_like(_part(at.output, axis, slice(None, 1)))
    previous = xp.concat([first, _part(at.output, axis, slice(None, -1))], axis=axis)
    return [back, back * conj(previous)]


@rule("sort")
def _sort(at: Application, g: Array) -> Grads:
    [x], (axis, descending, stable) = at.inputs, at.params
    order = xp.argsort(x, axis=axis, descending=descending, stable=stable)
    return [xp.take_along_axis(g, xp.argsort(order, axis=axis), axis=axis)]
