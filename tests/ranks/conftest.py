"""Several ranks of one process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import actorflow as af
from actorflow.transport.base import Transport
from actorflow.transport.local import LocalWorld

Build = Callable[[af.Graph], Any]


class Ranks:
    """A graph on several ranks.

    Attributes:
        local: The ranks.
        graphs: One each.
        built: What ``build`` returned on each rank.
    """

    def __init__(self, build: Build, size: int = 2, seed: int | None = None, **options: Any) -> None:
        self.local = LocalWorld(size, seed)
        self.graphs = [af.Graph("ranks", world=transport, **options) for transport in self.local.transports]
        self.built = [build(graph) for graph in self.graphs]

    async def all(self, work: Callable[[af.Graph, Any], Awaitable[Any]]) -> list[Any]:
        """Do something on all ranks at once; results, or what it raised, by rank."""
        async with asyncio.timeout(100):
            pairs = zip(self.graphs, self.built, strict=True)
            return await asyncio.gather(*(work(*pair) for pair in pairs), return_exceptions=True)

    async def aclose(self) -> None:
        await self.all(lambda graph, _: graph.aclose())
        for transport in self.local.transports:
            transport.close()


@pytest.fixture
def world_of() -> Iterator[Callable[[int], tuple[Transport, ...]]]:
    """Makes the ranks of a world; they are closed at the end."""
    made: list[Transport] = []

    def make(size: int) -> tuple[Transport, ...]:
        made.extend(transports := LocalWorld(size).transports)
        return transports

    yield make
    for transport in made:
        transport.close()
