"""Functions where their rules divide by zero, or choose."""

from __future__ import annotations

from typing import Any

import numpy as np

import actorflow.array as xp
from actorflow import ops
from tests.operations.elementwise import FEW_POINTS, triples
from tests.operations.table import SINGLE_AND_DOUBLE, Row, Sample, call, fixed, normal


def _deviation(torch: Any, x: Any, axis: int) -> Any:
    """With no slope of equal numbers: torch's is NaN, and what is divided by it is then, too, for good."""
    variance = x.var(axis, correction=0)
    is_flat = variance == 0
    return torch.where(is_flat, 0.0, torch.where(is_flat, 1.0, variance).sqrt())


def _row(name: str, function: Any, torch: Any, corner: Any, **parameters: Any) -> Row:
    return Row(
        None,
        [call(function, normal((2, 3)), **parameters)],
        name=name,
        torch=torch,
        dtypes=SINGLE_AND_DOUBLE,
        corners=[Sample(call(function, corner, **parameters).what, corner)],
    )


_POINTS = triples(FEW_POINTS)

ROWS = [
    _row("variance", xp.var, lambda torch, x, axis: x.var(axis, correction=0), _POINTS, axis=1),
    _row(
        "deviation", xp.std, _deviation, fixed(np.array([[2.0, 2.0, 2.0], [0.0, -0.0, 0.0], [1.0, 2.0, 2.0]])), axis=1
    ),
    _row(
        "largest magnitude",
        ops.linalg.vector_norm,
        lambda torch, x, axis, **order: torch.linalg.vector_norm(x, order["ord"], axis),
        _POINTS,
        axis=1,
        ord=np.inf,
    ),
    Row(
        None,
        [call(ops.binary_cross_entropy, fixed([0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]), reduction="none")],
        name="ops.binary_cross_entropy of 0 and 1",
        torch="nn.functional.binary_cross_entropy",
        dtypes=SINGLE_AND_DOUBLE,
        differentiable=False,  # torch bounds the slope by 1e-12 in single precision
    ),
]
