"""Kernels of `actorflow.ops.nn.lrn`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array, in_float32, loops_for, row_blocks, scratch
from actorflow.ops.cpu.parallel import rowwise
from actorflow.ops.cpu.windows import as_matrix
from actorflow.ops.nn.lrn import LRN, ChannelWindowSum, LRNDown
from actorflow.ops.registry import kernel

#: Most channels beside one that are added up one by one.
_MOST_SHIFTS = 64
_USUAL = 0.75


def _pixels(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    return row_blocks(*map(as_matrix, arrays))


def _window_sum(write: Callable[[Array], object], like: Array, before: int, after: int) -> Array:
    """``x[:, i - before] + ... + x[:, i + after]`` for each channel of the result, in scratch memory.

    Each row has zeros at its ends, so that all rows are one long row: NumPy takes several times as long for short ones.

    Args:
        write: Writes ``x`` to its argument.
        like: An array of the shape and dtype of ``x``.
        before: Number of channels before each that are added.
        after: Number of channels after each that are added.
    """
    rows, channels = like.shape
    shape, inside = (rows, before + channels + after), (slice(None), slice(before, before + channels))
    bordered, sums = scratch("bordered", shape, like.dtype), scratch("sums", shape, like.dtype)
    bordered[:, :before] = bordered[:, before + channels :] = 0
    write(bordered[inside])
    x, total = bordered.reshape(-1), sums.reshape(-1)[before : sums.size - after]
    np.copyto(total, x[before : x.size - after])
    for shift in [n for n in range(-before, after + 1) if n]:
        np.add(total, x[before + shift : x.size - after + shift], out=total)
    return sums[inside]


def _inverse_power(scale: Array, beta: float) -> Array:
    """``scale ** -beta``; of the usual power by square roots, as compiled loops have it, in a fifth of the time."""
    if beta != _USUAL:
        return np.power(scale, -beta)
    root = np.sqrt(scale)
    return 1 / (root * np.sqrt(root))


def _loops(beta: float, reach: tuple[int, int], *arrays: Array) -> Any:
    """Compiled loops for the usual power and a window of few channels; None where there are none."""
    return loops_for(*arrays) if beta == _USUAL and sum(reach) <= _MOST_SHIFTS else None


@kernel(ChannelWindowSum)
@partial(rowwise, passes=4)
@in_float32
def _channel_window_sum(operation: ChannelWindowSum, inputs: list[Array], outputs: list[Array]) -> None:
    for x, y in _pixels(inputs[0], outputs[0]):
        np.copyto(y, _window_sum(partial(np.positive, x), x, *operation.reach(x.shape[1])))


@kernel(LRN)
@partial(rowwise, passes=4)
@in_float32
def _lrn(operation: LRN, inputs: list[Array], outputs: list[Array]) -> None:
    reach = ChannelWindowSum(operation.size).reach(inputs[0].shape[-1])
    loops = _loops(operation.beta, reach, *inputs, *outputs)
    for x, y, *saved in _pixels(inputs[0], *outputs):
        (scale,) = saved or [scratch("scale", x.shape, x.dtype)]
        if loops is not None:
            loops.normalize(x, y, scale, *reach, operation.alpha / operation.size, operation.k)
            continue
        squares = _window_sum(partial(np.multiply, x, x), x, *reach)
        np.add(squares * (operation.alpha / operation.size), operation.k, out=scale)
        np.multiply(_inverse_power(scale, operation.beta), x, out=y)


@kernel(LRNDown)
@partial(rowwise, passes=4)
@in_float32
def _lrn_down(operation: LRNDown, inputs: list[Array], outputs: list[Array]) -> None:
    factor = -2 * operation.alpha * operation.beta / operation.size
    reach = ChannelWindowSum(operation.size, transposed=True).reach(inputs[0].shape[-1])
    loops = _loops(operation.beta, reach, *inputs, *outputs)
    for g, x, y, scale, dx in _pixels(*inputs, outputs[0]):
        if loops is not None:
            loops.normalize_down(g, x, y, scale, dx, *reach, factor)
            continue
        seen = _window_sum(partial(np.divide, g * y, scale), x, *reach) * x * factor
        np.add(_inverse_power(scale, operation.beta) * g, seen, out=dx)
