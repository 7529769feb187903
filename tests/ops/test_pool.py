"""Pooling and its gradients, against loops over windows."""

from __future__ import annotations

from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.ops.cpu import pool as kernels
from actorflow.testing import check_gradient


class Case(NamedTuple):
    batch: int
    size: tuple[int, int]
    channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]
    ceil: bool
    dtype: str
    layout: str
    block_bytes: int


def _pairs(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


cases = st.builds(
    Case,
    st.integers(0, 3),
    _pairs(1, 8),
    st.integers(1, 3),
    _pairs(1, 4),
    _pairs(1, 5),
    _pairs(0, 2),
    st.booleans(),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(["C", "F", "strided"]),
    st.sampled_from([64, 1 << 19]),
).filter(lambda c: all(p < k <= n + 2 * p for n, k, p in zip(c.size, c.kernel, c.pad, strict=True)))


def windows(case: Case, out: tuple[int, ...]):
    """Output index, the window's image rows and columns, and its size with border (not beyond it)."""
    for i, j in np.ndindex(*out):
        spans, sizes = [], []
        for index, n, k, s, p in zip((i, j), case.size, case.kernel, case.stride, case.pad, strict=True):
            start = index * s - p
            stop = min(start + k, n + p)
            sizes.append(stop - start)
            spans.append(range(max(start, 0), min(stop, n)))
        yield i, j, *spans, sizes[0] * sizes[1]


def arrays(case: Case, operation: ops.Operation) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    # Few different values, so that many windows have several maxima.
    x = random.integers(-2, 3, (case.batch, *case.size, case.channels)).astype(case.dtype)
    (spec,) = operation.infer(af.TensorSpec.of(x.shape, case.dtype))
    return x, random.standard_normal(spec.shape).astype(case.dtype)


@settings(deadline=None)
@given(cases)
def test_max_pool2d_and_its_gradient_are_what_loops_give(compute, laid_out, case: Case) -> None:
    how = (case.kernel, case.stride, case.pad, case.ceil)
    x, g = arrays(case, ops.MaxPool2d(*how))
    y, dx = np.zeros_like(g), np.zeros_like(x)
    for i, j, rows, columns, _ in windows(case, g.shape[1:3]):
        for n, c in np.ndindex(case.batch, case.channels):
            best = max((x[n, r, s, c], -r, -s) for r in rows for s in columns)
            y[n, i, j, c] = best[0]
            dx[n, -best[1], -best[2], c] += g[n, i, j, c]
    x, g = laid_out(x, case.layout), laid_out(g, case.layout)
    with mock.patch.object(kernels, "_BLOCK_BYTES", case.block_bytes):
        np.testing.assert_array_equal(compute(ops.MaxPool2d(*how), x)[0], y)
        np.testing.assert_allclose(compute(ops.MaxPool2dDown(*how), g, x, y)[0], dx, rtol=1e-5, atol=1e-5)


@settings(deadline=None)
@given(cases, st.booleans())
def test_average_pool2d_and_its_gradient_are_what_loops_give(
    compute, laid_out, tolerance, case: Case, count_pad: bool
) -> None:
    how = (case.kernel, case.stride, case.pad, case.ceil, count_pad)
    x, g = arrays(case, ops.AveragePool2d(*how))
    y, dx = np.zeros_like(g), np.zeros_like(x)
    for i, j, rows, columns, size in windows(case, g.shape[1:3]):
        count = size if count_pad else len(rows) * len(columns)
        for r in rows:
            for s in columns:
                y[:, i, j] += x[:, r, s] / count
                dx[:, r, s] += g[:, i, j] / count
    x, g = laid_out(x, case.layout), laid_out(g, case.layout)
    with mock.patch.object(kernels, "_BLOCK_BYTES", case.block_bytes):
        found = [*compute(ops.AveragePool2d(*how), x), *compute(ops.AveragePool2dDown(*how, size=case.size), g)]
    for actual, expected in zip(found, (y, dx), strict=True):
        np.testing.assert_allclose(actual, expected, **tolerance(case.dtype))


def test_each_window_of_a_flat_image_sends_its_gradient_to_one_element(compute) -> None:
    x = np.zeros((1, 4, 4, 1))
    g = np.ones((1, 2, 2, 1))
    operation = ops.MaxPool2d((2, 2), (2, 2))
    (dx,) = compute(ops.MaxPool2dDown((2, 2), (2, 2)), g, x, *compute(operation, x))
    np.testing.assert_array_equal(dx[0, :, :, 0], [[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]])


def test_an_infinite_gradient_stays_at_its_maximum(compute) -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 2, 2, 1)
    (dx,) = compute(ops.MaxPool2dDown((2, 2), (2, 2)), np.full((1, 1, 1, 1), np.inf), x, np.full((1, 1, 1, 1), 4.0))
    np.testing.assert_array_equal(dx.reshape(-1), [0, 0, 0, np.inf])


def test_a_nan_in_a_window_shows_in_its_maximum(compute) -> None:
    x = np.array([1.0, np.nan, 3.0, 4.0]).reshape(1, 1, 4, 1)
    (y,) = compute(ops.MaxPool2d((1, 2), (1, 2)), x)
    np.testing.assert_array_equal(y.reshape(-1), [np.nan, 4.0])


@pytest.mark.parametrize(
    ("size", "ceil", "expected"), [((8, 7), True, (4, 3)), ((8, 7), False, (3, 3)), ((2, 4), True, (1, 2))]
)
def test_ceil_mode_rounds_the_number_of_windows_up(size, ceil, expected) -> None:
    x = af.Graph("g").blob("x", (1, *size, 1))
    kernel = (2, 3) if size == (2, 4) else 3
    assert ops.max_pool2d(x, kernel, 2, ceil=ceil).shape == (1, *expected, 1)


def test_no_window_starts_beyond_the_image() -> None:
    x = af.Graph("g").blob("x", (1, 4, 4, 1))
    assert ops.max_pool2d(x, 2, 5).shape == (1, 1, 1, 1)
    assert ops.average_pool2d(x, 2, 3, pad=1).shape == (1, 2, 2, 1)


@pytest.mark.parametrize("how", [((2, 2), (2, 2)), ((3, 2), (2, 1), (1, 0)), ((2, 2), (3, 3), (1, 1), False)])
@pytest.mark.parametrize("operation", [ops.MaxPool2d, ops.AveragePool2d])
def test_pool_gradients(operation, how) -> None:
    x = np.random.default_rng(0).permutation(2 * 5 * 4 * 2).reshape(2, 5, 4, 2) / 10  # no two alike
    check_gradient(operation(*how), x)


@settings(deadline=None)
@given(_pairs(1, 5), st.integers(0, 3), st.sampled_from(["float32", "float64"]), st.sampled_from(["C", "F", "strided"]))
def test_global_average(compute, laid_out, tolerance, size, batch, dtype, layout) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((batch, *size, 3)).astype(dtype)
    g = random.standard_normal((batch, 3)).astype(dtype)
    y, dx = np.zeros_like(g), np.zeros_like(x)
    for i, j in np.ndindex(*size):
        y += x[:, i, j] / (size[0] * size[1])
        dx[:, i, j] = g / (size[0] * size[1])
    np.testing.assert_allclose(compute(ops.GlobalAverage(), laid_out(x, layout))[0], y, **tolerance(dtype))
    np.testing.assert_allclose(compute(ops.GlobalAverageDown(size), laid_out(g, layout))[0], dx, **tolerance(dtype))


def test_global_average_gradient() -> None:
    check_gradient(ops.GlobalAverage(), np.random.default_rng(0).standard_normal((2, 3, 2, 4)))


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"kernel": 2, "pad": 2}, af.GraphError, r"pad must be less than the kernel \(2, 2\), got \(2, 2\)"),
        ({"kernel": 0}, af.GraphError, r"kernel must be at least 1, got \(0, 0\)"),
        ({"kernel": 5}, af.ShapeError, r"kernel \(5, 5\) is larger than the image \(4, 4\) with padding \(0, 0\)"),
    ],
)
@pytest.mark.parametrize("pool", [ops.max_pool2d, ops.average_pool2d])
def test_parameters_that_do_not_fit_are_errors(pool, how, error, message) -> None:
    with pytest.raises(error, match=message):
        pool(af.Graph("g").blob("x", (1, 4, 4, 1)), **how)


def test_gradient_operations_check_their_inputs(compute) -> None:
    g, x = np.ones((1, 3, 3, 1)), np.ones((1, 4, 4, 1))
    with pytest.raises(af.ShapeError, match=r"MaxPool2dDown: g must have shape \(1, 2, 2, 1\), got"):
        compute(ops.MaxPool2dDown((2, 2), (2, 2)), g, x, np.ones((1, 2, 2, 1)))
    with pytest.raises(af.ShapeError, match=r"AveragePool2dDown: g must have height and width \(2, 2\), got"):
        compute(ops.AveragePool2dDown((2, 2), (2, 2), size=(4, 4)), g)
    with pytest.raises(af.ShapeError, match="height and width of at least 1"):
        compute(ops.GlobalAverage(), np.ones((1, 0, 2, 1)))
