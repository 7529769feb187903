"""All rows of the table of operations against PyTorch: values, gradients, and gradients of gradients."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest

from tests.operations import ROWS, Row, Sample
from tests.oracle.comparison import check
from tests.support.layouts import laid_out

torch = pytest.importorskip("torch", reason="torch is not installed: make test-oracle")

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("single_thread")]

LAYOUTS = ("C", "F", "strided")
DOUBLE = ("float64", "complex128")
#: Of which values are compared: PyTorch has little of the wider unsigned integers, and rounds half precision elsewhere.
WHOLE = ("bool", "int8", "int16", "int32", "int64", "uint8")
#: Rows whose results are determined up to factors: rows of functions compare what does not depend on these.
UNDETERMINED = ("Eig", "Eigh", "Svd")
#: Means and deviations lose digits, as do quotients by probabilities near 0 and 1.
FACTORS = {"BatchNorm": 30.0, "LayerNorm": 10.0, "ops.group_norm": 10.0, "ops.instance_norm": 10.0,
           "ops.instance_norm by its values": 10.0, "BinaryCrossEntropy": 10.0}  # fmt: skip
#: Rows whose gradient by the divisor is -floor(a / b) or -trunc(a / b), which are the standard's for infinities.
OF_QUOTIENTS = ("Remainder", "Fmod")
COMPARED = [row for row in ROWS.values() if row.torch and row.name not in UNDETERMINED and row.first.drawn()]
SAMPLES = [(row, sample) for row in COMPARED for sample in row.samples]
CORNERS = [(row, sample) for row in COMPARED for sample in (row.special, *row.corners) if sample]
#: So many samples of a row are compared to all its orders, the others to the first.
DEEP = 6


def names(chosen: list[tuple[Row, Sample]]) -> list[str]:
    return [f"{row}-{i}" for i, (row, _) in enumerate(chosen)]


def orders_of(row: Row, dtype: str) -> int:
    return row.orders if row.differentiable and dtype not in WHOLE else 0


@pytest.mark.parametrize(("row", "sample"), SAMPLES, ids=names(SAMPLES))
def test_samples(row: Row, sample: Sample) -> None:
    """In double precision, with those of each result alone."""
    dtypes, most = sample.dtypes(row), row.orders if any(sample is each for each in row.samples[:DEEP]) else 1
    for dtype, layout in zip([name for name in DOUBLE if name in dtypes] or dtypes[:1], cycle(LAYOUTS), strict=False):
        arrays = [laid_out(x, layout) for x in sample.inputs(dtype)]
        orders = min(most, orders_of(row, dtype))
        count = check(row, sample, arrays, orders, FACTORS.get(row.name, 1.0))
        for i in range(count if count > 1 and dtype == "float64" else 0):
            check(row, sample, arrays, 1, FACTORS.get(row.name, 1.0), only=i)


@pytest.mark.parametrize(("row", "sample"), CORNERS, ids=names(CORNERS))
def test_gradients_where_rules_divide_by_zero_or_choose(row: Row, sample: Sample) -> None:
    """At 0, -0, 1, -1, infinities and ties: they are PyTorch's, or ours, for a reason beside the reference."""
    arrays, orders = sample.inputs("float64"), min(orders_of(row, "float64"), 1)
    with np.errstate(all="ignore"):
        if sample is row.special:
            check(row, sample, arrays, 0, is_corner=True)
            wanted = np.isfinite(arrays) if row.name in OF_QUOTIENTS else ~np.isnan(arrays)
            arrays = [x[wanted.all(0)] for x in arrays]
        check(row, sample, arrays, orders, is_corner=True)
