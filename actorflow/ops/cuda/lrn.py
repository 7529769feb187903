"""Kernels of `actorflow.ops.nn.lrn`."""

from __future__ import annotations

from typing import Any

import cupy

from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, kernel, launch_flat
from actorflow.ops.nn.lrn import LRN, ChannelWindowSum, LRNDown
from actorflow.ops.operation import wide_dtype


def _launch(function: str, inputs: list[Array], outputs: list[Array], window: ChannelWindowSum, *more: float) -> None:
    y = outputs[0]
    wide: Any = wide_dtype(y.dtype).type
    arrays = (*(contiguous(x) for x in inputs), *outputs)
    args = (*arrays, y.size, y.shape[-1], *window.reach(y.shape[-1]), *(wide(value) for value in more))
    launch_flat("lrn", function, y.size, args, y.dtype)


@kernel(ChannelWindowSum, dtypes=FLOATS)
def _channel_window_sum(operation: ChannelWindowSum, inputs: list[Array], outputs: list[Array]) -> None:
    _launch("channel_window_sum", inputs, outputs, operation)


@kernel(LRN, dtypes=FLOATS)
def _lrn(operation: LRN, inputs: list[Array], outputs: list[Array]) -> None:
    window, (y, *saved) = ChannelWindowSum(operation.size), outputs
    outputs = [y, *(saved or [cupy.empty(y.shape, y.dtype)])]
    _launch("lrn", inputs, outputs, window, operation.alpha / operation.size, operation.k, operation.beta)


@kernel(LRNDown, dtypes=FLOATS)
def _lrn_down(operation: LRNDown, inputs: list[Array], outputs: list[Array]) -> None:
    window = ChannelWindowSum(operation.size, transposed=True)
    factor = -2 * operation.alpha * operation.beta / operation.size
    _launch("lrn_down", inputs, outputs, window, factor, operation.beta)
