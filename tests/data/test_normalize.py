"""Mean subtraction and scaling."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorflow.data import Normalize, Split
from actorflow.errors import DataError

AXES = {"pixel": 0, "channel": (0, 1, 2), "all": None}


class Lazy:
    """A column that makes its values when they are asked for."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.largest = 0

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        self.largest = max(self.largest, len(rows))
        return self.values[rows]


def images(count: int = 600, dtype: str = "uint8") -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 4, 3, 2)).astype(dtype)


def test_bytes_to_numbers_from_0_to_1() -> None:
    unit = Normalize(std=255)(np.array([[[[0], [51], [255]]]], np.uint8))
    assert unit.dtype == np.float32
    np.testing.assert_array_equal(unit.ravel(), np.array([0, 51, 255], np.float32) / np.float32(255))


@pytest.mark.together("dtype", ["float16", "float32", "float64"])
@pytest.mark.together("given_dtype", ["uint8", "float32", "float64", "int64"])
def test_the_dtype_is_the_one_asked_for(dtype, given_dtype) -> None:
    old = images(3, given_dtype)
    new = Normalize(100, 50, dtype=dtype)(old)
    assert new.dtype == dtype
    np.testing.assert_allclose(new, (old.astype("float64") - 100) / 50, rtol=1e-3, atol=1e-3)


@pytest.mark.together("per", AXES)
@pytest.mark.together("count", [1, 255, 256, 257, 600])
def test_what_is_normal_for_some_images(per, count) -> None:
    column = Lazy(images(count))
    normal = Normalize.of(column, per=per, dtype="float64")
    wide = column.values.astype("float64")
    deviations = wide.std(axis=AXES[per])
    np.testing.assert_allclose(normal.mean, wide.mean(axis=AXES[per]), rtol=1e-13)
    np.testing.assert_allclose(normal.std, np.where(deviations > 0, deviations, 1), rtol=1e-12)
    assert normal.mean.shape == {"pixel": (4, 3, 2), "channel": (2,), "all": ()}[per]
    assert column.largest <= 256
    assert abs(normal(column.values).mean()) < 1e-12
    np.testing.assert_array_equal(normal(column.values[:1]), (column.values[:1] - normal.mean) / normal.std)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e3))
def test_deviations_far_from_0_are_exact(offset, scale) -> None:
    values = offset + scale * np.random.default_rng(0).standard_normal((520, 1, 1, 1))
    normal = Normalize.of(values, dtype="float64")
    assert normal.std == pytest.approx(values.std(), rel=1e-6)


def test_what_does_not_vary_is_left_as_it_is() -> None:
    flat = np.full((300, 2, 2, 1), 7.1)
    assert Normalize.of(flat, per="pixel").std.tolist() == [[[1], [1]], [[1], [1]]]
    np.testing.assert_allclose(Normalize.of(flat, dtype="float64")(flat), 0, atol=1e-13)


def test_the_mean_may_be_subtracted_alone() -> None:
    normal = Normalize.of(images(), per="pixel", scale=False)
    assert normal.std == 1
    np.testing.assert_allclose(normal(images()).mean(axis=0), 0, atol=1e-4)


def test_the_images_of_a_split_are_a_column() -> None:
    split = Split(images(dtype="float32"), np.zeros(600, np.int64))
    assert Normalize.of(split.images).mean.shape == (2,)


@pytest.mark.together(
    ("make", "message"),
    [
        (lambda: Normalize(dtype="int32"), "a floating dtype, got int32"),
        (lambda: Normalize(std=[1, 0]), "a std that is nowhere 0"),
        (lambda: Normalize.of(images(), per="row"), "'pixel', 'channel' or 'all', got 'row'"),
        (lambda: Normalize.of(images(0)), "at least one image to take the mean of"),
        (lambda: Normalize([1, 2, 3])(images()), r"a mean of shape \(3,\) fits, got \(4, 3, 2\)"),
        (lambda: Normalize(0, np.ones((3, 4, 2)))(images()), r"a std of shape \(3, 4, 2\) fits, got \(4, 3, 2\)"),
        (lambda: Normalize(np.ones((1, 4, 3, 2)))(images()), r"a mean of shape \(1, 4, 3, 2\) fits, got"),
    ],
)
def test_what_is_wrong_is_an_error(make, message) -> None:
    with pytest.raises(DataError, match=message):
        make()
