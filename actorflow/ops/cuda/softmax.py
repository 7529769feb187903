"""Kernels of `actorflow.ops.nn.softmax`."""

from __future__ import annotations

from typing import Any

from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, kernel, launch
from actorflow.ops.cuda.reductions import Columns
from actorflow.ops.nn.softmax import LogSoftmax, Softmax, SoftmaxDown
from actorflow.ops.operation import Operation


def _register(operation: type[Operation], function: str) -> None:
    @kernel(operation, dtypes=FLOATS, inplace=True)
    def compute(operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
        columns = Columns.along(outputs[0].shape, operation.axis)
        tile = columns.softmax_tile()
        args = (*(contiguous(x) for x in inputs), outputs[0], *columns, tile.columns)
        launch("softmax", function, tile.grid, tile.block, args, outputs[0].dtype)


_register(Softmax, "softmax")
_register(SoftmaxDown, "softmax_down")
_register(LogSoftmax, "log_softmax")
