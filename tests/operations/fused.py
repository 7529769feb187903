"""Chains of elementwise operations, which plans make."""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow import ops
from tests.operations.table import Row, Sample, normal

#: A value that is read twice, a vector that is broadcast, two results.
_CHAIN = ops.Fused(
    (
        ops.Step(ops.Multiply(), (0, 1)),
        ops.Step(ops.Sum(), (3, 2)),
        ops.Step(ops.Scale(0.3), (4,)),
        ops.Step(ops.Sigmoid(), (5,)),
        ops.Step(ops.Greater(), (6, 0)),
        ops.Step(ops.Where(), (7, 6, 0)),
    ),
    (1, 5),
)


def _reduced(axis: tuple[int, ...]) -> ops.Fused:
    """A chain, one of its values, and reductions along an axis."""
    return ops.Fused(
        (
            ops.Step(ops.Multiply(), (0, 1)),
            ops.Step(ops.Subtract(), (2, 0)),
            ops.Step(ops.ReduceMean(axis), (3,)),
            ops.Step(ops.ReduceMax(axis, keepdims=True), (2,)),
            ops.Step(ops.ReduceMin(axis), (0,)),
            ops.Step(ops.CountNonzero(axis), (3,)),
        ),
        (0, 2, 3, 4, 5),
    )


def _by_steps(*arrays: np.ndarray, steps: Any, results: Any, **prepared: Any) -> list[np.ndarray]:
    """Each step by the reference of its row."""
    from tests.operations import row_of

    values = list(arrays)
    for step in steps:
        row = row_of(step.operation)
        assert row.numpy is not None
        values.append(row.numpy(*[values[i] for i in step.inputs], **Sample(step.operation, normal()).parameters))
    return [values[len(arrays) + i] for i in results]


ROWS = [
    Row(
        ops.Fused,
        [
            Sample(
                ops.Fused((ops.Step(ops.Multiply(), (0, 1)), ops.Step(ops.Relu(), (2,))), (1,)),
                normal((2, 6, 6, 3), (2, 6, 6, 3)),
            ),
            Sample(_CHAIN, normal((5, 41), (5, 41), (41,))),
            *(Sample(_reduced(axis), normal((9, 41), (41,))) for axis in [(0,), (1,), (0, 1)]),
            Sample(_reduced((0, 1)), normal((3, 2100), (3, 1))),
        ],
        numpy=_by_steps,
        by_steps=True,
        without={"torch": "plans make it of other operations"},
        differentiable=False,
    )
]
