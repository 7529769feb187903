"""Kernels of `actorflow.ops.nn.softmax`."""

from __future__ import annotations

from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, kernel, launch
from actorflow.ops.cuda.reductions import Columns
from actorflow.ops.nn.softmax import Centered, LogSoftmax, LogSoftmaxDown, Softmax, SoftmaxDown


def _launch(function: str, axis: int, inputs: list[Array], y: Array) -> None:
    columns = Columns.along(y.shape, axis)
    tile = columns.softmax_tile()
    args = (*(contiguous(x) for x in inputs), y, *columns, tile.columns)
    launch("softmax", function, tile.grid, tile.block, args, y.dtype)


@kernel(Softmax, dtypes=FLOATS, inplace=True)
def _softmax(operation: Softmax, inputs: list[Array], outputs: list[Array]) -> None:
    _launch("softmax", operation.axis, inputs, outputs[0])


@kernel(SoftmaxDown, dtypes=FLOATS, inplace=True)
def _softmax_down(operation: SoftmaxDown, inputs: list[Array], outputs: list[Array]) -> None:
    _launch("softmax_down", operation.axis, inputs, outputs[0])


@kernel(LogSoftmax, dtypes=FLOATS, inplace=True)
def _log_softmax(operation: LogSoftmax, inputs: list[Array], outputs: list[Array]) -> None:
    _launch("log_softmax", operation.axis, inputs, outputs[0])


@kernel(LogSoftmaxDown, dtypes=FLOATS)
def _log_softmax_down(operation: LogSoftmaxDown, inputs: list[Array], outputs: list[Array]) -> None:
    _launch("log_softmax_down", operation.axis, inputs, outputs[0])


@kernel(Centered, dtypes=FLOATS)
def _centered(operation: Centered, inputs: list[Array], outputs: list[Array]) -> None:
    _launch("centered", operation.axis, inputs, outputs[0])
