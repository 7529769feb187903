"""Resizing by the library, beside NumPy's kernel; what finds other places is left to that."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import numpy as np
import pytest

from actorflow.ops.nn.resize import ROUNDINGS, Coordinates, Resize
from tests.support.kernels import compute_cpu

SIZES = [(7, 14), (7, 21), (8, 4), (5, 8), (9, 5), (6, 6), (1, 3), (4, 1)]


def _drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_values_of_all_kinds(compute: Any, left: list[str], mode: Any) -> None:
    tried = 0
    for (length, size), coordinates, rounding in product(SIZES, get_args(Coordinates), ROUNDINGS):
        if mode == "cubic" or (mode == "linear" and rounding != "floor"):
            continue
        for axis, shape in ((0, (length, 16)), (1, (2, length, 8)), (2, (2, 3, length, 5))):
            x = _drawn(*shape)
            operation = Resize(axis, size, mode, coordinates, rounding)
            (found,), (expected,) = compute(operation, x), compute_cpu(operation, x)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6, err_msg=f"{operation} of {shape}")
            tried += 1
    assert len(left) < tried or mode == "cubic"


@pytest.mark.parametrize(
    ("mode", "coordinates", "rounding"),
    [
        ("linear", "half_pixel", "floor"),
        ("nearest", "half_pixel", "round_prefer_floor"),
        ("nearest", "asymmetric", "floor"),
    ],
)
def test_doubling_is_the_librarys(compute: Any, left: list[str], mode: Any, coordinates: Any, rounding: Any) -> None:
    """So exporters write what networks do; what is not finite stays what it is in NumPy's kernel."""
    for special in (0.5, np.nan, np.inf, -np.inf, -0.0, 1e38):
        x = _drawn(2, 6, 9, 16)
        x[1, 2, 3, 4] = special
        for axis in (1, 2):
            operation = Resize(axis, 2 * x.shape[axis], mode, coordinates, rounding, scale=2.0)
            with np.errstate(all="ignore"):
                (found,), (expected,) = compute(operation, x), compute_cpu(operation, x)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6, err_msg=f"{special}")
    assert left == []


def test_places_that_differ_are_not_the_librarys(compute: Any, left: list[str]) -> None:
    x = _drawn(2, 8, 4)
    operations = [Resize(1, 16, "linear", "align_corners"), Resize(1, 4, "nearest", "half_pixel", "round_prefer_floor")]
    for operation in operations:
        np.testing.assert_array_equal(compute(operation, x)[0], compute_cpu(operation, x)[0])
    assert left == ["Resize"] * 2
