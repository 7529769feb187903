"""Tensors on their way between ranks."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import NamedTuple

from mpi4py import MPI

from actorflow.errors import TransportError
from actorflow.transport.base import Received, Sent
from actorflow.transport.mpi.bell import Bell
from actorflow.transport.mpi.chunks import Row, chunks
from actorflow.transport.mpi.failures import Failures
from actorflow.transport.mpi.table import Call, Ended, Entry, Table


class Link(NamedTuple):
    """What messages of all kinds need.

    Attributes:
        table: Where requests go.
        bell: Wakes the other side.
        failures: Knows who has died.
        chunk_bytes: The most that one message of MPI carries.
    """

    table: Table
    bell: Bell
    failures: Failures
    chunk_bytes: int


class Edges:
    """Sends and receives messages of any size.

    A message is one of MPI's if it is not larger than a chunk, else several with the same tag. The receiver asks for
    the others when the first has come, as a message may be empty instead.

    Args:
        comm: For these messages alone.
        link: What they need.
    """

    def __init__(self, comm: MPI.Intracomm, link: Link) -> None:
        self.comm = comm
        self.link = link
        self._streams: dict[tuple[int, int], _Stream] = {}
        self._later: dict[tuple[int, int], deque[_Outgoing]] = {}  # behind a message in parts

    def send(self, rank: int, tag: int, data: memoryview, done: Sent) -> None:
        """See `Transport.send`."""
        link = self.link
        ended: Ended = partial(self._sent, rank, tag, done, link.table.loop)
        later = self._later.get((rank, tag))
        if later is not None:
            later.append((data, ended))
        else:
            self._start(rank, tag, data, ended)

    def receive(self, rank: int, tag: int, buffer: memoryview, done: Received) -> None:
        """See `Transport.receive`."""
        stream = self._streams.get((rank, tag))
        if stream is None:
            stream = self._streams[rank, tag] = _Stream(self, rank, tag)
        stream.add(_Incoming(buffer, done))
        self.link.bell.nudge(rank)

    def forget(self, rank: int, tag: int) -> None:
        """Nothing is asked for there any more."""
        self._streams.pop((rank, tag), None)

    def clear(self) -> None:
        """Forget what was asked for; what was sent stays in its order."""
        self._streams.clear()

    def _start(self, rank: int, tag: int, data: memoryview, ended: Ended) -> None:
        parts = chunks(data, self.link.chunk_bytes)

        def start(part: memoryview, part_ended: Ended) -> None:
            request = partial(self.comm.Issend, (part, MPI.BYTE), rank, tag)
            self.link.table.start(request, Entry((rank,), False, part_ended, ("send", rank)))

        if len(parts) == 1:
            start(data, ended)
        else:
            self._later[rank, tag] = deque()
            Row(parts, start, partial(self._row_sent, rank, tag, ended))
        self.link.bell.ring(rank)

    def _row_sent(self, rank: int, tag: int, ended: Ended, count: int, code: int) -> None:
        """A message in parts is through: go on with those behind it, up to the next of its kind."""
        self._start_later(rank, tag, code)
        ended(count, code)  # last, as it may close the transport

    def _start_later(self, rank: int, tag: int, code: int) -> None:
        later = self._later.pop((rank, tag), deque())
        while later:
            data, following = later.popleft()
            if code:
                self.link.table.call_soon(following, 0, code)
                continue
            self._start(rank, tag, data, following)
            if (rank, tag) in self._later:
                self._later[rank, tag] = later
                return

    def _sent(self, rank: int, tag: int, done: Sent, loop: asyncio.AbstractEventLoop | None, _: int, code: int) -> None:
        if loop is not self.link.table.loop:
            return
        done(self.link.failures.error(code, (rank,), f"sending to rank {rank}, tag {tag}") if code else None)


#: A message to be sent, and what is called when it has been.
_Outgoing = tuple[memoryview, Ended]


class _Incoming:
    """A message that is wanted."""

    __slots__ = ("buffer", "count", "done", "error", "has_ended")

    def __init__(self, buffer: memoryview, done: Received) -> None:
        self.buffer = buffer
        self.done = done
        self.count = 0
        self.error: TransportError | None = None
        self.has_ended = False


class _Stream:
    """Messages of one rank with one tag that are wanted; each is told of when those before it have been.

    The chunks of a message have one tag: what is wanted after a large one is asked for when that has come.
    """

    __slots__ = ("_edges", "_large", "_rank", "_tag", "_unasked", "_wanted")

    def __init__(self, edges: Edges, rank: int, tag: int) -> None:
        self._edges = edges
        self._rank = rank
        self._tag = tag
        self._wanted: deque[_Incoming] = deque()
        self._unasked: deque[_Incoming] = deque()
        self._large: _Incoming | None = None  # under way

    def add(self, incoming: _Incoming) -> None:
        """One more is wanted."""
        self._wanted.append(incoming)
        if self._large is None:
            self._ask(incoming)
        else:
            self._unasked.append(incoming)

    def _ask(self, incoming: _Incoming) -> None:
        link, ended = self._edges.link, self._came
        if len(incoming.buffer) > link.chunk_bytes:
            self._large, ended = incoming, self._first_came
        self._start(incoming.buffer[: link.chunk_bytes], partial(ended, incoming))

    def _start(self, buffer: memoryview, ended: Ended) -> None:
        start = partial(self._edges.comm.Irecv, (buffer, MPI.BYTE), self._rank, self._tag)
        self._edges.link.table.start(start, Entry((self._rank,), True, ended, ("receive", self._rank)))

    def _first_came(self, incoming: _Incoming, count: int, code: int) -> None:
        limit = self._edges.link.chunk_bytes
        if code or count != limit:
            self._came(incoming, count, code)
            return
        Row(chunks(incoming.buffer[limit:], limit), self._start, partial(self._rest_came, incoming))
        self._edges.link.bell.nudge(self._rank)

    def _rest_came(self, incoming: _Incoming, count: int, code: int) -> None:
        self._came(incoming, count + self._edges.link.chunk_bytes, code)

    def _came(self, incoming: _Incoming, count: int, code: int) -> None:
        """A message has come, or will not."""
        link, expected = self._edges.link, len(incoming.buffer)
        link.bell.heard(self._rank)
        if code:
            doing = f"receiving {expected:,} bytes from rank {self._rank}, tag {self._tag}"
            incoming.error = link.failures.error(code, (self._rank,), doing)
        elif count and count != expected:
            incoming.error = TransportError(
                f"a message of {count:,} bytes from rank {self._rank}, tag {self._tag}, where {expected:,} are expected"
            )
        incoming.count = count
        incoming.has_ended = True
        if incoming is self._large:
            self._large = None
            while self._unasked and self._large is None:
                self._ask(self._unasked.popleft())
        calls: list[Call] = []
        while self._wanted and self._wanted[0].has_ended:
            first = self._wanted.popleft()
            calls.append((first.done, (first.count, first.error)))
        if not self._wanted:
            self._edges.forget(self._rank, self._tag)
        link.table.call(calls)
