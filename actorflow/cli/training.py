"""The demo's graph, and what is done with it: train an epoch, count right answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

import numpy as np

from actorflow import nn, ops
from actorflow.data import Dataset
from actorflow.errors import DataError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob

#: Steps that overlap: the next one starts on the layers whose weights the one before has updated.
_IN_FLIGHT = 2
#: Learning rate of the first step.
_RATE = 0.02


class Training:
    """A network with its loss and updates, and the images that it learns from.

    Args:
        data: The images, shape (count, height, width, channels), and labels.
        epochs: How often to go through the train images; the learning rate falls linearly to 0 until the end.
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
        self._epochs = epochs
        self._seed = seed
        self._images = self.graph.blob("images", (batch, *data.train.images.shape[1:]))
        self._labels = self.graph.blob("labels", (batch,), "int64")
        network = nn.NIN(len(data.classes), seed=seed)
        scores = network(self._images, training=True)
        loss = ops.softmax_loss(scores, self._labels, name="loss")
        accuracy = ops.accuracy(scores, self._labels)
        rate = nn.rates.Poly(_RATE, epochs * self.steps_per_epoch)
        updates = nn.SGD(rate, momentum=0.9, weight_decay=1e-4).minimize(loss)
        self._trainer = nn.Trainer(loss, updates, {"accuracy": accuracy}, in_flight=_IN_FLIGHT)
        with self.graph.subgraph("test"):
            self._test_scores: Blob = network(self._images, training=False)
        self.weight_count = sum(variable.spec.size for variable in network.variables)

    def steps(self) -> AsyncGenerator[nn.Step, None]:
        """Train on each image once an epoch, in random order; images that fill no batch are left out.

        Cancellation: the steps in flight are cancelled; each weight keeps its old or its new value.
        """
        return self._trainer.steps(self._feeds, self._epochs)

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

    def _feeds(self, epoch: int) -> Iterator[dict[Any, Any]]:
        for batch in self.data.train.shuffled(self._batch, np.random.default_rng((self._seed, epoch))):
            yield {self._images: batch.images, self._labels: batch.labels}
