"""Rules of operations that arrange, read and write elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from actorflow.array import namespace as xp
from actorflow.array.array import Array
from actorflow.array.namespace.indexing import IndexArray, key_of, read_index, write_index
from actorflow.array.record.primitives import Primitive, Value
from actorflow.array.record.record import Record, record
from actorflow.array.transforms.derivatives.rules import Application, rule
from actorflow.errors import GraphError

Grads = list["Array | None"]


@rule("broadcast_to", "reshape")
def _reshaped(at: Application, g: Array) -> Grads:
    x = at.inputs[0]
    return [xp.reshape(g, x.shape) if math.prod(x.shape) == math.prod(g.shape) else g]


@rule("permute_dims")
def _permute(at: Application, g: Array) -> Grads:
    order = at.params[0]
    return [xp.permute_dims(g, [order.index(i) for i in range(len(order))])]


rule("flip")(lambda at, g: [xp.flip(g, axis=at.params[0])])


@rule("roll")
def _roll(at: Application, g: Array) -> Grads:
    shift, axes = at.params
    back = [-each for each in shift] if isinstance(shift, tuple) else -shift
    return [xp.roll(g, back, axis=axes)]


@rule("tile")
def _tile(at: Application, g: Array) -> Grads:
    [x], [times] = at.inputs, at.params
    rank = max(x.ndim, len(times))
    lengths = (1,) * (rank - x.ndim) + x.shape
    counts = (1,) * (rank - len(times)) + tuple(times)
    split = [n for pair in zip(counts, lengths, strict=True) for n in pair]
    return [xp.reshape(xp.sum(xp.reshape(g, split), axis=tuple(range(0, 2 * rank, 2))), x.shape)]


@rule("repeat")
def _repeat(at: Application, g: Array) -> Grads:
    [x], (times, axis) = at.inputs, at.params
    shape = x.shape if axis is not None else (math.prod(x.shape),)
    axis = axis or 0
    counts = times if isinstance(times, tuple) else (times,)
    if len(counts) == 1:
        parts = xp.reshape(g, (*shape[: axis + 1], counts[0], *shape[axis + 1 :]))
        return [xp.reshape(xp.sum(parts, axis=axis + 1), x.shape)]
    origin = np.repeat(np.arange(shape[axis]), counts)
    return [xp.reshape(_added_at(g, shape, (*[slice(None)] * axis, origin)), x.shape)]


@rule("concat")
def _concat(at: Application, g: Array) -> Grads:
    axis = at.params[0]
    ends = np.cumsum([x.shape[axis] for x in at.inputs]).tolist()
    starts = [0, *ends[:-1]]
    return [g[(*[slice(None)] * axis, slice(start, end))] for start, end in zip(starts, ends, strict=True)]


rule("stack")(lambda at, g: [*xp.unstack(g, axis=at.params[0])])
rule("tril")(lambda at, g: [xp.tril(g, k=at.params[0])])
rule("triu")(lambda at, g: [xp.triu(g, k=at.params[0])])


# -- indices ----------------------------------------------------------------------------------------------------


def _add_at(values: Value, *rest: Any) -> Value:
    *arrays, template, shape = rest
    found = np.zeros(shape, values.dtype)
    np.add.at(found, key_of(template, tuple(arrays)), values)
    return found


_ADD_AT = Primitive("add_at", _add_at)


def _recorded_add_at(g: Array, shape: tuple[int, ...], template: Any, arrays: tuple[Any, ...]) -> Array:
    inputs = (g._node, *[each._node if type(each) is Record.array_type else each for each in arrays])
    return record(_ADD_AT, inputs, shape, g.dtype, (template, shape), g._node.evaluator, g.size)


def _added_at(g: Array, shape: tuple[int, ...], key: tuple[Any, ...]) -> Array:
    """Zeros, with the elements of ``g`` added where a key of slices and arrays says, in their order."""
    template: list[Any] = []
    arrays: list[Any] = []
    for part in key:
        if isinstance(part, slice):
            template.append(("slice", part.start, part.stop, part.step))
        else:
            template.append(IndexArray(len(arrays)))
            arrays.append(part)
    return _recorded_add_at(g, shape, tuple(template), tuple(arrays))


@rule("getitem")
def _getitem(at: Application, g: Array) -> Grads:
    x, *arrays = at.inputs
    [template] = at.params
    if arrays:
        found = _recorded_add_at(g, x.shape, template, tuple(arrays))
    else:
        found = write_index(xp.zeros_like(x, dtype=g.dtype), key_of(template, ()), g)
    return [found, *[None] * len(arrays)]


@rule("add_at")
def _add_at_rule(at: Application, g: Array) -> Grads:
    _, *arrays = at.inputs
    return [read_index(g, key_of(at.params[0], tuple(arrays))), *[None] * len(arrays)]


@rule("setitem")
def _setitem(at: Application, g: Array) -> Grads:
    """Elements that were written over have no gradient, nor values that were written over later."""
    _, value, *arrays = at.inputs
    key = key_of(at.params[0], tuple(arrays))
    kept = write_index(g, key, 0)
    if any(each.dtype.kind == "b" for each in arrays):
        return [kept, _of_mask(g, kept, value, key), *[None] * len(arrays)]
    part = read_index(g, key)
    if arrays:
        places = np.arange(math.prod(part.shape)).reshape(part.shape)
        last = write_index(xp.full(g.shape, -1, dtype=np.int64), key, places)
        part = xp.where(read_index(last, key) == xp.asarray(places), part, 0.0)
    if math.prod(value.shape) == math.prod(part.shape):
        part = xp.reshape(part, value.shape)
    return [kept, part, *[None] * len(arrays)]


def _of_mask(g: Array, kept: Array, value: Any, key: tuple[Any, ...]) -> Array:
    """The gradient of values written by a mask, whose number of elements depends on the data."""
    written = g - kept
    if math.prod(value.shape) == 1:
        return xp.reshape(xp.sum(written), value.shape)
    if len(key) > 1:
        raise GraphError("setitem: a mask beside other indices has a gradient only for a value of one element")
    tail = g.shape[key[0].ndim :]
    if value.ndim <= len(tail) or value.shape[0] == 1:  # the same for each
        return xp.sum(written, axis=tuple(range(key[0].ndim)))
    mask = xp.asarray(key[0])
    return record(_READ_MASKED, (g._node, mask._node), (value.shape[0], *tail), g.dtype, (), g._node.evaluator, g.size)


_READ_MASKED = Primitive("read_masked", lambda x, mask: x[mask])


@rule("read_masked")
def _read_masked(at: Application, g: Array) -> Grads:
    x, mask = at.inputs
    return [write_index(xp.zeros_like(x), mask, g), None]


@rule("take")
def _take(at: Application, g: Array) -> Grads:
    (x, indices), [axis] = at.inputs, at.params
    return [_added_at(g, x.shape, (*[slice(None)] * axis, indices)), None]


@rule("take_along_axis")
def _take_along(at: Application, g: Array) -> Grads:
    (x, indices), [axis] = at.inputs, at.params
    lines = [np.arange(n).reshape([-1 if i == j else 1 for j in range(x.ndim)]) for i, n in enumerate(x.shape)]
    return [_added_at(g, x.shape, tuple([indices if i == axis else line for i, line in enumerate(lines)])), None]
