"""Gradients limited by their common norm."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.updates import NormFactor, ScaleBy, SquareSum
from actorflow.testing import check_gradient

ml_dtypes = pytest.importorskip("ml_dtypes")

SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6) | st.just((300, 250))


@settings(deadline=None)
@given(SHAPES, st.sampled_from(["float16", "float32", "float64", ml_dtypes.bfloat16]), st.sampled_from("CF"))
def test_squares_are_summed_in_float64(compute, laid_out, shape, dtype, layout) -> None:
    x = (100 * np.random.default_rng(0).standard_normal(shape)).astype(dtype)
    (found,) = compute(SquareSum(), laid_out(x, layout))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, (x.astype("float64") ** 2).sum(), rtol=1e-12)


@pytest.mark.parametrize(
    ("squares", "factor"),
    [
        ([9.0, 16.0], 0.2 / (1 + 2e-7)),
        ([0.25], 1.0),
        ([0.0, 0.0], 1.0),
        ([np.inf], 0.0),
        ([1.0, np.nan], np.nan),
    ],
)
def test_the_factor_is_at_most_1(compute, squares, factor) -> None:
    (found,) = compute(NormFactor(1.0), *map(np.asarray, squares))
    np.testing.assert_allclose(found, factor, rtol=1e-12)


@settings(deadline=None)
@given(SHAPES, st.sampled_from(["float16", "float32", "float64", ml_dtypes.bfloat16]), st.sampled_from("CF"))
def test_a_computed_factor_scales_without_widening(compute, laid_out, shape, dtype, layout) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    (found,) = compute(ScaleBy(), laid_out(x, layout), np.array(0.25))
    np.testing.assert_array_equal(found, (x * np.asarray(0.25, dtype)).astype(dtype), strict=True)


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_gradients(max_norm) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3))
    check_gradient(SquareSum(), x)
    check_gradient(NormFactor(max_norm), 2.0, 3.0)
    check_gradient(ScaleBy(), x, 0.3)


def test_a_norm_of_0_has_gradients_of_any_order() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (3,), "float64")
    (clipped,) = ops.clip_by_global_norm([x], 1.0)
    first = af.gradient(ops.sum(ops.multiply(clipped, clipped)), x)
    second = af.gradient(ops.sum(first), x)
    result = graph.run_sync({x: np.zeros(3)}, fetch=[first, second])
    np.testing.assert_array_equal(result[first], np.zeros(3))
    np.testing.assert_array_equal(result[second], np.full(3, 2.0))


@pytest.mark.parametrize("place", ["cpu", "sim:0"])
def test_all_gradients_have_one_norm(place) -> None:
    graph = af.Graph("g")
    with graph.at(place):
        a, b = graph.blob("a", (2,), "float64"), graph.blob("b", (1, 2), "float32")
    clipped = ops.clip_by_global_norm([a, b], 2.5)
    assert [blob.spec for blob in clipped] == [a.spec, b.spec]
    assert {blob.place for blob in clipped} == {a.place}
    result = graph.run_sync({a: np.array([3.0, 0.0]), b: np.array([[0.0, 4.0]], "float32")}, fetch=clipped)
    np.testing.assert_allclose(af.to_numpy(result[clipped[0]]), [1.5, 0.0], rtol=1e-6)
    np.testing.assert_allclose(af.to_numpy(result[clipped[1]]), [[0.0, 2.0]], rtol=1e-6)


def test_gradients_on_several_places_meet_on_the_cpu() -> None:
    graph = af.Graph("g")
    a, b = graph.blob("a", (2,), place="cpu"), graph.blob("b", (2,), place="sim:0")
    clipped = ops.clip_by_global_norm([a, b], 5.0)
    assert [blob.place for blob in clipped] == [a.place, b.place]
    result = graph.run_sync({a: [6.0, 0.0], b: [0.0, 8.0]}, fetch=clipped)
    np.testing.assert_allclose([af.to_numpy(result[blob]) for blob in clipped], [[3, 0], [0, 4]], rtol=1e-6)


def test_what_does_not_fit_is_an_error_that_names_it() -> None:
    scalar, vector = af.TensorSpec.of((), "float64"), af.TensorSpec.of(2, "float64")
    with pytest.raises(af.GraphError, match="clip_by_global_norm: give at least one gradient"):
        ops.clip_by_global_norm([], 1.0)
    with pytest.raises(af.GraphError, match="NormFactor: max_norm must be positive, got 0"):
        NormFactor(0.0).infer(scalar)
    with pytest.raises(af.ShapeError, match=r"NormFactor: squares\[1\] must have shape \(\), got float64\[2\]"):
        NormFactor(1.0).infer(scalar, vector)
    with pytest.raises(af.DTypeError, match="ScaleBy: factor must be float64, got float32"):
        ScaleBy().infer(vector, af.TensorSpec.of(()))
    with pytest.raises(af.DTypeError, match="SquareSum: x must be floating, got int64"):
        SquareSum().infer(af.TensorSpec.of(2, "int64"))
