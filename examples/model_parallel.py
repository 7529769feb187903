"""Train a network whose layers live at different places, on parts of each batch at a time: pipeline parallel.

Run it with ``python examples/model_parallel.py``: three places of one process, two of them simulated accelerators. Or
with a process for each place: ``mpiexec -n 3 python -m mpi4py examples/model_parallel.py``.

Each place holds the weights of its own layers alone. A batch is cut into micro-batches; while the last place works on
the first one, those before it are at the next ones already. The weights are those of the whole batch at one place.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

import actorflow as af
from actorflow import nn, ops


def stages(count: int, width: int) -> list[af.Composite]:
    """A network that tells which of two spirals a point is on, in several parts."""
    layers: list[af.Composite] = [
        nn.InnerProduct(width, activation="tanh", name=f"hidden{i}") for i in range(max(2, count - 1))
    ]
    layers.append(nn.InnerProduct(2, name="scores"))
    cuts = np.array_split(np.arange(len(layers)), count)
    return [af.Chain(*[layers[i] for i in cut], name=f"stage{n}") for n, cut in enumerate(cuts)]


def points(batch: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of two spirals, and which one each is of."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, batch)
    angle = random.uniform(0.5, 7.0, batch)
    turned = angle + np.pi * labels
    return np.column_stack([np.cos(turned), np.sin(turned)]).astype("f") * (angle / 3.5).astype("f")[:, None], labels


async def main() -> None:
    parser = argparse.ArgumentParser(description="Train a network in stages at several places.")
    parser.add_argument("--places", nargs="+", help="of the stages; by default one for each rank, or three of one rank")
    parser.add_argument("--steps", type=int, default=500, help="of training")
    parser.add_argument("--batch", type=int, default=256, help="points per step")
    parser.add_argument("--micro-batches", type=int, default=4, help="parts of a batch")
    parser.add_argument(
        "--schedule", choices=("gpipe", "1f1b"), default="1f1b", help="see nn.parallel.PipelineParallel"
    )
    options = parser.parse_args()
    world = af.world()
    places = options.places or (
        ["cpu", "sim:0", "sim:1"] if world.size == 1 else [f"{rank}/cpu" for rank in range(world.size)]
    )

    graph = af.Graph("spirals")
    x, labels = graph.blob("x", (options.batch, 2)), graph.blob("labels", options.batch, "int64")
    model = nn.parallel.PipelineParallel(
        stages(len(places), 32), places, options.micro_batches, loss=ops.softmax_loss, schedule=options.schedule
    )
    loss = model(x, labels)
    train = model.minimize(nn.Adam(0.01))

    def feeds() -> Iterator[dict[Any, Any]]:  # what another rank needs of them, the first one sends
        for step in range(options.steps):
            drawn, which = points(options.batch, step)
            yield {x: drawn, labels: which}

    every, number = max(1, options.steps // 10), 0
    async with graph:
        async for result in graph.stream(feeds(), fetch=[loss, train], in_flight=2):
            number += 1
            if loss in result and number % every == 0:  # a rank gets what lives there
                print(f"step {number:,} of {options.steps:,}: loss {float(af.to_numpy(result[loss])):.3f}", flush=True)


af.run(main())
