"""The network that is trained: a Network in Network for CIFAR-10, in actorflow and in torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np

import actorflow as af
from actorflow.data import Batch, Split
from benchmarks.gpu.bench import Bench

__all__ = ["DROPOUT", "RATE", "Network", "TorchNetwork"]

RATE, MOMENTUM, DECAY, DROPOUT = 0.01, 0.9, 1e-4, 0.1
_CLASSES, _SHAPE = 10, (32, 32, 3)
_IN_FLIGHT = 2


@dataclass(frozen=True)
class Network:
    """A graph that trains the network, and one part of it that tests.

    Attributes:
        graph: The whole.
        images: What is fed, (batch, 32, 32, 3).
        labels: What is fed, (batch,).
        loss: Of the training part.
        scores: Of the testing part.
        updates: What to fetch to train.
        optimizer: Has the rate.
        layers: Has the weights.
    """

    graph: af.Graph
    images: af.Blob
    labels: af.Blob
    loss: af.Blob
    scores: af.Blob
    updates: af.Graph
    optimizer: af.nn.SGD
    layers: af.nn.NIN

    @classmethod
    def build(
        cls, bench: Bench, graph: af.Graph, batch: int, place: af.Place | None = None, dropout: float = DROPOUT
    ) -> Network:
        """Build it on the benchmark's place, or another one; what is fed is on the host."""
        images = graph.blob("images", (batch, *_SHAPE), place="cpu")
        labels = graph.blob("labels", (batch,), "int64", place="cpu")
        widths = (96, 192, 192) if not bench.harness.quick else (4, 8)
        layers = af.nn.NIN(_CLASSES, widths, dropout=dropout, seed=0)
        with graph.at(place or bench.place):
            loss = af.ops.softmax_loss(layers(images, training=True), labels)
            optimizer = af.nn.SGD(RATE, MOMENTUM, DECAY)
            updates = optimizer.minimize(loss)
            with graph.subgraph("test"):
                scores = layers(images, training=False)
        return cls(graph, images, labels, loss, scores, updates, optimizer, layers)

    def noise(self, steps: int, seed: int = 0) -> list[dict[Any, Any]]:
        """Feeds of random numbers."""
        rng = np.random.default_rng(seed)
        return [
            {
                self.images: rng.random(self.images.shape, np.float32),
                self.labels: rng.integers(0, _CLASSES, self.labels.shape),
            }
            for _ in range(steps)
        ]

    async def train(self, feeds: Iterable[dict[Any, Any]]) -> None:
        """A step per feed."""
        async with aclosing(self.graph.stream(feeds, fetch=[self.updates], in_flight=_IN_FLIGHT)) as results:
            async for _ in results:
                pass

    async def epoch(self, batches: Iterable[Batch], rates: Iterator[float]) -> None:
        """Train on batches, each with its own rate."""

        def feeds() -> Iterable[dict[Any, Any]]:
            for batch, rate in zip(batches, rates, strict=False):
                self.optimizer.rate.value = np.float64(rate)
                yield {self.images: batch.images, self.labels: batch.labels}

        await self.train(feeds())

    async def accuracy(self, split: Split) -> float:
        """The share of images that are recognized."""
        right = 0
        for batch in split.in_order(self.images.shape[0]):
            result = await self.graph.run({self.images: batch.images}, fetch=[self.scores])
            answers = af.to_numpy(result[self.scores]).argmax(axis=1)
            right += int(np.count_nonzero((answers == batch.labels)[: batch.valid]))
        return right / len(split)

    def weights(self) -> list[Any]:
        """Values of all weights and biases, layer by layer."""
        return [np.array(variable.value) for variable in self.layers.variables]


class TorchNetwork:
    """The same in torch, with the same first weights; images stay in the order of NHWC (channels last)."""

    def __init__(self, bench: Bench, weights: Sequence[Any], dropout: float = DROPOUT, dtype: str = "float32") -> None:
        self._torch = torch = bench.torch
        self._dtype = getattr(torch, dtype)
        self._device = bench.torch_device
        nn = torch.nn
        pairs = list(zip(weights[::2], weights[1::2], strict=True))
        modules: list[Any] = []
        for i, (weight, bias) in enumerate(pairs):
            if i and i % 2 == 0 and i < len(pairs) - 1:
                modules += [nn.MaxPool2d(3, 2, ceil_mode=True), nn.Dropout(dropout)]
            modules.append(self._convolution(weight, bias))
            if i < len(pairs) - 1:
                modules.append(nn.ReLU())
        modules += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.module = nn.Sequential(*modules).to(self._device, self._dtype, memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(self.module.parameters(), RATE, MOMENTUM, weight_decay=DECAY)

    def _convolution(self, weight: Any, bias: Any) -> Any:
        torch = self._torch
        height, width, channels_in, channels_out = weight.shape
        layer = torch.nn.Conv2d(channels_in, channels_out, (height, width), padding=height // 2)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight.transpose(3, 2, 0, 1).copy()))
            layer.bias.copy_(torch.from_numpy(bias))
        return layer

    def step(self, images: Any, labels: Any, rate: float = RATE) -> None:
        """One step on NumPy arrays (batch, height, width, channels) and (batch,)."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        x, y = self._moved(images).permute(0, 3, 1, 2).to(self._dtype), self._moved(labels)
        self._optimizer.zero_grad(set_to_none=True)
        self._torch.nn.functional.cross_entropy(self.module(x), y).backward()
        self._optimizer.step()

    def accuracy(self, split: Split, batch: int) -> float:
        """The share of images that are recognized."""
        right = 0
        self.module.eval()
        with self._torch.inference_mode():
            for part in split.in_order(batch):
                scores = self.module(self._moved(part.images).permute(0, 3, 1, 2))
                answers = scores.argmax(1).cpu().numpy()
                right += int(np.count_nonzero((answers == part.labels)[: part.valid]))
        self.module.train()
        return right / len(split)

    def weights(self) -> list[Any]:
        """As `Network.weights`."""
        arrays = [parameter.detach().cpu().numpy() for parameter in self.module.parameters()]
        return [array.transpose(2, 3, 1, 0) if array.ndim == 4 else array for array in arrays]

    def _moved(self, array: Any) -> Any:
        return self._torch.from_numpy(array).to(self._device, non_blocking=True)
