"""Steps of optimizers, and the norm that gradients are limited by."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.updates import NormFactor, ScaleBy, SquareSum
from tests.operations.table import FLOATING, FLOATS, Make, Row, Sample, Wrong, normal, refused

_OPTIMIZERS = {"torch": "tests/oracle compares whole trainings: its optimizers are no functions"}


SHAPES: tuple[tuple[int, ...], ...] = ((6, 50), (), (2, 0), (2, 3, 4), (50, 700))


def _updated(shape: tuple[int, ...]) -> Make:
    return lambda random: [*(random.standard_normal(shape) for _ in range(3)), np.asarray(0.125)]


def _state(*moments: int, shape: tuple[int, ...] = SHAPES[0]) -> Make:
    """Arguments of an update: weight, gradient, as many arrays that are not negative, rate, as many more, step."""

    def draw(random: np.random.Generator) -> list[np.ndarray]:
        before, after, *step = moments
        weight, grad = random.standard_normal((2, *shape))
        states = [1 + random.random(shape) for _ in range(before + after)]
        rate = np.asarray(0.125)
        return [weight, grad, *states[:before], rate, *states[before:], *(np.asarray(s) for s in step)]

    return draw


def _sgd(weight: Any, grad: Any, velocity: Any, rate: Any, **how: Any) -> list[Any]:
    own = SimpleNamespace(**how)
    moved = own.rate_scale * rate * (grad + own.weight_decay * weight)
    velocity = own.momentum * velocity + moved
    return [weight - (own.momentum * velocity + moved if own.nesterov else velocity), velocity]


def _adam(weight: Any, grad: Any, mean: Any, square: Any, rate: Any, step: Any, **how: Any) -> list[Any]:
    own, t = SimpleNamespace(**how), step + 1
    rate = own.rate_scale * rate
    grad = grad + (0 if own.decoupled else own.weight_decay * weight)
    mean, square = own.beta1 * mean + (1 - own.beta1) * grad, own.beta2 * square + (1 - own.beta2) * grad**2
    weight = weight - (rate * own.weight_decay * weight if own.decoupled else 0)
    root = np.sqrt(square / (1 - own.beta2**t)) + own.eps
    return [weight - rate * (mean / (1 - own.beta1**t)) / root, mean, square]


def _adagrad(weight: Any, grad: Any, square: Any, rate: Any, eps: float, weight_decay: float, rate_scale: float) -> Any:
    grad = grad + weight_decay * weight
    square = square + grad**2
    return [weight - rate_scale * rate * grad / (np.sqrt(square) + eps), square]


def _rms_prop(weight: Any, grad: Any, square: Any, rate: Any, *more: Any, **how: Any) -> list[Any]:
    own, states = SimpleNamespace(**how), []
    grad = grad + own.weight_decay * weight
    square = own.alpha * square + (1 - own.alpha) * grad**2
    mean = own.alpha * more[-1] + (1 - own.alpha) * grad if own.centered else 0.0
    # The states of a sample need not be those of numbers: the variance is 0 at least.
    moved = grad / (np.sqrt(np.maximum(square - mean**2, 0)) + own.eps)
    if own.momentum:
        moved = own.momentum * more[0] + moved
        states.append(moved)
    return [weight - own.rate_scale * rate * moved, square, *states, *([mean] if own.centered else [])]


def _factor(*squares: Any, max_norm: float) -> Any:
    return np.minimum(1, max_norm / (np.sqrt(sum(squares)) + 1e-6))


def _row(kind: Any, numpy: Callable[..., Any], *samples: Sample) -> Row:
    return Row(kind, samples, numpy=numpy, without=_OPTIMIZERS, dtypes=FLOATING, by_steps=kind is ops.SgdUpdate)


def _squares(random: np.random.Generator) -> list[np.ndarray]:
    return [*map(np.asarray, random.random(3))]


def _rms(operation: Any, shape: tuple[int, ...] = SHAPES[0]) -> Sample:
    more = len(operation.more)
    return Sample(operation, _state(1, more, shape=shape), wide=(2, 3, *range(4, 4 + more)))


ROWS = [
    _row(
        ops.SgdUpdate,
        _sgd,
        *(Sample(ops.SgdUpdate(0.9, 0.1), _updated(shape), wide=(3,)) for shape in SHAPES),
        *(
            Sample(ops.SgdUpdate(momentum, decay, scale, nesterov), _updated(SHAPES[0]), wide=(3,))
            for momentum, nesterov in ((0.0, False), (0.0, True), (0.9, False), (0.9, True))
            for decay, scale in ((0.0, 1.0), (0.01, 2.0))
        ),
    ),
    _row(
        ops.AdamUpdate,
        _adam,
        *(Sample(ops.AdamUpdate(weight_decay=0.01), _state(2, 0, 4, shape=shape), (2, 3, 4)) for shape in SHAPES),
        *(
            Sample(ops.AdamUpdate(0.9, 0.99, 1e-6, decay, apart, scale), _state(2, 0, 3), (2, 3, 4))
            for apart in (False, True)
            for decay, scale in ((0.0, 1.0), (0.01, 2.0))
        ),
        Sample(ops.AdamUpdate(beta1=0.0, beta2=0.0), _state(2, 0, 0), (2, 3, 4)),
    ),
    _row(
        ops.AdagradUpdate,
        _adagrad,
        *(Sample(ops.AdagradUpdate(1e-6), _state(1, 0, shape=shape), (2, 3)) for shape in SHAPES),
        *(Sample(ops.AdagradUpdate(1e-3, decay, 2.0), _state(1, 0), (2, 3)) for decay in (0.0, 0.01)),
    ),
    _row(
        ops.RmsPropUpdate,
        _rms_prop,
        *(_rms(ops.RmsPropUpdate(momentum=0.9, weight_decay=0.01), shape) for shape in SHAPES),
        _rms(ops.RmsPropUpdate()),
        *(
            _rms(ops.RmsPropUpdate(0.5, 1e-2, decay, momentum, centered, scale))
            for centered in (False, True)
            for momentum in (0.0, 0.9)
            for decay, scale in ((0.0, 1.0), (0.01, 2.0))
        ),
    ),
    Row(
        SquareSum,
        [Sample(SquareSum(), normal(shape)) for shape in [(2, 3), (), (0, 3), (70, 300), (300, 250)]],
        numpy=lambda x: (x**2).sum(),
        without={"torch": "part of clip_by_global_norm"},
        dtypes=FLOATING,
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
            for shape in ((2, 3), (), (0, 3), (5, 41), (300, 250))
        ],
        numpy=lambda x, factor: factor * x,
        without={"torch": "part of clip_by_global_norm"},
        dtypes=FLOATING,
    ),
]

_TWO, _RATE, _STEP = (2,), ("float64",), ("int64",)

WRONG = [
    *refused(
        af.GraphError,
        (NormFactor(0.0), [_RATE], "NormFactor: max_norm must be positive, got 0"),
        (lambda: ops.clip_by_global_norm([], 1.0), [], "clip_by_global_norm: give at least one gradient"),
    ),
    *(
        Wrong(operation, operands, af.DTypeError, f"{operation.kind}: {match}")
        for operation, operands, match in (
            (ops.AdamUpdate(), [*[_TWO] * 4, _RATE, _RATE], "step must be int64, got float64"),
            (ops.AdamUpdate(), [*[_TWO] * 4, _STEP, _STEP], "rate must be floating, got int64"),
            (
                ops.AdamUpdate(),
                [*[("float16", 2)] * 4, _RATE, _STEP],
                "mean must be float32 for a weight of float16, got float16",
            ),
            (ops.SgdUpdate(), [_TWO, _TWO, _TWO, _STEP], "rate must be floating, got int64"),
            (SquareSum(), [("int64", 2)], "x must be floating, got int64"),
            (ScaleBy(), [("float64", 2), ()], "factor must be float64, got float32"),
        )
    ),
    *(
        Wrong(operation, operands, af.ShapeError, f"{operation.kind}: {match}")
        for operation, operands, match in (
            (
                ops.AdagradUpdate(),
                [_TWO, _TWO, (3,), _RATE],
                r"square must have weight's shape \(2,\), got float32\[3\]",
            ),
            (
                ops.RmsPropUpdate(momentum=0.5),
                [_TWO, _TWO, _TWO, _RATE, (3,)],
                r"velocity must have weight's shape \(2,\), got float32\[3\]",
            ),
            (ops.SgdUpdate(), [_TWO, (3,), _TWO, ()], r"grad must have weight's shape \(2,\), got float32\[3\]"),
            (ops.SgdUpdate(), [_TWO, _TWO, (1,), ()], r"velocity must have weight's shape \(2,\), got float32\[1\]"),
            (ops.SgdUpdate(), [_TWO, _TWO, _TWO, (1,)], r"rate must have shape \(\), got float32\[1\]"),
            (NormFactor(1.0), [_RATE, ("float64", 2)], r"squares\[1\] must have shape \(\), got float64\[2\]"),
        )
    ),
]
