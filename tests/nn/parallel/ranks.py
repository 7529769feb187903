"""Runs one graph per rank, all in this process and on one loop."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import numpy as np

import actorflow as af
from actorflow.transport.local import LocalWorld

__all__ = ["Ranks", "size_of"]


def size_of(places: Iterable[str]) -> int:
    """Number of ranks that these places need."""
    return 1 + max(af.Place.parse(place).rank for place in places)


class Ranks:
    """The same graph on several ranks.

    Args:
        size: How many ranks.
        build: Makes the graph's contents; returns them by name: blobs, sub-graphs, composites.
        seed: As of `LocalWorld`.
    """

    def __init__(self, size: int, build: Callable[[af.Graph], Mapping[str, Any]], seed: int | None = None) -> None:
        world = LocalWorld(size, seed)
        self.graphs = [af.Graph("g", world=transport) for transport in world.transports]
        self.built = [build(graph) for graph in self.graphs]

    def __getitem__(self, name: str) -> Any:
        return self.built[0][name]

    async def stream(
        self, feeds: Sequence[Mapping[str, Any]], fetch: Sequence[str], in_flight: int = 1
    ) -> list[dict[str, np.ndarray]]:
        """Run a frame for each feed on all ranks, and close the graphs: what each frame gave, from whichever rank."""
        found: list[dict[str, np.ndarray]] = [{} for _ in feeds]

        async def run(graph: af.Graph, built: Mapping[str, Any]) -> None:
            targets = [built[name] for name in fetch]
            given = [{built[name]: value for name, value in feed.items()} for feed in feeds]
            frames = iter(found)
            async for result in graph.stream(given, fetch=targets, in_flight=in_flight):
                frame = next(frames)
                for name, target in zip(fetch, targets, strict=True):
                    if isinstance(target, af.Blob) and target.place.rank == graph.world.rank:
                        frame[name] = af.to_numpy(result[target])

        async with asyncio.timeout(60), AsyncExitStack() as stack:
            for graph in self.graphs:
                stack.callback(graph.world.close)
            for graph in self.graphs:
                await stack.enter_async_context(graph)
            async with asyncio.TaskGroup() as group:
                for graph, built in zip(self.graphs, self.built, strict=True):
                    group.create_task(run(graph, built))
        return found

    def value(self, variable: af.Variable) -> np.ndarray:
        """The value of a variable, from the rank where it lives."""
        value = self.graphs[variable.place.rank][variable.name].value
        assert isinstance(value, np.ndarray)
        return value
