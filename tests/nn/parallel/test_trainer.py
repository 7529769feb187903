"""A trainer on each rank: all of them get all losses and metrics."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops
from actorflow.nn.parallel import DataParallel
from actorflow.transport.base import Transport
from actorflow.transport.local import LocalWorld


async def train(transport: Transport, places: list[str]) -> tuple[list[float], list[float], dict[str, float]]:
    """Losses, what the validation gave, and a test in the end."""
    graph = af.Graph("g", world=transport)
    x, labels = graph.blob("x", (6, 3)), graph.blob("labels", 6, "int64")
    net = nn.MLP(2, (8,))
    model = DataParallel(net, places, loss=ops.softmax_loss)
    loss = model(x, labels)
    train = model.minimize(nn.Adam(0.05))
    with graph.subgraph("test"):
        right = ops.accuracy(net(x, training=False), labels)
        each = ops.cast(ops.equal(ops.argmax(net(x, training=False), axis=-1), labels), "float32")

    def feeds(epoch: int) -> Iterator[dict[Any, Any]]:
        random = np.random.default_rng(epoch)
        for _ in range(10):
            drawn = random.standard_normal((6, 3)).astype("f")
            yield {x: drawn, labels: (drawn.sum(axis=1) > 0).astype(np.int64)}

    trainer = nn.Trainer(loss, train, {"first": model.losses[0], "last": model.losses[-1]})
    async with graph:
        epochs = await trainer.fit(feeds, 4, validate=lambda: trainer.evaluate(feeds(99), {"right": right}))
        tested = await trainer.evaluate(((feed, 4) for feed in feeds(98)), {"each": each})
    assert [epoch.steps for epoch in epochs] == [10] * 4
    for epoch in epochs:
        np.testing.assert_allclose(epoch.means["loss"], (epoch.means["first"] + epoch.means["last"]) / 2, rtol=1e-5)
    return [epoch.means["loss"] for epoch in epochs], [epoch.validation["right"] for epoch in epochs], tested


@pytest.mark.slow
async def test_all_ranks_see_the_same_training() -> None:
    places = ["1/cpu", "sim:0"]
    first, second = await asyncio.gather(*[train(transport, places) for transport in LocalWorld(2).transports])
    assert first == second
    losses, validated, tested = first
    assert losses[-1] < 0.6 * losses[0]
    assert validated[-1] > 0.8
    assert tested["each"] > 0.8
    (alone,) = await asyncio.gather(*[train(transport, ["cpu", "sim:0"]) for transport in LocalWorld(1).transports])
    np.testing.assert_allclose(alone[0], losses, rtol=1e-4)
