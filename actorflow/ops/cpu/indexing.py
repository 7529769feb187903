"""Kernels of `actorflow.ops.indexing`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.ops import indexing as ops
from actorflow.ops.cpu.buffers import Array, loops_for, scratch
from actorflow.ops.cpu.reductions import sum_axes
from actorflow.ops.operation import wide_dtype
from actorflow.ops.registry import kernel
from actorflow.spec import TensorSpec

Key = tuple[Any, ...]

#: Most elements that are sooner copied once more than all indices are looked at.
_FEW = 1 << 12


def _slicing(operation: ops.Slice, _: Sequence[TensorSpec]) -> Any:
    """The kernel for one step; one that goes forwards is a look at the array."""
    key = ops.numpy_key(operation.key)
    if any(type(part) is slice and part.step is not None and part.step < 0 for part in key):
        return _slice
    return lambda _, inputs, __: [inputs[0][key]]


@kernel(ops.Slice, returns=True, bind=_slicing)
def _slice(operation: ops.Slice, inputs: list[Array], outputs: None) -> list[Array]:
    y = operation.compute(*inputs)
    return [y.copy() if min(y.strides, default=0) < 0 else y]  # other libraries want steps forwards


@kernel(ops.AddAt)
def _add_at(operation: ops.AddAt, inputs: list[Array], outputs: list[Array]) -> None:
    (g, *indices), (y,) = inputs, outputs
    y.fill(0)
    if not indices:
        y[ops.numpy_key(operation.key)] = g
        return
    # One addition after the other, in this order.
    total = y.astype(wide_dtype(y.dtype)) if y.dtype.kind in "fV" else y
    np.add.at(total, ops.numpy_key(operation.key, indices), g.astype(total.dtype, copy=False))
    np.copyto(y, total, casting="unsafe")


@kernel(ops.Scatter, inplace=True)
def _scatter(operation: ops.Scatter, inputs: list[Array], outputs: list[Array]) -> None:
    (x, values, *indices), (y,) = inputs, outputs
    if y is not x:
        np.copyto(y, x)
    key = ops.numpy_key(operation.key, indices)
    if operation.mode == "set":
        y[key] = values
    else:
        ops.UFUNCS[operation.mode].at(y, key, values)


@kernel(ops.Flip)
def _flip(operation: ops.Flip, inputs: list[Array], outputs: list[Array]) -> None:
    np.copyto(outputs[0], inputs[0][operation.key(inputs[0].ndim)])


def inside(operation: ops.Pad | ops.PadDown, shape: tuple[int, ...]) -> Key:
    """The key of the part inside the border of an array of the padded shape."""
    return (*[slice(b, n - a) for n, (b, a) in zip(shape, operation.widths, strict=True)], ...)


def border(mode: ops.PadMode, axis: int, widths: tuple[int, int], n: int) -> list[tuple[Key, Key]]:
    """The two parts of the border along an axis, and each one's elements, in an array whose axis has length ``n``."""
    before, after = widths
    first, last = before, n - after - 1
    if mode == "edge":
        sources = slice(first, first + 1), slice(last, last + 1)
    elif mode == "wrap":
        sources = slice(last + 1 - before, last + 1), slice(first, first + after)
    else:
        sources = slice(first + before, first, -1), slice(last - 1, last - after - 1 if last > after else None, -1)
    axes = (slice(None),) * axis
    parts = [((*axes, slice(0, before)), (*axes, sources[0])), ((*axes, slice(n - after, n)), (*axes, sources[1]))]
    return [part for part, width in zip(parts, widths, strict=True) if width]


def _padding(operation: ops.Pad, inputs: Sequence[TensorSpec]) -> Any:
    ((shape, _),) = operation.infer(*inputs)
    middle, parts = inside(operation, shape), list[tuple[Key, Key]]()
    if operation.mode != "constant" and 0 not in shape:
        # Along later axes the border is copied as far as earlier ones have widened it.
        for axis, (widths, n) in enumerate(zip(operation.widths, shape, strict=True)):
            parts += border(operation.mode, axis, widths, n)

    def compute(operation: ops.Pad, inputs: list[Array], outputs: list[Array]) -> None:
        (y,) = outputs
        if operation.mode == "constant":
            y.fill(operation.value)
        y[middle] = inputs[0]
        for part, made_of in parts:
            y[part] = y[made_of]

    return compute


@kernel(ops.Pad, bind=_padding)
def _pad(operation: ops.Pad, inputs: list[Array], outputs: list[Array]) -> None:
    _padding(operation, [TensorSpec(x.shape, x.dtype) for x in inputs])(operation, inputs, outputs)


@kernel(ops.PadDown)
def _pad_down(operation: ops.PadDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g,), (dx,) = inputs, outputs
    wide = np.float32 if g.dtype.itemsize < 4 else g.dtype
    whole = scratch("padded", g.shape, wide)
    np.copyto(whole, g)
    for axis, (widths, n) in reversed(list(enumerate(zip(operation.widths, g.shape, strict=True)))):
        for part, made_of in border(operation.mode, axis, widths, n):
            share = whole[part]
            whole[made_of] += sum_axes(share, (axis,), keepdims=True) if operation.mode == "edge" else share
    np.copyto(dx, whole[inside(operation, g.shape)], casting="unsafe")


Indices = npt.NDArray[np.intp]


def _checked(kind: str, indices: Array, low: int, high: int) -> Indices:
    """Indices that are from ``low`` to ``high - 1``."""
    if indices.size and (indices.min() < low or indices.max() >= high):
        wrong = np.argmax((indices < low) | (indices >= high))
        where = tuple(int(i) for i in np.unravel_index(wrong, indices.shape))
        raise ValueError(f"{kind}: indices must be from {low} to {high - 1}, got {indices.flat[wrong]} at {where}")
    return indices.astype(np.intp, copy=False)


def _from_front(kind: str, indices: Array, length: int) -> Indices:
    """Indices that count from the front, of an axis of this length; ValueError if one is not there."""
    checked = _checked(kind, indices, -length, length)
    return np.where(checked < 0, checked + length, checked) if indices.dtype.kind == "i" else checked


@kernel(ops.Take)
def _take(operation: ops.Take, inputs: list[Array], outputs: list[Array]) -> None:
    _put_taken("Take", inputs, operation.axis, outputs[0])


def _put_taken(kind: str, inputs: list[Array], axis: int, y: Array) -> None:
    x, indices = inputs
    if 0 < y.size <= _FEW:  # of no elements it would take any indices
        try:
            y[...] = x.take(indices, axis)
            return
        except (IndexError, TypeError):  # its message says less; it takes no unsigned numbers of 64 bits
            pass
    # Other modes than "raise" write into the output without a buffer; this one counts from the end.
    places = _checked(kind, indices, -x.shape[axis], x.shape[axis])
    if places.size:
        np.take(x, places, axis=axis, out=y, mode="wrap")


@kernel(ops.TakeDown)
def _take_down(operation: ops.TakeDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g, indices), (dx,) = inputs, outputs
    dx.fill(0)
    if not g.size:
        return
    places = _from_front("TakeDown", indices, operation.length).reshape(-1)
    wide, outer = wide_dtype(g.dtype) if g.dtype.kind in "fV" else g.dtype, math.prod(g.shape[: operation.axis])
    parts = np.ascontiguousarray(g.reshape(outer, places.size, -1), wide)
    target = dx.reshape(outer, operation.length, -1)
    sums = target if dx.dtype == wide else np.zeros(target.shape, wide)
    loops = loops_for(parts, sums, kinds="fd")
    if loops is not None:
        loops.add_rows(parts, places.astype(np.int64, copy=False), sums)
    else:  # from -0, so that a sum of those is one, as everywhere else here
        key = ops.numpy_key(((None, None, None), ops.INDEX), [places])
        sums[key] = wide.type(-0.0)
        np.add.at(sums, key, parts)
    if sums is not target:
        np.copyto(target, sums, casting="unsafe")


@kernel(ops.TakeAlongAxis)
def _take_along_axis(operation: ops.TakeAlongAxis, inputs: list[Array], outputs: list[Array]) -> None:
    x, indices = inputs
    axis = operation.axis % x.ndim
    if x.size == x.shape[axis]:
        _put_taken("TakeAlongAxis", [x.reshape(-1), indices], 0, outputs[0])
        return
    places = _from_front("TakeAlongAxis", indices, x.shape[axis])
    if places.size:
        np.take(x.reshape(-1), _flat(places, axis, x.shape[axis]), out=outputs[0], mode="wrap")


@kernel(ops.TakeAlongAxisDown)
def _take_along_axis_down(operation: ops.TakeAlongAxisDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g, indices), (dx,) = inputs, outputs
    places = _from_front("TakeAlongAxisDown", indices, operation.length)
    narrow = g.dtype.kind in "fV" and g.dtype.itemsize < 4
    total = np.zeros(dx.size, np.float32) if narrow else dx.reshape(-1)
    total.fill(0)
    # One addition after the other, in this order.
    np.add.at(total, _flat(places, operation.axis, operation.length).reshape(-1), g.reshape(-1).astype(total.dtype))
    if narrow:
        np.copyto(dx, total.reshape(dx.shape), casting="unsafe")


def _flat(places: Indices, axis: int, length: int) -> Indices:
    """Indices along an axis as positions in a flat array, whose axis has this length."""
    outer, inner = math.prod(places.shape[:axis]), math.prod(places.shape[axis + 1 :])
    starts = np.arange(outer)[:, np.newaxis, np.newaxis] * (length * inner) + np.arange(inner)
    return (places.reshape(outer, places.shape[axis], inner) * inner + starts).reshape(places.shape)


@kernel(ops.OneHot)
def _one_hot(operation: ops.OneHot, inputs: list[Array], outputs: list[Array]) -> None:
    (indices,), (y,) = inputs, outputs
    places = _checked("OneHot", indices, 0, operation.depth).reshape(-1)
    y.fill(0)
    y.reshape(places.size, operation.depth)[np.arange(places.size), places] = 1
