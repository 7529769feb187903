"""Train GoogLeNet, with its auxiliary heads, and tell how often a test image's class is among its first five.

Run it with ``python examples/googlenet.py DIR --place cuda:0``. DIR holds CIFAR-10, in any of the forms that
`af.data.cifar10` reads; its images are moved and mirrored at random, and enlarged to 224x224. On a CPU, begin with
``--steps 10 --batch 8 --test 64``.

Settings are those of Purine2's example, whose data is ImageNet: 100,000 steps of 64 images (there on each of 12 GPUs),
rate 0.01 * (1 - step / steps) ** 0.5 (biases twice), momentum 0.9, decay 1e-4 of the weights, dropout 0.4, biases 0.2.
"""

import argparse
from contextlib import aclosing
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

import actorflow as af
from actorflow import nn, ops


def enlarge(images: np.ndarray, draws: af.data.Draws, size: int) -> np.ndarray:
    """Each pixel repeated, so that images (batch, height, width, channels) have this height and width."""
    rows, columns = (np.arange(size) * old // size for old in images.shape[1:3])
    return images[:, rows[:, np.newaxis], columns]


class Training:
    """The network with its loss and updates, and once more for testing, on one device."""

    def __init__(self, data: af.data.Dataset, place: str, batch: int, size: int, steps: int) -> None:
        self.steps = steps
        self.graph = af.Graph("googlenet")
        images = self.graph.blob("images", (batch, size, size, 3))
        labels = self.graph.blob("labels", (batch,), "int64")
        fitting = partial(enlarge, size=size)
        varying = af.data.Augmentation([af.data.Crop(32, padding=4), af.data.Mirror(), fitting])
        train, test = ({images: split.images, labels: split.labels} for split in (data.train, data.test))
        self.train_feeds = af.data.Loader(train, batch, seed=0, transforms={images: varying})
        self.test_feeds = af.data.Loader(test, batch, transforms={images: af.data.Augmentation([fitting])})
        network = nn.GoogLeNet(len(data.classes), dropout=0.4)
        with self.graph.at(place):
            loss = network.loss(network(images, training=True), labels)
            optimizer = nn.SGD(
                nn.rates.Poly(0.01, steps, power=0.5),
                momentum=0.9,
                weight_decay=1e-4,
                multipliers=nn.bias_multipliers,
            )
            self.trainer = nn.Trainer(loss, optimizer.minimize(loss))
            with self.graph.subgraph("test"):
                self.found = ops.accuracy(network(images, training=False), labels, top=5)

    async def train(self) -> None:
        """All steps, two in flight."""
        every = max(1, self.steps // 10)
        async with aclosing(self.trainer.steps(self.train_feeds, epochs=None, until=self.steps)) as steps:
            async for step in steps:
                if step.number % every == 0:
                    print(f"step {step.number:,} of {self.steps:,}: loss {step.loss:.3f}")

    async def accuracy(self, batches: int) -> float:
        """Share of test images whose class is among the first five, over some batches of them."""
        feeds = islice(self.test_feeds, batches)
        return (await self.trainer.evaluate(feeds, {"found": self.found}))["found"]


async def main() -> None:
    parser = argparse.ArgumentParser(description="Train GoogLeNet on CIFAR-10, enlarged.")
    parser.add_argument("directory", type=Path, metavar="DIR", help="where CIFAR-10 is")
    parser.add_argument("--place", default="cpu", help="cpu (the default), cuda:0, ...")
    parser.add_argument("--steps", type=int, default=100_000, help="of training")
    parser.add_argument("--batch", type=int, default=64, help="images per step")
    parser.add_argument("--size", type=int, default=224, help="height and width of the images, 130 at least")
    parser.add_argument("--test", type=int, default=10_000, help="how many test images to look at")
    options = parser.parse_args()
    try:
        data = af.data.cifar10(options.directory).standardized()
        training = Training(data, options.place, options.batch, options.size, options.steps)
        async with training.graph:
            await training.train()
            found = await training.accuracy(max(1, options.test // options.batch))
            print(f"the class is among the first five in {found:.1%} of test images")
    except (af.DataError, af.DeviceUnavailableError) as error:
        raise SystemExit(str(error)) from error


af.run(main())
