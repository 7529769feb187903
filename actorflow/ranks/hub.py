"""Routes the notes of one transport to the graphs that they are for, and gathers values of all ranks by notes.

Values of each rank are told to all for decisions that all must make alike, such as which checkpoint to load.
"""

from __future__ import annotations

import asyncio
import copy
import json
import weakref
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from actorflow.errors import PeerFailedError, PeerLostError, TransportError
from actorflow.transport.base import Listener, PeerError, Transport

_GRAPHS = 8  # that find tags at least, however many programs each has
_HUB = ""  # key of what hubs tell each other; graphs' keys have a number behind


@dataclass(slots=True)
class Done:
    """Progress of a rank with one graph: the others can end without it what it has done its part of."""

    plans: int = 0  # selections of ops that it has compared with the others
    frames: int = 0  # frames that exchange messages and that it has started; their serial numbers begin at 0
    streams: int = 0  # streams that it has ended
    running: set[int] = field(default_factory=set)  # the frames among these that have not ended

    @property
    def ended(self) -> int:
        """Serial number of the first frame that has not ended."""
        return min(self.running, default=self.frames)


@dataclass(slots=True)
class Gone:
    """A rank that has left."""

    error: PeerFailedError  # raised by what cannot end without it
    last_words: dict[str, Done]  # its progress, by the key of the graph

    def done(self, key: str) -> Done:
        """Its progress with a graph; it may never have run that."""
        return self.last_words.get(key, Done())


class Recipient(ABC):
    """Receives what the counterparts of a graph on the other ranks say."""

    @abstractmethod
    def heard(self, rank: int, kind: str, *content: Any) -> None:
        """Its counterpart on a rank has said something (`Hub.post`)."""

    @abstractmethod
    def fail(self, error: TransportError) -> None:
        """Nothing more can end: a rank has died or does not answer, or this rank's own transport is being closed."""

    @abstractmethod
    def left(self, error: PeerFailedError, done: Done) -> None:
        """A rank has closed its transport; ``done`` is the progress of the counterpart there."""

    @abstractmethod
    def awaited(self) -> Collection[int]:
        """The ranks that it waits for."""


class Hub(Listener):
    """Routes the notes of one transport.

    Graphs of one name are told apart by the order in which they first run, which is the same on all ranks.

    Attributes:
        lost: Ranks that have died or do not answer, and this one when its transport is closed.
        done: Progress of this rank, by the key of the graph. Kept when the graph is gone.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport  # whose notes
        self.lost: dict[int, TransportError] = {}
        self.gone: dict[int, Gone] = {}  # ranks that have left
        self.done: dict[str, Done] = {}
        self._tags: list[tuple[str, int, int]] = []  # on rank 0: key of a graph, its first tag, and the one behind its
        self._recipients: weakref.WeakValueDictionary[str, Recipient] = weakref.WeakValueDictionary()
        self._counts: dict[str, int] = {}
        self._early: dict[str, list[tuple[int, str, list[Any]]]] = {}
        self._last_words: dict[int, dict[str, Done]] = {}
        self._listens = False

    def open(self, name: str, recipient: Recipient) -> str:
        """Make a recipient known; returns its key for `post`."""
        count = self._counts[name] = self._counts.get(name, -1) + 1
        key = f"{name}#{count}"
        self._recipients[key] = recipient
        return key

    def tags_for(self, key: str, count: int) -> int | None:
        """On rank 0: the first of so many tags for a program of a graph; None if other graphs have too many.

        Programs of one graph may have the same ones, as each frame is of one program; those of several may not.
        """
        most = self.transport.max_tag
        self._tags = taken = [each for each in self._tags if each[0] in self._recipients]
        own = [(first, end - first) for owner, first, end in taken if owner == key]
        shared = next((first for first, size in own if size >= count), None)
        if shared is not None and sum(size for _, size in own) + count > most // _GRAPHS:
            return shared
        for first in sorted({0, *(end for _, _, end in taken)}):
            if first + count <= most and all(end <= first or first + count <= begin for _, begin, end in taken):
                taken.append((key, first, first + count))
                return first
        return shared

    def bind(self, loop: asyncio.AbstractEventLoop, key: str) -> None:
        """Name the loop that notes come on; tell the recipient what its counterparts said before it was known."""
        self.transport.bind(loop)
        if not self._listens:
            self._listens = True
            self.transport.listen(self)
        for rank, kind, content in self._early.pop(key, ()):
            self._recipients[key].heard(rank, kind, *content)

    def post(self, key: str, rank: int, kind: str, *content: Any) -> None:
        """Say something to the counterpart on a rank; ``content`` can be written as JSON."""
        if rank not in self.lost and rank not in self.gone and self.transport.rank not in self.lost:
            self.transport.post(rank, json.dumps([key, kind, content]).encode())

    def heard(self, rank: int, note: bytes) -> None:
        key, kind, content = json.loads(note)
        if key == _HUB:
            self._last_words[rank] = {its: Done(*done) for its, done in content.items()}
            return
        recipient = self._recipients.get(key)
        if recipient is not None:
            recipient.heard(rank, kind, *content)
        elif int(key.rpartition("#")[2]) > self._counts.get(key.rpartition("#")[0], -1):
            self._early.setdefault(key, []).append((rank, kind, content))

    def leaving(self) -> None:
        closed = TransportError(f"the transport of rank {self.transport.rank} is closed")
        for recipient in list(self._recipients.values()):
            recipient.fail(closed)
        words = {key: (done.plans, done.ended, done.streams) for key, done in self.done.items()}
        note = json.dumps([_HUB, "leaving", words]).encode()
        for rank in range(self.transport.size):
            if rank != self.transport.rank and rank not in self.lost and rank not in self.gone:
                self.transport.post(rank, note)
        self.lost[self.transport.rank] = closed

    def ended(self, error: PeerError) -> None:
        rank = error.rank
        if isinstance(error, PeerLostError):
            self.lost[rank] = error
            for recipient in list(self._recipients.values()):
                recipient.fail(error)
            return
        self.gone[rank] = Gone(error, self._last_words.pop(rank, {}))
        for key, recipient in list(self._recipients.items()):
            recipient.left(error, self.gone[rank].done(key))

    def awaited(self) -> Collection[int]:
        return set().union(*[recipient.awaited() for recipient in list(self._recipients.values())])


def hub_of(transport: Transport) -> Hub:
    """The hub of a transport, which keeps it."""
    hub = transport.hub
    if hub is None:
        hub = transport.hub = Hub(transport)
    assert isinstance(hub, Hub)
    return hub


async def gather(world: Transport, topic: str, value: Any) -> list[Any]:
    """Wait until all ranks have called this, and return what each has said.

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
