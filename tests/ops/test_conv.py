"""Convolution and its gradients, against loops over pixels."""

from __future__ import annotations

import tracemalloc
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.ops.cpu import conv as kernels
from actorflow.testing import check_gradient


class Case(NamedTuple):
    batch: int
    size: tuple[int, int]
    channels: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]
    dtype: str
    layout: str
    piece_bytes: int  # small ones force bands, large ones several images per piece

    @property
    def out(self) -> tuple[int, int]:
        return tuple(
            (n + 2 * p - k) // s + 1 for n, k, s, p in zip(self.size, self.kernel, self.stride, self.pad, strict=True)
        )


def _pairs(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


cases = st.builds(
    Case,
    st.integers(0, 3),
    _pairs(1, 7),
    _pairs(1, 3),
    _pairs(1, 4),
    _pairs(1, 3),
    _pairs(0, 2),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(["C", "F", "strided"]),
    st.sampled_from([64, 512, 1 << 20]),
).filter(lambda c: all(n + 2 * p >= k for n, k, p in zip(c.size, c.kernel, c.pad, strict=True)))


def taps(case: Case) -> Any:
    """(output row, output column, kernel row, kernel column, image row, image column) of every product."""
    for i, j in np.ndindex(*case.out):
        for a, b in np.ndindex(*case.kernel):
            row, column = i * case.stride[0] + a - case.pad[0], j * case.stride[1] + b - case.pad[1]
            if 0 <= row < case.size[0] and 0 <= column < case.size[1]:
                yield i, j, a, b, row, column


@settings(deadline=None)
@given(cases)
def test_conv2d_and_its_gradients_are_what_loops_over_pixels_give(compute, laid_out, tolerance, case: Case) -> None:
    random = np.random.default_rng(0)
    draw = lambda *shape: random.standard_normal(shape).astype(case.dtype)  # noqa: E731
    x = draw(case.batch, *case.size, case.channels[0])
    weight = draw(*case.kernel, *case.channels)
    g = draw(case.batch, *case.out, case.channels[1])
    y, dx, dweight = np.zeros_like(g), np.zeros_like(x), np.zeros_like(weight)
    for i, j, a, b, row, column in taps(case):
        y[:, i, j] += x[:, row, column] @ weight[a, b]
        dx[:, row, column] += g[:, i, j] @ weight[a, b].T
        dweight[a, b] += x[:, row, column].T @ g[:, i, j]
    x, weight, g = (laid_out(array, case.layout) for array in (x, weight, g))
    how = {"stride": case.stride, "pad": case.pad}
    with (
        mock.patch.object(kernels, "_PIECE_BYTES", case.piece_bytes),
        mock.patch.object(kernels, "_IMAGE_BYTES", 2 * case.piece_bytes),
    ):
        found = [
            *compute(ops.Conv2d(**how), x, weight),
            *compute(ops.Conv2dDown(case.size, **how), g, weight),
            *compute(ops.Conv2dWeight(case.kernel, **how), g, x),
        ]
    for actual, expected in zip(found, (y, dx, dweight), strict=True):
        np.testing.assert_allclose(actual, expected, **tolerance(case.dtype))


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pad"),
    [((4, 5), (3, 2), (1, 1), (1, 0)), ((5, 4), (2, 3), (2, 3), (0, 1)), ((3, 3), (1, 1), (1, 1), (0, 0))],
)
def test_conv2d_gradient(size, kernel, stride, pad) -> None:
    random = np.random.default_rng(1)
    x, weight = random.standard_normal((2, *size, 2)), random.standard_normal((*kernel, 2, 3))
    check_gradient(ops.Conv2d(stride, pad), x, weight)


def test_conv2d_needs_scratch_memory_for_a_piece_not_for_the_batch(compute) -> None:
    x = np.ones((64, 16, 16, 16), np.float32)
    weight = np.ones((3, 3, 16, 4), np.float32)
    kernel = ops.find_kernel(ops.Conv2d((1, 1), (1, 1)), "cpu", x.dtype)
    y = np.empty((64, 16, 16, 4), np.float32)
    kernel.function(ops.Conv2d((1, 1), (1, 1)), [x, weight], [y])  # the thread's scratch memory is there now
    tracemalloc.start()
    kernel.function(ops.Conv2d((1, 1), (1, 1)), [x, weight], [y])
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 64 * 1024  # the columns of the batch are 9.4 MB


def test_a_kernel_larger_than_the_padded_image_is_an_error() -> None:
    graph = af.Graph("g")
    x, weight = graph.blob("x", (1, 2, 6, 1)), graph.blob("w", (5, 5, 1, 1))
    with pytest.raises(af.ShapeError, match=r"kernel \(5, 5\) is larger than the image \(2, 6\) with padding \(1, 1\)"):
        ops.conv2d(x, weight, pad=1)


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        ((1, 4, 4), (1, 1, 1, 1), r"x must have shape \(batch, height, width, channels\), got float32\[1, 4, 4\]"),
        ((1, 4, 4, 2), (1, 1, 2), r"weight must have shape \(kernel_height, .*\), got float32\[1, 1, 2\]"),
        ((1, 4, 4, 2), (1, 1, 3, 1), r"weight must have x's 2 channels on axis 2, got float32\[1, 1, 3, 1\]"),
    ],
)
def test_shapes_that_do_not_fit_are_errors_that_name_the_argument(x, weight, message) -> None:
    graph = af.Graph("g")
    with pytest.raises(af.ShapeError, match=message):
        ops.conv2d(graph.blob("x", x), graph.blob("w", weight))


@pytest.mark.parametrize(
    ("how", "message"), [({"stride": 0}, "stride must be at least 1"), ({"pad": -1}, "pad must be")]
)
def test_parameters_out_of_range_are_errors(how, message) -> None:
    graph = af.Graph("g")
    with pytest.raises(af.GraphError, match=message):
        ops.conv2d(graph.blob("x", (1, 4, 4, 1)), graph.blob("w", (1, 1, 1, 1)), **how)


def test_gradient_operations_check_their_inputs(compute) -> None:
    g, weight, x = np.ones((1, 2, 2, 3)), np.ones((3, 3, 2, 3)), np.ones((1, 5, 5, 2))
    with pytest.raises(af.ShapeError, match=r"Conv2dDown: g must have shape \(batch, \*\(3, 3, 3\)\), got"):
        compute(ops.Conv2dDown((5, 5)), g, weight)
    with pytest.raises(af.ShapeError, match=r"Conv2dWeight: g must have shape \(1, 3, 3, 'out_channels'\), got"):
        compute(ops.Conv2dWeight((3, 3)), g, x)
