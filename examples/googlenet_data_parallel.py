"""Train GoogLeNet at the twelve places of Purine2's example: four ranks with three devices each, a parameter server.

Run it with ``mpiexec -n 4 python -m mpi4py examples/googlenet_data_parallel.py``, or without MPI: then one process has
all twelve. The devices are simulated accelerators, unless ``--device cuda`` says otherwise. The images are small and
random, and each place gets its share of them; ImageNet's sizes are ``--size 224 --batch 768 --auxiliary``.

Settings are those of Purine2: rate 0.01 * (1 - step / steps) ** 0.5 (biases twice), momentum 0.9, decay 1e-4 of the
weights, dropout 0.4, biases 0.2. There one server had all 116 parameters; here the hosts of all ranks share them.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

import actorflow as af
from actorflow import nn


async def main() -> None:
    parser = argparse.ArgumentParser(description="Train GoogLeNet at twelve places.")
    parser.add_argument("--device", default="sim", help="kind of the devices: sim (the default), cuda")
    parser.add_argument("--places", type=int, default=12, help="in all, the same number on each rank")
    parser.add_argument("--scheme", choices=("allreduce", "server", "aggregate"), default="server")
    parser.add_argument("--steps", type=int, default=10, help="of training")
    parser.add_argument("--batch", type=int, default=24, help="images per step, at all places together")
    parser.add_argument("--size", type=int, default=47, help="height and width of the images, 47 at least")
    parser.add_argument("--auxiliary", action="store_true", help="with auxiliary heads; images of 130x130 at least")
    options = parser.parse_args()
    ranks = af.world().size
    if options.places % ranks:
        raise SystemExit(f"--places must be a multiple of the number of ranks, {ranks}, got {options.places}")
    places = [f"{rank}/{options.device}:{index}" for rank in range(ranks) for index in range(options.places // ranks)]
    servers = None if options.scheme == "allreduce" else [f"{rank}/cpu" for rank in range(ranks)]

    graph = af.Graph("googlenet")
    images = graph.blob("images", (options.batch, options.size, options.size, 3))
    labels = graph.blob("labels", options.batch, "int64")
    network = nn.GoogLeNet(10, dropout=0.4, auxiliary=options.auxiliary)
    model = nn.parallel.DataParallel(network, places, scheme=options.scheme, loss=network.loss, servers=servers)
    loss = model(images, labels)
    rate = nn.rates.Poly(0.01, options.steps, power=0.5)
    train = model.minimize(nn.SGD(rate, momentum=0.9, weight_decay=1e-4, multipliers=nn.bias_multipliers))

    def feeds() -> Iterator[dict[Any, Any]]:
        for step in range(options.steps):
            random = np.random.default_rng(step)
            which = random.integers(0, 10, options.batch)
            shown = random.standard_normal(images.shape, "f") + which.astype("f")[:, None, None, None]
            yield {images: shown, labels: which}

    number = 0
    async with graph:
        async for result in graph.stream(feeds(), fetch=[loss, train], in_flight=2):
            number += 1
            if loss in result:  # a rank gets what lives there
                found = float(af.to_numpy(result[loss]))
                print(f"step {number} of {options.steps}, {len(places)} places: loss {found:.3f}", flush=True)


af.run(main())
