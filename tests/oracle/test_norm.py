"""The layer of batch normalization against PyTorch, over several frames."""

from __future__ import annotations

import numpy as np
import pytest

import actorflow as af
from actorflow import nn
from tests.oracle.comparison import drawn

torch = pytest.importorskip("torch", reason="torch is not installed: make test-oracle")

pytestmark = pytest.mark.oracle


def _channels_second(x):
    return x.movedim(-1, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_layer_trains_and_infers_as_torch_does(dtype) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (3, 4, 5, 6), dtype)
    layer, reference = nn.BatchNorm(momentum=0.2), torch.nn.BatchNorm2d(6, momentum=0.2)
    if dtype == "float64":
        reference = reference.double()
    trained, tested = layer(x, training=True), layer(x, training=False)
    for frame in range(4):
        (value,) = drawn(frame, x.shape, dtype=dtype)
        value = (value * 3 + 1).astype(dtype)
        found = graph.run_sync({x: value}, fetch=[trained])[trained]
        expected = reference.train()(_channels_second(torch.from_numpy(value))).movedim(1, -1)
        np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    statistics = {v.name.rpartition("/")[2]: v.value for v in layer.statistics}
    tolerance = {"rtol": 1e-5} if dtype == "float32" else {"rtol": 1e-12}
    np.testing.assert_allclose(statistics["running_mean"], reference.running_mean.numpy(), **tolerance)
    np.testing.assert_allclose(statistics["running_variance"], reference.running_var.numpy(), **tolerance)
    found = graph.run_sync({x: value}, fetch=[tested])[tested]
    expected = reference.eval()(_channels_second(torch.from_numpy(value))).movedim(1, -1)
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
