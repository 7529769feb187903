"""Kernels of `actorflow.ops.activation`."""

from __future__ import annotations

from actorflow.ops.activation import Relu, ReluDown, Sigmoid, SigmoidDown, Softmax, SoftmaxDown, Tanh, TanhDown
from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, elementwise, kernel, launch
from actorflow.ops.cuda.reduce import Columns

__all__: list[str] = []

_RELU = elementwise("relu", "T x", "T y", "y = x < T(0) ? T(0) : x")
_RELU_DOWN = elementwise("relu_down", "T g, T y", "T dx", "dx = y > T(0) ? g : T(0)")
_SIGMOID = elementwise("sigmoid", "T x", "T y", "y = T(W(1) / (W(1) + exp(-W(x))))")
_SIGMOID_DOWN = elementwise("sigmoid_down", "T g, T y", "T dx", "dx = T(W(g) * W(y) * (W(1) - W(y)))")
_TANH = elementwise("tanh", "T x", "T y", "y = T(tanh(W(x)))")
_TANH_DOWN = elementwise("tanh_down", "T g, T y", "T dx", "dx = T(W(g) * (W(1) - W(y) * W(y)))")


@kernel(Relu, dtypes=FLOATS, inplace=True)
def _relu(operation: Relu, inputs: list[Array], outputs: list[Array]) -> None:
    _RELU(inputs[0], outputs[0])


@kernel(ReluDown, dtypes=FLOATS, inplace=True)
def _relu_down(operation: ReluDown, inputs: list[Array], outputs: list[Array]) -> None:
    _RELU_DOWN(*inputs, outputs[0])


@kernel(Sigmoid, dtypes=FLOATS, inplace=True)
def _sigmoid(operation: Sigmoid, inputs: list[Array], outputs: list[Array]) -> None:
    _SIGMOID(inputs[0], outputs[0])


@kernel(SigmoidDown, dtypes=FLOATS, inplace=True)
def _sigmoid_down(operation: SigmoidDown, inputs: list[Array], outputs: list[Array]) -> None:
    _SIGMOID_DOWN(*inputs, outputs[0])


@kernel(Tanh, dtypes=FLOATS, inplace=True)
def _tanh(operation: Tanh, inputs: list[Array], outputs: list[Array]) -> None:
    _TANH(inputs[0], outputs[0])


@kernel(TanhDown, dtypes=FLOATS, inplace=True)
def _tanh_down(operation: TanhDown, inputs: list[Array], outputs: list[Array]) -> None:
    _TANH_DOWN(*inputs, outputs[0])


@kernel(Softmax, dtypes=FLOATS, inplace=True)
def _softmax(operation: Softmax, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (y,) = inputs, outputs
    columns = Columns.along(x.shape, operation.axis)
    tile = columns.softmax_tile()
    launch("softmax", "softmax", tile.grid, tile.block, (contiguous(x), y, *columns, tile.columns), x.dtype)


@kernel(SoftmaxDown, dtypes=FLOATS, inplace=True)
def _softmax_down(operation: SoftmaxDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g, y), (dx,) = inputs, outputs
    columns = Columns.along(y.shape, operation.axis)
    tile = columns.softmax_tile()
    args = (contiguous(g), contiguous(y), dx, *columns, tile.columns)
    launch("softmax", "softmax_down", tile.grid, tile.block, args, y.dtype)
