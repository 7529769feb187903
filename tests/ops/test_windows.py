"""Positions of windows, and their division into pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.ops import registry
from actorflow.ops.cpu import windows as cut
from actorflow.ops.nn.windows import CHANNELS_FIRST, WEIGHT_FIRST, is_even, slide
from actorflow.ops.operation import Layout


@given(
    st.lists(st.integers(0, 7), min_size=2, max_size=4), st.integers(1, 100), st.integers(1, 2000), st.integers(1, 2000)
)
def test_pieces_are_all_windows_in_the_order_of_memory(sizes, item_bytes, piece_bytes, image_bytes) -> None:
    index = np.arange(int(np.prod(sizes))).reshape(sizes)
    found = list(cut.pieces(sizes, item_bytes, piece_bytes, image_bytes))
    parts = [index[piece].reshape(-1) for piece in found]
    np.testing.assert_array_equal(np.concatenate(parts) if parts else [], index.reshape(-1))
    for piece in found:
        part = index[piece]
        assert part.size
        assert part.size == 1 or part.flags.c_contiguous
        least = part[(0,) * (part.ndim - 1)].size if part.shape[:-1] == (1,) * (part.ndim - 1) else 0
        assert part.size * item_bytes <= 2 * max(piece_bytes, image_bytes, item_bytes) or part.size == least == 1


def test_each_image_has_a_first_and_a_last_piece() -> None:
    w = slide("Test", (6, 5), 1)
    found = list(cut.pieces((3, 6, 5), 1, 7, 7))
    assert sum(map(cut.is_first, found)) == sum(cut.is_last(piece, w) for piece in found) == 3
    assert cut.is_first(found[0])
    assert cut.is_last(found[-1], w)


def test_layouts_hold_for_any_number_of_axes() -> None:
    layout = Layout((CHANNELS_FIRST, WEIGHT_FIRST), (None,))
    assert [layout.input_axes(0, rank) for rank in (3, 4, 5)] == [(0, 2, 1), (0, 3, 1, 2), (0, 4, 1, 2, 3)]
    assert [layout.input_axes(1, rank) for rank in (3, 4)] == [(2, 1, 0), (3, 2, 0, 1)]
    assert layout.input_axes(7, 4) == (3, 2, 0, 1)
    assert layout.output_axes(0, 4) is None


@pytest.mark.together(
    ("pad", "even"), [(0, True), ((1, 2), True), (((1, 1), 2), True), (((1, 2),), False), ((0, (1, 0)), False)]
)
def test_even_borders(pad, even) -> None:
    assert is_even(pad) is even


def test_ceil_makes_no_window_that_starts_beyond_the_image() -> None:
    def out(*how, ceil=True):
        return slide("Test", *how, ceil=ceil).out

    assert out((8, 7), (3, 3), 2) == (4, 3)
    assert out((8, 7), (3, 3), 2, ceil=False) == (3, 3)
    assert out((4,), 2, 5) == (1,)
    assert out((4, 4), 2, 3, 1) == (2, 2)
    assert out((6,), 2, 4, ((0, 3),)) == (2,)


@pytest.mark.parametrize("size", [(5,), (5, 4), (4, 3, 5)])
def test_kernels_that_want_channels_first_get_them(monkeypatch, size) -> None:
    seen = []
    usual_key = registry.KernelKey("Conv", "cpu", "numpy", "any", "any")
    usual = registry._kernels[usual_key].function

    def channels_first(operation: ops.Conv, inputs: list[Any], outputs: list[Any]) -> None:
        seen.append([array.shape for array in (*inputs, *outputs)])
        x, weight = np.moveaxis(inputs[0], 1, -1), np.moveaxis(inputs[1], (0, 1), (-1, -2))
        y = np.empty((len(x), *outputs[0].shape[2:], len(inputs[1])), x.dtype)
        usual(operation, [x, weight], [y])
        outputs[0][...] = np.moveaxis(y, -1, 1)

    monkeypatch.setattr(registry, "_kernels", dict(registry._kernels))
    results = []
    for takes_usual in (True, False):
        if not takes_usual:
            del registry._kernels[usual_key]
            registry.kernel(ops.Conv, layout="nchw")(channels_first)
        graph = af.Graph("g")
        x, weight = graph.blob("x", (2, *size, 3)), graph.blob("w", (*(2 for _ in size), 3, 6))
        y = ops.conv(x, weight, pad=1)
        random = np.random.default_rng(0)
        feeds = {blob: random.standard_normal(blob.shape).astype("f") for blob in (x, weight)}
        results.append(graph.run_sync(feeds)[y])
    np.testing.assert_array_equal(*results)
    assert seen == [[(2, 3, *size), (6, 3, *(2 for _ in size)), (2, 6, *(n + 1 for n in size))]]
