"""Kernels of `actorflow.ops.nn.loss`; losses of pairs share one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, elementwise, kernel, launch
from actorflow.ops.cuda.reductions import Columns, sum_axes
from actorflow.ops.nn import loss as ops
from actorflow.ops.operation import wide_dtype

_THREADS = 256

_SHARE = elementwise("loss_share", "R x, R total, float64 factor", "T y", "y = T(R(factor) * x / total)")
_TIMES = elementwise("loss_times", "R x, float64 factor", "T y", "y = T(R(factor) * x)")


def _launch_rows(function: str, arrays: tuple[Any, ...], x: Array, labels: Array, *more: Any) -> None:
    """Launch a function of samples: arrays, number of samples, number of classes, samples per block, and more."""
    columns = Columns.along(x.shape, -1)
    tile = columns.softmax_tile()
    args = (*arrays, columns.all, columns.length, tile.columns, *more)
    launch("loss", function, tile.grid, tile.block, args, x.dtype, LABEL=labels.dtype)


def _launch_each(function: str, count: int, args: tuple[Any, ...], dtype: np.dtype[Any], labels: Array) -> None:
    grid = min(-(-count // _THREADS), 2**16)
    launch("loss", function, grid, _THREADS, args, dtype, LABEL=labels.dtype)


def _total(values: Array) -> Array:
    total = cupy.empty((), values.dtype)
    sum_axes(values, (0,), total)
    return total


def _counts(operation: ops.LabelLoss, labels: Array, classes: int, weights: list[Array], dtype: np.dtype[Any]) -> Array:
    counts = cupy.empty(labels.size, wide_dtype(dtype))
    has_ignored = operation.ignore is not None
    ignore = np.int64(operation.ignore if operation.ignore is not None else 0)
    given = contiguous(weights[0]) if weights else cupy.empty(1, dtype)
    args = (labels, given, counts, labels.size, classes, int(bool(weights)), ignore, int(has_ignored))
    _launch_each("sample_weights", labels.size, args, dtype, labels)
    return counts


def _reduce(operation: ops.LabelLoss, losses: Array, counts: Array, out: Array) -> None:
    factor = np.float64(operation.scale)
    if operation.reduction == "none":
        _TIMES(losses.reshape(out.shape), factor, out)
    elif operation.reduction == "sum":
        _TIMES(_total(losses), factor, out)
    else:
        _SHARE(_total(losses), _total(counts), factor, out)


@kernel(ops.SoftmaxLoss, dtypes=FLOATS)
def _softmax_loss(operation: ops.SoftmaxLoss, inputs: list[Array], outputs: list[Array]) -> None:
    x, labels = (contiguous(array) for array in inputs[:2])
    counts = _counts(operation, labels, x.shape[-1], inputs[2:], x.dtype)
    losses = cupy.empty(labels.size, wide_dtype(x.dtype))
    _launch_rows("sample_losses", (x, labels, counts, losses), x, labels)
    _reduce(operation, losses, counts, outputs[0])


@kernel(ops.SoftmaxLossDown, dtypes=FLOATS)
def _softmax_loss_down(operation: ops.SoftmaxLossDown, inputs: list[Array], outputs: list[Array]) -> None:
    g, x, labels = (contiguous(array) for array in inputs[:3])
    counts = _counts(operation, labels, x.shape[-1], inputs[3:], x.dtype)
    arrays = (g, x, labels, counts, *_given_total(operation, counts), outputs[0])
    _launch_rows("softmax_loss_down", arrays, x, labels, *_sharing(operation, x.dtype))


def _given_total(operation: ops.LabelLoss, counts: Array) -> tuple[Array]:
    return (_total(counts) if operation.reduction == "mean" else counts,)


def _sharing(operation: ops.LabelLoss, dtype: np.dtype[Any]) -> tuple[int, int, Any]:
    """Return whether g has a value per sample, whether it is divided by the total, and the factor."""
    scale = wide_dtype(dtype).type(operation.scale)
    return int(operation.reduction == "none"), int(operation.reduction == "mean"), scale


@kernel(ops.NllLoss, dtypes=FLOATS)
def _nll_loss(operation: ops.NllLoss, inputs: list[Array], outputs: list[Array]) -> None:
    x, labels = (contiguous(array) for array in inputs[:2])
    classes = x.shape[-1]
    counts = _counts(operation, labels, classes, inputs[2:], x.dtype)
    losses = cupy.empty(labels.size, wide_dtype(x.dtype))
    _launch_each("nll_losses", labels.size, (x, labels, counts, losses, labels.size, classes), x.dtype, labels)
    _reduce(operation, losses, counts, outputs[0])


@kernel(ops.NllLossDown, dtypes=FLOATS)
def _nll_loss_down(operation: ops.NllLossDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g, labels), (dx,) = (contiguous(array) for array in inputs[:2]), outputs
    counts = _counts(operation, labels, operation.classes, inputs[2:], g.dtype)
    arrays = (g, labels, counts, *_given_total(operation, counts), dx)
    args = (*arrays, dx.size, operation.classes, *_sharing(operation, g.dtype))
    _launch_each("nll_loss_down", dx.size, args, g.dtype, labels)


@kernel(ops.Accuracy, dtypes=FLOATS)
def _accuracy(operation: ops.Accuracy, inputs: list[Array], outputs: list[Array]) -> None:
    x, labels = (contiguous(array) for array in inputs)
    if not labels.size:
        outputs[0].fill(math.nan)
        return
    hits = cupy.empty(labels.size, np.float32)
    _launch_rows("hits", (x, labels, hits), x, labels, operation.top)
    sum_axes(hits, (0,), outputs[0], hits.size)


def _pair_loss(kind: type[ops.PairLoss]) -> Callable[..., None]:
    each = elementwise(
        kind.function_name,
        "T x, T target, float64 delta, float64 factor",
        "R y",
        f"const W a = W(x), t = W(target), d = W(delta); y = R(W(factor) * W({kind.cuda}))",
    )

    def compute(operation: ops.PairLoss, inputs: list[Array], outputs: list[Array]) -> None:
        (x, target), (y,) = inputs, outputs
        delta = np.float64(getattr(operation, "delta", 0.0))
        if operation.reduction == "none":
            each(x, target, delta, np.float64(operation.scale), y)
        elif operation.reduction == "mean" and not x.size:
            y.fill(math.nan)
        else:
            losses = cupy.empty(x.shape, wide_dtype(x.dtype))
            each(x, target, delta, np.float64(operation.factor(x.size)), losses)
            sum_axes(losses.reshape(losses.size), (0,), y)

    return compute


for _kind in ops.PairLoss.__subclasses__():
    kernel(_kind, dtypes=FLOATS)(_pair_loss(_kind))
