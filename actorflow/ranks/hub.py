"""One transport, many graphs: notes find the engine that they are for."""

from __future__ import annotations

import asyncio
import json
import weakref
from abc import ABC, abstractmethod
from typing import Any

from actorflow.transport.base import Listener, Transport

__all__ = ["Hub", "Recipient", "hub_of"]


class Recipient(ABC):
    """What one graph's engine hears of its counterparts on the other ranks."""

    @abstractmethod
    def heard(self, rank: int, kind: str, *content: Any) -> None:
        """Its counterpart on a rank has said something (`Hub.post`)."""

    @abstractmethod
    def lost(self, rank: int) -> None:
        """A rank has died."""


class Hub(Listener):
    """Routes the notes of one transport.

    Graphs of one name are told apart by the order in which they first run, which is the same on all ranks.

    Attributes:
        transport: Whose notes.
        dead: Ranks that have died.
        tags: Where the next block of tags begins; rank 0 gives them out.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.dead: list[int] = []
        self.tags = 0
        self._recipients: weakref.WeakValueDictionary[str, Recipient] = weakref.WeakValueDictionary()
        self._counts: dict[str, int] = {}
        self._early: dict[str, list[tuple[int, str, list[Any]]]] = {}
        self._listens = False

    def open(self, name: str, recipient: Recipient) -> str:
        """Make an engine known; returns the key for `post`. What its counterparts have said already is told soon."""
        count = self._counts[name] = self._counts.get(name, -1) + 1
        key = f"{name}#{count}"
        self._recipients[key] = recipient
        return key

    def bind(self, loop: asyncio.AbstractEventLoop, key: str) -> None:
        """Name the loop that notes come on, and tell an engine what its counterparts said before it was known."""
        self.transport.bind(loop)
        if not self._listens:
            self._listens = True
            self.transport.listen(self)
        for rank, kind, content in self._early.pop(key, ()):
            self._recipients[key].heard(rank, kind, *content)

    def post(self, key: str, rank: int, kind: str, *content: Any) -> None:
        """Say something to the counterpart on a rank; ``content`` is what JSON can carry."""
        if rank not in self.dead:
            self.transport.post(rank, json.dumps([key, kind, content]).encode())

    def heard(self, rank: int, note: bytes) -> None:
        key, kind, content = json.loads(note)
        recipient = self._recipients.get(key)
        if recipient is not None:
            recipient.heard(rank, kind, *content)
        elif int(key.rpartition("#")[2]) > self._counts.get(key.rpartition("#")[0], -1):
            self._early.setdefault(key, []).append((rank, kind, content))

    def lost(self, rank: int) -> None:
        self.dead.append(rank)
        for recipient in list(self._recipients.values()):
            recipient.lost(rank)


def hub_of(transport: Transport) -> Hub:
    """The hub of a transport."""
    hub = _hubs.get(transport)
    if hub is None:
        hub = _hubs[transport] = Hub(transport)
    return hub


# The transport keeps its hub alive, as its listener.
_hubs: weakref.WeakKeyDictionary[Transport, Hub] = weakref.WeakKeyDictionary()
