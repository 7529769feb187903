"""Activations and their gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.activation import NormalDensity, ReluDown
from actorflow.ops.nn.softmax import SoftmaxDown
from actorflow.testing import check_gradient

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
dtypes = st.sampled_from(["float32", "float64"])
layouts = st.sampled_from(["C", "F", "strided"])
REFERENCE = {
    "Relu": (lambda x: max(x, 0.0), lambda y: float(y > 0)),
    "Sigmoid": (lambda x: 1 / (1 + math.exp(-x)), lambda y: y * (1 - y)),
    "Tanh": (math.tanh, lambda y: 1 - y * y),
}


def _slope_of(kind: str, x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """``g`` times the derivative, as a graph computes it."""
    graph = af.Graph("g")
    at, by = (graph.blob(name, array.shape, array.dtype) for name, array in (("x", x), ("g", g)))
    y = getattr(ops, kind.lower())(at)
    dx = af.gradient(ops.sum(y * by), at)
    return graph.run_sync({at: x, by: g}, fetch=[dx])[dx]


@pytest.mark.parametrize("kind", REFERENCE)
@settings(deadline=None)
@given(shape=shapes, dtype=dtypes, layout=layouts)
def test_elementwise_activations(compute, laid_out, tolerance, kind, shape, dtype, layout) -> None:
    random = np.random.default_rng(0)
    x, g = (laid_out(random.standard_normal(shape).astype(dtype) * 3, layout) for _ in range(2))
    forward, slope = REFERENCE[kind]
    (y,) = compute(getattr(ops, kind)(), x)
    dx = _slope_of(kind, x, g)
    for index in np.ndindex(*shape):
        assert math.isclose(y[index], forward(float(x[index])), rel_tol=1e-5, abs_tol=1e-6)
        np.testing.assert_allclose(dx[index], g[index] * slope(float(y[index])), **tolerance(dtype))


@pytest.mark.parametrize("kind", REFERENCE)
@pytest.mark.parametrize("shape", [(100_000,), (3, 200, 100)])
@pytest.mark.parametrize("layout", ["C", "strided"])
def test_large_arrays_are_computed_in_blocks_with_the_same_result(compute, laid_out, kind, shape, layout) -> None:
    random = np.random.default_rng(0)
    x, g = (laid_out(random.standard_normal(shape), layout) for _ in range(2))
    (y,) = compute(getattr(ops, kind)(), x)
    dx = _slope_of(kind, x, g)
    index = np.unravel_index(np.arange(0, x.size, 997), shape)  # few enough for one block
    np.testing.assert_array_equal(y[index], compute(getattr(ops, kind)(), x[index])[0])
    np.testing.assert_array_equal(dx[index], _slope_of(kind, x[index], g[index]))


@pytest.mark.parametrize("operation", [ops.Relu(), ops.Sigmoid(), ops.Tanh(), ops.Softmax(), ops.Softmax(0)])
def test_activation_gradients(operation) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4))
    check_gradient(operation, np.where(np.abs(x) < 0.1, 0.5, x))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sigmoid_has_its_limits_without_a_warning(compute, dtype) -> None:
    (y,) = compute(ops.Sigmoid(), np.array([-1e4, -30.0, 0.0, 30.0, 1e4], dtype))
    np.testing.assert_allclose(y, [0, math.exp(-30), 0.5, 1, 1], rtol=1e-5)


def test_relu_down_drops_an_infinite_gradient(compute) -> None:
    (dx,) = compute(ReluDown(), np.array([np.inf, np.nan, np.inf]), np.array([0.0, 0.0, 1.0]))
    np.testing.assert_array_equal(dx, [0, 0, np.inf])


@settings(deadline=None)
@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5),
    batch=st.integers(0, 2),
    axis=st.integers(-4, 3),
    dtype=dtypes,
    layout=layouts,
)
def test_softmax(compute, laid_out, tolerance, shape, batch, axis, dtype, layout) -> None:
    axis = axis % len(shape)
    shape = (batch, *shape)
    axis += 1
    random = np.random.default_rng(0)
    x, g = (laid_out(random.standard_normal(shape).astype(dtype), layout) for _ in range(2))
    (y,) = compute(ops.Softmax(axis), x)
    (dx,) = compute(SoftmaxDown(axis), g, y)
    rest = [n for i, n in enumerate(shape) if i != axis]
    for index in np.ndindex(*rest):
        line = (*index[:axis], slice(None), *index[axis:])
        powers = [math.exp(v) for v in x[line]]
        expected = np.array([p / sum(powers) for p in powers])
        np.testing.assert_allclose(y[line], expected, **tolerance(dtype))
        slopes = [e * (v - sum(expected * g[line])) for e, v in zip(expected, g[line], strict=True)]
        np.testing.assert_allclose(dx[line], slopes, **tolerance(dtype))


def test_softmax_of_large_scores_does_not_overflow(compute) -> None:
    (y,) = compute(ops.Softmax(), np.array([[1000.0, 1000.0, -1000.0]], np.float32))
    np.testing.assert_array_equal(y, [[0.5, 0.5, 0.0]])


@pytest.mark.parametrize(("shape", "axis"), [((2,), 1), ((), -1), ((2, 0), -1)])
def test_softmax_needs_its_axis(shape, axis) -> None:
    with pytest.raises(af.ShapeError, match=rf"Softmax: x must have .* axis {axis}, got float32"):
        ops.softmax(af.Graph("g").blob("x", shape), axis)


def test_activations_are_for_floating_blobs() -> None:
    with pytest.raises(af.DTypeError, match=r"Relu: x must be real and floating, got int32\[3\]"):
        ops.relu(af.Graph("g").blob("x", (3,), "int32"))


def test_gradient_operations_check_their_inputs(compute) -> None:
    with pytest.raises(af.ShapeError, match=r"ReluDown: y must broadcast with g's shape \(2,\), got float64\[3\]"):
        compute(ReluDown(), np.ones(2), np.ones(3))


SMOOTH = [
    *(ops.LeakyRelu(0.2), ops.LeakyRelu(3.0), ops.Elu(0.7), ops.Silu(), ops.Gelu(), ops.GeluTanh()),
    *(ops.Softplus(2.0), ops.Sigmoid(), ops.Tanh(), ops.Relu(), NormalDensity()),
]


@pytest.mark.parametrize("operation", SMOOTH, ids=str)
def test_gradients_and_their_gradients(operation) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4))
    x = np.where(np.abs(x) < 0.1, 0.5, x)
    check_gradient(operation, x)
    if hasattr(operation, "down"):
        value = 0.5 * np.tanh(x) if operation.from_output else x
        check_gradient(operation.down, x[::-1].copy(), value)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_gradients_of_gradients(axis) -> None:
    x, g = (np.random.default_rng(i).standard_normal((3, 4)) for i in range(2))
    check_gradient(ops.LogSoftmax(axis), x)
    check_gradient(SoftmaxDown(axis), g, x)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("operation", [*SMOOTH[:7], ops.Softmax(), ops.LogSoftmax()], ids=str)
def test_half_precision_is_rounded_once(compute, operation, name) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    x = np.linspace(-4, 4, 50).astype(dtype)
    (found,) = compute(operation, x)
    assert found.dtype == dtype
    expected = compute(operation, x.astype("f8"))[0]
    np.testing.assert_allclose(found.astype("f8"), expected, rtol=float(ml_dtypes.finfo(dtype).eps), atol=1e-5)


def test_gelu_is_exact_in_its_tail(compute) -> None:
    x = np.linspace(-30, 30, 2001)
    expected = [v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x]
    np.testing.assert_allclose(compute(ops.Gelu(), x)[0], expected, rtol=1e-12)
    single = compute(ops.Gelu(), x.astype("f4"))[0]
    np.testing.assert_allclose(single, expected, rtol=1e-4, atol=1e-30)


def test_log_softmax_of_large_scores_does_not_overflow(compute) -> None:
    (y,) = compute(ops.LogSoftmax(), np.array([[1000.0, 1000.0, -1000.0]], np.float32))
    np.testing.assert_allclose(y, [[-math.log(2), -math.log(2), -2000 - math.log(2)]], rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: ops.leaky_relu(x, -0.1), "LeakyRelu: slope must not be negative, got -0.1"),
        (lambda x: ops.elu(x, -1.0), "Elu: alpha must not be negative, got -1.0"),
        (lambda x: ops.softplus(x, 0.0), "Softplus: beta must be positive, got 0.0"),
    ],
)
def test_settings_out_of_range_are_errors(make, message) -> None:
    with pytest.raises(af.GraphError, match=message):
        make(af.Graph("g").blob("x", (3,)))


def test_a_slope_of_0_is_relu_and_drops_infinite_gradients(compute) -> None:
    x = np.array([np.inf, -np.inf, 0.0, -2.0, 3.0])
    np.testing.assert_array_equal(compute(ops.LeakyRelu(0.0), x)[0], [np.inf, 0, 0, 0, 3])
    graph = af.Graph("g")
    at, g = graph.blob("x", 5, "float64"), graph.blob("g", 5, "float64")
    dx = af.gradient(ops.sum(ops.leaky_relu(at, 0.0) * g), at)
    result = graph.run_sync({at: x, g: np.full(5, np.inf)}, fetch=[dx])
    np.testing.assert_array_equal(result[dx], [np.inf, 0, 0, 0, np.inf])
