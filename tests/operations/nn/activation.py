"""Activations with parameters; those without are rows of tests/operations/elementwise.py."""

from __future__ import annotations

import numpy as np

import actorflow as af
from actorflow import ops
from tests.operations.elementwise import at_points, dtypes_of
from tests.operations.table import Row, Sample, normal, refused

_X = (300, 7)
_FEW = (3, 4)


def _softplus(x: np.ndarray, beta: float, threshold: float) -> np.ndarray:
    return np.where(beta * x > threshold, x, np.logaddexp(0, beta * x) / beta)


ROWS = [
    Row(
        ops.Elu,
        [Sample(ops.Elu(*alpha), normal(shape)) for alpha in ((), (0.7,)) for shape in (_FEW, _X)],
        numpy=lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
        torch=lambda torch, x, alpha: torch.nn.functional.elu(x, alpha),
        dtypes=dtypes_of(ops.Elu),
        special=Sample(ops.Elu(), at_points(ops.Elu)),
        onnx="Elu",
    ),
    Row(
        ops.LeakyRelu,
        [
            Sample(ops.LeakyRelu(*slope), normal(shape))
            for slope in ((), (0.1,), (0.0,), (3.0,))
            for shape in (_FEW, _X)
        ],
        numpy=lambda x, slope: np.where(x > 0, x, slope * np.minimum(x, 0)),
        torch=lambda torch, x, slope: torch.nn.functional.leaky_relu(x, slope),
        dtypes=dtypes_of(ops.LeakyRelu),
        special=Sample(ops.LeakyRelu(), at_points(ops.LeakyRelu)),
        onnx="LeakyRelu",
    ),
    Row(
        ops.Softplus,
        [Sample(ops.Softplus(*how), normal(shape)) for how in ((), (2.0, 3.0), (2.0,)) for shape in (_FEW, _X)],
        numpy=_softplus,
        torch=lambda torch, x, beta, threshold: torch.nn.functional.softplus(x, beta, threshold),
        dtypes=dtypes_of(ops.Softplus),
        special=Sample(ops.Softplus(), at_points(ops.Softplus)),
        onnx="Softplus",
    ),
]

WRONG = [
    *refused(
        af.GraphError,
        (ops.LeakyRelu(-0.1), [(3,)], "LeakyRelu: slope must not be negative, got -0.1"),
        (ops.Elu(-1.0), [(3,)], "Elu: alpha must not be negative, got -1.0"),
        (ops.Softplus(0.0), [(3,)], "Softplus: beta must be positive, got 0.0"),
    )
]
