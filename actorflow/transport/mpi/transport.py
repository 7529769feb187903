"""The transport over MPI."""

from __future__ import annotations

import asyncio
import atexit
import json
import select
import threading
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, cast

import numpy as np
from mpi4py import MPI

from actorflow.errors import PeerLostError, TransportError
from actorflow.threads import cores
from actorflow.transport.base import Listener, PeerError, Received, Sent, Transport, flat
from actorflow.transport.mpi.deaths import Failures, Pulse
from actorflow.transport.mpi.groups import MPIGroup, Operations
from actorflow.transport.mpi.library import (
    bytes_on_device,
    end_interrupted,
    end_without,
    exit_status,
    finalize_without_fence,
    knows_cuda,
)
from actorflow.transport.mpi.messages import Edges, Link, Notes
from actorflow.transport.mpi.polling import Bell, Poller
from actorflow.transport.mpi.requests import Table
from actorflow.transport.peers import Liveness, NoteInbox, given_up, has_left, liveness_of, lost_elsewhere

#: Some MPIs copy a message in one call, during which the loop stands still: half a millisecond for so much. The count
#: of bytes of a message of MPI ends at 2 GiB.
CHUNK_BYTES = 4 << 20
_LARGEST_CHUNK_BYTES = 1 << 30
_LOOKS_A_NOTE = 4  # looks for messages of which one looks for notes, too
#: Seconds between the looks of a rank that has ended for news of the others, unless it is rung.
_SHORTEST_S, _LONGEST_S = 1e-3, 0.05


class MPITransport(Transport):
    """This process among those of an MPI job. All of them make it together.

    Args:
        chunk_bytes: The most that one message of MPI carries; the same on all ranks.
        host: Address by which other hosts reach this one; None to find it out.
        shared: Whether ranks of one host learn from shared memory which of them must be woken.
        liveness_s: For how many seconds a rank that this one waits for may not answer before it is lost; see
            `actorflow.world`.
    Raises:
        TransportError: if MPI was started in a way that does not fit.
    """

    name = "mpi"

    def __init__(
        self,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        host: str | None = None,
        shared: bool = True,
        liveness_s: float | None = None,
    ) -> None:
        limit_s = liveness_of(liveness_s)
        if not 1 <= chunk_bytes <= _LARGEST_CHUNK_BYTES:
            raise TransportError(f"chunks have 1 to {_LARGEST_CHUNK_BYTES:,} bytes, got {chunk_bytes:,}")
        if MPI.Query_thread() < MPI.THREAD_FUNNELED:
            raise TransportError("MPI was initialized for programs without threads; it must be THREAD_FUNNELED or more")
        comm = MPI.COMM_WORLD.Dup()
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        super().__init__(comm.rank, comm.size, cast("int", comm.Get_attr(MPI.TAG_UB)), limit_s)
        self._peers = set(range(self.size)) - {self.rank}
        self._comms = [comm, comm.Dup(), comm.Dup(), comm.Dup()]
        for_edges, for_notes, self._for_all, self._for_groups = self._comms
        bell = Bell(comm, host, shared)
        self._is_crowded = len(bell.neighbours) > cores()
        self._poller = Poller(self, bell)
        self._table, self._note_table = Table(self._poller.wake), Table(self._poller.wake)
        self._inbox = NoteInbox(self._note_table.call_soon)
        self._failures = Failures(for_notes, self._inbox.ends)
        self._link = Link(self._table, bell, self._failures, chunk_bytes)
        self._edges = Edges(for_edges, self._link)
        self._notes = Notes(for_notes, self._link._replace(table=self._note_table), self._inbox.hear, self._hear_last)
        self._operations = Operations()
        self._groups: dict[tuple[int, ...], MPIGroup] = {}
        self._liveness = Liveness(limit_s, self._ask)
        self._pulse = Pulse(comm, bell.host, bell.neighbours, self._liveness.answered)
        self._said_last: set[int] = set()
        self._looks = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._has_left = self._is_closed = False
        atexit.register(self.close_with_others)

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
            # Messages that other ranks count on go on, though nothing here is told any more: parts may have gone
            # already.
            self._table.drop(lambda entry: entry.is_receive)
            self._edges.clear()
        self._loop = loop
        self._table.bind(loop)
        self._note_table.bind(loop)
        self._poller.bind(loop)
        self._look_for_lost(loop)

    def close(self) -> None:
        if self._is_forked:
            return
        self._leave()
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close_with_others)
        self._note_table.close()
        self._notes.close()
        self._pulse.close()
        self._link.bell.close()
        if self._failures.any_dead():
            finalize_without_fence()
        else:
            self._free()

    def _leave(self) -> None:
        if self._has_left:
            return
        self._poller.close()
        if self._next_look is not None:
            self._next_look.cancel()
        if self._inbox.listener is not None:
            self._inbox.listener.leaving()
        self._has_left = True
        self._inbox.clear()
        self._table.close()
        for rank in range(self.size):
            if rank != self.rank and not isinstance(self._inbox.ends.get(rank), PeerLostError):
                self._notes.post(rank, json.dumps(self._done_with(rank)).encode(), last=True)

    def close_with_others(self) -> None:
        """Close, when the others have closed too, or are lost.

        At the end of the program: MPI ends for all ranks together, and would use a core to wait for the others. It
        would wait for a frozen rank, too; if there is one, the job is ended as soon as all others are here.
        """
        if self._is_closed or exit_status() or self._is_forked:
            return
        self._leave()
        self._link.bell.park(False)
        try:
            self._wait_for_others()
        except KeyboardInterrupt:
            end_interrupted()
        self.poll(whole=True)  # a message that has come by now may be the last note of one that was lost
        silent = self._inbox.ends.keys() - self._said_last - self._failures.dead
        if silent:
            end_without(silent)
        self.close()

    def _wait_for_others(self) -> None:
        looked_s, delay_s = 0.0, _SHORTEST_S
        bell = self._link.bell
        while self._others():
            bell.settle()
            if self.poll(whole=True):
                delay_s = _SHORTEST_S
                continue
            select.select([bell], [], [], delay_s)
            bell.drain()
            delay_s = min(2 * delay_s, _LONGEST_S)
            now_s = monotonic()
            if now_s - looked_s >= self._liveness.interval_s:
                looked_s = now_s
                self.check()
                self._lose_silent(now_s, self._others())

    def _free(self) -> None:
        with suppress(MPI.Exception):
            self._failures.free()
            for group in self._groups.values():
                group.free()
            self._operations.free()
            for comm in self._comms:
                comm.Free()

    def send(self, rank: int, tag: int, data: memoryview, done: Sent) -> None:
        self._check_call(rank, tag)
        self._edges.send(rank, tag, flat(data), done)

    def takes(self, kind: str) -> bool:
        return kind == "cpu" or (kind == "cuda" and knows_cuda())

    def bytes_of(self, array: Any) -> memoryview:
        return super().bytes_of(array) if isinstance(array, np.ndarray) else bytes_on_device(array)

    def receive(self, rank: int, tag: int, buffer: memoryview, done: Received) -> None:
        self._check_call(rank, tag)
        self._edges.receive(rank, tag, flat(buffer), done)

    def post(self, rank: int, note: bytes) -> None:
        self._check_bound()
        if rank == self.rank:
            self._note_table.call_soon(self._inbox.hear, rank, bytes(note))
            return
        self.check_rank(rank)
        if rank not in self._inbox.ends:
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
                comm = self._for_all if len(ascending) == self.size else self._for_groups
                group = MPIGroup(ascending, comm, self._link, self._operations)
            except MPI.Exception as error:  # a rank has died: MPI makes no group any more, with it or without it
                code, everybody = error.Get_error_code(), range(self.size)
                raise self._failures.error(code, everybody, f"making a group of ranks {list(ascending)}") from error
            self._groups[ascending] = group
        return group

    @property
    def pending(self) -> bool:
        """True if something is under way, besides waiting for notes."""
        return len(self._table) > 0 or len(self._note_table) > 0

    @property
    def sending(self) -> bool:
        """True if others must do something for requests under way to end."""
        return self._table.sends > 0 or self._note_table.sends > 0

    @property
    def reducing(self) -> bool:
        """True if a collective is under way, and there is a core for each rank of this host."""
        return not self._is_crowded and any(group.under_way for group in self._groups.values())

    def poll(self, whole: bool = False) -> bool:
        """Let MPI go on, and call back for requests that have ended, or for some; whether any has.

        Notes, which are fewer than messages, are looked for at every fourth look.
        """
        news = self._table.poll()
        self._looks += 1
        if not whole and self._looks < _LOOKS_A_NOTE:
            return news
        self._looks = 0
        if whole:
            for _ in range(self._table.pages - 1):
                news = self._table.poll() or news
        if self._is_closed:
            return news
        try:
            return self._notes.poll() or news
        except MPI.Exception:
            self._notes.ask_again()
            self.check()
            return True

    def check(self) -> None:
        """Look for ranks that have died, as far as the MPI can tell."""
        for rank in self._failures.news():
            if rank not in self._inbox.ends:
                self._end(PeerLostError(rank))

    def _others(self) -> set[int]:
        return self._peers - self._inbox.ends.keys()

    def _end(self, error: PeerError, done: Mapping[Hashable, int] | None = None) -> None:
        """A rank has ended: tell the listener, and give up the requests under way with it."""
        self._note_table.call(self._inbox.hear_of_end, error)
        self._table.lose(error.rank, done)
        if isinstance(error, PeerLostError):  # one that has left still hears that others leave, too
            self._note_table.lose(error.rank)

    def _done_with(self, rank: int) -> dict[str, Any]:
        """Last note to another rank: how much has come through between the two, and which ranks are lost."""
        groups = [(ranks, group.kind.through) for ranks, group in self._groups.items() if rank in ranks]
        lost = [error.rank for error in self._inbox.ends.values() if isinstance(error, PeerLostError)]
        sent, received = self._edges.sends[rank].through, self._edges.receives[rank].through
        return {"sent": sent, "received": received, "groups": groups, "lost": lost}

    def _hear_last(self, rank: int, note: bytes) -> None:
        """A rank has left, or waits for this one no more (None)."""
        self._said_last.add(rank)
        words = json.loads(note)
        if rank in self._inbox.ends:
            return
        if words is None:
            self._end(given_up(rank))
            return
        for other in words["lost"]:  # it is for those that it leaves
            if other != self.rank and other not in self._inbox.ends:
                self._end(lost_elsewhere(other, rank))
        done: dict[Hashable, int] = {("receive", rank): words["sent"], ("send", rank): words["received"]}
        done |= {("group", *ranks): count for ranks, count in words["groups"]}
        self._end(has_left(rank), done)

    def _look_for_lost(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop or self._has_left:
            return
        listener = self._inbox.listener
        awaited = self._table.ranks() | self._note_table.ranks() | set(() if listener is None else listener.awaited())
        self._lose_silent(loop.time(), awaited & self._others())
        if not self._has_left:  # a listener told of a loss may have closed this
            self._next_look = loop.call_later(self._liveness.interval_s, self._look_for_lost, loop)

    def _lose_silent(self, now_s: float, awaited: set[int]) -> None:
        self._liveness.limit_s = self.liveness_s
        for rank in self._liveness.look(now_s, awaited):
            self._notes.post(rank, b"null", last=True)  # should it go on one day, it need not wait for this one
            self._end(self._liveness.error(rank))

    def _ask(self, rank: int) -> None:
        self._pulse.ask(rank)

    def _check_call(self, rank: int, tag: int) -> None:
        """All checks of a message in one, as they are a good part of its cost."""
        if rank not in self._peers or not 0 <= tag <= self.max_tag:
            self.check_address(rank, tag)
        if self._has_left or self._loop is None or self._is_forked:
            self._check_bound()

    def _check_open(self) -> None:
        self.check_process()
        if self._has_left:
            raise TransportError(f"the transport of rank {self.rank} is closed")

    def _check_bound(self) -> None:
        self._check_open()
        if self._loop is None:
            raise TransportError(f"the transport of rank {self.rank} has no event loop: bind it first")
