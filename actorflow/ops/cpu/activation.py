"""Kernels of `actorflow.ops.activation`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.activation import Relu, ReluDown, Sigmoid, SigmoidDown, Softmax, SoftmaxDown, Tanh, TanhDown
from actorflow.ops.cpu.buffers import Array, flat_blocks, keep_where, scratch
from actorflow.ops.registry import kernel

__all__: list[str] = []


@kernel(Relu, inplace=True)
def _relu(operation: Relu, inputs: list[Array], outputs: list[Array]) -> None:
    np.maximum(inputs[0], 0, out=outputs[0])


@kernel(ReluDown, inplace=True)
def _relu_down(operation: ReluDown, inputs: list[Array], outputs: list[Array]) -> None:
    for g, y, dx in flat_blocks(*inputs, outputs[0]):
        keep_where(np.greater(y, 0, out=scratch("kept", y.shape, np.bool_)), g, dx)


@kernel(Sigmoid, inplace=True)
def _sigmoid(operation: Sigmoid, inputs: list[Array], outputs: list[Array]) -> None:
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, 0
        for x, y in flat_blocks(inputs[0], outputs[0]):
            np.negative(x, out=y)
            np.exp(y, out=y)
            np.add(y, 1, out=y)
            np.reciprocal(y, out=y)


@kernel(SigmoidDown)
def _sigmoid_down(operation: SigmoidDown, inputs: list[Array], outputs: list[Array]) -> None:
    for g, y, dx in flat_blocks(*inputs, outputs[0]):
        np.subtract(1, y, out=dx)
        np.multiply(dx, y, out=dx)
        np.multiply(dx, g, out=dx)


@kernel(Tanh, inplace=True)
def _tanh(operation: Tanh, inputs: list[Array], outputs: list[Array]) -> None:
    np.tanh(inputs[0], out=outputs[0])


@kernel(TanhDown)
def _tanh_down(operation: TanhDown, inputs: list[Array], outputs: list[Array]) -> None:
    for g, y, dx in flat_blocks(*inputs, outputs[0]):
        np.multiply(y, y, out=dx)
        np.subtract(1, dx, out=dx)
        np.multiply(dx, g, out=dx)


@kernel(Softmax, inplace=True)
def _softmax(operation: Softmax, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (y,) = inputs, outputs
    np.subtract(x, np.max(x, axis=operation.axis, keepdims=True), out=y)
    np.exp(y, out=y)
    np.divide(y, np.sum(y, axis=operation.axis, keepdims=True), out=y)


@kernel(SoftmaxDown)
def _softmax_down(operation: SoftmaxDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g, y), (dx,) = inputs, outputs
    np.multiply(g, y, out=dx)
    np.subtract(g, np.sum(dx, axis=operation.axis, keepdims=True), out=dx)
    np.multiply(dx, y, out=dx)
