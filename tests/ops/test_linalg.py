"""Inner product, bias and products of matrices, against loops; PyTorch checks stacks in tests/oracle."""

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


def _drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [np.random.default_rng(i).standard_normal(shape) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("layout", ["C", "F", "strided"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_matmul_is_that_of_numpy(compute, laid_out, layout, dtype) -> None:
    a, b = (laid_out(x.astype(dtype), layout) for x in _drawn((3, 1, 4, 5), (2, 5, 6)))
    (y,) = compute(ops.Matmul(), a, b)
    np.testing.assert_allclose(y, np.matmul(a.astype("f8"), b.astype("f8")), rtol=2e-3, atol=1e-2)


def test_bfloat16(compute) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a, b = (x.astype(ml_dtypes.bfloat16) for x in _drawn((2, 3, 4), (4, 5)))
    (y,) = compute(ops.Matmul(), a, b)
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(y.astype("f8"), a.astype("f8") @ b.astype("f8"), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("operation", "a", "b"),
    [
        (ops.Matmul(), (2, 3), (3, 2)),
        (ops.Matmul(True, True), (2, 3, 2), (2, 2, 3)),
        (ops.Matmul(), (2, 1, 2, 3), (2, 3, 2)),
        (ops.Matmul(transpose_b=True), (2, 2, 3), (4, 3)),
        (ops.Matmul(True, False, ()), (2, 3, 2), (2, 3, 2)),
        (ops.Matmul(False, False, (1, 2)), (3, 1, 2, 2), (2, 2, 2)),
        (ops.Matmul(False, False, (2, 2)), (2, 2, 2), (2, 2)),
    ],
    ids=str,
)
def test_gradients_and_their_gradients(operation, a, b) -> None:
    check_gradient(operation, *_drawn(a, b))


def test_products_without_terms_are_0(compute) -> None:
    np.testing.assert_array_equal(compute(ops.Matmul(), np.ones((2, 3, 0)), np.ones((0, 4)))[0], np.zeros((2, 3, 4)))
    none = np.ones((0, 3, 2))
    np.testing.assert_array_equal(compute(ops.Matmul(True, False, ()), none, none)[0], np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((), (3, 2), r"Matmul: a must have shape \(n,\) or \(..., rows, columns\), got float32\[\]"),
        ((2, 3), (2, 3), r"Matmul: b must have length 3 on its second last axis, got float32\[2, 3\]; a is"),
        ((2, 2, 3), (4, 3, 2), r"Matmul: b must broadcast with a's batch \(2,\), got float32\[4, 3, 2\]"),
    ],
)
def test_shapes_that_do_not_fit_are_errors(a, b, message) -> None:
    graph = af.Graph("g")
    with pytest.raises(af.ShapeError, match=message):
        ops.matmul(graph.blob("a", a), graph.blob("b", b))


def test_a_sum_to_a_batch_that_does_not_fit_is_an_error(compute) -> None:
    with pytest.raises(af.ShapeError, match=r"products of batch \(2,\) cannot be summed to \(3,\)"):
        compute(ops.Matmul(batch=(3,)), np.ones((2, 3, 3)), np.ones((3, 3)))


def test_dtypes_that_differ_are_errors() -> None:
    graph = af.Graph("g")
    with pytest.raises(af.DTypeError, match="Matmul: b must have a's dtype float32"):
        ops.matmul(graph.blob("a", (2, 2)), graph.blob("b", (2, 2), "float64"))
