"""Inner product and bias, against loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import actorflow as af
from actorflow import ops
from actorflow.ops.linalg import BiasDown, InnerDown, InnerWeight
from actorflow.testing import check_gradient

sizes = st.integers(0, 5)
dtypes = st.sampled_from(["float32", "float64"])
layouts = st.sampled_from(["C", "F", "strided"])


@settings(deadline=None)
@given(sizes, sizes, sizes, dtypes, layouts)
def test_inner_and_its_gradients(compute, laid_out, tolerance, batch, inputs, outputs, dtype, layout) -> None:
    random = np.random.default_rng(0)
    x, weight, g = (
        random.standard_normal(s).astype(dtype) for s in ((batch, inputs), (outputs, inputs), (batch, outputs))
    )
    y, dx, dweight = np.zeros_like(g), np.zeros_like(x), np.zeros_like(weight)
    for n, i, o in np.ndindex(batch, inputs, outputs):
        y[n, o] += x[n, i] * weight[o, i]
        dx[n, i] += g[n, o] * weight[o, i]
        dweight[o, i] += g[n, o] * x[n, i]
    x, weight, g = (laid_out(array, layout) for array in (x, weight, g))
    np.testing.assert_allclose(compute(ops.Inner(), x, weight)[0], y, **tolerance(dtype))
    np.testing.assert_allclose(compute(InnerDown(), g, weight)[0], dx, **tolerance(dtype))
    np.testing.assert_allclose(compute(InnerWeight(), g, x)[0], dweight, **tolerance(dtype))


@settings(deadline=None)
@given(hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4), dtypes, layouts)
def test_bias_and_its_gradient(compute, laid_out, tolerance, shape, dtype, layout) -> None:
    random = np.random.default_rng(0)
    x, bias, g = (random.standard_normal(s).astype(dtype) for s in (shape, shape[-1:], shape))
    y, dbias = np.zeros_like(x), np.zeros_like(bias)
    for index in np.ndindex(*shape):
        y[index] = x[index] + bias[index[-1]]
        dbias[index[-1]] += g[index]
    np.testing.assert_allclose(
        compute(ops.Bias(), laid_out(x, layout), laid_out(bias, layout))[0], y, **tolerance(dtype)
    )
    np.testing.assert_allclose(compute(BiasDown(), laid_out(g, layout))[0], dbias, **tolerance(dtype))


def test_the_bias_gradient_of_a_large_batch_is_accurate(compute) -> None:
    g = np.random.default_rng(0).uniform(0.5, 1.5, (128, 32, 32, 8)).astype(np.float32)
    np.testing.assert_allclose(compute(BiasDown(), g)[0], g.sum(axis=(0, 1, 2), dtype=np.float64), rtol=1e-4)


def test_gradients() -> None:
    random = np.random.default_rng(0)
    check_gradient(ops.Inner(), random.standard_normal((3, 4)), random.standard_normal((2, 4)))
    check_gradient(ops.Inner(), random.standard_normal((2, 3, 4)), random.standard_normal((2, 4)))
    check_gradient(ops.Bias(), random.standard_normal((2, 2, 3)), random.standard_normal(3))


def test_gradients_of_gradients() -> None:
    random = np.random.default_rng(0)
    check_gradient(InnerDown(), random.standard_normal((2, 3, 4)), random.standard_normal((4, 5)))
    check_gradient(InnerWeight(), random.standard_normal((2, 3, 4)), random.standard_normal((2, 3, 5)))
    check_gradient(BiasDown(), random.standard_normal((2, 2, 3)))


@pytest.mark.parametrize(
    ("form", "x", "other", "message"),
    [
        (ops.inner, (2, 3), (4, 5), r"Inner: weight must have x's 3 features on its last axis, got float32\[4, 5\]"),
        (ops.inner, (3,), (4, 3), r"Inner: x must have shape \(batch, ..., in_features\), got float32\[3\]"),
        (ops.inner, (2, 3), (3,), r"Inner: weight must have shape \(out_features, in_features\), got float32\[3\]"),
        (ops.bias, (2, 3), (2,), r"Bias: bias must have the shape of x's last axis \(3,\), got float32\[2\]"),
        (ops.bias, (), (2,), r"Bias: x must have shape \(..., features\), got float32\[\]"),
    ],
)
def test_shapes_that_do_not_fit_are_errors_that_name_the_argument(form, x, other, message) -> None:
    graph = af.Graph("g")
    with pytest.raises(af.ShapeError, match=message):
        form(graph.blob("x", x), graph.blob("other", other))


def test_gradient_operations_check_their_inputs(compute) -> None:
    with pytest.raises(af.ShapeError, match="InnerDown: weight must have g's 3 features on its first axis"):
        compute(InnerDown(), np.ones((2, 3)), np.ones((2, 3)))
    with pytest.raises(af.ShapeError, match=r"InnerWeight: x must have g's batch \(2,\)"):
        compute(InnerWeight(), np.ones((2, 3)), np.ones((3, 3)))
    with pytest.raises(af.ShapeError, match="BiasDown: g must have shape"):
        compute(BiasDown(), np.float32(1))


def test_dtypes_must_agree() -> None:
    graph = af.Graph("g")
    with pytest.raises(af.DTypeError, match=r"Inner: weight must have x's dtype float32, got float64\[2, 3\]"):
        ops.inner(graph.blob("x", (2, 3)), graph.blob("w", (2, 3), "float64"))
