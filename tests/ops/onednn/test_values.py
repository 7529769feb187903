"""What the library computes, beside the NumPy of each row of the table of operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from actorflow.ops.linalg import Inner, InnerDown
from actorflow.ops.nn.conv import Conv, ConvDown, ConvWeight
from tests.operations import ROWS, Row
from tests.ops.test_values import check_values
from tests.support.layouts import LAYOUTS

#: Operations of which the library has a kernel, and how many of their samples it leaves to others.
COMPUTED = {Conv: 3, ConvDown: 3, ConvWeight: 3, Inner: 3, InnerDown: 3}  # those are of no elements


@pytest.mark.parametrize("row", [ROWS[kind.__name__] for kind in COMPUTED], ids=str)
def test_values(compute: Any, left: list[str], row: Row) -> None:
    for sample in row.samples:
        check_values(compute, row, sample, "float32", *LAYOUTS)
    assert len(left) == COMPUTED[row.kind]  # each operation is asked once, whatever the layout of its arrays


@pytest.mark.parametrize("row", [ROWS[kind.__name__] for kind in COMPUTED], ids=str)
def test_bits_are_the_same_from_run_to_run(compute: Any, row: Row) -> None:
    sample = row.samples[-1]
    inputs = sample.inputs()
    first = compute(sample.operation, *inputs)
    for _ in range(3):
        for one, other in zip(first, compute(sample.operation, *inputs), strict=True):
            np.testing.assert_array_equal(one, other)
