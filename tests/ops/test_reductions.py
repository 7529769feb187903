"""Sums along any axes: as exact as those of neighbours in memory, whichever kernel adds up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import actorflow as af
import actorflow.array as xp
from actorflow import nn, ops
from actorflow.ops.cpu.reductions import sum_axes
from tests.support.layouts import LAYOUTS
from tests.support.long_sums import BOUND, ROWS, cases, relative_errors


def _as_float64(arrays: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    return [array.astype(np.float64) for array in arrays]


@pytest.mark.together("case", cases(), ids=lambda case: f"{case.operation}-{case.output}", at_once=24)
def test_what_adds_up_many_elements(compute, case) -> None:
    found = compute(case.operation, *case.arrays)[case.output]
    assert relative_errors(found, case.exact(*_as_float64(case.arrays))) < BOUND


@pytest.mark.parametrize("place", ["cpu", "sim:0"])
@pytest.mark.parametrize("fuse", [True, False])
def test_sums_of_graphs(place: str, fuse: bool) -> None:
    graph = af.Graph("sums", fuse=fuse)
    with graph.at(place):
        x = graph.blob("x", (ROWS, 3))
        bias = graph.variable("bias", (3,), init=nn.init.constant(0.0))
        factor = graph.variable("factor", (3,), init=nn.init.constant(1.0))
        total, mean = ops.sum(ops.square(x), axis=0), ops.mean(x + 0.5, axis=0)
        norm = ops.linalg.vector_norm(x, axis=0)
        loss = ops.sum((ops.bias(x, bias) * factor) * 0.5)
        slopes = [af.gradient(loss, variable) for variable in (bias, factor)]
    value = np.full((ROWS, 3), 0.1, np.float32)
    found = graph.run_sync({x: value}, fetch=[total, mean, norm, *slopes])
    wide = value.astype(float)
    exact = [
        (wide**2).sum(0), wide.mean(0) + 0.5, np.sqrt((wide**2).sum(0)), np.full(3, ROWS / 2), wide.sum(0) / 2
    ]  # fmt: skip
    for blob, expected in zip([total, mean, norm, *slopes], exact, strict=True):
        value = found[blob] if place == "cpu" else found[blob].get()
        assert relative_errors(value, expected) < BOUND, blob


@pytest.fixture
def own_session(no_thread_left: None) -> Iterator[None]:
    with xp.session():
        yield


def test_sums_of_lazy_arrays(own_session: None) -> None:
    value = np.linspace(0.05, 0.15, ROWS * 3, dtype=np.float32).reshape(ROWS, 3)
    x, wide = xp.asarray(value), value.astype(float)
    for found, exact in (
        (xp.sum(x, axis=0), wide.sum(0)),
        (xp.mean(x, axis=0), wide.mean(0)),
        (xp.var(x, axis=0), wide.var(0)),
        (xp.std(x, axis=0), wide.std(0)),
        (xp.sum(x.T * 2.0, axis=1), 2 * wide.sum(0)),
        (xp.linalg.vector_norm(x, axis=0), np.sqrt((wide**2).sum(0))),
    ):
        assert relative_errors(found.to_numpy(), exact) < BOUND


@settings(deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    st.lists(st.sampled_from([1, 2, 3, 7, 16, 65]), min_size=1, max_size=3),
    st.sampled_from([1, 65, 4097, 30_011, 65_536]),
    st.data(),
    st.sampled_from(["float32", "float64", "complex64", "float16"]),
    st.sampled_from(LAYOUTS),
)
def test_the_error_of_a_sum(laid_out, beside, length, data, dtype, layout) -> None:
    """A run is added up one after the other, what the runs give half against half, for each axis anew."""
    at = data.draw(st.integers(0, len(beside)))
    shape = [*beside[:at], length, *beside[at:]]
    assume(math.prod(shape) <= 500_000)
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    keepdims = data.draw(st.booleans())
    values = data.draw(st.sampled_from([(0.1, 0.1), (0.0, 1.0), (-1.0, 1.0)]))
    random = np.random.default_rng(0)
    x = random.uniform(*values, shape).astype(dtype)
    if dtype == "complex64":
        x = x + 1j * random.uniform(*values, shape).astype(np.float32)
    found = sum_axes(laid_out(x, layout), axes, keepdims)
    wide: Any = np.clongdouble if dtype == "complex64" else np.longdouble
    exact = x.astype(wide).sum(axes, keepdims=keepdims)
    assert found.shape == exact.shape
    assert found.dtype == (np.float32 if dtype == "float16" else dtype)
    terms = math.prod(shape[axis] for axis in axes)
    roundings = len(axes) * (64 + 16 + math.log2(terms))
    bound = roundings * np.finfo(found.dtype).eps / 2 * np.abs(x.astype(wide)).sum(axes, keepdims=keepdims)
    assert (np.abs(found - exact) <= bound).all()


@pytest.mark.together("shape", [(0, 300), (300, 0), (2, 0, 300)])
@pytest.mark.together("layout", LAYOUTS)
def test_sums_of_nothing(laid_out, shape: tuple[int, ...], layout: str) -> None:
    x = laid_out(np.zeros(shape, np.float32), layout)
    for axes in ((0,), (1,), (0, 1), tuple(range(x.ndim))):
        np.testing.assert_array_equal(sum_axes(x, axes), x.sum(axes), strict=True)


@pytest.mark.together("shape", [(300, 3), (3, 300), (70_000, 2), (5,), (300, 4, 3)])
@pytest.mark.together("axis", [0, -1])
def test_what_is_infinite_or_not_a_number_is_as_in_numpy(shape: tuple[int, ...], axis: int) -> None:
    for places in ([np.inf], [-np.inf] * 2, [np.inf, -np.inf] * 8, [np.nan], [3e38] * 9):
        x = np.ones(shape, np.float32)
        x.reshape(-1)[: len(places)] = places[: x.size]
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(sum_axes(x, (axis % x.ndim,)), x.sum(axis))


@pytest.mark.parametrize("form", [ops.sum, ops.prod], ids=["sum", "prod"])
def test_sums_in_another_dtype(form: Any) -> None:
    values = np.array([[1, 2], [3, 4]], np.int8)
    graph = af.Graph("wide")
    x = graph.blob("x", (2, 2), "int8")
    y = form(x, 0, dtype="float64")
    expected = getattr(np, form.__name__)(values, 0, dtype="float64")
    found = graph.run_sync({x: values})[y]
    for each in (found, form(xp.asarray(values), 0, dtype="float64").to_numpy()):
        np.testing.assert_array_equal(each, expected, strict=True)
