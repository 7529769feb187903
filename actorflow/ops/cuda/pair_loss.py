"""Kernels of `actorflow.ops.pair_loss`: the loss and the slope of an element, launched in one way for all losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from actorflow.ops.cuda.launch import FLOATS, Array, elementwise, kernel, wide_dtype
from actorflow.ops.cuda.reduce import sum_axes
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

_GIVEN = "const W a = W(x), t = W(target), d = W(delta);"


def _delta(operation: PairLoss | PairLossDown) -> Any:
    return np.float64(getattr(operation, "delta", 0.0))


def _loss(name: str, value: str) -> Callable[..., None]:
    """A kernel for the loss that ``value`` gives of ``a``, its target ``t`` and ``d``, the bound of Huber's."""
    each = elementwise(
        name, "T x, T target, float64 delta, float64 factor", "R y", f"{_GIVEN} y = R(W(factor) * W({value}))"
    )

    def compute(operation: PairLoss, inputs: list[Array], outputs: list[Array]) -> None:
        (x, target), (y,) = inputs, outputs
        if operation.reduction == "none":
            each(x, target, _delta(operation), np.float64(operation.scale), y)
        elif operation.reduction == "mean" and not x.size:
            y.fill(math.nan)
        else:
            losses = cupy.empty(x.shape, wide_dtype(x.dtype))
            each(x, target, _delta(operation), np.float64(operation.factor(x.size)), losses)
            sum_axes(losses.reshape(losses.size), (0,), y)

    return compute


def _down(name: str, slope: str) -> Callable[..., None]:
    each = elementwise(
        name,
        "T g, T x, T target, float64 delta, float64 factor",
        "T dx",
        f"{_GIVEN} dx = T(W(factor) * W(g) * W({slope}))",
    )

    def compute(operation: PairLossDown, inputs: list[Array], outputs: list[Array]) -> None:
        each(*inputs, _delta(operation), np.float64(operation.factor(outputs[0].size)), outputs[0])

    return compute


_LOSSES = {
    MseLoss: ("mse_loss", "(a - t) * (a - t)"),
    L1Loss: ("l1_loss", "fabs(a - t)"),
    HuberLoss: (
        "huber_loss",
        "fabs(a - t) < d ? W(0.5) * (a - t) * (a - t) : d * (W(fabs(a - t)) - W(0.5) * d)",
    ),
    HingeLoss: ("hinge_loss", "a * t < W(1) || a * t != a * t ? W(1) - a * t : W(0)"),
    LogisticLoss: (
        "logistic_loss",
        "(a > W(0) ? a : W(0)) - a * t + W(log1p(exp(a > W(0) ? -a : a)))",
    ),
    BinaryCrossEntropy: (
        "binary_cross_entropy",
        "(t - W(1)) * W(fmax(log(W(1) - a), W(-100))) - t * W(fmax(log(a), W(-100)))",
    ),
}
_SLOPES = {
    MseLossDown: ("mse_loss_down", "W(2) * (a - t)"),
    L1LossDown: ("l1_loss_down", "a > t ? W(1) : a < t ? W(-1) : a - t"),
    HuberLossDown: ("huber_loss_down", "a - t > d ? d : a - t < -d ? -d : a - t"),
    HingeLossDown: ("hinge_loss_down", "a * t < W(1) ? -t : W(0)"),
    LogisticLossDown: ("logistic_loss_down", "W(1) / (W(1) + exp(-a)) - t"),
    BinaryCrossEntropyDown: (
        "binary_cross_entropy_down",
        "(a - t) / W(fmax((W(1) - a) * a, W(1e-12)))",
    ),
}
for _operation, (_name, _value) in _LOSSES.items():
    kernel(_operation, dtypes=FLOATS)(_loss(_name, _value))
for _operation_down, (_name, _value) in _SLOPES.items():
    kernel(_operation_down, dtypes=FLOATS)(_down(_name, _value))
