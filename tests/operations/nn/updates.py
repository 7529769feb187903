"""Steps of optimizers, and the norm that gradients are limited by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from actorflow import ops
from actorflow.ops.nn.updates import NormFactor, ScaleBy, SquareSum
from tests.operations.table import FLOATS, Make, Row, Sample, normal

_DTYPES = (*FLOATS, "bfloat16")
#: NumPy has no bfloat16 that a rate could be of.
_OPTIMIZERS = {"torch": "tests/oracle compares whole trainings: its optimizers are no functions"}


def _updated(random: np.random.Generator) -> list[np.ndarray]:
    return [*(random.standard_normal((6, 50)) for _ in range(3)), np.asarray(0.125)]


def _state(*moments: int) -> Make:
    """Arguments of an update: weight, gradient, as many arrays that are not negative, rate, as many more, step."""

    def draw(random: np.random.Generator) -> list[np.ndarray]:
        before, after, *step = moments
        weight, grad = random.standard_normal((2, 6, 50))
        states = [1 + random.random((6, 50)) for _ in range(before + after)]
        rate = np.asarray(0.125)
        return [weight, grad, *states[:before], rate, *states[before:], *(np.asarray(s) for s in step)]

    return draw


def _sgd(
    weight: Any,
    grad: Any,
    velocity: Any,
    rate: Any,
    momentum: float,
    weight_decay: float,
    rate_scale: float,
    nesterov: bool,
) -> list[Any]:
    moved = rate_scale * rate * (grad + weight_decay * weight)
    velocity = momentum * velocity + moved
    return [weight - (momentum * velocity + moved if nesterov else velocity), velocity]


def _adam(
    weight: Any,
    grad: Any,
    mean: Any,
    square: Any,
    rate: Any,
    step: Any,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    rate_scale: float,
) -> list[Any]:
    grad = grad + (0 if decoupled else weight_decay * weight)
    mean, square = beta1 * mean + (1 - beta1) * grad, beta2 * square + (1 - beta2) * grad**2
    rate, t = rate_scale * rate, step + 1
    weight = weight - (rate * weight_decay * weight if decoupled else 0)
    return [weight - rate * (mean / (1 - beta1**t)) / (np.sqrt(square / (1 - beta2**t)) + eps), mean, square]


def _adagrad(weight: Any, grad: Any, square: Any, rate: Any, eps: float, weight_decay: float, rate_scale: float) -> Any:
    grad = grad + weight_decay * weight
    square = square + grad**2
    return [weight - rate_scale * rate * grad / (np.sqrt(square) + eps), square]


def _rms_prop(
    weight: Any,
    grad: Any,
    square: Any,
    rate: Any,
    *more: Any,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
    centered: bool,
    rate_scale: float,
) -> list[Any]:
    states = list(more)
    grad = grad + weight_decay * weight
    square = alpha * square + (1 - alpha) * grad**2
    mean = alpha * states[-1] + (1 - alpha) * grad if centered else 0.0
    # The states of a sample need not be those of numbers: the variance is 0 at least.
    scaled = grad / (np.sqrt(np.maximum(square - mean**2, 0)) + eps)
    velocity = momentum * states[0] + scaled if momentum else scaled
    return [
        weight - rate_scale * rate * velocity,
        square,
        *([velocity] if momentum else []),
        *([mean] if centered else []),
    ]


def _factor(*squares: Any, max_norm: float) -> Any:
    return np.minimum(1, max_norm / (np.sqrt(sum(squares)) + 1e-6))


def _row(kind: Any, numpy: Callable[..., Any], *samples: Sample) -> Row:
    return Row(kind, samples, numpy=numpy, without=_OPTIMIZERS, by_steps=kind is ops.SgdUpdate)


def _squares(random: np.random.Generator) -> list[np.ndarray]:
    return [*map(np.asarray, random.random(3))]


ROWS = [
    _row(
        ops.SgdUpdate,
        _sgd,
        *(
            Sample(ops.SgdUpdate(*factors), _updated)
            for factors in [(0.9, 0.1), (0.0, 0.0, 1.0), (0.9, 0.01, 2.0), (0.9, 0.01, 2.0, True)]
        ),
    ),
    _row(
        ops.AdamUpdate,
        _adam,
        *(
            Sample(ops.AdamUpdate(weight_decay=0.01, decoupled=apart), _state(2, 0, 4), (2, 3))
            for apart in (False, True)
        ),
        Sample(ops.AdamUpdate(beta1=0.0, beta2=0.0), _state(2, 0, 0), (2, 3)),
    ),
    _row(
        ops.AdagradUpdate,
        _adagrad,
        *(Sample(ops.AdagradUpdate(1e-3, decay, 2.0), _state(1, 0), (2,)) for decay in (0.0, 0.01)),
    ),
    _row(
        ops.RmsPropUpdate,
        _rms_prop,
        Sample(ops.RmsPropUpdate(momentum=0.9, weight_decay=0.01), _state(1, 1), (2, 4)),
        Sample(ops.RmsPropUpdate(), _state(1, 0), (2,)),
        Sample(ops.RmsPropUpdate(alpha=0.5, eps=1e-2, centered=True), _state(1, 1), (2, 4)),
        Sample(
            ops.RmsPropUpdate(alpha=0.5, eps=1e-2, momentum=0.9, centered=True, rate_scale=2.0), _state(1, 2), (2, 4, 5)
        ),
    ),
    Row(
        SquareSum,
        [Sample(SquareSum(), normal(shape)) for shape in [(2, 3), (), (0, 3), (70, 300)]],
        numpy=lambda x: (x**2).sum(),
        without={"torch": "part of clip_by_global_norm"},
        dtypes=_DTYPES,
    ),
    Row(
        NormFactor,
        [Sample(NormFactor(limit), _squares, exact=(0, 1, 2)) for limit in (0.5, 9.0)],
        numpy=_factor,
        without={"torch": "part of clip_by_global_norm"},
        dtypes=FLOATS,
        particular=True,
    ),
    Row(
        ScaleBy,
        [
            Sample(ScaleBy(), lambda random, shape=shape: [random.standard_normal(shape), np.asarray(0.3)], exact=(1,))
            for shape in ((2, 3), (5, 41))
        ],
        numpy=lambda x, factor: factor * x,
        without={"torch": "part of clip_by_global_norm"},
        dtypes=_DTYPES,
    ),
]
