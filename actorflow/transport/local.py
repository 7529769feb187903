"""All ranks in one process, on one loop: for programs without MPI, and for tests of those with it."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import PeerLostError, TransportError
from actorflow.transport.base import Group, Listener, Received, Sent, Transport, flat
from actorflow.transport.inbox import Inbox
from actorflow.transport.mail import Mail
from actorflow.transport.reduction import OPERATIONS, check_reduction

__all__ = ["LocalTransport", "LocalWorld"]

_MAX_TAG = (1 << 31) - 1


class LocalWorld:
    """Ranks that live in this process and share a loop.

    Args:
        size: How many.
        seed: Deliver as a network might: messages of different ranks and tags overtake each other and take some turns
            of the loop, reproducibly. Without it, everything arrives at the next turn, in order.

    Attributes:
        transports: One per rank.
    """

    def __init__(self, size: int, seed: int | None = None) -> None:
        self.mail = Mail(None if seed is None else random.Random(seed))  # noqa: S311  no secret
        self.dead: list[int] = []
        self.streams: dict[tuple[int, int, int], _Stream] = {}
        self.reductions: dict[tuple[tuple[int, ...], int], _Reduction] = {}
        self.transports = tuple(LocalTransport(self, rank, size) for rank in range(size))

    def kill(self, rank: int) -> None:
        """Have a rank die: it does and hears nothing any more, and the others find out. Idempotent."""
        if rank in self.dead:
            return
        self.leave(rank)
        self.dead.append(rank)
        error = PeerLostError(rank)
        for (source, target, tag), stream in self.streams.items():
            if source == rank:
                while stream.receives:
                    _, received = stream.receives.popleft()
                    self.mail.put(("received", source, target, tag), target, received, 0, error)
            elif target == rank:
                while stream.sends:
                    _, sent = stream.sends.popleft()
                    self.mail.put(("sent", source, target, tag), source, sent, error)
        for reduction in list(self.reductions.values()):
            if rank in reduction.ranks:
                reduction.end(error)
        for transport in self.transports:
            self.mail.put(("notes", rank, transport.rank), transport.rank, transport.inbox.hear_of_death, rank)

    def close(self) -> None:
        """Close all transports."""
        for transport in self.transports:
            transport.close()

    def leave(self, rank: int) -> None:
        """Drop what a rank has under way; nothing is called back there any more."""
        self.transports[rank].closed = True
        self.mail.drop(rank)
        for (source, target, _), stream in self.streams.items():
            if source == rank:
                stream.sends.clear()
            elif target == rank:
                stream.receives.clear()
        for reduction in self.reductions.values():
            reduction.parts.pop(rank, None)

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """See `Transport.bind`; what was under way on a loop that has ended is given up."""
        if self.mail.loop is loop:
            return
        waiting = any(stream.sends or stream.receives for stream in self.streams.values())
        if waiting or self.reductions or self.mail.is_busy:
            if self.mail.loop is not None and not self.mail.loop.is_closed():
                raise TransportError("ranks of this process have messages under way on another event loop")
            self.streams.clear()
            self.reductions.clear()
        self.mail.bind(loop)

    def stream(self, source: int, target: int, tag: int) -> _Stream:
        """The messages of one tag from one rank to another."""
        key = source, target, tag
        stream = self.streams.get(key)
        if stream is None:
            stream = self.streams[key] = _Stream(self.mail, *key)
        return stream


class _Stream:
    """Messages of one tag between two ranks that wait for the other side."""

    __slots__ = ("key", "mail", "receives", "sends")

    def __init__(self, mail: Mail, source: int, target: int, tag: int) -> None:
        self.mail = mail
        self.key = (source, target, tag)
        self.sends: deque[tuple[memoryview, Sent]] = deque()
        self.receives: deque[tuple[memoryview, Received]] = deque()

    def added(self) -> None:
        """One more is there, on either side."""
        if self.sends and self.receives:
            self.mail.put(self.key, None, self._deliver)

    def _deliver(self) -> None:
        if not self.sends or not self.receives:  # a rank has left, or what came first took more than one
            return
        data, sent = self.sends.popleft()
        buffer, received = self.receives.popleft()
        source, target, tag = self.key
        error = None
        if len(data) == len(buffer):
            buffer[:] = data
        elif len(data):
            error = TransportError(
                f"a message of {len(data):,} bytes from rank {source} to rank {target}, tag {tag}, where "
                f"{len(buffer):,} are expected"
            )
        self.mail.put(("received", *self.key), target, received, len(data), error)
        self.mail.put(("sent", *self.key), source, sent, None)


class LocalTransport(Transport):
    """One rank of a `LocalWorld`.

    Attributes:
        world: The ranks.
        closed: Whether it does nothing any more.
    """

    name = "local"

    def __init__(self, world: LocalWorld, rank: int, size: int) -> None:
        super().__init__(rank, size, _MAX_TAG)
        self.world = world
        self.closed = False
        self.inbox = Inbox(partial(world.mail.put, ("listener", rank), rank))
        self._groups: dict[tuple[int, ...], LocalGroup] = {}

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self.world.bind(loop)

    def close(self) -> None:
        if not self.closed:
            self.world.leave(self.rank)
        self.inbox.clear()

    def send(self, rank: int, tag: int, data: memoryview, done: Sent) -> None:
        self.check_address(rank, tag)
        if self.is_open():
            if rank in self.world.dead:
                self.world.mail.put(("sent", self.rank, rank, tag), self.rank, done, PeerLostError(rank))
                return
            stream = self.world.stream(self.rank, rank, tag)
            stream.sends.append((flat(data), done))
            stream.added()

    def receive(self, rank: int, tag: int, buffer: memoryview, done: Received) -> None:
        self.check_address(rank, tag)
        if self.is_open():
            if rank in self.world.dead:
                self.world.mail.put(("received", rank, self.rank, tag), self.rank, done, 0, PeerLostError(rank))
                return
            stream = self.world.stream(rank, self.rank, tag)
            stream.receives.append((flat(buffer), done))
            stream.added()

    def post(self, rank: int, note: bytes) -> None:
        if rank != self.rank:
            self.check_rank(rank)
        if self.is_open():
            other = self.world.transports[rank]
            self.world.mail.put(("notes", self.rank, rank), rank, other.inbox.hear, self.rank, bytes(note))

    def listen(self, listener: Listener | None) -> None:
        if not self.closed:
            self.inbox.listen(listener)

    def group(self, ranks: Sequence[int]) -> LocalGroup:
        ascending = self.check_group(ranks)
        group = self._groups.get(ascending)
        if group is None:
            group = self._groups[ascending] = LocalGroup(self, ascending)
        return group

    def is_open(self) -> bool:
        """False for a dead rank, which does nothing.

        Raises:
            TransportError: if the transport was closed.
        """
        if self.closed and self.rank not in self.world.dead:
            raise TransportError(f"the transport of rank {self.rank} is closed")
        if self.world.mail.loop is None:
            raise TransportError(f"the transport of rank {self.rank} has no event loop: bind it first")
        return not self.closed


@dataclass(slots=True)
class _Part:
    """What one rank brought to a reduction."""

    operation: str
    source: npt.NDArray[Any]
    target: npt.NDArray[Any]
    done: Sent


class _Reduction:
    """One collective call: waits until all ranks of the group have made it."""

    def __init__(self, world: LocalWorld, ranks: tuple[int, ...], number: int) -> None:
        self.world = world
        self.ranks = ranks
        self.number = number
        self.parts: dict[int, _Part] = {}

    def add(self, rank: int, part: _Part) -> None:
        """A rank makes the call."""
        self.parts[rank] = part
        if len(self.parts) == len(self.ranks):
            self.world.mail.put(("reduction", self.ranks), None, self._reduce)

    def end(self, error: BaseException | None) -> None:
        """Tell the ranks that have made the call how it ended."""
        self.world.reductions.pop((self.ranks, self.number), None)
        for rank, part in self.parts.items():
            self.world.mail.put(("reduced", self.ranks, rank), rank, part.done, error)
        self.parts.clear()

    def _reduce(self) -> None:
        if len(self.parts) < len(self.ranks):  # one has left, or died
            return
        parts = [self.parts[rank] for rank in self.ranks]
        kinds = {rank: f"{p.operation} of {p.source.dtype}{list(p.source.shape)}" for rank, p in self.parts.items()}
        if len(set(kinds.values())) > 1:
            self.end(TransportError(f"the ranks do not reduce the same: {kinds}"))
            return
        total = parts[0].source.copy()
        for part in parts[1:]:
            OPERATIONS[part.operation](total, part.source, out=total)
        for part in parts:
            np.copyto(part.target, total)
        self.end(None)


class LocalGroup(Group):
    """Some ranks of a `LocalWorld`."""

    def __init__(self, transport: LocalTransport, ranks: tuple[int, ...]) -> None:
        super().__init__(ranks)
        self._transport = transport
        self._calls = 0

    def all_reduce(self, operation: str, source: Any, target: Any, done: Sent) -> None:
        check_reduction(operation, source, target)
        transport, world = self._transport, self._transport.world
        if not transport.is_open():
            return
        key = self.ranks, self._calls
        self._calls += 1
        lost = [rank for rank in world.dead if rank in self.ranks]
        if lost:
            world.mail.put(("reduced", self.ranks, transport.rank), transport.rank, done, PeerLostError(lost[0]))
            return
        reduction = world.reductions.get(key)
        if reduction is None:
            reduction = world.reductions[key] = _Reduction(world, *key)
        reduction.add(transport.rank, _Part(operation, source, target, done))
