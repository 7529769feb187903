"""The networks that compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import actorflow as af

__all__ = ["TASKS", "Task"]


@dataclass(frozen=True)
class Task:
    """A network and what it is given.

    Attributes:
        name: How the contenders are told of it; the function of this name in `onnx_networks` makes its ONNX model.
        title: For tables.
        shape: Of the images.
        build: Makes the layers.
        runs: Runs per round.
    """

    name: str
    title: str
    shape: tuple[int, ...]
    build: Callable[[], af.Composite]
    runs: int

    def images(self) -> Any:
        """Images of noise."""
        return np.random.default_rng(0).standard_normal(self.shape, np.float32)

    def graph(self, **options: Any) -> tuple[af.Graph, af.Blob, af.Blob, af.Composite]:
        """Our graph, its images and scores, and the layers, with first values as if they had been trained."""
        graph, layers = af.Graph(self.name, **options), self.build()
        x = graph.blob("x", self.shape)
        scores = layers(x, training=False)
        rng = np.random.default_rng(1)
        for variable in layers.variables:
            match variable.name.rpartition("/")[2]:
                case "scale":
                    variable.value = rng.uniform(0.5, 1.5, variable.shape).astype("f")
                case "running_variance":
                    # Values keep their size from layer to layer, as in a trained network. Grown to thousands, they made
                    # hard sigmoids, and with them the scores, of what is lost to rounding.
                    variable.value = rng.uniform(1.0, 2.5, variable.shape).astype("f")
                case "shift" | "running_mean" | "bias":
                    variable.value = rng.normal(0.0, 0.1, variable.shape).astype("f")
        return graph, x, scores, layers


TASKS = (
    Task("lenet", "LeNet, 28x28x1", (1, 28, 28, 1), lambda: af.nn.LeNet(10), 200),
    Task("mobile_net", "MobileNetV3 large, 224x224x3", (1, 224, 224, 3), af.nn.MobileNetV3, 8),
    Task("resnet50", "ResNet-50, 224x224x3", (1, 224, 224, 3), lambda: af.nn.ResNet(size=50), 3),
)
