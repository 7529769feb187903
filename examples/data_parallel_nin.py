"""Train a Network in Network at several places, each on its share of the batch.

Run it with ``python examples/data_parallel_nin.py DIR``: four places of one process, three of them simulated
accelerators. Or with a process for each place: ``mpiexec -n 4 python -m mpi4py examples/data_parallel_nin.py DIR``. DIR
holds CIFAR-10 in any of the forms that `af.data.cifar10` reads, and the network and its training are the paper's; on a
CPU, begin with ``--steps 20 --batch 64 --width 48``. Without DIR both are small, and the images noise, dark or bright.

Each rank reads the images itself and feeds those of its own places; what the ranks send each other are gradients. The
settings are those of ``nin_cifar10.py``, but for weights that begin larger and learn slower, so that a few steps show
something. Try ``--scheme server``, or other places.
"""

import argparse
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

import actorflow as af
from actorflow import nn, ops


def noise(images: int = 512) -> af.data.Split:
    """Something to learn where there is no data: dark and bright noise."""
    random = np.random.default_rng(0)
    labels = np.arange(images) % 2
    brightness = (2 * labels - 1).astype("f")[:, None, None, None]
    return af.data.Split(random.standard_normal((images, 32, 32, 3), "f") + brightness, labels)


class Training:
    """The network at all places, with its loss and updates."""

    def __init__(self, places: list[str], classes: int, options: argparse.Namespace) -> None:
        self.graph = af.Graph("cifar-10")
        self.sizes = [len(part) for part in np.array_split(np.arange(options.batch), len(places))]
        self.images, self.labels = [], []
        for i, (place, size) in enumerate(zip(places, self.sizes, strict=True)):
            self.images.append(self.graph.blob(f"images{i}", (size, 32, 32, 3), place=place))
            self.labels.append(self.graph.blob(f"labels{i}", size, "int64", place))
        network = nn.NIN.cifar10(classes, width=options.width, weight_init=nn.init.he(0))
        model = nn.parallel.DataParallel(network, places, scheme=options.scheme, loss=ops.softmax_loss, split=False)
        self.loss = model(*self.images, *self.labels)
        late = (options.steps * 8 // 10 + 1, options.steps * 9 // 10 + 2)
        optimizer = nn.SGD(
            nn.rates.MultiStep(options.rate, milestones=late),
            momentum=0.9,
            weight_decay=1e-4,
            multipliers=nn.layer_multipliers({network.scores: nn.Multipliers(rate=0.1)}, nn.bias_multipliers),
        )
        self.train = model.minimize(optimizer)

    def feeds(self, data: af.data.Split) -> Iterator[dict[Any, Any]]:
        """Batches in an order that all ranks draw alike, cut into the places' shares."""
        cuts = np.cumsum(self.sizes)[:-1]
        for epoch in count():
            for batch in data.shuffled(sum(self.sizes), np.random.default_rng((0, epoch))):
                images, labels = np.split(batch.images, cuts), np.split(batch.labels, cuts)
                yield dict(zip([*self.images, *self.labels], [*images, *labels], strict=True))


async def main() -> None:
    parser = argparse.ArgumentParser(description="Train a Network in Network at several places.")
    parser.add_argument("directory", type=Path, nargs="?", metavar="DIR", help="where CIFAR-10 is")
    parser.add_argument("--places", nargs="+", help="by default one for each rank, or four of one rank")
    parser.add_argument("--scheme", choices=("allreduce", "server", "aggregate"), default="allreduce")
    parser.add_argument("--steps", type=int, help="of training (default: 50,000, 20 without DIR)")
    parser.add_argument("--batch", type=int, help="images per step, at all places together (default: 128, or 30)")
    parser.add_argument("--width", type=int, help="channels of most layers (default: 192, or 24)")
    parser.add_argument("--rate", type=float, default=0.02, help="of learning, of the weights")
    options = parser.parse_args()
    for name, of_the_paper, small in (("steps", 50_000, 20), ("batch", 128, 30), ("width", 192, 24)):
        if getattr(options, name) is None:
            setattr(options, name, small if options.directory is None else of_the_paper)
    world = af.world()
    places = options.places or (
        ["cpu", "sim:0", "sim:1", "sim:2"] if world.size == 1 else [f"{rank}/cpu" for rank in range(world.size)]
    )
    data, classes = noise(), 2
    if options.directory is not None:
        try:
            cifar = af.data.cifar10(options.directory).standardized()
        except af.DataError as error:
            raise SystemExit(str(error)) from error
        data, classes = cifar.train, len(cifar.classes)
    training = Training(places, classes, options)

    every, number = max(1, options.steps // 10), 0
    async with training.graph as graph:
        feeds = islice(training.feeds(data), options.steps)
        async for result in graph.stream(feeds, fetch=[training.loss, training.train], in_flight=2):
            number += 1
            if training.loss in result and number % every == 0:  # a rank gets what lives there
                found = float(af.to_numpy(result[training.loss]))
                print(f"step {number:,} of {options.steps:,}: loss {found:.3f}", flush=True)


af.run(main())
