"""The networks that are trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import actorflow as af
from benchmarks.training import networks

__all__ = ["MOMENTUM", "RATE", "TASKS", "Task"]

#: Small, so that thousands of steps on one batch end nowhere strange.
RATE, MOMENTUM = 1e-4, 0.9


@dataclass(frozen=True)
class Task:
    """A network and what it is trained on.

    Attributes:
        name: How the contenders are told of it.
        title: For tables.
        batch: Images, or sequences, per step.
        shape: Of an image, or of a sequence.
        classes: Number of classes.
        build: Makes the layers, without dropout: two libraries draw different masks.
        torch: The same as a function of (network, images) in torch: that of the tests, which compare every gradient.
        steps: Steps per round. Two rounds are warm-up: in some twenty steps graphs measure their ops and join them.
    """

    name: str
    title: str
    batch: int
    shape: tuple[int, ...]
    classes: int
    build: Callable[[], af.Composite]
    torch: Callable[[networks.Network, Any], Any]
    steps: int

    def data(self, batch: int) -> tuple[Any, Any]:
        """Images of noise and labels."""
        rng = np.random.default_rng(0)
        return rng.standard_normal((batch, *self.shape), np.float32), rng.integers(0, self.classes, batch)


class _Encoder(af.Composite):
    """A transformer of two layers over 4 heads, normalized before each part, and scores by the mean of its steps."""

    def build(self, *bottom: af.Blob, training: bool) -> af.Blob:
        (x,) = bottom
        for _ in range(networks.LAYERS):
            x = x + af.nn.MultiHeadAttention(networks.HEADS)(af.nn.LayerNorm()(x))
            wide = af.nn.Linear(4 * x.shape[-1], activation="gelu")(af.nn.LayerNorm()(x))
            x = x + af.nn.Linear(x.shape[-1])(wide)
        return af.nn.Linear(10)(af.ops.mean(af.nn.LayerNorm()(x), axis=1))


def _googlenet(net: networks.Network, x: Any) -> Any:
    return networks.googlenet(net, x, auxiliary=False)[0]


TASKS = (
    Task("lenet-64", "LeNet, 28x28x1", 64, (28, 28, 1), 10, lambda: af.nn.LeNet(10), networks.lenet, 20),
    Task("lenet-128", "LeNet, 28x28x1", 128, (28, 28, 1), 10, lambda: af.nn.LeNet(10), networks.lenet, 10),
    Task(
        "nin",
        "Network in Network, 32x32x3",
        32,
        (32, 32, 3),
        10,
        lambda: af.nn.NIN.cifar10(10, dropout=0.0),
        networks.nin,
        5,
    ),
    Task(
        "googlenet",
        "GoogLeNet without auxiliary heads, 64x64x3",
        8,
        (64, 64, 3),
        1000,
        lambda: af.nn.GoogLeNet(1000, auxiliary=False, dropout=0.0),
        _googlenet,
        10,
    ),
    Task("transformer", "Transformer, 2 layers, 64x128, 4 heads", 16, (64, 128), 10, _Encoder, networks.encoder, 5),
)
