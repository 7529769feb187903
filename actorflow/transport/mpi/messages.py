"""Messages between ranks over MPI: tensors on edges, and notes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from mpi4py import MPI

from actorflow.errors import TransportError
from actorflow.transport.base import Received, Sent
from actorflow.transport.mpi.deaths import Failures
from actorflow.transport.mpi.polling import Bell
from actorflow.transport.mpi.requests import Ended, Kind, Parts, Row, Table, chunks


class Link(NamedTuple):
    """Parts of the transport that messages of all kinds need."""

    table: Table  # where requests go
    bell: Bell  # wakes the other side
    failures: Failures  # the ranks that have died
    chunk_bytes: int  # the most that one message of MPI carries


class Edges:
    """Sends and receives messages of any size.

    A message is one of MPI's if it is not larger than a chunk, else several with the same tag. The receiver asks for
    the others when the first has come, as a message may be empty instead.
    """

    def __init__(self, comm: MPI.Intracomm, link: Link) -> None:
        self._comm = comm
        self.table, self.bell, self.failures, self.chunk_bytes = link
        self.sends = [Kind((rank,), False, ("send", rank)) for rank in range(comm.size)]
        self.receives = [Kind((rank,), True, ("receive", rank)) for rank in range(comm.size)]
        self.wanted: dict[tuple[int, int], _Incoming] = {}  # the last that was asked for, by rank and tag
        self._later: dict[tuple[int, int], deque[_Outgoing]] = {}  # behind a message in parts

    def send(self, rank: int, tag: int, data: memoryview, done: Sent) -> None:
        ended: Ended = partial(self._sent, rank, tag, done, self.table.loop)
        if self._later and (rank, tag) in self._later:
            self._later[rank, tag].append((data, ended))
        else:
            self._start(rank, tag, data, ended)

    def receive(self, rank: int, tag: int, buffer: memoryview, done: Received) -> None:
        before = self.wanted.get((rank, tag))
        self.wanted[rank, tag] = _Incoming(self, rank, tag, buffer, done, before)
        self.bell.nudge(rank)

    def clear(self) -> None:
        """Forget the receives asked for; messages sent stay in order."""
        self.wanted.clear()

    def _start(self, rank: int, tag: int, data: memoryview, ended: Ended) -> None:
        if len(data) <= self.chunk_bytes:
            self.table.start(self.sends[rank], ended, self._comm.Issend, data, rank, tag)
        else:
            self._later[rank, tag] = deque()

            def start(part: memoryview, ended: Ended) -> None:
                self.table.start(self.sends[rank], ended, self._comm.Issend, part, rank, tag)

            Row(chunks(data, self.chunk_bytes), start, partial(self._row_sent, rank, tag, ended))
        self.bell.ring(rank)

    def _row_sent(self, rank: int, tag: int, ended: Ended, count: int, code: int) -> None:
        """A message in parts is through: go on with those behind it, up to the next of its kind."""
        later = self._later.pop((rank, tag), deque())
        while later and (rank, tag) not in self._later:
            data, following = later.popleft()
            if code:
                self.table.call_soon(following, 0, code)
            else:
                self._start(rank, tag, data, following)
        if later:
            self._later[rank, tag] = later
        ended(count, code)  # last, as it may close the transport

    def _sent(self, rank: int, tag: int, done: Sent, loop: asyncio.AbstractEventLoop | None, _: int, code: int) -> None:
        if loop is not self.table.loop:
            return
        done(self.failures.error(code, (rank,), f"sending to rank {rank}, tag {tag}") if code else None)

    def ask(self, rank: int, tag: int, buffer: memoryview, ended: Ended) -> None:
        """Ask for a part of a message."""
        self.table.start(self.receives[rank], ended, self._comm.Irecv, buffer, rank, tag)


_Outgoing = tuple[memoryview, Ended]  # a message to be sent, and the function called when it has been


class _Incoming:
    """A message that is wanted; it is told of when those of its rank and tag before it have been.

    The chunks of a message have one tag: the message after a large one is asked for when that has come.
    """

    __slots__ = ("_after", "_blocks", "_buffer", "_done", "_edges", "_is_first", "_rank", "_result", "_tag")

    def __init__(
        self, edges: Edges, rank: int, tag: int, buffer: memoryview, done: Received, before: _Incoming | None
    ) -> None:
        self._edges = edges
        self._rank = rank
        self._tag = tag
        self._buffer = buffer
        self._done = done
        self._result: tuple[int, TransportError | None] | None = None  # the arguments for ``done``
        self._is_first = before is None
        self._after: _Incoming | None = None
        self._blocks = True  # the message after it cannot be asked for yet
        if before is not None:
            before._after = self
        if before is None or not before._blocks:
            self._ask()

    def _ask(self) -> None:
        buffer, limit = self._buffer, self._edges.chunk_bytes
        self._blocks = len(buffer) > limit
        if self._blocks:
            self._edges.ask(self._rank, self._tag, buffer[:limit], self._first_came)
        else:
            self._edges.ask(self._rank, self._tag, buffer, self._came)

    def _first_came(self, count: int, code: int) -> None:
        edges, limit = self._edges, self._edges.chunk_bytes
        if code or count != limit:
            self._came(count, code)
            return
        Row(chunks(self._buffer[limit:], limit), partial(edges.ask, self._rank, self._tag), self._rest_came)
        edges.bell.nudge(self._rank)

    def _rest_came(self, count: int, code: int) -> None:
        self._came(count + self._edges.chunk_bytes, code)

    def _came(self, count: int, code: int) -> None:
        edges, rank, expected = self._edges, self._rank, len(self._buffer)
        edges.bell.heard(rank)
        error: TransportError | None = None
        if code:
            error = edges.failures.error(
                code, (rank,), f"receiving {expected:,} bytes from rank {rank}, tag {self._tag}"
            )
        elif count and count != expected:
            error = TransportError(
                f"a message of {count:,} bytes from rank {rank}, tag {self._tag}, where {expected:,} are expected"
            )
        self._result = count, error
        if self._blocks:
            self._blocks = False
            after = self._after
            while after is not None:
                after._ask()
                after = None if after._blocks else after._after
        if self._is_first:
            self._tell()

    def _tell(self) -> None:
        """Tell of this one and of those behind it that have come."""
        incoming: _Incoming | None = self
        while incoming is not None:
            after = incoming._after
            if after is None:
                self._edges.wanted.pop((self._rank, self._tag), None)
            else:
                after._is_first = True
                if after._result is None:
                    after = None
            assert incoming._result is not None
            self._edges.table.call(incoming._done, *incoming._result)
            incoming = after


#: A note begins with its length, and with this if it is the last; bytes that do not fit beside that follow as a message
#: of its own.
_LENGTH_BYTES = 8
_LAST = 1 << 63
_FIRST_BYTES = 4096
_FIRST, _REST = 0, 1
_AT_ONCE = 16  # notes taken in one look, so that others are looked after, too


class _Note:
    """A note that has begun to come."""

    def __init__(self, head: int, first: memoryview) -> None:
        length = head % _LAST
        self.is_last = head >= _LAST
        self.content = bytearray(first)
        self.is_whole = len(first) == length
        if not self.is_whole:
            self.content.extend(bytes(length - len(first)))


class Notes:
    """Sends notes, and takes those that come without being asked for."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        link: Link,
        hear: Callable[[int, bytes], None],
        hear_last: Callable[[int, bytes], None],
    ) -> None:
        self._comm = comm
        self._table, self._bell, self._chunk_bytes = link.table, link.bell, link.chunk_bytes
        self._sends = [Kind((rank,), False) for rank in range(comm.size)]
        self._receives = [Kind((rank,), True) for rank in range(comm.size)]
        self._hear = hear  # called with each note, in the order in which its rank posted them
        self._hear_last = hear_last
        self._buffer = memoryview(bytearray(_FIRST_BYTES))
        self._status = MPI.Status()
        self._coming: dict[int, deque[_Note]] = {}
        self._request = self._ask()

    def post(self, rank: int, note: bytes, *, last: bool = False) -> None:
        """Send a note to another rank."""
        message = (len(note) + _LAST * last).to_bytes(_LENGTH_BYTES, "little") + note
        parts = [(_FIRST, memoryview(message)[:_FIRST_BYTES])]
        if len(message) > _FIRST_BYTES:
            parts += [(_REST, part) for part in chunks(memoryview(message)[_FIRST_BYTES:], self._chunk_bytes)]
        for tag, part in parts:
            self._table.start(self._sends[rank], _nothing, self._comm.Isend, part, rank, tag)
        self._bell.ring(rank)

    def poll(self) -> bool:
        """Take the messages that have come; whether any has; raises MPI.Exception if a rank has died."""
        news = self._table.poll()
        for _ in range(_AT_ONCE):
            if not self._request or not self._request.Test(self._status):
                return news
            news = True
            self._begin(self._status.source, self._status.count)
        return True

    def ask_again(self) -> None:
        """After an error: listen again, if that has ended it."""
        if not self._request:
            self._request = self._ask()

    def close(self) -> None:
        """Listen no more."""
        with suppress(MPI.Exception):
            if self._request:
                self._request.Cancel()
                self._request.Wait()

    def _ask(self) -> MPI.Request:
        return self._comm.Irecv(self._buffer, MPI.ANY_SOURCE, _FIRST)

    def _begin(self, rank: int, count: int) -> None:
        self._bell.heard(rank)
        head = int.from_bytes(self._buffer[:_LENGTH_BYTES], "little")
        note = _Note(head, self._buffer[_LENGTH_BYTES:count])
        self._request = self._ask()
        self._coming.setdefault(rank, deque()).append(note)
        if note.is_whole:
            self._tell(rank)
            return
        rest = chunks(memoryview(note.content)[count - _LENGTH_BYTES :], self._chunk_bytes)
        ended = Parts(len(rest), partial(self._rest_came, rank, note))
        for part in rest:
            self._table.start(self._receives[rank], ended, self._comm.Irecv, part, rank, _REST)
        self._bell.nudge(rank)

    def _rest_came(self, rank: int, note: _Note, _: int, code: int) -> None:
        if code:  # its rank has died, and will not be heard any more
            return
        self._bell.heard(rank)
        note.is_whole = True
        self._tell(rank)

    def _tell(self, rank: int) -> None:
        coming = self._coming[rank]
        while coming and coming[0].is_whole:
            note = coming.popleft()
            self._table.call(self._hear_last if note.is_last else self._hear, rank, bytes(note.content))


def _nothing(_: int, code: int) -> None:
    """A note that does not arrive is of no interest: its rank has died."""
