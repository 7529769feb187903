"""Tensor types, and values as arrays of a type."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.spec import as_array

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


@pytest.mark.parametrize("dtype", ["float64", np.float64, float, np.dtype("f8"), "d"])
def test_dtypes_are_normalized(dtype: Any) -> None:
    assert af.TensorSpec.of((2, 3), dtype) == af.TensorSpec((2, 3), np.dtype("float64"))


def test_text_form() -> None:
    assert str(af.TensorSpec.of((2, 3))) == "float32[2, 3]"
    assert str(af.TensorSpec.of((), "int8")) == "int8[]"


def test_type_of_any_object() -> None:
    assert af.TensorSpec.of((), object).is_object
    assert not af.TensorSpec.of((1,), object).is_object
    assert not af.TensorSpec.of(()).is_object


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, -1), r"shape \(2, -1\): every axis must be a non-negative integer, got -1"),
        ((2, 1.0), r"got 1\.0"),
        ((True,), "got True"),
        ("ab", "got 'a'"),
        (None, r"shape \(None,\): .* got None"),
        (2.5, r"got 2\.5"),
        ((None, 3), "got None"),
    ],
)
def test_wrong_shapes(shape: Any, message: str) -> None:
    with pytest.raises(af.ShapeError, match=message):
        af.TensorSpec.of(shape)


@pytest.mark.parametrize("dtype", ["flaot32", "i4,((", {"x": 1}, 3, "O["])
def test_wrong_dtypes(dtype: Any) -> None:
    with pytest.raises(af.DTypeError, match="is not a dtype that NumPy knows"):
        af.TensorSpec.of(2, dtype)


class TestAsArray:
    def test_an_array_of_the_type_is_taken_as_it_is(self) -> None:
        array = np.zeros((2, 3), "f")
        assert as_array(array, af.TensorSpec.of((2, 3)), "it") is array

    @pytest.mark.parametrize(
        ("value", "dtype", "expected"),
        [
            ([1, 2], "float32", [1, 2]),
            ([1, 255], "uint8", [1, 255]),
            ([-128, 127], "int8", [-128, 127]),
            ([0, 1], "bool", [False, True]),
            ([True, False], "int64", [1, 0]),
            ([0.1, 2.5], "float32", np.float32([0.1, 2.5])),
            ([0.1, 1e300], "float32", np.float32([0.1, np.inf])),
            ([1, 2], "complex64", [1, 2]),
            (np.float32([1, 2]), "float64", [1, 2]),
            (np.uint8([1, 2]), "int64", [1, 2]),
        ],
    )
    def test_what_fits(self, value: Any, dtype: str, expected: Any) -> None:
        array = as_array(value, af.TensorSpec.of(2, dtype), "it")
        assert array.dtype == dtype
        assert np.array_equal(array, np.asarray(expected, dtype))

    @pytest.mark.parametrize(
        ("value", "dtype", "message"),
        [
            ([1, 256], "uint8", "it: expected dtype uint8, got integers from 1 to 256"),
            ([-1, 3], "uint64", "expected dtype uint64, got integers from -1 to 3"),
            ([1 << 63, 1 << 63], "int64", "got integers from 9223372036854775808 to 9223372036854775808"),
            ([0, 2], "bool", "expected dtype bool, got integers from 0 to 2"),
            ([0, 1 << 64], "int64", "expected dtype int64, got object"),
            ([1.0, 2.0], "int64", "expected dtype int64, got float64$"),
            ([1j, 2.0], "float32", "expected dtype float32, got complex128$"),
            (["a", "b"], "float32", "expected dtype float32, got <U1$"),
            (np.ones(2), "float32", r"got float64; convert it, array\.astype\('float32'\)"),
            (np.int64([1, 2]), "uint8", r"got int64; convert it, array\.astype\('uint8'\)"),
        ],
    )
    def test_what_does_not(self, value: Any, dtype: str, message: str) -> None:
        with pytest.raises(af.DTypeError, match=message):
            as_array(value, af.TensorSpec.of(2, dtype), "it")

    def test_nothing_is_called_so(self) -> None:  # a function without a return, say
        with pytest.raises(af.DTypeError, match=r"it: expected dtype float32, got None$"):
            as_array(None, af.TensorSpec.of(()), "it")
        with pytest.raises(af.ShapeError, match=r"it: expected shape \(2,\), got None$"):
            as_array(None, af.TensorSpec.of(2), "it")

    def test_scalars_of_numpy_have_a_dtype_of_their_own(self) -> None:
        spec = af.TensorSpec.of(())
        assert as_array(0.1, spec, "it") == np.float32(0.1)
        with pytest.raises(af.DTypeError, match="expected dtype float32, got float64"):
            as_array(np.float64(0.1), spec, "it")
        assert as_array(np.float64(0.1), spec, "it", narrow=True) == np.float32(0.1)

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ([1, 2, 3], r"it: expected shape \(2,\), got \(3,\)"),
            (1, r"it: expected shape \(2,\), got \(\)"),
            ([[1], [2, 3]], r"it: expected shape \(2,\); setting an array element with a sequence"),
        ],
    )
    def test_wrong_shapes(self, value: Any, message: str) -> None:
        with pytest.raises(af.ShapeError, match=message):
            as_array(value, af.TensorSpec.of(2), "it")

    @given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=4), st.sampled_from("bhilBHIL?"))
    def test_integers_are_never_changed(self, value: list[int], dtype: str) -> None:
        spec = af.TensorSpec.of(len(value), dtype)
        try:
            array = as_array(value, spec, "it")
        except af.DTypeError:
            assert any(not fits(item, spec.dtype) for item in value)
        else:
            assert [int(item) for item in array] == value


def fits(item: int, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "b":
        return item in (0, 1)
    info = np.iinfo(dtype)
    return int(info.min) <= item <= int(info.max)
