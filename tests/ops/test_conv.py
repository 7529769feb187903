"""Convolution and its gradients, against loops over elements."""

from __future__ import annotations

import itertools
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
from actorflow.ops.cpu import depthwise
from actorflow.ops.nn.conv import ConvDown, ConvWeight
from tests.operations.nn.conv import convolved, convolved_by_weight, convolved_down

ml_dtypes = pytest.importorskip("ml_dtypes")


class Case(NamedTuple):
    batch: int
    size: tuple[int, ...]
    channels: tuple[int, int]  # of a group
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    dtype: str
    layout: str
    piece_bytes: int  # small ones force bands, large ones several images per piece
    short_row: int = 16  # rows of fewer windows are added up across the images of a piece
    short_run_bytes: int = 0  # columns of shorter runs are gathered plane by plane
    turned_channels: int = 8  # data gradients of so many channels are convolutions, where they can

    @property
    def how(self) -> dict[str, Any]:
        return {"stride": self.stride, "pad": self.pad, "dilation": self.dilation, "groups": self.groups}

    @property
    def out(self) -> tuple[int, ...]:
        return tuple(
            (n + sum(p) - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(self.size, self.kernel, self.stride, self.pad, self.dilation, strict=True)
        )

    @property
    def operations(self) -> tuple[ops.Conv, ConvDown, ConvWeight]:
        how = self.how
        return ops.Conv(**how), ConvDown(**how, size=self.size), ConvWeight(**how, kernel=self.kernel)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    axis = lambda low, high: st.tuples(*[st.integers(low, high)] * rank)  # noqa: E731
    kernel, dilation = draw(axis(1, 3)), draw(axis(1, 2))
    pad = draw(st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 2))] * rank))
    least = [max(0, d * (k - 1) + 1 - sum(p)) for k, d, p in zip(kernel, dilation, pad, strict=True)]
    size = tuple(n + more for n, more in zip(least, draw(axis(0, 4)), strict=True))
    return Case(
        draw(st.integers(0, 3)),
        size,
        draw(st.tuples(st.sampled_from([1, 2, 17]), st.integers(1, 3))),
        kernel,
        draw(axis(1, 3)),
        pad,
        dilation,
        draw(st.sampled_from([1, 1, 2, 3, 4])),
        draw(st.sampled_from(["float32", "float64"])),
        draw(st.sampled_from(["C", "F", "strided"])),
        draw(st.sampled_from([64, 512, 1 << 20])),
        draw(st.sampled_from([0, 16])),
        draw(st.sampled_from([0, 1 << 20])),
        draw(st.sampled_from([1, 99])),
    )


def drawn(case: Case, dtype: str) -> list[np.ndarray]:
    """x, weight, g."""
    random = np.random.default_rng(0)
    inputs, outputs = case.channels[0] * case.groups, case.channels[1] * case.groups
    shapes = (
        (case.batch, *case.size, inputs),
        (*case.kernel, case.channels[0], outputs),
        (case.batch, *case.out, outputs),
    )
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


@settings(deadline=None)
@given(cases())
def test_convolution_and_its_gradients_are_what_loops_give(compute, laid_out, tolerance, case: Case) -> None:
    x, weight, g = drawn(case, case.dtype)
    forward, down, of_weight = case.operations
    how = case.how
    wanted = [
        convolved(x, weight, **how),
        convolved_down(g, weight, case.size, **how),
        convolved_by_weight(g, x, case.kernel, **how),
    ]
    x, weight, g = (laid_out(array, case.layout) for array in (x, weight, g))
    with (
        mock.patch.object(kernels, "_PIECE_BYTES", case.piece_bytes),
        mock.patch.object(kernels, "_IMAGE_BYTES", 2 * case.piece_bytes),
        mock.patch.object(kernels, "_SHORT_ROW", case.short_row),
        mock.patch.object(kernels, "_SHORT_RUN_BYTES", case.short_run_bytes),
        mock.patch.object(kernels, "_TURNED_CHANNELS", case.turned_channels),
        mock.patch.multiple(kernels, _TURNED_RATIO=99, _TURNED_WINDOWS=0),
        mock.patch.object(depthwise, "_PIECE_BYTES", case.piece_bytes),
    ):
        found = [*compute(forward, x, weight), *compute(down, g, weight), *compute(of_weight, g, x)]
    for actual, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(actual, right, **tolerance(case.dtype))


def test_scratch_memory_is_needed_for_a_piece_not_for_the_batch() -> None:
    x = np.ones((64, 16, 16, 16), np.float32)
    weight = np.ones((3, 3, 16, 4), np.float32)
    operation = ops.Conv(pad=1)
    kernel = ops.find_kernel(operation, "cpu", x.dtype)
    y = np.empty((64, 16, 16, 4), np.float32)
    kernel.function(operation, [x, weight], [y])  # the thread's scratch memory is there now
    tracemalloc.start()
    kernel.function(operation, [x, weight], [y])
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 64 * 1024  # the columns of the batch are 9.4 MB


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("channels", [1, 2])
def test_what_is_not_finite_stays_in_its_group(compute, value, channels) -> None:
    x, weight = np.ones((1, 4, 4, 4 * channels)), np.ones((3, 3, channels, 8))
    x[..., 0] = value
    (y,) = compute(ops.Conv(groups=4), x, weight)
    np.testing.assert_array_equal(np.isfinite(y), np.broadcast_to(np.arange(8) >= 2, y.shape))
    (dx,) = compute(ConvDown(groups=4, size=(4, 4)), y, weight)
    np.testing.assert_array_equal(np.isfinite(dx), np.broadcast_to(np.arange(4 * channels) >= channels, dx.shape))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_in_a_weight_stays_where_it_is_used(compute, value) -> None:
    weight, g = np.ones((3, 3, 16, 2), np.float32), np.ones((1, 4, 4, 2), np.float32)
    weight[0, 0] = value
    (dx,) = compute(ConvDown(pad=1, size=(4, 4)), g, weight)
    # The last row and column belong to no window's first element.
    assert np.isfinite(dx[:, -1]).all()
    assert np.isfinite(dx[:, :, -1]).all()
    assert not np.isfinite(dx[:, :-1, :-1]).any()


def test_a_data_gradient_of_many_windows_adds_to_nothing(compute, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "_scatter", None)
    g, weight = np.ones((2, 9, 9, 16), np.float32), np.ones((3, 3, 16, 16), np.float32)
    (dx,) = compute(ConvDown(pad=1, size=(9, 9)), g, weight)
    assert dx[0, 4, 4, 0] == 9 * 16


# -- transposed ---------------------------------------------------------------------------------------------------


def test_a_transposed_convolution_of_a_convolution_has_its_size() -> None:
    for size, stride, pad in itertools.product(range(4, 9), (1, 2, 3), (0, 1)):
        graph = af.Graph("g")
        y = ops.conv(graph.blob("x", (1, size, 1)), graph.blob("w", (3, 1, 2)), stride, pad)
        rest = (size + 2 * pad - 3) % stride
        back = ops.conv_transpose(y, graph.blob("v", (3, 1, 2)), stride, pad, output_pad=rest)
        assert back.shape == (1, size, 1)


def test_numbers_of_numpy_and_lists_are_parameters() -> None:
    graph = af.Graph("g")
    x, weight = graph.blob("x", (1, 8, 8, 1)), graph.blob("w", (3, 3, 1, 1))
    assert ops.conv(x, weight, [np.int64(2), 1], [[0, 1], np.int32(1)]).shape == (1, 4, 8, 1)
