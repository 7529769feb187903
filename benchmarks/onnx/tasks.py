"""The models that compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import actorflow as af
from benchmarks.inference.tasks import Task as Network

__all__ = ["TASKS", "Task"]


@dataclass(frozen=True)
class Task:
    """A model and what it is given.

    Attributes:
        name: How the contenders are told of it.
        title: For tables.
        shape: Of its input, ``x``.
        model: Gives the model's bytes.
        runs: Runs per round.
        times: How many times onnxruntime's time its ops may take.
    """

    name: str
    title: str
    shape: tuple[int, ...]
    model: Callable[[], bytes]
    runs: int
    times: float

    @property
    def is_here(self) -> bool:
        """Whether its model is installed."""
        return self.name == "resnet18" or find_spec("rapidocr_onnxruntime") is not None

    def image(self) -> Any:
        """Dark strokes on a bright ground, in which the detector finds text."""
        image = 1 + np.random.default_rng(0).standard_normal(self.shape, np.float32) / 20
        image[..., 4:12, 8:-8] -= 2.0 * (np.arange(self.shape[3] - 16) % 8 < 4)
        return image


def _trained(name: str) -> Callable[[], bytes]:
    """One of the three models of rapidocr_onnxruntime."""

    def model() -> bytes:
        package = find_spec("rapidocr_onnxruntime")  # not imported, as it needs more than its files
        assert package is not None
        assert package.origin is not None
        (path,) = Path(package.origin).with_name("models").glob(f"*_{name}_infer.onnx")
        return path.read_bytes()

    return model


def _resnet18() -> bytes:
    from benchmarks.inference import onnx_networks

    network = Network("resnet18", "ResNet-18", (1, 224, 224, 3), lambda: af.nn.ResNet(size=18), 1)
    layers = network.graph()[-1]
    return onnx_networks.resnet18(onnx_networks.Network(layers.variables, network.shape))


TASKS = (
    Task("detector", "text detection, 320x320", (1, 3, 320, 320), _trained("det"), 4, 1.5),
    Task("recognizer", "text recognition, 48x320", (1, 3, 48, 320), _trained("rec"), 4, 1.5),
    Task("resnet18", "ResNet-18, 224x224", (1, 3, 224, 224), _resnet18, 3, 1.5),
    Task("direction", "text direction, 280 ops, 48x192", (1, 3, 48, 192), _trained("cls"), 60, 2.5),
)
