"""Train the Network in Network of the paper on CIFAR-10, and tell how many test images it recognizes.

Run it with ``python examples/nin_cifar10.py DIR --place cuda:0``. DIR holds CIFAR-10's binary or Python batches, or its
images in a folder per class; nothing is downloaded.

Settings are those of Purine2's example, which reports 10.4% errors: 50,000 steps of 128 images, rate 0.1 (biases twice,
last layer a tenth), momentum 0.9, decay 1e-4 of the weights alone. The rate falls to a tenth after 80% and after 90%.
They are for that many steps. First weights as small as these, Gaussian of 0.05, make scores that hardly depend on the
image: the loss begins at 2.303, that of a guess, and stays there for a while, the longer the fewer channels there are.

On a CPU, see it learn with ``--steps 500 --batch 64 --width 48 --init he --rate 0.05``: 75 seconds of computing, to a
loss of 1.6 and 37% of the test images recognized. With the other settings, 100 steps of width 48 end at 2.302 and 10%.
"""

import argparse
from collections.abc import Iterator
from contextlib import aclosing
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

import actorflow as af
from actorflow import nn, ops


class Training:
    """The network with its loss and updates, and once more for testing, on one device."""

    def __init__(self, data: af.data.Dataset, options: argparse.Namespace) -> None:
        self.data, self.batch, self.steps = data, options.batch, options.steps
        self.graph = af.Graph("cifar-10")
        # Fed from the host: the plan copies each batch to the device while the one before is worked on.
        self.images = self.graph.blob("images", (self.batch, 32, 32, 3))
        self.labels = self.graph.blob("labels", (self.batch,), "int64")
        weights = {"gaussian": nn.init.gaussian(0.05, seed=0), "he": nn.init.he(0)}[options.init]
        network = nn.NIN.cifar10(len(data.classes), width=options.width, weight_init=weights)
        ends = self.steps * 8 // 10 + 1, self.steps * 9 // 10 + 2
        with self.graph.at(options.place):
            loss = ops.softmax_loss(network(self.images, training=True), self.labels)
            optimizer = nn.SGD(
                nn.rates.MultiStep(options.rate, milestones=ends),
                momentum=0.9,
                weight_decay=1e-4,
                multipliers=nn.layer_multipliers({network.scores: nn.Multipliers(rate=0.1)}, nn.bias_multipliers),
            )
            self.trainer = nn.Trainer(loss, optimizer.minimize(loss))
            with self.graph.subgraph("test"):
                scores = network(self.images, training=False)
                best = ops.argmax(scores, axis=-1)
                self.right = ops.cast(ops.equal(best, self.labels), "float32")

    async def train(self) -> None:
        """All steps, two in flight."""
        every = max(1, self.steps // 10)
        async with aclosing(self.trainer.steps(lambda _: islice(self._feeds(), self.steps))) as steps:
            async for step in steps:
                if step.number % every == 0:
                    print(f"step {step.number:,} of {self.steps:,}: loss {step.loss:.3f}")

    async def accuracy(self) -> float:
        """The share of test images that are recognized."""
        batches = self.data.test.in_order(self.batch)
        feeds = (({self.images: batch.images, self.labels: batch.labels}, batch.valid) for batch in batches)
        return (await self.trainer.evaluate(feeds, {"right": self.right}))["right"]

    def _feeds(self) -> Iterator[dict[Any, Any]]:
        for epoch in count():
            for batch in self.data.train.shuffled(self.batch, np.random.default_rng((0, epoch))):
                yield {self.images: batch.images, self.labels: batch.labels}


async def main() -> None:
    parser = argparse.ArgumentParser(description="Train a Network in Network on CIFAR-10.")
    parser.add_argument("directory", type=Path, metavar="DIR", help="where CIFAR-10 is")
    parser.add_argument("--place", default="cpu", help="cpu (the default), cuda:0, ...")
    parser.add_argument("--steps", type=int, default=50_000, help="of training; 390 are an epoch of the whole set")
    parser.add_argument("--batch", type=int, default=128, help="images per step")
    parser.add_argument("--width", type=int, default=192, help="channels of most layers")
    parser.add_argument("--rate", type=float, default=0.1, help="of learning, at first")
    parser.add_argument("--init", choices=("gaussian", "he"), default="gaussian", help="first weights")
    options = parser.parse_args()
    try:
        data = af.data.cifar10(options.directory).standardized()
        training = Training(data, options)
        async with training.graph:
            await training.train()
            print(f"{await training.accuracy():.1%} of {len(data.test):,} test images recognized")
    except (af.DataError, af.DeviceUnavailableError) as error:
        raise SystemExit(str(error)) from error


af.run(main())
