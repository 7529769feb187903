"""Activations and their gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest

import actorflow as af
from actorflow import ops


def _slope_of(kind: str, x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """``g`` times the derivative, as a graph computes it."""
    graph = af.Graph("g")
    at, by = (graph.blob(name, array.shape, array.dtype) for name, array in (("x", x), ("g", g)))
    y = getattr(ops, kind.lower())(at)
    dx = af.gradient(ops.sum(y * by), at)
    return graph.run_sync({at: x, by: g}, fetch=[dx])[dx]


@pytest.mark.together("kind", ["Relu", "Sigmoid", "Tanh"], at_once=12)
@pytest.mark.together("shape", [(100_000,), (3, 200, 100)])
@pytest.mark.together("layout", ["C", "strided"])
def test_large_arrays_are_computed_in_blocks_with_the_same_result(compute, laid_out, kind, shape, layout) -> None:
    random = np.random.default_rng(0)
    x, g = (laid_out(random.standard_normal(shape), layout) for _ in range(2))
    (y,) = compute(getattr(ops, kind)(), x)
    dx = _slope_of(kind, x, g)
    index = np.unravel_index(np.arange(0, x.size, 997), shape)  # few enough for one block
    np.testing.assert_array_equal(y[index], compute(getattr(ops, kind)(), x[index])[0])
    np.testing.assert_array_equal(dx[index], _slope_of(kind, x[index], g[index]))


@pytest.mark.together("kind", [kind for kind in ops.nn.activation.__all__ if kind[0].isupper()])
def test_arrays_without_axes(compute, kind: str) -> None:
    operation = getattr(ops, kind)()
    if len(operation.arguments) > 1:
        pytest.skip("a gradient")
    for value in (-1.5, 2.0):
        (y,), (rows,) = compute(operation, np.array(value)), compute(operation, np.array([value]))
        assert y.shape == ()
        assert y == rows[0]


def test_gelu_is_exact_in_its_tail(compute) -> None:
    x = np.linspace(-30, 30, 2001)
    expected = [v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x]
    np.testing.assert_allclose(compute(ops.Gelu(), x)[0], expected, rtol=1e-12)
    single = compute(ops.Gelu(), x.astype("f4"))[0]
    np.testing.assert_allclose(single, expected, rtol=1e-4, atol=1e-30)


def test_a_slope_of_0_is_relu_and_drops_infinite_gradients(compute) -> None:
    x = np.array([np.inf, -np.inf, 0.0, -2.0, 3.0])
    np.testing.assert_array_equal(compute(ops.LeakyRelu(0.0), x)[0], [np.inf, 0, 0, 0, 3])
    graph = af.Graph("g")
    at, g = graph.blob("x", 5, "float64"), graph.blob("g", 5, "float64")
    dx = af.gradient(ops.sum(ops.leaky_relu(at, 0.0) * g), at)
    result = graph.run_sync({at: x, g: np.full(5, np.inf)}, fetch=[dx])
    np.testing.assert_array_equal(result[dx], [np.inf, 0, 0, 0, np.inf])
