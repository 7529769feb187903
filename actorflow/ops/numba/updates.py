"""Steps of the optimizers, one pass each: elements are computed as NumPy's kernels do, operation by operation."""

from __future__ import annotations

import math
from functools import lru_cache

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.nn.updates import AdagradUpdate, AdamUpdate, RmsPropUpdate, SgdUpdate
from actorflow.ops.numba.flat import call, elementwise
from actorflow.ops.numba.kernels import are_plain, kernel
from actorflow.ops.numba.routine import Routine

#: SGD of fewer elements takes NumPy less time than it takes to find the routine.
LEAST = 2048

_SQUARE = ("s = square[i] * beta + g * g * rest", "new_square[i] = s")


def _step(routine: Routine, arrays: list[Array], *numbers: float) -> bool:
    if not are_plain(arrays, arrays[0].dtype):
        return False
    function = routine.function
    if function is None:
        return False
    call(function, arrays, *numbers, rows=arrays[0].size)
    return True


def _gradient(decays: bool) -> str:
    return "g = weight[i] * decay + grad[i]" if decays else "g = grad[i]"


@lru_cache(maxsize=16)
def _sgd(dtype: str, decays: bool, has_momentum: bool, nesterov: bool) -> Routine:
    lines = [
        _gradient(decays),
        "moved = g * step",
        "v = velocity[i] * momentum + moved" if has_momentum else "v = moved",
        "new_velocity[i] = v",
        f"new_weight[i] = weight[i] - {'(moved + v * momentum)' if nesterov and has_momentum else 'v'}",
    ]
    arrays = ("weight", "grad", "velocity", "new_weight", "new_velocity")
    return elementwise("sgd", dtype, arrays, ("decay", "momentum", "step"), lines)


@kernel(SgdUpdate)
def _sgd_update(operation: SgdUpdate, inputs: list[Array], outputs: list[Array]) -> bool:
    if inputs[0].size < LEAST:
        return False
    decay, momentum, step = operation.weight_decay, operation.momentum, operation.rate_scale * float(inputs[3])
    routine = _sgd(inputs[0].dtype.name, decay != 0, momentum != 0, operation.nesterov)
    return _step(routine, [*inputs[:3], *outputs], decay, momentum, step)


@lru_cache(maxsize=16)
def _adam(dtype: str, decays: bool, decoupled: bool) -> Routine:
    lines = [
        _gradient(decays and not decoupled),
        "m = (g - mean[i]) * ahead + mean[i]",
        "new_mean[i] = m",
        *_SQUARE,
        "moved = m / (sqrt(s) * unbias + eps) * step",
        f"new_weight[i] = weight[i] - {'(moved + weight[i] * decay)' if decays and decoupled else 'moved'}",
    ]
    arrays = ("weight", "grad", "mean", "square", "new_weight", "new_mean", "new_square")
    return elementwise("adam", dtype, arrays, ("decay", "ahead", "beta", "rest", "unbias", "eps", "step"), lines)


@kernel(AdamUpdate)
def _adam_update(operation: AdamUpdate, inputs: list[Array], outputs: list[Array]) -> bool:
    rate, t = operation.rate_scale * float(inputs[4]), int(inputs[5]) + 1
    beta1, beta2, decay = operation.beta1, operation.beta2, operation.weight_decay
    return _step(
        _adam(inputs[0].dtype.name, decay != 0, operation.decoupled),
        [*inputs[:4], *outputs],
        rate * decay if operation.decoupled else decay,
        1.0 - beta1,
        beta2,
        1.0 - beta2,
        1.0 / math.sqrt(1.0 - beta2**t),
        operation.eps,
        rate / (1.0 - beta1**t),
    )


@lru_cache(maxsize=16)
def _adagrad(dtype: str, decays: bool) -> Routine:
    lines = [
        _gradient(decays),
        "s = square[i] + g * g",
        "new_square[i] = s",
        "new_weight[i] = weight[i] - g / (sqrt(s) + eps) * rate",
    ]
    arrays = ("weight", "grad", "square", "new_weight", "new_square")
    return elementwise("adagrad", dtype, arrays, ("decay", "eps", "rate"), lines)


@kernel(AdagradUpdate)
def _adagrad_update(operation: AdagradUpdate, inputs: list[Array], outputs: list[Array]) -> bool:
    decay, rate = operation.weight_decay, operation.rate_scale * float(inputs[3])
    routine = _adagrad(inputs[0].dtype.name, decay != 0)
    return _step(routine, [*inputs[:3], *outputs], decay, operation.eps, rate)


@lru_cache(maxsize=16)
def _rmsprop(dtype: str, decays: bool, centered: bool, has_momentum: bool, states: tuple[str, ...]) -> Routine:
    lines = [_gradient(decays), *_SQUARE]
    if centered:
        lines += [
            "m = (g - mean[i]) * rest + mean[i]",
            "new_mean[i] = m",
            "s = s - m * m",
            "s = s if (s >= zero) | (s != s) else zero",
        ]
    lines += ["moved = g / (sqrt(s) + eps)"]
    if has_momentum:
        lines += ["moved = velocity[i] * momentum + moved", "new_velocity[i] = moved"]
    lines += ["new_weight[i] = weight[i] - moved * rate"]
    arrays = ("weight", "grad", *states, "new_weight", *[f"new_{name}" for name in states])
    return elementwise("rmsprop", dtype, arrays, ("decay", "beta", "rest", "eps", "momentum", "rate"), lines)


@kernel(RmsPropUpdate)
def _rmsprop_update(operation: RmsPropUpdate, inputs: list[Array], outputs: list[Array]) -> bool:
    decay, momentum, alpha = operation.weight_decay, operation.momentum, operation.alpha
    states = ("square", *operation.more)
    return _step(
        _rmsprop(inputs[0].dtype.name, decay != 0, operation.centered, momentum != 0, states),
        [*inputs[:3], *inputs[4:], *outputs],
        decay,
        alpha,
        1.0 - alpha,
        operation.eps,
        momentum,
        operation.rate_scale * float(inputs[3]),
    )
