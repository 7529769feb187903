"""What the library computes, beside the NumPy of each row of the table of operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from actorflow.ops.linalg import Inner, InnerDown
from actorflow.ops.nn.conv import Conv, ConvDown, ConvWeight
from actorflow.ops.nn.pool import AveragePool, AveragePoolDown, GlobalAverage, MaxPool
from actorflow.ops.nn.softmax import LogSoftmax, Softmax
from tests.operations import ROWS, Row
from tests.ops.test_values import check_values
from tests.support.layouts import LAYOUTS

#: Operations of which the library has a kernel.
COMPUTED = [
    Conv,
    ConvDown,
    ConvWeight,
    Inner,
    InnerDown,
    MaxPool,
    AveragePool,
    AveragePoolDown,
    GlobalAverage,
    Softmax,
    LogSoftmax,
]


@pytest.mark.parametrize("row", [ROWS[kind.__name__] for kind in COMPUTED], ids=str)
def test_values(compute: Any, left: list[str], row: Row) -> None:
    check_values(compute, row, row.first, "float32", *LAYOUTS)
    assert left == []
    for sample in row.samples[1:]:
        check_values(compute, row, sample, "float32", *LAYOUTS)


@pytest.mark.parametrize("row", [ROWS[kind.__name__] for kind in COMPUTED], ids=str)
def test_bits_are_the_same_from_run_to_run(compute: Any, row: Row) -> None:
    sample = row.samples[-1]
    inputs = sample.inputs()
    first = compute(sample.operation, *inputs)
    for _ in range(3):
        for one, other in zip(first, compute(sample.operation, *inputs), strict=True):
            np.testing.assert_array_equal(one, other)
