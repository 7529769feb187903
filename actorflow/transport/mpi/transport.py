"""The transport over MPI."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from mpi4py import MPI

from actorflow.errors import TransportError
from actorflow.transport.base import Listener, Received, Sent, Transport, flat
from actorflow.transport.inbox import Inbox
from actorflow.transport.mpi.bell import Bell
from actorflow.transport.mpi.cuda import bytes_on_device, knows_cuda
from actorflow.transport.mpi.edges import Edges, Link
from actorflow.transport.mpi.failures import Failures
from actorflow.transport.mpi.groups import MPIGroup, Operations
from actorflow.transport.mpi.library import finalize_without_fence
from actorflow.transport.mpi.notes import Notes
from actorflow.transport.mpi.progress import Progress
from actorflow.transport.mpi.table import Table

__all__ = ["CHUNK_BYTES", "MPITransport"]

#: Some MPIs copy a message in one call, during which the loop stands still: half a millisecond for so much. The count
#: of bytes of a message of MPI ends at 2 GiB.
CHUNK_BYTES = 4 << 20
_LARGEST_CHUNK_BYTES = 1 << 30


class MPITransport(Transport):
    """This process among those of an MPI job. All of them make it together.

    Args:
        chunk_bytes: The most that one message of MPI carries; the same on all ranks.
        host: Address by which other hosts reach this one; None to find it out.
        shared: Whether ranks of one host look in shared memory who must be woken.

    Raises:
        TransportError: if MPI was started in a way that does not fit.
    """

    name = "mpi"

    def __init__(self, *, chunk_bytes: int = CHUNK_BYTES, host: str | None = None, shared: bool = True) -> None:
        if not 1 <= chunk_bytes <= _LARGEST_CHUNK_BYTES:
            raise TransportError(f"chunks have 1 to {_LARGEST_CHUNK_BYTES:,} bytes, got {chunk_bytes:,}")
        if MPI.Query_thread() < MPI.THREAD_FUNNELED:
            raise TransportError("MPI was initialized for programs without threads; it must be THREAD_FUNNELED or more")
        comm = MPI.COMM_WORLD.Dup()
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        super().__init__(comm.rank, comm.size, _max_tag(comm))
        self._comms = [comm, comm.Dup(), comm.Dup()]
        for_edges, for_notes, self._for_groups = self._comms
        bell = Bell(comm, host, shared)
        self._progress = Progress(self, bell, crowded=bell.local_size > _cores())
        self._table, self._note_table = Table(self._progress.wake), Table(self._progress.wake)
        self._failures = Failures(for_notes)
        self._link = Link(self._table, bell, self._failures, chunk_bytes)
        self._inbox = Inbox(self._note_table.call_soon)
        self._edges = Edges(for_edges, self._link)
        self._notes = Notes(for_notes, self._link._replace(table=self._note_table), self._inbox.hear)
        self._operations = Operations()
        self._groups: dict[tuple[int, ...], MPIGroup] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    # -- one loop at a time -------------------------------------------------------------------------------------

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._check_open()
        if loop is self._loop:
            return
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED and not MPI.Is_thread_main():
            raise TransportError(
                f"this MPI may be used by the thread that initialized it alone, and the loop runs in another one, "
                f"{threading.current_thread().name!r}"
            )
        if self._loop is not None:
            if len(self._table) and not self._loop.is_closed():
                raise TransportError(f"rank {self.rank} has messages under way on another event loop")
            # What other ranks count on goes on, though nobody here is told any more: parts of it may have gone already.
            self._table.drop(only_receives=True)
            self._edges.clear()
        self._loop = loop
        self._table.bind(loop)
        self._note_table.bind(loop)
        self._progress.bind(loop)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._progress.close()
        self._inbox.clear()
        self._table.close()
        self._note_table.close()
        self._notes.close()
        self._link.bell.close()
        if self._failures.any_dead():
            finalize_without_fence()
        else:
            self._free()

    def _free(self) -> None:
        with suppress(MPI.Exception):
            self._failures.free()
            for group in self._groups.values():
                group.free()
            self._operations.free()
            for comm in self._comms:
                comm.Free()

    # -- messages -----------------------------------------------------------------------------------------------

    def send(self, rank: int, tag: int, data: memoryview, done: Sent) -> None:
        self.check_address(rank, tag)
        self._check_bound()
        self._edges.send(rank, tag, flat(data), done)

    def takes(self, kind: str) -> bool:
        return kind == "cpu" or (kind == "cuda" and knows_cuda())

    def bytes_of(self, array: Any) -> memoryview:
        return super().bytes_of(array) if isinstance(array, np.ndarray) else bytes_on_device(array)

    def receive(self, rank: int, tag: int, buffer: memoryview, done: Received) -> None:
        self.check_address(rank, tag)
        self._check_bound()
        self._edges.receive(rank, tag, flat(buffer), done)

    def post(self, rank: int, note: bytes) -> None:
        self._check_bound()
        if rank == self.rank:
            self._note_table.call_soon(self._inbox.hear, rank, bytes(note))
            return
        self.check_rank(rank)
        if rank not in self._failures.dead:
            self._notes.post(rank, bytes(note))

    def listen(self, listener: Listener | None) -> None:
        self._check_bound()
        self._inbox.listen(listener)

    def group(self, ranks: Sequence[int]) -> MPIGroup:
        ascending = self.check_group(ranks)
        self._check_open()
        group = self._groups.get(ascending)
        if group is None:
            try:
                group = MPIGroup(ascending, self._for_groups, self._link, self._operations)
            except MPI.Exception as error:  # a rank has died: MPI makes no group any more, with it or without it
                code, everybody = error.Get_error_code(), range(self.size)
                raise self._failures.error(code, everybody, f"making a group of ranks {list(ascending)}") from error
            self._groups[ascending] = group
        return group

    # -- for progress -------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether something is under way, besides waiting for notes."""
        return len(self._table) > 0 or len(self._note_table) > 0

    @property
    def sending(self) -> bool:
        """Whether others must do something for what is under way to end."""
        return self._table.sends > 0 or self._note_table.sends > 0

    def poll(self) -> bool:
        """Let MPI go on, and call back for what has ended; whether anything has."""
        news = self._table.poll()
        if self._is_closed:
            return news
        try:
            return self._notes.poll() or news
        except MPI.Exception:
            self._notes.ask_again()
            self.check()
            return True

    def check(self) -> None:
        """Look for ranks that have died, give up what is under way with them, and tell the listener."""
        for rank in self._failures.news():
            for table in (self._table, self._note_table):
                table.lose(rank)
            self._note_table.call([(self._inbox.hear_of_death, (rank,))])

    # -- checks -------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise TransportError(f"the transport of rank {self.rank} is closed")

    def _check_bound(self) -> None:
        self._check_open()
        if self._loop is None:
            raise TransportError(f"the transport of rank {self.rank} has no event loop: bind it first")


def _max_tag(comm: MPI.Intracomm) -> int:
    limit = comm.Get_attr(MPI.TAG_UB)
    assert isinstance(limit, int)
    return limit


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
