"""The demo's graph, and what is done with it: train an epoch, count right answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from actorflow import nn, ops
from actorflow.data import Batch, Dataset
from actorflow.errors import DataError
from actorflow.graph import Graph
from actorflow.node import Blob

__all__ = ["Step", "Training"]

#: Steps that overlap: the next one starts on the layers whose weights the one before has updated.
_IN_FLIGHT = 2
#: Learning rate of the first step.
_RATE = 0.02


class Step(NamedTuple):
    """What one step of the training gave."""

    loss: float
    accuracy: float


class Training:
    """A network with its loss and updates, and the images that it learns from.

    Args:
        data: The images, shape (count, height, width, channels), and labels.
        epochs: How often `epoch` will be run; the learning rate falls linearly to 0 until the end.
        batch: Images per step.
        seed: Of weights, dropout and the order of the images.

    Attributes:
        data: As given.
        graph: The whole of it: forward and backward part, updates, and the network once more for testing.
        steps_per_epoch: Full batches in the train images.
        weight_count: Numbers that are learned.

    Raises:
        DataError: if there are fewer train images than a batch takes.
    """

    def __init__(self, data: Dataset, *, epochs: int, batch: int, seed: int) -> None:
        if batch > len(data.train):
            raise DataError(f"expected at most {len(data.train):,} images per batch, all that there are, got {batch:,}")
        self.data = data
        # The same result on any number of cores; and products as small as these gain little from BLAS threads, but lose
        # much when something else wants the cores, since each waits for its slowest thread.
        self.graph = Graph(data.name, deterministic=True)
        self.steps_per_epoch = len(data.train) // batch
        self._batch = batch
        self._rng = np.random.default_rng(seed)
        self._images = self.graph.blob("images", (batch, *data.train.images.shape[1:]))
        self._labels = self.graph.blob("labels", (batch,), "int64")
        network = nn.NIN(len(data.classes), seed=seed)
        scores = network(self._images, training=True)
        self._loss = ops.softmax_loss(scores, self._labels, name="loss")
        self._accuracy = ops.accuracy(scores, self._labels)
        self._optimizer = nn.SGD(rate=_RATE, momentum=0.9, weight_decay=1e-4)
        self._updates = self._optimizer.minimize(self._loss)
        self._steps = epochs * self.steps_per_epoch
        self._step = 0
        with self.graph.subgraph("test"):
            self._test_scores: Blob = network(self._images, training=False)
        self.weight_count = sum(variable.spec.size for variable in network.variables)

    async def epoch(self) -> AsyncIterator[Step]:
        """Train on each image once, in random order; images that fill no batch are left out.

        Cancellation: the steps in flight are cancelled; each weight keeps its old or its new value.
        """
        batches = self.data.train.shuffled(self._batch, self._rng)
        results = self.graph.stream(
            self._feeds(batches), fetch=[self._loss, self._accuracy, self._updates], in_flight=_IN_FLIGHT
        )
        async for result in results:
            yield Step(float(result[self._loss]), float(result[self._accuracy]))

    async def test(self) -> int:
        """How many of the test images are recognized."""
        batches = list(self.data.test.in_order(self._batch))
        feeds: Iterator[dict[Any, Any]] = ({self._images: batch.images} for batch in batches)
        results = self.graph.stream(feeds, fetch=[self._test_scores], in_flight=_IN_FLIGHT)
        right = 0
        counted = iter(batches)
        async for result in results:
            batch = next(counted)
            answers = result[self._test_scores].argmax(axis=1)
            right += int(np.count_nonzero((answers == batch.labels)[: batch.valid]))
        return right

    def _feeds(self, batches: Iterable[Batch]) -> Iterator[dict[Any, Any]]:
        for batch in batches:
            # The stream starts a step right after it has taken its feed, so each step has its own rate.
            self._optimizer.rate.value = np.float64(_RATE * (1 - self._step / self._steps))
            self._step += 1
            yield {self._images: batch.images, self._labels: batch.labels}
