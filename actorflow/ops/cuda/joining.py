"""Kernels of `actorflow.ops.joining` and `actorflow.ops.slicing`: copies of parts, which CuPy launches.

Parts are copied here, where the CPU gives views: consumers want contiguous arrays, and what a CUDA graph captures must
not make arrays of its own.
"""

from __future__ import annotations

import cupy

from actorflow.ops.cpu.slicing import border, inside
from actorflow.ops.cuda.launch import ANYTHING, FLOATS, Array, kernel, wide_dtype
from actorflow.ops.cuda.reduce import sum_axes
from actorflow.ops.joining import Concat, Split
from actorflow.ops.slicing import Flip, Pad, PadDown, Slice, SliceDown


@kernel(Concat, dtypes=ANYTHING)
def _concat(operation: Concat, inputs: list[Array], outputs: list[Array]) -> None:
    (y,), start = outputs, 0
    before = (slice(None),) * (operation.axis % y.ndim)
    for part in inputs:
        length = part.shape[len(before)]
        cupy.copyto(y[(*before, slice(start, start + length))], part)
        start += length


@kernel(Split, dtypes=ANYTHING)
def _split(operation: Split, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), start = inputs, 0
    before = (slice(None),) * (operation.axis % x.ndim)
    for length, piece in zip(operation.lengths, outputs, strict=True):
        cupy.copyto(piece, x[(*before, slice(start, start + length))])
        start += length


@kernel(Slice, dtypes=ANYTHING)
def _slice(operation: Slice, inputs: list[Array], outputs: list[Array]) -> None:
    cupy.copyto(outputs[0], inputs[0][operation.key])


@kernel(SliceDown, dtypes=ANYTHING)
def _slice_down(operation: SliceDown, inputs: list[Array], outputs: list[Array]) -> None:
    outputs[0].fill(0)
    cupy.copyto(outputs[0][operation.part.key], inputs[0])


@kernel(Flip, dtypes=ANYTHING)
def _flip(operation: Flip, inputs: list[Array], outputs: list[Array]) -> None:
    cupy.copyto(outputs[0], inputs[0][operation.key(inputs[0].ndim)])


@kernel(Pad, dtypes=ANYTHING)
def _pad(operation: Pad, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (y,) = inputs, outputs
    if operation.mode == "constant":
        y.fill(operation.value)
    cupy.copyto(y[inside(operation, y.shape)], x)
    if operation.mode != "constant" and y.size:
        for axis, (widths, n) in enumerate(zip(operation.widths, y.shape, strict=True)):
            for part, made_of in border(operation.mode, axis, widths, n):
                cupy.copyto(y[part], cupy.broadcast_to(y[made_of], y[part].shape))


@kernel(PadDown, dtypes=FLOATS)
def _pad_down(operation: PadDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g,), (dx,) = inputs, outputs
    whole = cupy.empty(g.shape, wide_dtype(g.dtype))
    cupy.copyto(whole, g)
    for axis, (widths, n) in reversed(list(enumerate(zip(operation.widths, g.shape, strict=True)))):
        for part, made_of in border(operation.mode, axis, widths, n):
            share, target = whole[part], whole[made_of]
            if operation.mode == "edge":
                total = cupy.empty(target.shape, whole.dtype)
                sum_axes(share, (axis,), total)
                share = total
            cupy.add(target, share, out=target)
    cupy.copyto(dx, whole[inside(operation, g.shape)], casting="unsafe")
