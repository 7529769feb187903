"""Resizing and its gradients, against loops over the elements of each result."""

from __future__ import annotations

import math
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.ops.cpu import resize as kernels
from actorflow.ops.nn.resize import MODES, ROUNDINGS, Resize, ResizeDown
from actorflow.testing import check_gradient
from tests.support.layouts import LAYOUTS

COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


def place_of(i: int, n: int, size: int, coordinates: str, scale: float | None) -> Fraction:
    """Where an element of a result lies, as the documentation says it."""
    step = Fraction(n, size) if scale is None else 1 / Fraction(scale)
    if coordinates == "align_corners":
        return Fraction(i * (n - 1), size - 1) if size > 1 else Fraction(0)
    if coordinates == "asymmetric":
        return i * step
    return (
        Fraction(0)
        if coordinates == "pytorch_half_pixel" and size == 1
        else (i + Fraction(1, 2)) * step - Fraction(1, 2)
    )


def keys(d: float, a: float) -> float:
    """Keys' kernel."""
    d = abs(d)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def rounded(place: Fraction, rounding: str) -> int:
    floor, ceil = math.floor(place), math.ceil(place)
    if rounding in ("floor", "ceil"):
        return floor if rounding == "floor" else ceil
    if place - floor == ceil - place:
        return floor if rounding == "round_prefer_floor" else ceil
    return round(place)


def matrix(operation: Resize, n: int) -> np.ndarray:
    """The result as a product with this matrix."""
    found = np.zeros((operation.size, n))
    for i in range(operation.size):
        place = place_of(i, n, operation.size, operation.coordinates, operation.scale)
        if operation.mode == "nearest":
            weights = {rounded(place, operation.rounding): 1.0}
        elif operation.mode == "linear":
            weights = {j: float(1 - abs(place - j)) for j in range(math.floor(place), math.floor(place) + 2)}
        else:
            near = range(math.floor(place) - 1, math.floor(place) + 3)
            weights = {j: keys(float(place - j), operation.cubic) for j in near}
        for j, weight in weights.items():
            found[i, min(max(j, 0), n - 1)] += weight
    return found


def along(matrix: np.ndarray, x: np.ndarray, axis: int) -> np.ndarray:
    return np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)


@st.composite
def operations(draw: st.DrawFn) -> tuple[Resize, int]:
    n, axis = draw(st.integers(1, 9)), draw(st.integers(0, 3))
    scale = draw(st.sampled_from([None, None, 0.5, 0.75, 1.5, 2.0, 3.0]))
    size = draw(st.integers(1, 24)) if scale is None else max(1, int(n * scale))
    names = (draw(st.sampled_from(known)) for known in (MODES, COORDINATES, [*ROUNDINGS]))
    return Resize(axis, size, *names, draw(st.sampled_from([-0.75, -0.5])), scale), n


@settings(deadline=None)
@given(
    operations(),
    st.integers(0, 3),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(LAYOUTS),
    st.sampled_from([64, 1 << 18]),
)
def test_it_is_the_product_with_a_matrix(
    compute, laid_out, tolerance, drawn, batch, dtype, layout, piece_bytes
) -> None:
    operation, n = drawn
    random = np.random.default_rng(0)
    shape = [batch, 2, 3, 2]
    shape[operation.axis] = n
    x = random.standard_normal(shape).astype(dtype)
    shape[operation.axis] = operation.size
    g = random.standard_normal(shape).astype(dtype)
    weights = matrix(operation, n).astype(dtype)
    with mock.patch.object(kernels, "_PIECE_BYTES", piece_bytes):
        (y,) = compute(operation, laid_out(x, layout))
        (dx,) = compute(ResizeDown(operation, n), laid_out(g, layout))
    np.testing.assert_allclose(y, along(weights, x, operation.axis), **tolerance(dtype))
    np.testing.assert_allclose(dx, along(weights.T, g, operation.axis), **tolerance(dtype))


@pytest.mark.parametrize("size", [(9,), (3, 8), (5, 2, 4)])
@pytest.mark.parametrize("mode", MODES)
def test_all_spatial_axes(mode, size) -> None:
    shape = (2, *(6, 4, 3)[: len(size)], 2)
    x = np.random.default_rng(0).standard_normal(shape).astype("f")
    graph = af.Graph("g")
    blob = graph.blob("x", shape)
    found = ops.resize(blob, size, mode=mode, name="resized")
    assert (found.shape, found.name) == ((2, *size, 2), "resized/out")
    expected = x
    for axis, new in enumerate(size, start=1):
        expected = along(matrix(Resize(axis, new, mode), shape[axis]), expected, axis)
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


@pytest.mark.parametrize("dtype", ["float16", "int8", "int64", "bool", "complex64"])
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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("n", "size"), [(3, 7), (5, 2), (1, 4), (4, 1), (4, 4)])
def test_gradients_and_their_gradients(mode, n, size) -> None:
    random = np.random.default_rng(0)
    for coordinates in COORDINATES:
        operation = Resize(1, size, mode, coordinates)
        check_gradient(operation, random.standard_normal((2, n, 2)))
        check_gradient(ResizeDown(operation, n), random.standard_normal((2, size, 2)))


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        (
            {},
            af.GraphError,
            "resize: either size or scale must be a number, or one for each spatial axis, got None and",
        ),
        ({"size": 2, "scale": 2.0}, af.GraphError, "either size or scale must be a number"),
        ({"size": (2, 2, 2)}, af.GraphError, r"got \(2, 2, 2\) and None; x is float32\[1, 4, 4, 1\]"),
        ({"size": 0}, af.GraphError, "size must be at least 1 and scale positive, got 0 and None"),
        ({"scale": 0.1}, af.GraphError, "size must be at least 1 and scale positive, got 0 and 0.1"),
        ({"scale": -1.0}, af.GraphError, "size must be at least 1 and scale positive"),
        ({"size": 2, "mode": "area"}, af.GraphError, "mode must be one of nearest, linear, cubic, got 'area'"),
        (
            {"size": 2, "coordinates": "other"},
            af.GraphError,
            "coordinates must be one of half_pixel, pytorch_half_pixel",
        ),
        ({"size": 2, "rounding": "up"}, af.GraphError, "rounding must be one of floor, ceil, round_prefer_floor"),
    ],
)
def test_parameters_that_do_not_fit_are_errors(how, error, message) -> None:
    with pytest.raises(error, match=message):
        ops.resize(af.Graph("g").blob("x", (1, 4, 4, 1)), **how)


def test_images_that_do_not_fit_are_errors(compute) -> None:
    graph = af.Graph("g")
    with pytest.raises(af.ShapeError, match="Resize: x must have at least 1 element on axis 1"):
        ops.resize(graph.blob("empty", (1, 0, 4, 1)), 2)
    with pytest.raises(af.DTypeError, match="Resize: x must be floating, got int64"):
        ops.resize(graph.blob("n", (1, 4, 1), "int64"), 2)
    with pytest.raises(af.GraphError, match="resize: x must be a blob or an array, got list"):
        ops.resize([1.0], 2)
    with pytest.raises(af.GraphError, match=r"one for each spatial axis, got 2 and None; x is float32\[4, 1\]"):
        ops.resize(graph.blob("row", (4, 1)), 2)
    with pytest.raises(af.ShapeError, match="ResizeDown: g must have length 3 on axis 1, got"):
        compute(ResizeDown(Resize(1, 3), 2), np.ones((1, 4, 1)))
