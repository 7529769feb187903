"""A training gives the same on every kind of device; the table of operations tries each operation there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import actorflow as af
from benchmarks.gpu.bench import relative_error

PLACES = ["sim:0", pytest.param("cuda:0", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("place", PLACES)
async def test_training_is_the_same_as_on_the_cpu(place: str) -> None:
    def network(on: str) -> tuple[af.Graph, Any, Any, Any, Any]:
        graph = af.Graph("training")
        images, labels = graph.blob("images", (6, 12, 12, 3)), graph.blob("labels", (6,), "int64")
        layers = af.nn.NIN(4, (8, 8), seed=1)
        with graph.at(on):
            loss = af.ops.softmax_loss(layers(images, training=True), labels)
            updates = af.nn.SGD(0.1, 0.9, 1e-3).minimize(loss)
        return graph, layers, images, labels, [loss, updates]

    rng = np.random.default_rng(0)
    batches = [(rng.random((6, 12, 12, 3), np.float32), rng.integers(0, 4, 6)) for _ in range(5)]
    found = []
    for on in ("cpu", place):
        graph, layers, images, labels, fetch = network(on)
        async with graph:
            feeds = [{images: x, labels: y} for x, y in batches]
            losses = [float(af.to_numpy(r[fetch[0]])) async for r in graph.stream(feeds, fetch=fetch, in_flight=3)]
            found.append((losses, np.concatenate([np.ravel(v.value) for v in layers.variables])))
    (losses, weights), (other_losses, other_weights) = found
    assert len(losses) == 5
    np.testing.assert_allclose(other_losses, losses, rtol=1e-4)
    assert relative_error(other_weights, weights) <= 1e-4
