"""Resizing and its gradients: pieces, all axes, what is special."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.ops.cpu import resize as kernels
from actorflow.ops.nn.resize import MODES, Resize, ResizeDown
from tests.operations import ROWS
from tests.operations.nn.resize import along, matrix, parameters_of
from tests.ops.test_values import check_values
from tests.support.layouts import LAYOUTS


@pytest.mark.together("layout", LAYOUTS)
@pytest.mark.together("name", ["Resize", "ResizeDown"])
def test_pieces_give_what_the_whole_gives(compute, name, layout) -> None:
    with mock.patch.object(kernels, "_PIECE_BYTES", 64):
        for sample in ROWS[name].samples:
            check_values(compute, ROWS[name], sample, "float64", layout)


@pytest.mark.together("size", [(9,), (3, 8), (5, 2, 4)])
@pytest.mark.together("mode", MODES)
def test_all_spatial_axes(mode, size) -> None:
    shape = (2, *(6, 4, 3)[: len(size)], 2)
    x = np.random.default_rng(0).standard_normal(shape).astype("f")
    graph = af.Graph("g")
    blob = graph.blob("x", shape)
    found = ops.resize(blob, size, mode=mode, name="resized")
    assert (found.shape, found.name) == ((2, *size, 2), "resized/out")
    expected = x
    for axis, new in enumerate(size, start=1):
        expected = along(matrix(shape[axis], **parameters_of(Resize(axis, new, mode))), expected, axis)
    np.testing.assert_allclose(graph.run_sync({blob: x})[found], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(af.array.nn.resize(af.array.asarray(x), size, mode=mode), expected, rtol=1e-5, atol=1e-5)


def test_a_size_or_a_scale_for_each_axis_or_all() -> None:
    x = af.Graph("g").blob("x", (1, 5, 4, 1))
    shapes = [
        (ops.resize(x, 7), (7, 7)),
        (ops.resize(x, (5, 9)), (5, 9)),
        (ops.resize(x, scale=1.5), (7, 6)),
        (ops.resize(x, scale=[0.5, 2]), (2, 8)),
        (ops.resize(x, np.int64(2)), (2, 2)),
        (ops.resize(x, [5, 4]), (5, 4)),
        (ops.resize(x, scale=1), (5, 4)),
    ]
    assert [found.shape for found, _ in shapes] == [(1, *size, 1) for _, size in shapes]


def test_axes_that_stay_are_left_out_and_those_that_shrink_come_first() -> None:
    graph = af.Graph("g")
    ops.resize(graph.blob("x", (1, 4, 4, 4, 1)), (8, 4, 2))
    assert [(op.operation.axis, op.operation.size) for op in graph.ops] == [(3, 2), (1, 8)]


@pytest.mark.together("dtype", ["float16", "int8", "int64", "bool", "complex64"])
def test_the_nearest_elements_of_any_dtype(compute, dtype) -> None:
    x = np.arange(6).reshape(1, 3, 2).astype(dtype)
    (y,) = compute(Resize(1, 6, "nearest"), x)
    np.testing.assert_array_equal(y, np.repeat(x, 2, axis=1), strict=True)


def test_half_precision_is_added_up_in_float32(compute) -> None:
    x = np.random.default_rng(0).standard_normal((2, 9, 3)).astype("f2")
    for operation in (Resize(1, 20, "cubic"), ResizeDown(Resize(1, 9, "linear"), 700)):
        (wide,) = compute(operation, x.astype("f4"))
        np.testing.assert_array_equal(compute(operation, x)[0], wide.astype("f2"))


def test_what_is_not_finite_stays_where_it_is_seen(compute) -> None:
    x = np.zeros((1, 8, 1))
    x[0, 3] = np.inf
    for size, seen in ((16, [5, 6, 7, 8]), (4, [1])):
        (y,) = compute(Resize(1, size), x)
        assert np.flatnonzero(~np.isfinite(y[0, :, 0])).tolist() == seen
    (dx,) = compute(ResizeDown(Resize(1, 8), 4), x)
    assert np.flatnonzero(~np.isfinite(dx[0, :, 0])).tolist() == [1, 2]
