"""Kernels of `actorflow.ops.slicing`."""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.registry import kernel
from actorflow.ops.slicing import Flip, Pad, PadDown, PadMode, Slice, SliceDown

Key = tuple[Any, ...]


@kernel(Slice, returns=True)
def _slice(operation: Slice, inputs: list[Array], outputs: None) -> list[Array]:
    return [inputs[0][operation.key]]


@kernel(SliceDown)
def _slice_down(operation: SliceDown, inputs: list[Array], outputs: list[Array]) -> None:
    outputs[0].fill(0)
    outputs[0][operation.part.key] = inputs[0]


@kernel(Flip)
def _flip(operation: Flip, inputs: list[Array], outputs: list[Array]) -> None:
    np.copyto(outputs[0], inputs[0][operation.key(inputs[0].ndim)])


def inside(operation: Pad | PadDown, shape: tuple[int, ...]) -> Key:
    """What is inside the border of an array of the padded shape."""
    return (*[slice(b, n - a) for n, (b, a) in zip(shape, operation.widths, strict=True)], ...)


def border(mode: PadMode, axis: int, widths: tuple[int, int], n: int) -> list[tuple[Key, Key]]:
    """The two parts of the border along an axis, and what each is made of, in an array whose axis has length ``n``."""
    before, after = widths
    first, last = before, n - after - 1
    if mode == "edge":
        sources = slice(first, first + 1), slice(last, last + 1)
    else:
        sources = slice(first + before, first, -1), slice(last - 1, last - after - 1 if last > after else None, -1)
    axes = (slice(None),) * axis
    parts = [((*axes, slice(0, before)), (*axes, sources[0])), ((*axes, slice(n - after, n)), (*axes, sources[1]))]
    return [part for part, width in zip(parts, widths, strict=True) if width]


@kernel(Pad)
def _pad(operation: Pad, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (y,) = inputs, outputs
    if operation.mode == "constant":
        y.fill(operation.value)
    y[inside(operation, y.shape)] = x
    if operation.mode != "constant" and y.size:
        # Along later axes the border is copied as far as earlier ones have widened it.
        for axis, (widths, n) in enumerate(zip(operation.widths, y.shape, strict=True)):
            for part, made_of in border(operation.mode, axis, widths, n):
                y[part] = y[made_of]


@kernel(PadDown)
def _pad_down(operation: PadDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g,), (dx,) = inputs, outputs
    wide = np.float32 if g.dtype.itemsize < 4 else g.dtype
    whole = scratch("padded", g.shape, wide)
    np.copyto(whole, g)
    for axis, (widths, n) in reversed(list(enumerate(zip(operation.widths, g.shape, strict=True)))):
        for part, made_of in border(operation.mode, axis, widths, n):
            share = whole[part]
            whole[made_of] += share.sum(axis, keepdims=True) if operation.mode == "edge" else share
    np.copyto(dx, whole[inside(operation, g.shape)], casting="unsafe")
