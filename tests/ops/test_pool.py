"""Pooling and its gradients, against loops over windows."""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.ops.cpu import pool as kernels
from actorflow.ops.nn.pool import AveragePoolDown, MaxPoolDown
from tests.operations.nn.pool import averaged, averaged_down, flat, pooled, pooled_down

ml_dtypes = pytest.importorskip("ml_dtypes")


class Case(NamedTuple):
    batch: int
    size: tuple[int, ...]
    channels: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[tuple[int, int], ...]
    ceil: bool
    dtype: str
    layout: str
    piece_bytes: int

    @property
    def how(self) -> tuple[Any, ...]:
        return self.kernel, self.stride, self.pad, self.ceil


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    axis = lambda low, high: st.tuples(*[st.integers(low, high)] * rank)  # noqa: E731
    kernel = draw(axis(1, 4))
    pad = tuple((draw(st.integers(0, k - 1)), draw(st.integers(0, k - 1))) for k in kernel)
    size = tuple(max(1, k - sum(p)) + more for k, p, more in zip(kernel, pad, draw(axis(0, 4)), strict=True))
    return Case(
        draw(st.integers(0, 3)),
        size,
        draw(st.integers(1, 3)),
        kernel,
        draw(axis(1, 5)),
        pad,
        draw(st.booleans()),
        draw(st.sampled_from(["float32", "float64"])),
        draw(st.sampled_from(["C", "F", "strided"])),
        draw(st.sampled_from([64, 1 << 19])),
    )


def patched(case: Case) -> Any:
    return mock.patch.multiple(kernels, _PIECE_BYTES=case.piece_bytes, _IMAGE_BYTES=2 * case.piece_bytes)


def steps(case: Case, dilated: bool) -> tuple[int, ...]:
    """A dilation of 2 on the axes where it fits."""
    axes = zip(case.kernel, case.size, case.pad, strict=True)
    return tuple(2 if dilated and (k - 1) * 2 < n + sum(p) else 1 for k, n, p in axes)


def drawn(case: Case, operation: ops.Operation) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, g, h."""
    random = np.random.default_rng(0)
    # Few different values, so that many windows have several maxima.
    x = random.integers(-2, 3, (case.batch, *case.size, case.channels)).astype(case.dtype)
    (spec,) = operation.infer(af.TensorSpec.of(x.shape, case.dtype))
    g, h = random.standard_normal(spec.shape), random.standard_normal(x.shape)
    return x, g.astype(case.dtype), h.astype(case.dtype)


def second_gradient(how: tuple[Any, ...], h: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The gradient of `MaxPoolDown` by its gradient, for ``h``."""
    graph = af.Graph("second")
    blobs = [graph.blob(name, array.shape, array.dtype) for name, array in {"g": y, "x": x, "y": y, "h": h}.items()]
    dx = graph.apply(MaxPoolDown(*how), *blobs[:3])
    dg = af.gradient(ops.sum(ops.multiply(dx, blobs[3])), blobs[0])
    return graph.run_sync(dict(zip(blobs, (y, x, y, h), strict=True)), fetch=[dg])[dg]


@settings(deadline=None)
@given(cases(), st.booleans())
def test_max_pool_and_its_gradients_are_what_loops_give(compute, laid_out, case: Case, dilated: bool) -> None:
    dilation = steps(case, dilated)
    how = (*case.how, dilation)
    x, g, h = drawn(case, ops.MaxPool(*how))
    y, indices = pooled(x, *how, return_indices=True)
    dx = pooled_down(g, x, y, *how)
    at = flat(indices)
    picked = np.where(at >= 0, np.take_along_axis(flat(h), np.maximum(at, 0), 1), 0).reshape(g.shape)
    x, g, h = (laid_out(array, case.layout) for array in (x, g, h))
    with patched(case):
        np.testing.assert_array_equal(compute(ops.MaxPool(*how), x)[0], y)
        np.testing.assert_array_equal(compute(ops.MaxPool(*how, return_indices=True), x)[1], indices, strict=True)
        np.testing.assert_allclose(compute(MaxPoolDown(*how), g, x, y)[0], dx, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(second_gradient(how, h, x, y), picked)


@settings(deadline=None)
@given(cases(), st.booleans(), st.booleans())
def test_average_pool_and_its_gradient_are_what_loops_give(
    compute, laid_out, tolerance, case: Case, count_pad: bool, dilated: bool
) -> None:
    how, dilation = (*case.how, count_pad), steps(case, dilated)
    x, g, _ = drawn(case, ops.AveragePool(*how, dilation=dilation))
    y, dx = averaged(x, *case.how, dilation, count_pad), averaged_down(g, case.size, *case.how, dilation, count_pad)
    x, g = laid_out(x, case.layout), laid_out(g, case.layout)
    with patched(case):
        (mean,) = compute(ops.AveragePool(*how, dilation=dilation), x)
        found = [mean, *compute(AveragePoolDown(*how, size=case.size, dilation=dilation), g)]
    for actual, expected in zip(found, (y, dx), strict=True):
        np.testing.assert_allclose(actual, expected, **tolerance(case.dtype))


@pytest.mark.parametrize("how", [(2, 2), (2, 1)])
def test_each_window_of_a_flat_image_sends_its_gradient_to_its_first_element(compute, how) -> None:
    x = np.zeros((1, 4, 4, 1))
    (y,) = compute(ops.MaxPool(*how), x)
    (dx,) = compute(MaxPoolDown(*how), np.ones_like(y), x, y)
    out = y.shape[1]
    expected = np.zeros((4, 4))
    expected[0 : out * how[1] : how[1], 0 : out * how[1] : how[1]] = 1
    np.testing.assert_array_equal(dx[0, :, :, 0], expected)


def test_an_infinite_gradient_stays_at_its_maximum(compute) -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 2, 2, 1)
    for how in ((2,), (2, 1, ((0, 1), 0), False)):
        (y,) = compute(ops.MaxPool(*how), x)
        (dx,) = compute(MaxPoolDown(*how), np.full(y.shape, np.inf), x, y)
        np.testing.assert_array_equal(dx.reshape(-1), [0, 0, 0, np.inf])
        h = np.array([np.inf] * 3 + [1.0]).reshape(x.shape)
        np.testing.assert_array_equal(second_gradient(how, h, x, y), np.ones_like(y))


@pytest.mark.parametrize("how", [((1, 2), (1, 2)), ((1, 4), (1, 4))])
def test_a_nan_in_a_window_shows_in_its_maximum_and_takes_no_gradient(compute, how) -> None:
    x = np.array([1.0, np.nan, 3.0, 4.0]).reshape(1, 1, 4, 1)
    (y,) = compute(ops.MaxPool(*how), x)
    assert np.isnan(y[0, 0, 0, 0])
    (dx,) = compute(MaxPoolDown(*how), np.ones_like(y), x, y)
    np.testing.assert_array_equal(dx.reshape(-1), [0, 0, 0, 1 if y.size == 2 else 0])
    np.testing.assert_array_equal(second_gradient(how, x, x, y).reshape(-1), [0, 4][: y.size])
    indices = compute(ops.MaxPool(*how, return_indices=True), x)[1]
    np.testing.assert_array_equal(indices.reshape(-1), [1, 3][: y.size])


def test_a_window_that_sees_only_border_has_no_maximum(compute) -> None:
    x = np.array([1.0, 2.0]).reshape(1, 2, 1)
    how = (2, 1, 1, False, 3)
    (y,) = compute(ops.MaxPool(*how), x)
    np.testing.assert_array_equal(y, np.full((1, 1, 1), -np.inf))
    np.testing.assert_array_equal(compute(MaxPoolDown(*how), np.ones_like(y), x, y)[0], np.zeros_like(x))
    np.testing.assert_array_equal(compute(ops.MaxPool(*how, return_indices=True), x)[1], np.full((1, 1, 1), -1))
    np.testing.assert_array_equal(second_gradient(how, x, x, y), np.zeros_like(y))
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


@pytest.mark.parametrize(
    ("size", "ceil", "expected"), [((8, 7), True, (4, 3)), ((8, 7), False, (3, 3)), ((2, 4), True, (1, 2))]
)
def test_ceil_mode_rounds_the_number_of_windows_up(size, ceil, expected) -> None:
    x = af.Graph("g").blob("x", (1, *size, 1))
    kernel = (2, 3) if size == (2, 4) else 3
    assert ops.max_pool(x, kernel, 2, ceil=ceil).shape == (1, *expected, 1)


def test_no_window_starts_beyond_the_image() -> None:
    x = af.Graph("g").blob("x", (1, 4, 4, 1))
    assert ops.max_pool(x, 2, 5).shape == (1, 1, 1, 1)
    assert ops.average_pool(x, 2, 3, pad=1).shape == (1, 2, 2, 1)


@pytest.mark.parametrize("size", [(3, 2), (4,), (2, 1, 3)])
def test_global_max_is_the_maximum_of_each_channel(size) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2, *size, 4))
    y = ops.global_max(x)
    loss = ops.reshape(ops.global_average(ops.reshape(y, (1, 8, 1))), ())
    value = np.random.default_rng(0).integers(0, 4, x.shape).astype("f")
    (dx,) = af.gradient(loss, [x])
    result = graph.run_sync({x: value}, fetch=[y, dx])
    flat = value.reshape(2, -1, 4)
    np.testing.assert_array_equal(result[y], flat.max(axis=1))
    expected = np.zeros_like(flat)
    np.put_along_axis(expected, flat.argmax(axis=1)[:, np.newaxis], np.float32(1 / 8), axis=1)
    np.testing.assert_array_equal(result[dx].reshape(flat.shape), expected)
