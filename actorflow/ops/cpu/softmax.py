"""Kernels of `actorflow.ops.nn.softmax`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import BLOCK, Array, in_float32, loops_for, scratch
from actorflow.ops.cpu.parallel import by_rows
from actorflow.ops.cpu.reductions import sum_axes
from actorflow.ops.nn.softmax import LogSoftmax, Softmax, SoftmaxDown
from actorflow.ops.registry import kernel

_F = Callable[..., None]


def _by_lines(function: _F) -> _F:
    """A kernel of a function of blocks (lines, along the operation's axis, the axes behind it) of all arrays."""

    @in_float32
    @wraps(function)
    def compute(operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
        shape = inputs[0].shape
        if not inputs[0].size:
            return
        axis = operation.axis % len(shape)
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        step = max(1, BLOCK // (shape[axis] * inner))

        def work(*lines: Array) -> None:
            for start in range(0, len(lines[0]), step):
                function(*[array[start : start + step] for array in lines])

        by_rows([array.reshape(outer, shape[axis], inner) for array in (*inputs, *outputs)], work, 4)

    return compute


@kernel(Softmax, inplace=True)
@_by_lines
def _softmax(x: Array, y: Array) -> None:
    np.subtract(x, np.max(x, axis=1, keepdims=True), out=y)
    np.exp(y, out=y)
    np.divide(y, sum_axes(y, (1,), keepdims=True), out=y)


@kernel(SoftmaxDown)
@_by_lines
def _softmax_down(g: Array, y: Array, dx: Array) -> None:
    loops = loops_for(g, y, dx) if g.shape[2] == 1 else None
    if loops is not None:
        loops.softmax_down(g[..., 0], y[..., 0], dx[..., 0])
        return
    np.multiply(g, y, out=dx)
    np.subtract(g, sum_axes(dx, (1,), keepdims=True), out=dx)
    np.multiply(dx, y, out=dx)


@kernel(LogSoftmax, inplace=True)
@_by_lines
def _log_softmax(x: Array, y: Array) -> None:
    np.subtract(x, np.max(x, axis=1, keepdims=True), out=y)
    powers = np.exp(y, out=scratch("powers", y.shape, y.dtype))
    np.subtract(y, np.log(sum_axes(powers, (1,), keepdims=True)), out=y)
