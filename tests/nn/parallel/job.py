"""Each rank of an MPI job trains at all ranks, and alone, and compares the variables that it has."""

from collections.abc import Callable
from typing import Any

import numpy as np

import actorflow as af
from actorflow import nn, ops
from actorflow.nn.parallel import DataParallel, PipelineParallel
from actorflow.transport.base import Transport
from actorflow.transport.local import LocalWorld

BATCH, STEPS = 10, 4
Make = Callable[[list[str]], Any]


def data_parallel(scheme: str) -> Make:
    def make(places: list[str]) -> DataParallel:
        return DataParallel(nn.LeNet(4, (2, 3, 5)), places, scheme=scheme, loss=ops.softmax_loss)

    return make


def pipeline(schedule: str) -> Make:
    def make(places: list[str]) -> PipelineParallel:
        stages = [nn.Conv(2, 3, activation="tanh", name="conv")]
        stages += [nn.InnerProduct(4, activation="tanh", name=f"inner{i}") for i in range(3)]
        micro_batches = 5 if len(set(places)) > 1 else 1
        return PipelineParallel(stages, places, micro_batches, loss=ops.softmax_loss, schedule=schedule)

    return make


async def trained(make: Make, places: list[str], world: Transport, in_flight: int) -> dict[str, np.ndarray]:
    """The variables of the network that live here."""
    graph = af.Graph("g", world=world)
    x, labels = graph.blob("x", (BATCH, 16, 16, 1), "float64"), graph.blob("labels", BATCH, "int64")
    model = make(places)
    loss = model(x, labels)
    train = model.minimize(nn.SGD(0.1, momentum=0.9))
    random = np.random.default_rng(0)
    feeds = [{x: random.standard_normal(x.shape), labels: random.integers(0, 4, BATCH)} for _ in range(STEPS)]
    async with graph:
        async for _ in graph.stream(feeds, fetch=[loss, train], in_flight=in_flight):
            pass
        here = [variable for variable in model.variables if variable.place.rank == world.rank]
        return {variable.name: variable.value.copy() for variable in here}


async def main() -> None:
    world = af.world()
    schemes = {scheme: data_parallel(scheme) for scheme in ("allreduce", "server", "aggregate")}
    stages = {schedule: pipeline(schedule) for schedule in ("gpipe", "1f1b")}
    for name, make in (schemes | stages).items():
        alone = ["cpu"] if name in schemes else ["cpu"] * world.size
        expected = await trained(make, alone, LocalWorld(1).transports[0], 1)
        for in_flight in (1, 3):
            found = await trained(make, [f"{rank}/cpu" for rank in range(world.size)], world, in_flight)
            for variable, value in found.items():
                first = variable.replace(f"/replica{world.rank}/", "/replica0/")
                np.testing.assert_allclose(value, expected[first], rtol=0, atol=1e-12, err_msg=variable)
            line = f"rank {world.rank}: {name}, {in_flight} in flight, {len(found)} variables\n"
            print(line, end="", flush=True)  # in one piece


if __name__ == "__main__":
    af.run(main())
