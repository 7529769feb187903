"""What the engines of the ranks tell each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from mpi4py import MPI

from actorflow.transport.mpi.chunks import Parts, chunks
from actorflow.transport.mpi.edges import Link
from actorflow.transport.mpi.table import Entry

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
        comm: For notes alone.
        link: What they need; its table is for notes alone, too.
        hear: Called with each note, in the order in which its rank posted them.
        hear_last: Called instead with the last.
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
        """The beginning of a note has come."""
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
