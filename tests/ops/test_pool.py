"""Pooling and its gradients, against loops over windows."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.ops.cpu import pool as kernels
from actorflow.ops.nn.pool import MaxPoolDown
from tests.operations import row_of
from tests.operations.nn.pool import poolings
from tests.ops.test_values import check_values
from tests.support.layouts import LAYOUTS


def second_gradient(down: ops.Operation, h: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The gradient of `MaxPoolDown` by its gradient, for ``h``."""
    graph = af.Graph("second")
    blobs = [graph.blob(name, array.shape, array.dtype) for name, array in {"g": y, "x": x, "y": y, "h": h}.items()]
    dx = graph.apply(down, *blobs[:3])
    dg = af.gradient(ops.sum(ops.multiply(dx, blobs[3])), blobs[0])
    return graph.run_sync(dict(zip(blobs, (y, x, y, h), strict=True)), fetch=[dg])[dg]


@settings(deadline=None)
@given(
    poolings(),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(LAYOUTS),
    st.sampled_from([64, 1 << 19]),
)
def test_poolings_are_what_loops_give(compute, drawn, dtype, layout, piece_bytes) -> None:
    with mock.patch.multiple(kernels, _PIECE_BYTES=piece_bytes, _IMAGE_BYTES=2 * piece_bytes):
        for sample in drawn:
            check_values(compute, row_of(sample.operation), sample, dtype, layout)
        down = drawn[2]
        g, x, y = down.inputs("float64")
        h = np.random.default_rng(1).standard_normal(x.shape)
        along = (h * compute(down.operation, g, x, y)[0]).sum()
        np.testing.assert_allclose((g * second_gradient(down.operation, h, x, y)).sum(), along, rtol=1e-9, atol=1e-12)


def test_an_infinite_gradient_stays_at_its_maximum(compute) -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 2, 2, 1)
    for how in ((2,), (2, 1, ((0, 1), 0), False)):
        (y,) = compute(ops.MaxPool(*how), x)
        (dx,) = compute(MaxPoolDown(*how), np.full(y.shape, np.inf), x, y)
        np.testing.assert_array_equal(dx.reshape(-1), [0, 0, 0, np.inf])
        h = np.array([np.inf] * 3 + [1.0]).reshape(x.shape)
        np.testing.assert_array_equal(second_gradient(MaxPoolDown(*how), h, x, y), np.ones_like(y))


@pytest.mark.parametrize("how", [((1, 2), (1, 2)), ((1, 4), (1, 4))])
def test_a_nan_in_a_window_shows_in_its_maximum_and_takes_no_gradient(compute, how) -> None:
    x = np.array([1.0, np.nan, 3.0, 4.0]).reshape(1, 1, 4, 1)
    (y,) = compute(ops.MaxPool(*how), x)
    assert np.isnan(y[0, 0, 0, 0])
    (dx,) = compute(MaxPoolDown(*how), np.ones_like(y), x, y)
    np.testing.assert_array_equal(dx.reshape(-1), [0, 0, 0, 1 if y.size == 2 else 0])
    np.testing.assert_array_equal(second_gradient(MaxPoolDown(*how), x, x, y).reshape(-1), [0, 4][: y.size])
    indices = compute(ops.MaxPool(*how, return_indices=True), x)[1]
    np.testing.assert_array_equal(indices.reshape(-1), [1, 3][: y.size])


def test_a_window_that_sees_only_border_has_no_maximum(compute) -> None:
    x = np.array([1.0, 2.0]).reshape(1, 2, 1)
    how = (2, 1, 1, False, 3)
    (y,) = compute(ops.MaxPool(*how), x)
    np.testing.assert_array_equal(y, np.full((1, 1, 1), -np.inf))
    np.testing.assert_array_equal(compute(MaxPoolDown(*how), np.ones_like(y), x, y)[0], np.zeros_like(x))
    np.testing.assert_array_equal(compute(ops.MaxPool(*how, return_indices=True), x)[1], np.full((1, 1, 1), -1))
    np.testing.assert_array_equal(second_gradient(MaxPoolDown(*how), x, x, y), np.zeros_like(y))
    for count_pad in (False, True):
        np.testing.assert_array_equal(compute(ops.AveragePool(*how[:4], count_pad, dilation=3), x)[0], np.zeros_like(y))


def test_indices_beside_maxima(compute) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2, 5, 4, 3))
    y, indices = ops.max_pool(x, 3, 2, 1, return_indices=True)
    value = np.random.default_rng(0).permutation(120).reshape(x.shape).astype("f")
    result = graph.run_sync({x: value})
    flat = value.reshape(2, -1, 3)
    picked = np.take_along_axis(flat, result[indices].reshape(2, -1, 3), axis=1)
    np.testing.assert_array_equal(picked.reshape(y.shape), result[y])
    whole = np.arange(6).astype("i1").reshape(1, 6, 1)
    for each in compute(ops.MaxPool(2, return_indices=True), whole):
        np.testing.assert_array_equal(each.reshape(-1), [1, 3, 5])
