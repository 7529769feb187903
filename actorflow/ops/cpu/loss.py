"""Kernels of `actorflow.ops.nn.loss`; losses of pairs share one kernel, and their gradients another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.ops.cpu.buffers import Array, flat_blocks, in_float32, scratch
from actorflow.ops.nn import loss as ops
from actorflow.ops.registry import kernel


class _Samples:
    """Labels as indices, and what each sample counts.

    Attributes:
        labels: 1-d; class 0 for samples that are ignored.
        weights: 1-d; None where every sample counts 1.
    """

    def __init__(self, kind: str, labels: Array, classes: int, ignore: int | None, weights: Array | None) -> None:
        flat = labels.reshape(-1)
        kept = None if ignore is None else flat != ignore
        _check_range(kind, flat, labels.shape, classes, kept)
        self.labels: npt.NDArray[np.intp] = flat.astype(np.intp, copy=False)
        self.weights: Array | None = None
        if kept is not None:
            self.labels = np.where(kept, self.labels, 0)
            self.weights = kept if weights is None else np.where(kept, weights[self.labels], 0)
        elif weights is not None:
            self.weights = weights[self.labels]
        self.rows = np.arange(flat.size)

    @classmethod
    def of(cls, operation: ops.LabelLoss, labels: Array, classes: int, weights: list[Array]) -> _Samples:
        return cls(operation.kind, labels, classes, operation.ignore, weights[0] if weights else None)

    def total(self) -> float:
        return self.labels.size if self.weights is None else float(self.weights.sum())

    def reduce(self, operation: ops.LabelLoss, losses: Array, out: Array) -> None:
        if self.weights is not None:
            losses = np.where(self.weights != 0, losses, 0) * self.weights  # an infinite loss may be ignored
        if operation.reduction == "none":
            np.multiply(losses.reshape(out.shape), operation.scale, out=out)
            return
        loss = float(losses.sum())
        if operation.reduction == "mean":
            total = self.total()
            loss = loss / total if total else np.nan
        out[...] = operation.scale * loss

    def shares(self, operation: ops.LabelLoss, g: Array) -> Array:
        factor = operation.scale * g
        if operation.reduction == "mean":
            factor = factor / (self.total() or np.nan)
        if operation.reduction == "none":
            factor = factor.reshape(-1)
        if self.weights is not None:
            factor = np.where(self.weights != 0, factor * self.weights, 0)
        return np.asarray(factor, g.dtype)[..., np.newaxis]


def _check_range(
    kind: str, flat: Array, shape: tuple[int, ...], classes: int, kept: npt.NDArray[np.bool_] | None
) -> None:
    is_wrong = (flat < 0) | (flat >= classes)
    wrong = np.flatnonzero(is_wrong if kept is None else is_wrong & kept)
    if wrong.size:
        where = tuple(int(i) for i in np.unravel_index(wrong[0], shape))
        raise ValueError(f"{kind}: labels must be from 0 to {classes - 1}, got {flat[wrong[0]]} at {where}")


@kernel(ops.SoftmaxLoss)
@in_float32
def _softmax_loss(operation: ops.SoftmaxLoss, inputs: list[Array], outputs: list[Array]) -> None:
    x, labels, *weights = inputs
    samples = _Samples.of(operation, labels, x.shape[-1], weights)
    rows = x.reshape(labels.size, x.shape[-1])
    shifted = np.subtract(rows, np.max(rows, axis=1, keepdims=True), out=scratch("scores", rows.shape, x.dtype))
    picked = shifted[samples.rows, samples.labels]
    log_sums = np.log(np.sum(np.exp(shifted, out=shifted), axis=1))
    samples.reduce(operation, log_sums - picked, outputs[0])


@kernel(ops.SoftmaxLossDown)
@in_float32
def _softmax_loss_down(operation: ops.SoftmaxLossDown, inputs: list[Array], outputs: list[Array]) -> None:
    g, x, labels, *weights = inputs
    samples = _Samples.of(operation, labels, x.shape[-1], weights)
    rows, dx = x.reshape(labels.size, x.shape[-1]), outputs[0].reshape(labels.size, x.shape[-1])
    np.subtract(rows, np.max(rows, axis=1, keepdims=True), out=dx)
    np.exp(dx, out=dx)
    np.divide(dx, np.sum(dx, axis=1, keepdims=True), out=dx)
    dx[samples.rows, samples.labels] -= 1
    np.multiply(dx, samples.shares(operation, g), out=dx)


@kernel(ops.NllLoss)
@in_float32
def _nll_loss(operation: ops.NllLoss, inputs: list[Array], outputs: list[Array]) -> None:
    x, labels, *weights = inputs
    samples = _Samples.of(operation, labels, x.shape[-1], weights)
    rows = x.reshape(labels.size, x.shape[-1])
    samples.reduce(operation, -rows[samples.rows, samples.labels], outputs[0])


@kernel(ops.NllLossDown)
@in_float32
def _nll_loss_down(operation: ops.NllLossDown, inputs: list[Array], outputs: list[Array]) -> None:
    g, labels, *weights = inputs
    samples = _Samples.of(operation, labels, operation.classes, weights)
    dx = outputs[0].reshape(labels.size, operation.classes)
    dx.fill(0)
    dx[samples.rows, samples.labels] = -samples.shares(operation, g)[..., 0]


@kernel(ops.Accuracy)
def _accuracy(operation: ops.Accuracy, inputs: list[Array], outputs: list[Array]) -> None:
    scores, given = inputs
    samples = _Samples("Accuracy", given, scores.shape[-1], None, None)
    labels, x = samples.labels, scores.reshape(given.size, scores.shape[-1])
    if not labels.size:
        outputs[0][...] = np.nan
        return
    own = x[samples.rows, labels][:, np.newaxis]
    before = np.arange(x.shape[1]) < labels[:, np.newaxis]
    # "Not below" rather than "above": comparisons with nan are false, and a nan must not look right.
    ahead = np.where(before, ~(x < own), ~(x <= own))
    ahead[samples.rows, labels] = np.isnan(own[:, 0])
    outputs[0][...] = np.mean(np.count_nonzero(ahead, axis=1) < operation.top)


#: Writes the loss or its slope of elements: ``fn(operation, x, target, out)``; ``out`` is neither of the others.
_Each = Callable[[Any, Array, Array, Array], None]


def _loss(each: _Each) -> Callable[..., None]:
    @in_float32
    def compute(operation: ops.PairLoss, inputs: list[Array], outputs: list[Array]) -> None:
        (x, target), (y,) = inputs, outputs
        if operation.reduction == "none":
            for x_part, target_part, out in flat_blocks(x, target, y):
                each(operation, x_part, target_part, out)
                np.multiply(out, operation.scale, out=out)
            return
        total = 0.0
        for x_part, target_part in flat_blocks(x, target):
            out = scratch("losses", x_part.shape, x.dtype)
            each(operation, x_part, target_part, out)
            total += float(np.sum(out))
        y[...] = np.nan if operation.reduction == "mean" and not x.size else total * operation.factor(x.size)

    return compute


def _down(each: _Each) -> Callable[..., None]:
    @in_float32
    def compute(operation: ops.PairLossDown, inputs: list[Array], outputs: list[Array]) -> None:
        (g, x, target), (dx,) = inputs, outputs
        factor = operation.factor(x.size)
        if operation.reduction == "none":
            for g_part, x_part, target_part, out in flat_blocks(g, x, target, dx):
                each(operation, x_part, target_part, out)
                np.multiply(out, factor, out=out)
                np.multiply(out, g_part, out=out)
            return
        for x_part, target_part, out in flat_blocks(x, target, dx):
            each(operation, x_part, target_part, out)
            np.multiply(out, g * factor, out=out)

    return compute


def _squared(operation: ops.MseLoss, x: Array, target: Array, out: Array) -> None:
    np.subtract(x, target, out=out)
    np.multiply(out, out, out=out)


def _squared_slope(operation: ops.MseLossDown, x: Array, target: Array, out: Array) -> None:
    np.subtract(x, target, out=out)
    np.multiply(out, 2, out=out)


def _absolute(operation: ops.L1Loss, x: Array, target: Array, out: Array) -> None:
    np.subtract(x, target, out=out)
    np.abs(out, out=out)


def _absolute_slope(operation: ops.L1LossDown, x: Array, target: Array, out: Array) -> None:
    np.subtract(x, target, out=out)
    np.sign(out, out=out)


def _huber(operation: ops.HuberLoss, x: Array, target: Array, out: Array) -> None:
    distance = np.subtract(x, target, out=scratch("distance", x.shape, x.dtype))
    np.abs(distance, out=distance)
    near = np.minimum(distance, operation.delta, out=out)
    # near * (distance - near / 2) is half the square up to delta, and the line beyond.
    half = np.multiply(near, -0.5, out=scratch("half", x.shape, x.dtype))
    np.add(half, distance, out=half)
    np.multiply(near, half, out=out)


def _huber_slope(operation: ops.HuberLossDown, x: Array, target: Array, out: Array) -> None:
    np.subtract(x, target, out=out)
    np.clip(out, -operation.delta, operation.delta, out=out)


def _hinge(operation: ops.HingeLoss, x: Array, target: Array, out: Array) -> None:
    np.multiply(x, target, out=out)
    np.subtract(1, out, out=out)
    np.maximum(out, 0, out=out)


def _hinge_slope(operation: ops.HingeLossDown, x: Array, target: Array, out: Array) -> None:
    np.multiply(x, target, out=out)
    is_lost = np.less(out, 1, out=scratch("kept", x.shape, np.bool_))
    out[...] = 0
    np.negative(target, out=out, where=is_lost)


def _logistic(operation: ops.BinaryCrossEntropyWithLogits, x: Array, target: Array, out: Array) -> None:
    bend = np.abs(x, out=scratch("bend", x.shape, x.dtype))
    np.negative(bend, out=bend)
    np.log1p(np.exp(bend, out=bend), out=bend)
    product = np.multiply(x, target, out=scratch("product", x.shape, x.dtype))
    np.maximum(x, 0, out=out)
    np.subtract(out, product, out=out)
    np.add(out, bend, out=out)


def _logistic_slope(operation: ops.BinaryCrossEntropyWithLogitsDown, x: Array, target: Array, out: Array) -> None:
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, 0
        np.exp(np.negative(x, out=out), out=out)
        np.add(out, 1, out=out)
        np.reciprocal(out, out=out)
    np.subtract(out, target, out=out)


def _log(x: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.maximum(np.log(x, out=x), -100, out=x)


def _entropy(operation: ops.BinaryCrossEntropy, x: Array, target: Array, out: Array) -> None:
    other = np.subtract(1, x, out=scratch("other", x.shape, x.dtype))
    rest = np.subtract(target, 1, out=scratch("rest", x.shape, x.dtype))
    np.multiply(_log(other), rest, out=other)
    np.copyto(out, x)
    np.multiply(_log(out), target, out=out)
    np.subtract(other, out, out=out)


def _entropy_slope(operation: ops.BinaryCrossEntropyDown, x: Array, target: Array, out: Array) -> None:
    room = np.subtract(1, x, out=scratch("room", x.shape, x.dtype))
    np.multiply(room, x, out=room)
    np.maximum(room, 1e-12, out=room)
    np.subtract(x, target, out=out)
    np.divide(out, room, out=out)


kernel(ops.MseLoss)(_loss(_squared))
kernel(ops.MseLossDown)(_down(_squared_slope))
kernel(ops.L1Loss)(_loss(_absolute))
kernel(ops.L1LossDown)(_down(_absolute_slope))
kernel(ops.HuberLoss)(_loss(_huber))
kernel(ops.HuberLossDown)(_down(_huber_slope))
kernel(ops.HingeLoss)(_loss(_hinge))
kernel(ops.HingeLossDown)(_down(_hinge_slope))
kernel(ops.BinaryCrossEntropyWithLogits)(_loss(_logistic))
kernel(ops.BinaryCrossEntropyWithLogitsDown)(_down(_logistic_slope))
kernel(ops.BinaryCrossEntropy)(_loss(_entropy))
kernel(ops.BinaryCrossEntropyDown)(_down(_entropy_slope))
