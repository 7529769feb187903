"""The update of stochastic gradient descent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops


@settings(deadline=None)
@given(
    st.sampled_from([(), (3,), (2, 0), (2, 3, 4), (50, 700)]),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(["C", "F", "strided"]),
    st.sampled_from([0.0, 0.9]),
    st.sampled_from([0.0, 0.01]),
    st.sampled_from([1.0, 2.0]),
    st.sampled_from([0.0, 0.1]),
)
def test_sgd_update_is_its_formula(
    compute, laid_out, tolerance, shape, dtype, layout, momentum, decay, scale, rate
) -> None:
    random = np.random.default_rng(0)
    weight, grad, velocity = (laid_out(random.standard_normal(shape).astype(dtype), layout) for _ in range(3))
    operation = ops.SgdUpdate(momentum, decay, scale)
    new_weight, new_velocity = compute(operation, weight, grad, velocity, np.array(rate))
    expected = momentum * velocity + scale * rate * (grad + decay * weight)
    np.testing.assert_allclose(new_velocity, expected, **tolerance(dtype))
    np.testing.assert_allclose(new_weight, weight - expected, **tolerance(dtype))


@pytest.mark.parametrize(
    ("specs", "error", "message"),
    [
        ([(2,), (3,), (2,), ()], af.ShapeError, r"grad must have weight's shape \(2,\), got float32\[3\]"),
        ([(2,), (2,), (1,), ()], af.ShapeError, r"velocity must have weight's shape \(2,\), got float32\[1\]"),
        ([(2,), (2,), (2,), (1,)], af.ShapeError, r"rate must have shape \(\), got float32\[1\]"),
    ],
)
def test_shapes_that_do_not_fit_are_errors_that_name_the_argument(specs, error, message) -> None:
    with pytest.raises(error, match=message):
        ops.SgdUpdate().infer(*(af.TensorSpec.of(shape) for shape in specs))


def test_the_rate_must_be_floating() -> None:
    weight = af.TensorSpec.of(2)
    with pytest.raises(af.DTypeError, match="rate must be floating, got int64"):
        ops.SgdUpdate().infer(weight, weight, weight, af.TensorSpec.of((), "int64"))
