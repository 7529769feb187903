"""Tensor types."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af

shapes = st.lists(st.integers(0, 1 << 40), max_size=5)


@given(shapes)
def test_shapes_are_normalized(shape: list[int]) -> None:
    spec = af.TensorSpec.of(shape)
    assert spec == af.TensorSpec.of(tuple(np.int64(axis) for axis in shape)) == af.TensorSpec.of(iter(shape))
    assert spec.shape == tuple(shape)
    assert all(type(axis) is int for axis in spec.shape)
    assert spec.size == math.prod(shape)
    assert spec.size_bytes == 4 * spec.size


def test_one_axis_and_none() -> None:
    assert af.TensorSpec.of(3).shape == af.TensorSpec.of(np.int32(3)).shape == (3,)
    assert af.TensorSpec.of(()).size == 1
    assert af.TensorSpec.of((2, 0)).size_bytes == 0


@pytest.mark.together("dtype", ["float64", np.float64, float, np.dtype("f8"), "d"])
def test_dtypes_are_normalized(dtype: Any) -> None:
    assert af.TensorSpec.of((2, 3), dtype) == af.TensorSpec((2, 3), np.dtype("float64"))


def test_text_form() -> None:
    assert str(af.TensorSpec.of((2, 3))) == "float32[2, 3]"
    assert str(af.TensorSpec.of((), "int8")) == "int8[]"


def test_type_of_any_object() -> None:
    assert af.TensorSpec.of((), object).is_object
    assert not af.TensorSpec.of((1,), object).is_object
    assert not af.TensorSpec.of(()).is_object


@pytest.mark.together(
    ("shape", "message"),
    [
        ((2, -1), r"shape \(2, -1\): every axis must be a non-negative integer or a name, got -1"),
        ((2, 1.0), r"got 1\.0"),
        ((True,), "got True"),
        ("a b", "'a b' cannot name an axis"),
        (None, r"shape \(None,\): .* got None"),
        (2.5, r"got 2\.5"),
        ((None, 3), "got None: give the axis a name"),
    ],
)
def test_wrong_shapes(shape: Any, message: str) -> None:
    with pytest.raises(af.ShapeError, match=message):
        af.TensorSpec.of(shape)


@pytest.mark.together("dtype", ["flaot32", "i4,((", {"x": 1}, 3, "O["])
def test_wrong_dtypes(dtype: Any) -> None:
    with pytest.raises(af.DTypeError, match="is not a dtype that NumPy knows"):
        af.TensorSpec.of(2, dtype)
