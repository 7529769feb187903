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
from actorflow.transport.mpi.requests import Call, Ended, Entry, Parts, Row, Table, chunks


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
        self.comm = comm
        self.link = link
        self._streams: dict[tuple[int, int], _TaggedReceives] = {}
        self._later: dict[tuple[int, int], deque[_Outgoing]] = {}  # behind a message in parts

    def send(self, rank: int, tag: int, data: memoryview, done: Sent) -> None:
        link = self.link
        ended: Ended = partial(self._sent, rank, tag, done, link.table.loop)
        later = self._later.get((rank, tag))
        if later is not None:
            later.append((data, ended))
        else:
            self._start(rank, tag, data, ended)

    def receive(self, rank: int, tag: int, buffer: memoryview, done: Received) -> None:
        stream = self._streams.get((rank, tag))
        if stream is None:
            stream = self._streams[rank, tag] = _TaggedReceives(self, rank, tag)
        stream.add(_Incoming(buffer, done))
        self.link.bell.nudge(rank)

    def forget(self, rank: int, tag: int) -> None:
        """Nothing is asked for there any more."""
        self._streams.pop((rank, tag), None)

    def clear(self) -> None:
        """Forget what was asked for; what was sent stays in its order."""
        self._streams.clear()

    def _start(self, rank: int, tag: int, data: memoryview, ended: Ended) -> None:
        if len(data) <= self.link.chunk_bytes:
            self._start_part(rank, tag, data, ended)
        else:
            self._later[rank, tag] = deque()
            parts = chunks(data, self.link.chunk_bytes)
            Row(parts, partial(self._start_part, rank, tag), partial(self._row_sent, rank, tag, ended))
        self.link.bell.ring(rank)

    def _start_part(self, rank: int, tag: int, part: memoryview, ended: Ended) -> None:
        request = partial(self.comm.Issend, (part, MPI.BYTE), rank, tag)
        self.link.table.start(request, Entry((rank,), False, ended, ("send", rank)))

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


class _TaggedReceives:
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
        self._wanted.append(incoming)
        if self._large is None:
            self._ask(incoming)
        else:
            self._unasked.append(incoming)

    def _ask(self, incoming: _Incoming) -> None:
        buffer, limit = incoming.buffer, self._edges.link.chunk_bytes
        if len(buffer) > limit:
            self._large = incoming
            self._start(buffer[:limit], partial(self._first_came, incoming))
        else:
            self._start(buffer, partial(self._came, incoming))

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
        wanted = self._wanted
        while wanted and wanted[0].has_ended:
            first = wanted.popleft()
            calls.append((first.done, (first.count, first.error)))
        if not wanted:
            self._edges.forget(self._rank, self._tag)
        link.table.call(calls)


#: A note begins with its length, and with this if it is the last; what does not fit beside that follows as a message
#: of its own.
_LENGTH_BYTES = 8
_LAST = 1 << 63
_FIRST_BYTES = 4096
_FIRST, _REST = 0, 1
#: Notes taken in one look, so that others are looked after, too.
_AT_ONCE = 16


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
    """Sends notes, and takes those that come without being asked for.

    Args:
        link: What they need; its table is for notes alone, too.
        hear: Called with each note, in the order in which its rank posted them.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        link: Link,
        hear: Callable[[int, bytes], None],
        hear_last: Callable[[int, bytes], None],
    ) -> None:
        self._comm = comm
        self._table, self._bell, self._chunk_bytes = link.table, link.bell, link.chunk_bytes
        self._hear = hear
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
        entry = Entry((rank,), False, _nothing)
        for tag, part in parts:
            self._table.start(partial(self._comm.Isend, (part, MPI.BYTE), rank, tag), entry)
        self._bell.ring(rank)

    def poll(self) -> bool:
        """Take what has come; whether anything has.

        Raises:
            MPI.Exception: if a rank has died.
        """
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
        return self._comm.Irecv((self._buffer, MPI.BYTE), MPI.ANY_SOURCE, _FIRST)

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
        entry = Entry((rank,), True, Parts(len(rest), partial(self._rest_came, rank, note)))
        for part in rest:
            self._table.start(partial(self._comm.Irecv, (part, MPI.BYTE), rank, _REST), entry)
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
            self._table.call([(self._hear_last if note.is_last else self._hear, (rank, bytes(note.content)))])


def _nothing(_: int, code: int) -> None:
    """A note that does not arrive is of no interest: its rank has died."""
