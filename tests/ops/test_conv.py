"""Convolution and its gradients, against loops over elements."""

from __future__ import annotations

import itertools
import tracemalloc
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.ops.cpu import conv as kernels
from actorflow.ops.cpu import depthwise
from actorflow.ops.nn.conv import ConvDown
from tests.operations import row_of
from tests.operations.nn.conv import convolutions
from tests.ops.test_values import check_values
from tests.support.layouts import LAYOUTS


@settings(max_examples=settings.default.max_examples // 2)
@given(
    convolutions(),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(LAYOUTS),
    st.sampled_from([64, 512, 1 << 20]),  # small pieces force bands, large ones have several images
)
def test_convolutions_are_what_loops_give(compute, drawn, dtype, layout, piece_bytes) -> None:
    with (
        mock.patch.multiple(kernels, _PIECE_BYTES=piece_bytes, _IMAGE_BYTES=2 * piece_bytes),
        mock.patch.object(depthwise, "_PIECE_BYTES", piece_bytes),
    ):
        for sample in drawn:
            check_values(compute, row_of(sample.operation), sample, dtype, layout)


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
