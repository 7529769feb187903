"""Kernels of `actorflow.ops.nn.lrn`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from actorflow.ops.cpu.buffers import Array, in_float32, row_blocks, scratch
from actorflow.ops.cpu.parallel import rowwise
from actorflow.ops.cpu.windows import as_matrix
from actorflow.ops.nn.lrn import LRN, ChannelWindowSum, LRNDown
from actorflow.ops.registry import kernel

#: Most channels beside one that are added up one by one.
_MOST_SHIFTS = 64


def _pixels(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    return row_blocks(*map(as_matrix, arrays))


def _window_sum(x: Array, before: int, after: int, out: Array) -> None:
    """``out[:, i] = x[:, i - before] + ... + x[:, i + after]``; ``out`` is not ``x``."""
    if before + after > _MOST_SHIFTS:
        _wide_window_sum(x, before, after, out)
        return
    np.copyto(out, x)
    for shift in [n for n in range(-before, after + 1) if n]:
        to, source = (out[:, :-shift], x[:, shift:]) if shift > 0 else (out[:, -shift:], x[:, :shift])
        np.add(to, source, out=to)


def _wide_window_sum(x: Array, before: int, after: int, out: Array) -> None:
    """The same in as many passes as its length has binary digits: sums of 1, 2, 4, ... channels make those of more."""
    rows, channels = x.shape
    sums = np.zeros((rows, before + channels + after), x.dtype)
    sums[:, before : before + channels] = x
    out.fill(0)
    left, start, length = before + after + 1, 0, 1
    while left:
        if left & length:
            np.add(out, sums[:, start : start + channels], out=out)
            left, start = left - length, start + length
        if left:
            sums, length = sums[:, :-length] + sums[:, length:], 2 * length


def _inverse_power(scale: Array, beta: float, out: Array) -> None:
    """``scale ** -beta``; of the usual power by square roots, which take a fifth of the time."""
    if beta == 0.75:
        np.sqrt(scale, out=out)
        root = np.sqrt(out, out=scratch("root", scale.shape, scale.dtype))
        np.multiply(out, root, out=out)
        np.reciprocal(out, out=out)
    else:
        np.power(scale, -beta, out=out)


@kernel(ChannelWindowSum)
@partial(rowwise, passes=4)
@in_float32
def _channel_window_sum(operation: ChannelWindowSum, inputs: list[Array], outputs: list[Array]) -> None:
    for x, y in _pixels(inputs[0], outputs[0]):
        _window_sum(x, *operation.reach(x.shape[1]), y)


@kernel(LRN)
@partial(rowwise, passes=4)
@in_float32
def _lrn(operation: LRN, inputs: list[Array], outputs: list[Array]) -> None:
    for x, y, scale in _pixels(inputs[0], *outputs):
        squares = np.multiply(x, x, out=scratch("squares", x.shape, x.dtype))
        _window_sum(squares, *ChannelWindowSum(operation.size).reach(x.shape[1]), scale)
        np.multiply(scale, operation.alpha / operation.size, out=scale)
        np.add(scale, operation.k, out=scale)
        _inverse_power(scale, operation.beta, y)
        np.multiply(y, x, out=y)


@kernel(LRNDown)
@partial(rowwise, passes=4)
@in_float32
def _lrn_down(operation: LRNDown, inputs: list[Array], outputs: list[Array]) -> None:
    factor = -2 * operation.alpha * operation.beta / operation.size
    reach = ChannelWindowSum(operation.size, transposed=True).reach(inputs[0].shape[-1])
    for g, x, y, scale, dx in _pixels(*inputs, outputs[0]):
        ratio, seen = scratch("ratio", x.shape, x.dtype), scratch("seen", x.shape, x.dtype)
        np.multiply(g, y, out=ratio)
        np.divide(ratio, scale, out=ratio)
        _window_sum(ratio, *reach, seen)
        np.multiply(seen, x, out=seen)
        np.multiply(seen, factor, out=seen)
        _inverse_power(scale, operation.beta, dx)
        np.multiply(dx, g, out=dx)
        np.add(dx, seen, out=dx)
