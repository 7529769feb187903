"""Softmax and its logarithm."""

from __future__ import annotations

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.softmax import SoftmaxDown
from tests.operations.elementwise import FEW_POINTS, triples
from tests.operations.table import FLOATING, Row, Sample, Wrong, backward, normal

_WIDE = (4, 90, 6)


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
            *(
                Sample(ops.Softmax(axis), normal(shape))
                for axis, shape in ((1, (3, 3000)), (0, (3000, 3)), (1, (0, 4)))
            ),
            Sample(ops.Softmax(), lambda random: [np.array([[1000.0, 1000.0, -1000.0]])], smooth=False),
        ],
        numpy=softmax,
        torch="softmax",
        orders=3,
        corners=[Sample(ops.Softmax(1), triples(FEW_POINTS))],
        dtypes=FLOATING,
        onnx="Softmax",
    ),
    backward(
        SoftmaxDown,
        lambda g, y, axis: y * (g - (g * y).sum(axis, keepdims=True)),
        [
            Sample(SoftmaxDown(), normal((3, 4), (3, 4))),
            *(Sample(SoftmaxDown(axis), normal(_WIDE, _WIDE)) for axis in (-1, 0, 1)),
            *(Sample(SoftmaxDown(axis), normal(*[shape] * 2)) for axis, shape in ((1, (3, 3000)), (0, (3000, 3)))),
        ],
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
        corners=[Sample(ops.LogSoftmax(1), triples(FEW_POINTS))],
        dtypes=FLOATING,
        onnx="LogSoftmax",
    ),
]

WRONG = [
    Wrong(ops.Softmax(axis), [shape], af.ShapeError, rf"Softmax: x must have .* axis {axis}, got float32")
    for shape, axis in [((2,), 1), ((), -1), ((2, 0), -1)]
]
