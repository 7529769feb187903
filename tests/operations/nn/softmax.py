"""Softmax and its logarithm."""

from __future__ import annotations

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.softmax import SoftmaxDown
from tests.operations.drawn import along_axis
from tests.operations.elementwise import FEW_POINTS, triples
from tests.operations.table import FLOATS, Make, Row, Sample, Wrong, normal

_WIDE = (4, 90, 6)
_DTYPES = (*FLOATS, "bfloat16")


def _wider(shape: tuple[int, ...]) -> Make:
    return lambda random: [4 * random.standard_normal(shape)]


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Exponentials that add up to 1."""
    y = np.exp(x - x.max(axis, keepdims=True))
    return y / y.sum(axis, keepdims=True)


def log_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Its logarithm, without overflow."""
    y = x - x.max(axis, keepdims=True)
    return y - np.log(np.exp(y).sum(axis, keepdims=True))


ROWS = [
    Row(
        ops.Softmax,
        [
            Sample(ops.Softmax(), normal((3, 4))),
            Sample(ops.Softmax(0), normal((3, 4))),
            *(Sample(ops.Softmax(axis), normal(_WIDE)) for axis in (-1, 0, 1)),
            Sample(ops.Softmax(), normal((3, 3000))),
            Sample(ops.Softmax(), lambda random: [np.array([[1000.0, 1000.0, -1000.0]])], smooth=False),
        ],
        numpy=softmax,
        torch="softmax",
        orders=3,
        strategy=along_axis(ops.Softmax, _wider),
        corners=[Sample(ops.Softmax(1), triples(FEW_POINTS))],
        dtypes=_DTYPES,
        onnx="Softmax",
    ),
    Row(
        SoftmaxDown,
        [
            Sample(SoftmaxDown(), normal((3, 4), (3, 4))),
            *(Sample(SoftmaxDown(axis), normal(_WIDE, _WIDE)) for axis in (-1, 0, 1)),
        ],
        numpy=lambda g, y, axis: y * (g - (g * y).sum(axis, keepdims=True)),
        without={"torch": "only gradients are made of it"},
        dtypes=_DTYPES,
    ),
    Row(
        ops.LogSoftmax,
        [
            *(Sample(ops.LogSoftmax(axis), normal((3, 4))) for axis in (-1, 0, 1)),
            *(Sample(ops.LogSoftmax(axis), normal(_WIDE)) for axis in (-1, 0, 1)),
            Sample(ops.LogSoftmax(), lambda random: [np.array([[1000.0, 1000.0, -1000.0]])], smooth=False),
        ],
        numpy=log_softmax,
        torch="log_softmax",
        orders=3,
        strategy=along_axis(ops.LogSoftmax, _wider),
        corners=[Sample(ops.LogSoftmax(1), triples(FEW_POINTS))],
        dtypes=_DTYPES,
        onnx="LogSoftmax",
    ),
]

WRONG = [
    Wrong(ops.Softmax(axis), [shape], af.ShapeError, rf"Softmax: x must have .* axis {axis}, got float32")
    for shape, axis in [((2,), 1), ((), -1), ((2, 0), -1)]
]
