"""What the CPU's kernels compute, beside the NumPy of each row of the table of operations, in all dtypes it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.operations import ROWS, Row, Sample
from tests.operations.shaping import parts
from tests.support.effort import FULL
from tests.support.layouts import LAYOUTS, laid_out

COMPARED = [row for row in ROWS.values() if row.kind and row.numpy]


def wide(x: np.ndarray) -> np.ndarray:
    """Numbers with as many digits as a reference wants."""
    if x.dtype.kind in "fV":
        return x.astype(np.float64)
    return x.astype(np.complex128) if x.dtype.kind == "c" else x


def agree(found: Sequence[Any], expected: Sequence[Any], row: Row, text: str) -> None:
    """Compare results with those of a reference. Sums lose digits with the size of their terms, whatever comes out."""
    floats = [abs(np.asarray(x)) for x in expected if np.asarray(x).dtype.kind in "fc"]
    scale = max([1.0, *(float(np.max(x, initial=0.0, where=np.isfinite(x))) for x in floats)])
    for mine, its in zip(found, map(np.asarray, expected), strict=True):
        assert mine.shape == its.shape, text
        if mine.dtype.kind in "biu":
            assert mine.dtype == its.dtype, text
            np.testing.assert_array_equal(mine, its, err_msg=text)
        else:
            relative, absolute = bounds(row, mine.dtype.name)
            np.testing.assert_allclose(wide(mine), its, rtol=relative, atol=absolute * scale, err_msg=text)


def bounds(row: Row, dtype: str) -> tuple[float, float]:
    """Numbers of 16 bits are computed in more, and rounded once, but for a few."""
    rounded = {"float16": (1e-3, 1e-5), "bfloat16": (8e-3, 1e-5)}
    return rounded.get(dtype, row.bounds(dtype)) if not row.by_steps else row.bounds(dtype)


def check_values(compute: Any, row: Row, sample: Sample, dtype: str, *layouts: str) -> None:
    """Compare results with the reference of the row, for inputs in some orders in memory."""
    assert row.numpy is not None
    arrays = sample.inputs(dtype)
    with np.errstate(all="ignore"):
        expected = parts(row.numpy(*(map(wide, arrays) if row.widened else arrays), **sample.parameters))
    for layout in layouts:
        found = compute(sample.operation, *(laid_out(x, layout) for x in arrays))
        agree(found, expected, row, f"{sample} of {dtype}")


#: Dtypes that, in short, the first sample alone of a row is tried in: there are others of their kind.
ALIKE = {"int16", "int32", "int64", "uint8", "uint16", "uint32", "complex128"}
SPECIAL = [row for row in ROWS.values() if row.special and row.kind]


@pytest.mark.together("row", SPECIAL, ids=str)
def test_values_of_special_numbers(compute: Any, row: Row) -> None:
    """Zeros of both signs, ones, ties, infinities and, where they may be, what is not a number; without a warning."""
    assert row.special is not None
    for dtype in ("float32", "float64"):
        check_values(compute, row, row.special, dtype, "C")


@pytest.mark.together("row", COMPARED, ids=str, at_once=5)
def test_values(compute: Any, row: Row) -> None:
    for sample in row.samples:
        for dtype in sample.dtypes(row):
            if FULL or dtype not in ALIKE or sample is row.first:
                is_laid_out = dtype == "float32" and (FULL or sample is row.first)
                check_values(compute, row, sample, dtype, *(LAYOUTS if is_laid_out else LAYOUTS[:1]))
