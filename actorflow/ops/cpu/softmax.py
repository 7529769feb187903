"""Kernels of `actorflow.ops.nn.softmax`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.cpu.buffers import Array, in_float32
from actorflow.ops.nn.softmax import LogSoftmax, Softmax, SoftmaxDown
from actorflow.ops.registry import kernel


@kernel(Softmax, inplace=True)
@in_float32
def _softmax(operation: Softmax, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (y,) = inputs, outputs
    np.subtract(x, np.max(x, axis=operation.axis, keepdims=True), out=y)
    np.exp(y, out=y)
    np.divide(y, np.sum(y, axis=operation.axis, keepdims=True), out=y)


@kernel(SoftmaxDown)
@in_float32
def _softmax_down(operation: SoftmaxDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g, y), (dx,) = inputs, outputs
    np.multiply(g, y, out=dx)
    np.subtract(g, np.sum(dx, axis=operation.axis, keepdims=True), out=dx)
    np.multiply(dx, y, out=dx)


@kernel(LogSoftmax, inplace=True)
@in_float32
def _log_softmax(operation: LogSoftmax, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (y,) = inputs, outputs
    np.subtract(x, np.max(x, axis=operation.axis, keepdims=True), out=y)
    np.subtract(y, np.log(np.sum(np.exp(y), axis=operation.axis, keepdims=True)), out=y)
