"""Kernels of `actorflow.ops.pair_loss`: one for all losses and one for all their gradients, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array, flat_blocks, scratch
from actorflow.ops.cpu.precision import in_float32
from actorflow.ops.pair_loss import (
    BinaryCrossEntropy,
    BinaryCrossEntropyDown,
    HingeLoss,
    HingeLossDown,
    HuberLoss,
    HuberLossDown,
    L1Loss,
    L1LossDown,
    LogisticLoss,
    LogisticLossDown,
    MseLoss,
    MseLossDown,
    PairLoss,
    PairLossDown,
)
from actorflow.ops.registry import kernel

#: Writes the loss or its slope of elements: ``fn(operation, x, target, out)``; ``out`` is neither of the others.
_Each = Callable[[Any, Array, Array, Array], None]


def _loss(each: _Each) -> Callable[..., None]:
    @in_float32
    def compute(operation: PairLoss, inputs: list[Array], outputs: list[Array]) -> None:
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
    def compute(operation: PairLossDown, inputs: list[Array], outputs: list[Array]) -> None:
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


def _squared(operation: MseLoss, x: Array, target: Array, out: Array) -> None:
    np.subtract(x, target, out=out)
    np.multiply(out, out, out=out)


def _squared_slope(operation: MseLossDown, x: Array, target: Array, out: Array) -> None:
    np.subtract(x, target, out=out)
    np.multiply(out, 2, out=out)


def _absolute(operation: L1Loss, x: Array, target: Array, out: Array) -> None:
    np.subtract(x, target, out=out)
    np.abs(out, out=out)


def _absolute_slope(operation: L1LossDown, x: Array, target: Array, out: Array) -> None:
    np.subtract(x, target, out=out)
    np.sign(out, out=out)


def _huber(operation: HuberLoss, x: Array, target: Array, out: Array) -> None:
    distance = np.subtract(x, target, out=scratch("distance", x.shape, x.dtype))
    np.abs(distance, out=distance)
    near = np.minimum(distance, operation.delta, out=out)
    # near * (distance - near / 2) is half the square up to delta, and the line beyond.
    half = np.multiply(near, -0.5, out=scratch("half", x.shape, x.dtype))
    np.add(half, distance, out=half)
    np.multiply(near, half, out=out)


def _huber_slope(operation: HuberLossDown, x: Array, target: Array, out: Array) -> None:
    np.subtract(x, target, out=out)
    np.clip(out, -operation.delta, operation.delta, out=out)


def _hinge(operation: HingeLoss, x: Array, target: Array, out: Array) -> None:
    np.multiply(x, target, out=out)
    np.subtract(1, out, out=out)
    np.maximum(out, 0, out=out)


def _hinge_slope(operation: HingeLossDown, x: Array, target: Array, out: Array) -> None:
    np.multiply(x, target, out=out)
    is_lost = np.less(out, 1, out=scratch("kept", x.shape, np.bool_))
    out[...] = 0
    np.negative(target, out=out, where=is_lost)


def _logistic(operation: LogisticLoss, x: Array, target: Array, out: Array) -> None:
    bend = np.abs(x, out=scratch("bend", x.shape, x.dtype))
    np.negative(bend, out=bend)
    np.log1p(np.exp(bend, out=bend), out=bend)
    product = np.multiply(x, target, out=scratch("product", x.shape, x.dtype))
    np.maximum(x, 0, out=out)
    np.subtract(out, product, out=out)
    np.add(out, bend, out=out)


def _logistic_slope(operation: LogisticLossDown, x: Array, target: Array, out: Array) -> None:
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, 0
        np.exp(np.negative(x, out=out), out=out)
        np.add(out, 1, out=out)
        np.reciprocal(out, out=out)
    np.subtract(out, target, out=out)


def _log(x: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.maximum(np.log(x, out=x), -100, out=x)


def _entropy(operation: BinaryCrossEntropy, x: Array, target: Array, out: Array) -> None:
    other = np.subtract(1, x, out=scratch("other", x.shape, x.dtype))
    rest = np.subtract(target, 1, out=scratch("rest", x.shape, x.dtype))
    np.multiply(_log(other), rest, out=other)
    np.copyto(out, x)
    np.multiply(_log(out), target, out=out)
    np.subtract(other, out, out=out)


def _entropy_slope(operation: BinaryCrossEntropyDown, x: Array, target: Array, out: Array) -> None:
    room = np.subtract(1, x, out=scratch("room", x.shape, x.dtype))
    np.multiply(room, x, out=room)
    np.maximum(room, 1e-12, out=room)
    np.subtract(x, target, out=out)
    np.divide(out, room, out=out)


kernel(MseLoss)(_loss(_squared))
kernel(MseLossDown)(_down(_squared_slope))
kernel(L1Loss)(_loss(_absolute))
kernel(L1LossDown)(_down(_absolute_slope))
kernel(HuberLoss)(_loss(_huber))
kernel(HuberLossDown)(_down(_huber_slope))
kernel(HingeLoss)(_loss(_hinge))
kernel(HingeLossDown)(_down(_hinge_slope))
kernel(LogisticLoss)(_loss(_logistic))
kernel(LogisticLossDown)(_down(_logistic_slope))
kernel(BinaryCrossEntropy)(_loss(_entropy))
kernel(BinaryCrossEntropyDown)(_down(_entropy_slope))
