"""Graphs on a simulated device: the CPU's numbers, and what is said of a feed or a kernel that is wrong."""

import asyncio
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.devices.sim import SimOptions

FEEDS = [
    {"x": np.random.default_rng(i).standard_normal((8, 6, 6, 3)).astype("f"), "labels": np.arange(8) % 5}
    for i in range(12)
]


def classifier(place: str, options: SimOptions | None = None) -> tuple[af.Graph, list[Any]]:
    """A small network with a step of training; what is to be fetched."""
    graph = af.Graph("classifier", devices={} if options is None else {place: options})
    with graph.at(place):
        x, labels = graph.blob("x", (8, 6, 6, 3)), graph.blob("labels", (8,), "int64")
        filters = graph.variable("filters", (3, 3, 3, 4), init=af.nn.init.gaussian(std=0.2, seed=0))
        weight = graph.variable("weight", (5, 36), init=af.nn.init.gaussian(std=0.2, seed=1))
        y = af.ops.dropout(af.ops.relu(af.ops.conv(x, filters, pad=(1, 1))), 0.3, seed=2)
        y = af.ops.inner(af.ops.flatten(af.ops.max_pool(y, (2, 2), (2, 2))), weight)
        loss = af.ops.softmax_loss(y, labels)
        train = af.nn.SGD(rate=0.1, momentum=0.9).minimize(loss)
    return graph, [loss, train]


async def trained(place: str, options: SimOptions | None = None) -> list[np.ndarray]:
    """Losses and weights of some steps, several under way at a time."""
    graph, fetch = classifier(place, options)
    async with graph:
        losses = [af.to_numpy(r[fetch[0]]) async for r in graph.stream(FEEDS, fetch=fetch, in_flight=3)]
        return [*losses, graph["filters"].value, graph["weight"].value]


@pytest.mark.parametrize("options", [SimOptions(), SimOptions(latency_s=2e-4, kernel_s=1e-4)], ids=["free", "timed"])
async def test_training_gives_the_numbers_of_the_cpu(options: SimOptions) -> None:
    for value, expected in zip(await trained("sim:0", options), await trained("cpu"), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


async def test_a_feed_that_is_changed_too_early_is_found() -> None:
    graph = af.Graph("feed", devices={"sim:0": SimOptions(latency_s=0.05)})
    x = graph.blob("x", (4,))
    with graph.at("sim:0"):
        af.ops.relu(x)
    feed = np.ones(4, "f")
    async with graph:
        run = asyncio.ensure_future(graph.run({x: feed}))
        await asyncio.sleep(0)
        while not graph.engine.resources.device(af.Place.parse("sim:0")).lane("inbound").submitted:
            await asyncio.sleep(0)
        feed[0] = 7
        with pytest.raises(
            af.OpError, match=r"failed with RaceError: the host changed memory that op '.*' on lane 'inbound'"
        ):
            await run


async def test_a_kernel_that_fails_on_the_device_is_named() -> None:
    graph = af.Graph("failing")
    x = graph.blob("x", (8, 3))
    labels = graph.blob("labels", (8,), "int64")
    with graph.at("sim:0"):
        losses = [af.ops.softmax_loss(x, labels, name=f"loss{i}") for i in range(4)]  # on several lanes
        af.ops.add(*[af.ops.scale(loss, 2.0) for loss in losses])
    async with graph:
        with pytest.raises(af.OpError, match=r"op 'loss\d' ") as caught:
            await graph.run({x: np.ones((8, 3), "f"), labels: np.full(8, 17)})
        assert "was skipped" not in str(caught.value)
        assert isinstance(caught.value.__cause__, af.DeviceError)
