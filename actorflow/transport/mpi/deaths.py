"""Ranks that have died or do not answer, as the MPI tells and as a thread beside the loop finds out."""

from __future__ import annotations

import copy
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from mpi4py import MPI

from actorflow.errors import PeerLostError, TransportError
from actorflow.threads import start_thread
from actorflow.transport.base import PeerError

_DEATHS = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)


class Failures:
    """The dead ranks of a communicator.

    An MPI with ULFM (user-level failure mitigation) tells which they are; another one ends the job.
    """

    def __init__(self, comm: MPI.Intracomm, ends: Mapping[int, PeerError]) -> None:
        self.ends = ends  # how ranks have ended, as far as this rank has heard
        self.dead: set[int] = set()  # those that the MPI knows to be
        self._told: set[int] = set()
        self._comm = comm
        self._group = comm.Get_group()
        try:
            comm.Get_failed().Free()
            self._can_tell = True
        except (MPI.Exception, NotImplementedError):
            self._can_tell = False

    def news(self) -> list[int]:
        """Ranks that have died since the last time, ascending."""
        self._look()
        new = sorted(self.dead - self._told)
        self._told.update(new)
        return new

    def any_dead(self) -> bool:
        """True if a rank has died, by now."""
        self._look()
        return bool(self.dead)

    def _look(self) -> None:
        if not self._can_tell:
            return
        failed = self._comm.Get_failed()
        if failed.size > len(self.dead):
            self._comm.Ack_failed()  # receives from any rank go on
            self.dead.update(MPI.Group.Translate_ranks(failed, list(range(failed.size)), self._group))
        failed.Free()

    def error(self, code: int, ranks: Sequence[int], doing: str) -> TransportError:
        """The error for an error code of MPI."""
        if MPI.Get_error_class(code) in _DEATHS:
            for rank in self.ends.keys() & ranks:
                return copy.copy(self.ends[rank])
            self._look()
            dead = sorted(self.dead.intersection(ranks))
            if dead or len(ranks) == 1:
                return PeerLostError(dead[0] if dead else ranks[0])
        return TransportError(f"{doing}: {', '.join(MPI.Get_error_string(code).split(chr(10)))}")

    def free(self) -> None:
        """Give back the resources of MPI."""
        self._group.Free()


_ASK, _ANSWER, _END = b"?", b"!", b"."
_SECRET_BYTES = 16
_RANK_BYTES = 4
_LOOK_S = 1.0  # the thread looks so often whether it is to end, should the word of that get lost
#: Fields of /proc/PID/stat behind the name: state, ticks of user and of system time, and when the process was started.
_STATE, _USER, _SYSTEM, _STARTED = 0, 11, 12, 19


class Pulse:
    """Asks other ranks whether they are alive, and answers them.

    The answer needs neither the loop nor MPI, but the interpreter's lock for a moment. So a rank that computes for
    minutes is alive, and one that was stopped is not. A rank that holds the lock is told from a stopped process
    where both ranks are on one host: it takes processor time.

    Args:
        comm: Of all ranks, which make theirs together.
        host: Address that the socket is bound to.
    """

    def __init__(
        self, comm: MPI.Intracomm, host: str, neighbours: frozenset[int], answered: Callable[[int], None]
    ) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, 0))
        self._socket.settimeout(_LOOK_S)
        self._is_closed = False
        self._secret = comm.bcast(os.urandom(_SECRET_BYTES) if comm.rank == 0 else b"")
        own = _stat(os.getpid())
        cards = comm.allgather((self._socket.getsockname(), os.getpid(), own[_STARTED] if own else ""))
        self._addresses = [address for address, _, _ in cards]
        self._processes = [(pid, started) for _, pid, started in cards]
        self._rank = comm.rank
        self._neighbours = neighbours
        self._has_answered: set[int] = set()
        self._ticks: dict[int, int] = {}
        self._answered = answered  # called with a rank that has answered, on a thread of its own
        self._thread = start_thread(self._answer, "actorflow pulse")

    def ask(self, rank: int) -> None:
        """Ask a rank whether it is alive."""
        self._send(_ASK, rank)
        # Probes that never got through say nothing of the rank: a firewall may let MPI alone pass.
        if (rank not in self._neighbours and rank not in self._has_answered) or self._computes(rank):
            self._answered(rank)

    def close(self) -> None:
        """End the thread, and free the socket."""
        self._is_closed = True
        if self._thread.is_alive():
            self._send(_END, self._rank)
            self._thread.join()
        self._socket.close()

    def _send(self, kind: bytes, rank: int) -> None:
        with suppress(OSError):
            message = kind + self._rank.to_bytes(_RANK_BYTES, "little") + self._secret
            self._socket.sendto(message, self._addresses[rank])

    def _answer(self) -> None:
        while not self._is_closed:
            try:
                message = self._socket.recv(64)
            except OSError:  # nothing has come; or the bytes sent have not arrived, on some systems
                continue
            kind, rank = message[:1], int.from_bytes(message[1 : 1 + _RANK_BYTES], "little")
            if message[1 + _RANK_BYTES :] != self._secret:
                continue
            if kind == _ASK:
                self._send(_ANSWER, rank)
            elif kind == _ANSWER:
                self._has_answered.add(rank)
                self._answered(rank)
            elif rank == self._rank:
                return

    def _computes(self, rank: int) -> bool:
        """True if a process of this host has taken processor time since it was asked before."""
        if rank not in self._neighbours:
            return False
        pid, started = self._processes[rank]
        fields = _stat(pid)
        if fields is None or fields[_STARTED] != started or fields[_STATE] in "TtZX":  # stopped, or dead
            return False
        before = self._ticks.get(rank)
        now = self._ticks[rank] = int(fields[_USER]) + int(fields[_SYSTEM])
        return before is not None and now > before


def _stat(pid: int) -> list[str] | None:
    """Fields of a process in Linux's /proc; None elsewhere, or if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()
