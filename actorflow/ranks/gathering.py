"""Values of each rank, told to all: for decisions that all must make alike, such as which checkpoint to load."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Collection
from typing import Any

from actorflow.errors import PeerFailedError, TransportError
from actorflow.ranks.hub import Done, Recipient, hub_of
from actorflow.transport.base import Transport


async def gather(world: Transport, topic: str, value: Any) -> list[Any]:
    """Wait until all ranks have called this, and return what each has said.

    Args:
        world: The ranks.
        topic: Subject; calls of one topic are matched in their order.
        value: Can be written as JSON.
    Returns:
        The values by rank.
    Raises:
        PeerLostError, PeerFailedError: if a rank is lost, or has left without calling this.
    """
    if world.size == 1:
        return [value]
    gathering = _Gathering(world)
    hub = hub_of(world)
    for error in hub.lost.values():
        raise copy.copy(error)
    key = hub.open(f"gather {topic}", gathering)
    hub.bind(asyncio.get_running_loop(), key)
    for gone in hub.gone.values():
        gathering.left(gone.error, gone.done(key))
    for rank in range(world.size):
        hub.post(key, rank, "value", value)
    return await gathering.complete


class _Gathering(Recipient):
    """Collects a value of each rank."""

    def __init__(self, world: Transport) -> None:
        self.complete: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._values: dict[int, Any] = {}
        self._size = world.size

    def heard(self, rank: int, kind: str, *content: Any) -> None:
        (self._values[rank],) = content
        if len(self._values) == self._size and not self.complete.done():
            self.complete.set_result([self._values[rank] for rank in range(self._size)])

    def fail(self, error: TransportError) -> None:
        if not self.complete.done():
            self.complete.set_exception(copy.copy(error))

    def left(self, error: PeerFailedError, done: Done) -> None:
        if error.rank not in self._values and not self.complete.done():
            self.complete.set_exception(copy.copy(error))

    def awaited(self) -> Collection[int]:
        return () if self.complete.done() else set(range(self._size)) - self._values.keys()


class Announcements(Recipient):
    """Values that ranks announce about a topic, each at a time of its own; nothing waits for them.

    Args:
        world: The ranks.
        topic: Subject; announcements of one topic are told apart by the order in which a rank makes them.
    Attributes:
        said: Values that each rank, this one included, is known to have said.
    """

    def __init__(self, world: Transport, topic: str) -> None:
        self.said: list[set[Any]] = [set() for _ in range(world.size)]
        self._hub = hub_of(world)
        self._key = self._hub.open(f"announcements of {topic}", self)

    def say(self, value: Any) -> None:
        """Say a value to all ranks; it can be written as JSON, and be in a set."""
        self._hub.bind(asyncio.get_running_loop(), self._key)
        for rank in range(len(self.said)):
            self._hub.post(self._key, rank, "value", value)

    def heard(self, rank: int, kind: str, *content: Any) -> None:
        self.said[rank].update(content)

    def fail(self, error: TransportError) -> None:
        """Do nothing: no more values come, and nothing waits for them."""

    def left(self, error: PeerFailedError, done: Done) -> None:
        """Do nothing: no more values come from that rank, and nothing waits for them."""

    def awaited(self) -> Collection[int]:
        return ()
