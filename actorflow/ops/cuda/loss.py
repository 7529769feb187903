"""Kernels of `actorflow.ops.loss`."""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np

from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, kernel, launch, wide_dtype
from actorflow.ops.cuda.reduce import Columns, sum_axes
from actorflow.ops.loss import Accuracy, SoftmaxLoss, SoftmaxLossDown

__all__: list[str] = []


def _launch_rows(function: str, arrays: tuple[Any, ...], x: Array, labels: Array, *more: int) -> None:
    """Launch a function of samples: arrays, number of samples, number of classes, samples per block, and more."""
    columns = Columns.along(x.shape, -1)
    tile = columns.softmax_tile()
    args = (*arrays, columns.all, columns.length, tile.columns, *more)
    launch("loss", function, tile.grid, tile.block, args, x.dtype, LABEL=labels.dtype)


def _mean(values: Array, out: Array) -> None:
    if values.size:
        sum_axes(values, (0,), out, values.size)
    else:
        out.fill(math.nan)


@kernel(SoftmaxLoss, dtypes=FLOATS)
def _softmax_loss(operation: SoftmaxLoss, inputs: list[Array], outputs: list[Array]) -> None:
    x, labels = (contiguous(array) for array in inputs)
    losses = cupy.empty(labels.size, wide_dtype(x.dtype))
    _launch_rows("sample_losses", (x, labels, losses), x, labels)
    _mean(losses, outputs[0])


@kernel(SoftmaxLossDown, dtypes=FLOATS)
def _softmax_loss_down(operation: SoftmaxLossDown, inputs: list[Array], outputs: list[Array]) -> None:
    g, x, labels = (contiguous(array) for array in inputs)
    _launch_rows("softmax_loss_down", (g, x, labels, outputs[0]), x, labels)


@kernel(Accuracy, dtypes=FLOATS)
def _accuracy(operation: Accuracy, inputs: list[Array], outputs: list[Array]) -> None:
    x, labels = (contiguous(array) for array in inputs)
    hits = cupy.empty(labels.size, np.float32)
    _launch_rows("hits", (x, labels, hits), x, labels, operation.top)
    _mean(hits, outputs[0])
