"""Kernels of `actorflow.ops.nn.updates`: one launch per variable, which reads and writes each of its arrays once."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import cupy
import numpy as np

from actorflow.ops.cuda.launch import FLOATS, Array, elementwise, kernel
from actorflow.ops.cuda.reductions import sum_axes
from actorflow.ops.nn.updates import AdagradUpdate, AdamUpdate, NormFactor, RmsPropUpdate, ScaleBy, SgdUpdate, SquareSum

# Rates and steps are read on the device. A factor of 0 leaves its term out, which may be infinite.
_SGD = elementwise(
    "sgd",
    "T weight, T grad, T velocity, R rate, float64 scale, float64 momentum, float64 decay, float64 ahead",
    "T new_weight, T new_velocity",
    """
    W step = W(scale * double(rate));
    W descent = step * (decay != 0 ? W(decay) * W(weight) + W(grad) : W(grad));
    W moved = descent;
    if (momentum != 0) moved += W(momentum) * W(velocity);
    new_velocity = T(moved);
    new_weight = T(W(weight) - (ahead != 0 ? W(ahead) * moved + descent : moved));
    """,
)

# 1 - beta ** t, by way of expm1: exact also where beta ** t is nearly 1, and cheaper than a power for each element.
_ADAM = elementwise(
    "adam",
    "T weight, T grad, S mean, S square, R rate, int64 step, float64 scale, float64 beta1, float64 beta2, "
    "float64 log1, float64 log2, float64 eps, float64 decay, float64 shrink",
    "T new_weight, S new_mean, S new_square",
    """
    W t = W(step + 1);
    W g = decay != 0 ? W(decay) * W(weight) + W(grad) : W(grad);
    W first = W(mean) + W(1 - beta1) * (g - W(mean));
    W second = W(beta2) * W(square) + W(1 - beta2) * g * g;
    W rated = W(scale * double(rate));
    W root = sqrt(second) / sqrt(-expm1(t * W(log2))) + W(eps);
    W moved = rated / -expm1(t * W(log1)) * (first / root);
    if (shrink != 0) moved += rated * W(shrink) * W(weight);
    new_mean = S(first);
    new_square = S(second);
    new_weight = T(W(weight) - moved);
    """,
)

_ADAGRAD = elementwise(
    "adagrad",
    "T weight, T grad, S square, R rate, float64 scale, float64 eps, float64 decay",
    "T new_weight, S new_square",
    """
    W g = decay != 0 ? W(decay) * W(weight) + W(grad) : W(grad);
    W sum = W(square) + g * g;
    new_square = S(sum);
    new_weight = T(W(weight) - W(scale * double(rate)) * (g / (sqrt(sum) + W(eps))));
    """,
)


def _make_rmsprop(has_momentum: bool, centered: bool) -> Any:
    states = ["square", *["velocity"] * has_momentum, *["mean"] * centered]
    body = """
    W g = decay != 0 ? W(decay) * W(weight) + W(grad) : W(grad);
    W variance = W(alpha) * W(square) + W(1 - alpha) * g * g;
    new_square = S(variance);
    """
    if centered:
        # NaN stays NaN, as in NumPy's maximum.
        body += """
    W first = W(mean) + W(1 - alpha) * (g - W(mean));
    new_mean = S(first);
    variance -= first * first;
    if (variance < W(0)) variance = W(0);
    """
    body += "W moved = g / (sqrt(variance) + W(eps));"
    if has_momentum:
        body += "moved += W(momentum) * W(velocity); new_velocity = S(moved);"
    body += "new_weight = T(W(weight) - W(scale * double(rate)) * moved);"
    return elementwise(
        "_".join(["rmsprop", *states[1:]]),
        "T weight, T grad, S square, R rate, "
        + "".join(f"S {state}, " for state in states[1:])
        + "float64 scale, float64 alpha, float64 eps, float64 decay, float64 momentum",
        ", ".join(["T new_weight", *(f"S new_{state}" for state in states)]),
        body,
    )


_RMSPROP = {choice: _make_rmsprop(*choice) for choice in product((False, True), repeat=2)}


def _factors(*factors: float) -> tuple[np.float64, ...]:
    return tuple([np.float64(factor) for factor in factors])


@kernel(SgdUpdate, dtypes=FLOATS)
def _sgd_update(operation: SgdUpdate, inputs: list[Array], outputs: list[Array]) -> None:
    momentum = operation.momentum
    ahead = momentum if operation.nesterov else 0.0
    _SGD(*inputs, *_factors(operation.rate_scale, momentum, operation.weight_decay, ahead), *outputs)


@kernel(AdamUpdate, dtypes=FLOATS)
def _adam_update(operation: AdamUpdate, inputs: list[Array], outputs: list[Array]) -> None:
    beta1, beta2, decay = operation.beta1, operation.beta2, operation.weight_decay
    logs = [math.log(beta) if beta else -math.inf for beta in (beta1, beta2)]
    decays = (0.0, decay) if operation.decoupled else (decay, 0.0)
    _ADAM(*inputs, *_factors(operation.rate_scale, beta1, beta2, *logs, operation.eps, *decays), *outputs)


@kernel(AdagradUpdate, dtypes=FLOATS)
def _adagrad_update(operation: AdagradUpdate, inputs: list[Array], outputs: list[Array]) -> None:
    _ADAGRAD(*inputs, *_factors(operation.rate_scale, operation.eps, operation.weight_decay), *outputs)


@kernel(RmsPropUpdate, dtypes=FLOATS)
def _rmsprop_update(operation: RmsPropUpdate, inputs: list[Array], outputs: list[Array]) -> None:
    factors = _factors(operation.rate_scale, operation.alpha, operation.eps, operation.weight_decay, operation.momentum)
    _RMSPROP[bool(operation.momentum), operation.centered](*inputs, *factors, *outputs)


_SQUARE = elementwise("square", "T x", "float64 y", "y = double(x) * double(x)")
_ADD_SQUARES = elementwise("add_squares", "T a, T b", "T y", "y = a + b")
_NORM_FACTOR = elementwise(
    "norm_factor",
    "T square, float64 max_norm",
    "T y",
    "double factor = max_norm / (sqrt(double(square)) + 1e-6); y = factor > 1 ? 1 : factor;",
)
_SCALE_BY = elementwise("scale_by", "T x, float64 factor", "T y", "y = T(W(factor) * W(x))")


@kernel(SquareSum, dtypes=FLOATS)
def _square_sum(operation: SquareSum, inputs: list[Array], outputs: list[Array]) -> None:
    squares = cupy.empty(inputs[0].size, np.float64)
    _SQUARE(inputs[0].reshape(-1), squares)
    sum_axes(squares, (0,), outputs[0])


@kernel(NormFactor, dtypes="float64")
def _norm_factor(operation: NormFactor, inputs: list[Array], outputs: list[Array]) -> None:
    total = inputs[0]
    for square in inputs[1:]:
        summed = cupy.empty((), np.float64)
        _ADD_SQUARES(total, square, summed)
        total = summed
    _NORM_FACTOR(total, np.float64(operation.max_norm), outputs[0])


@kernel(ScaleBy, dtypes=FLOATS, inplace=True)
def _scale_by(operation: ScaleBy, inputs: list[Array], outputs: list[Array]) -> None:
    _SCALE_BY(*inputs, outputs[0])
