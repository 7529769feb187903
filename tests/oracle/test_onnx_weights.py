"""State dicts of PyTorch in the graphs of the files that it has exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import actorflow as af
from tests.oracle.test_onnx_exports import exported, nn, torch

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("single_thread")]

KEPT = {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
MODULES = {
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, groups=8, padding=1), nn.Conv2d(8, 6, 1), nn.ConvTranspose2d(6, 4, 2, 2),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5)),
        (2, 3, 4, 4)),
    "encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0), 2, enable_nested_tensor=False),
        (2, 5, 16)),
}  # fmt: skip


def file_of(module: Any, shape: tuple[int, ...], **options: Any) -> bytes:
    return exported(module, torch.zeros(shape), output_names=["y"], **options)


def made(name: str, seed: int) -> tuple[Any, tuple[int, ...]]:
    torch.manual_seed(seed)
    make, shape = MODULES[name]
    return make().eval(), shape


@pytest.mark.parametrize("name", MODULES)
def test_a_state_dict_fits_the_file_of_its_module(name: str) -> None:
    module, shape = made(name, 0)
    loaded = af.onnx.load(file_of(module, shape, **KEPT), trainable=True)
    other, _ = made(name, 1)
    with torch.no_grad():
        for tensor in other.state_dict().values():
            if tensor.is_floating_point():
                tensor += 0.1 * torch.rand_like(tensor)
    state = other.state_dict()
    found = af.nn.load_torch(loaded.graph, state)
    assert {name: (name,) for name in state if not name.endswith("num_batches_tracked")} == found
    x = torch.rand(shape)
    result = loaded.run_sync({"x": x.numpy()})["y"]
    np.testing.assert_allclose(result, other(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_into_a_network_that_is_a_part() -> None:
    module, shape = made("images", 0)
    graph = af.Graph("outer")
    body = af.onnx.Network(file_of(module, shape, **KEPT), trainable=True, name="body")
    top = body(graph.blob("x", shape))
    other, _ = made("images", 1)
    af.nn.load_torch(body, other.state_dict())
    x = torch.rand(shape)
    result = graph.run_sync({"x": x.numpy()}, fetch=[top])[top]
    np.testing.assert_allclose(result, other(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_weights_that_the_exporter_has_changed_are_said_to_be() -> None:
    module, shape = made("images", 0)
    loaded = af.onnx.load(file_of(module, shape), trainable=True)
    with pytest.raises(af.CheckpointError) as caught:
        af.nn.load_torch(loaded.graph, module.state_dict())
    text = str(caught.value)
    missing = {line.split("'")[1] for line in text.splitlines() if line.startswith("  missing")}
    unexpected = {line.split("'")[1] for line in text.splitlines() if line.startswith("  not expected")}
    assert missing
    assert all(name.startswith("onnx::") for name in missing)
    assert not missing & unexpected
    assert "8.weight" not in text  # is there as it is
    assert "TrainingMode.PRESERVE, do_constant_folding=False" in text
