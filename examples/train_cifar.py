"""Train a Network in Network on CIFAR-10, on the CPU or a GPU, and tell how many test images it recognizes.

Run it with ``python examples/train_cifar.py DIR --place cuda:0``. DIR holds CIFAR-10's binary or Python batches, or its
images in a folder per class; nothing is downloaded. On the CPU, begin with ``--steps 200 --widths 16 32``.
"""

import argparse
from collections.abc import Iterator
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import actorflow as af

RATE = 0.02


class Training:
    """The network with its loss and updates, and once more for testing, on one device."""

    def __init__(self, data: af.data.Dataset, place: str, batch: int, widths: list[int], steps: int) -> None:
        self.data, self.batch, self.steps = data, batch, steps
        self.graph = af.Graph("cifar-10")
        # Fed from the host: the plan copies each batch to the device while the one before is worked on.
        self.images = self.graph.blob("images", (batch, 32, 32, 3))
        self.labels = self.graph.blob("labels", (batch,), "int64")
        network = af.nn.NIN(len(data.classes), widths, seed=0)
        with self.graph.at(place):
            self.loss = af.ops.softmax_loss(network(self.images, training=True), self.labels)
            self.optimizer = af.nn.SGD(RATE, momentum=0.9, weight_decay=1e-4)
            self.updates = self.optimizer.minimize(self.loss)
            with self.graph.subgraph("test"):
                self.scores = network(self.images, training=False)

    async def train(self) -> None:
        """All steps, two in flight."""
        results = self.graph.stream(islice(self._feeds(), self.steps), fetch=[self.loss, self.updates], in_flight=2)
        every = max(1, self.steps // 10)
        async with aclosing(results):
            number = 0
            async for result in results:
                number += 1
                if number % every == 0:  # only then is the loss copied from the device
                    print(f"step {number:,} of {self.steps:,}: loss {float(af.to_numpy(result[self.loss])):.3f}")

    async def accuracy(self) -> float:
        """The share of test images that are recognized."""
        right = 0
        for batch in self.data.test.in_order(self.batch):
            result = await self.graph.run({self.images: batch.images}, fetch=[self.scores])
            answers = af.to_numpy(result[self.scores]).argmax(axis=1)
            right += int(np.count_nonzero((answers == batch.labels)[: batch.valid]))
        return right / len(self.data.test)

    def _feeds(self) -> Iterator[dict[Any, Any]]:
        rng, number = np.random.default_rng(0), 0
        while True:
            for batch in self.data.train.shuffled(self.batch, rng):
                self.optimizer.rate.value = np.float64(RATE * max(0.0, 1 - number / self.steps))
                number += 1
                yield {self.images: batch.images, self.labels: batch.labels}


async def main() -> None:
    parser = argparse.ArgumentParser(description="Train a Network in Network on CIFAR-10.")
    parser.add_argument("directory", type=Path, metavar="DIR", help="where CIFAR-10 is")
    parser.add_argument("--place", default="cpu", help="cpu (the default), cuda:0, ...")
    parser.add_argument("--steps", type=int, default=4_000, help="of training; 390 are an epoch of the whole set")
    parser.add_argument("--batch", type=int, default=128, help="images per step")
    parser.add_argument("--widths", type=int, nargs="+", default=[96, 192, 192], help="channels of each block")
    options = parser.parse_args()
    try:
        data = af.data.cifar10(options.directory).standardized()
        training = Training(data, options.place, options.batch, options.widths, options.steps)
        async with training.graph:
            await training.train()
            print(f"{await training.accuracy():.1%} of {len(data.test):,} test images recognized")
    except (af.DataError, af.DeviceUnavailableError) as error:
        raise SystemExit(str(error)) from error


af.run(main())
