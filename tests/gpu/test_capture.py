"""``capture=True`` on a GPU: CUDA graphs of a plan's segments give the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import actorflow as af


def network(capture: bool) -> tuple[af.Graph, list[Any]]:
    """Two layers, pooling, and a step of training; what is to be fetched."""
    graph = af.Graph("network", capture=capture)
    with graph.at("cuda:0"):
        x, labels = graph.blob("x", (16, 8, 8, 3)), graph.blob("labels", (16,), "int64")
        filters = graph.variable("filters", (3, 3, 3, 8), init=af.nn.init.gaussian(std=0.2, seed=0))
        weight = graph.variable("weight", (5, 128), init=af.nn.init.gaussian(std=0.2, seed=1))
        bias = graph.variable("bias", (5,))
        y = af.ops.scale(af.ops.relu(af.ops.conv(x, filters, pad=(1, 1))), 0.5)
        y = af.ops.flatten(af.ops.max_pool(y, (2, 2), (2, 2)))
        loss = af.ops.softmax_loss(af.ops.bias(af.ops.inner(y, weight), bias), labels)
        train = af.nn.SGD(rate=0.05, momentum=0.9).minimize(loss)
    return graph, [loss, train]


async def trained(capture: bool, in_flight: int) -> tuple[list[np.ndarray], list[Any]]:
    random = np.random.default_rng(0)
    feeds = [{"x": random.standard_normal((16, 8, 8, 3)).astype("f"), "labels": np.arange(16) % 5} for _ in range(60)]
    graph, fetch = network(capture)
    async with graph:
        losses = [af.to_numpy(r[fetch[0]]) async for r in graph.stream(feeds, fetch=fetch, in_flight=in_flight)]
        return [*losses, *[v.value for v in graph.variables]], list(graph.engine.segments.values())


@pytest.mark.parametrize("in_flight", [1, 3])
async def test_training_is_the_same(in_flight: int) -> None:
    expected, none = await trained(False, in_flight)
    found, segments = await trained(True, in_flight)
    assert not none
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-6)
    assert segments
    assert {segment.refusal for segment in segments} == {None}
    if in_flight == 1:  # else what recurs depends on which copies have ended when the next begin
        assert all(segment.replays > 10 for segment in segments)


async def test_a_long_chain_is_one_launch() -> None:
    graph = af.Graph("chain", capture=True, fuse=False)  # else it is one op, and there is nothing to capture
    with graph.at("cuda:0"):
        x = graph.blob("x", (1 << 12,))
        y = x
        for _ in range(50):
            y = af.ops.relu(af.ops.scale(y, 1.01))
    batch = np.linspace(-1, 1, 1 << 12, dtype="f")
    async with graph:
        for _ in range(8):
            result = af.to_numpy((await graph.run({x: batch}))[y])
            np.testing.assert_allclose(result, np.maximum(batch, 0) * 1.01**50, rtol=1e-4)
        (segment,) = graph.engine.segments.values()
        assert len(segment.ops) == 100
        assert segment.replays > 0
        assert segment.refusal is None


async def test_a_view_that_is_fetched_keeps_what_it_shows() -> None:
    """A segment reads the view, then the viewed array, and writes more arrays like it."""
    graph = af.Graph("shown", capture=True, fuse=False)
    with graph.at("cuda:0"):
        x = graph.blob("x", (4, 4))
        viewed = af.ops.scale(x, 2.0)
        view = af.ops.reshape(viewed, (2, 8))
    later = graph.function("later", lambda value: value, x.spec)(viewed)  # so that the segment begins behind the view
    with graph.at("cuda:0"):
        first = af.ops.scale(view, 3.0)
        total = af.ops.add(viewed, later)
        written = [first, *[af.ops.scale(total, float(i)) for i in range(6)]]
    async with graph:
        for number in range(8):
            batch = np.arange(16, dtype="f").reshape(4, 4) + number
            result = await graph.run({x: batch}, fetch=[*written, view])
            np.testing.assert_array_equal(af.to_numpy(result[view]), 2 * batch.reshape(2, 8))
            np.testing.assert_array_equal(af.to_numpy(result[first]), 6 * batch.reshape(2, 8))
