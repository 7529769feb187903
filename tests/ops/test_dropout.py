"""Dropout: what is random, and what must not be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import actorflow as af
from actorflow import ops
from actorflow.testing import check_gradient
from tests.support.layouts import LAYOUTS


@settings(deadline=None)
@given(
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(LAYOUTS),
    st.sampled_from([0.0, 0.25, 0.9]),
    st.integers(0, 3),
)
def test_dropout_zeroes_what_the_mask_says_and_scales_the_rest(
    compute, laid_out, shape, dtype, layout, rate, frame
) -> None:
    random = np.random.default_rng(0)
    x = laid_out(random.standard_normal(shape).astype(dtype), layout)
    y, mask = compute(ops.Dropout(rate, seed=3), x, frame=frame)
    factor = np.dtype(dtype).type(1 / (1 - rate))
    for index in np.ndindex(*shape):
        assert y[index] == (x[index] * factor if mask[index] else 0)
    assert rate or mask.all()


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_share_of_dropped_elements_is_the_rate(compute, rate) -> None:
    size = 200_000
    y, mask = compute(ops.Dropout(rate, seed=1), np.ones((2, size // 2), np.float32))
    bound = 5 * np.sqrt(rate * (1 - rate) / size)  # five standard deviations
    assert abs(1 - mask.mean() - rate) < bound
    assert abs(y.mean(dtype=np.float64) - 1) < bound / (1 - rate) + 1e-6


def test_seed_and_frame_choose_the_mask_and_nothing_else_does(compute) -> None:
    x = np.ones((70_000,), np.float32)
    masks = {(s, f): compute(ops.Dropout(0.5, s), x, frame=f)[1] for s in (0, 1) for f in (0, 1)}
    again = compute(ops.Dropout(0.5, 1), -x.astype(np.float64), frame=1)[1]
    np.testing.assert_array_equal(masks[1, 1], again)
    different = [np.mean(a != b) for (k, a) in masks.items() for (m, b) in masks.items() if k < m]
    assert all(0.45 < share < 0.55 for share in different)


def test_a_large_mask_is_independent_in_all_its_blocks(compute) -> None:
    _, mask = compute(ops.Dropout(0.5, 0), np.ones(4 * 32_768))
    blocks = mask.reshape(4, -1)
    assert all(0.45 < np.mean(blocks[i] != blocks[j]) < 0.55 for i in range(4) for j in range(i))


def test_dropout_gradient_uses_the_mask_of_the_frame() -> None:
    x = np.random.default_rng(0).standard_normal((4, 5))
    check_gradient(ops.Dropout(0.4, seed=5), x)
    graph = af.Graph("g")
    blob, weights = graph.variable("x", x.shape, "f8", x), np.random.default_rng(1).standard_normal(x.shape)
    y, mask = graph.apply(ops.Dropout(0.4, seed=5), blob)
    weights[0] = np.inf  # which is 0 where nothing was kept
    grad = af.gradient(ops.sum(y * weights), blob)
    result = graph.run_sync(fetch=[grad, mask])
    np.testing.assert_array_equal(result[grad], np.where(result[mask], weights * (1 / 0.6), 0))


async def test_dropout_leaves_what_other_ops_read_alone() -> None:
    """In-place dropout would change the value that its neighbour reads, and alias the gradient."""
    graph = af.Graph("g")
    x = graph.blob("x", (1000,))
    doubled = ops.scale(x, 2.0)
    dropped = ops.dropout(doubled, 0.5, seed=0)
    beside = ops.scale(doubled, 3.0)
    fed = np.ones(1000, np.float32)
    async with graph:
        result = await graph.run({x: fed}, fetch=[doubled, dropped, beside])
    assert fed.tolist() == [1.0] * 1000
    assert result[doubled].tolist() == [2.0] * 1000
    assert result[beside].tolist() == [6.0] * 1000
    assert set(result[dropped].tolist()) == {0.0, 4.0}


async def test_the_default_seed_differs_between_dropouts_and_frames_differ() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (1000,))
    first, second = ops.dropout(x, 0.5), ops.dropout(x, 0.5)
    feed = {x: np.ones(1000, np.float32)}
    async with graph:
        results = [await graph.run(feed, fetch=[first, second]) for _ in range(2)]
    values = [result[blob] for result in results for blob in (first, second)]
    assert all((values[i] != values[j]).mean() > 0.4 for i in range(4) for j in range(i))


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_out_of_range_is_an_error(rate) -> None:
    with pytest.raises(af.GraphError, match=f"rate must be at least 0 and less than 1, got {rate}"):
        ops.dropout(af.Graph("g").blob("x", (2,)), rate)


def test_a_seed_out_of_range_is_an_error() -> None:
    with pytest.raises(af.GraphError, match=r"seed must be from 0 to 2\*\*128 - 1, got -1"):
        ops.dropout(af.Graph("g").blob("x", (2,)), 0.5, seed=-1)
