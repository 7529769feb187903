"""How ranks see that another is alive: a thread beside the loop answers whoever asks."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mpi4py import MPI

from actorflow.threads import start_thread

_ASK, _ANSWER, _END = b"?", b"!", b"."
_SECRET_BYTES = 16
_RANK_BYTES = 4
#: The thread looks so often whether it is to end, should the word of that get lost.
_LOOK_S = 1.0
#: Fields of /proc/PID/stat behind the name: state, ticks of user and of system time, and when the process was started.
_STATE, _USER, _SYSTEM, _STARTED = 0, 11, 12, 19


class Pulse:
    """Asks other ranks whether they are alive, and answers them.

    The answer needs neither the loop nor MPI, but the interpreter's lock for a moment. So a rank that computes for
    minutes is alive, and one that was stopped is not. What holds the lock all that time is told from a stopped process
    where both ranks are on one host: it takes processor time.

    Args:
        comm: Of all ranks, which make theirs together.
        host: Address that the socket is bound to.
        neighbours: The ranks of this host.
        answered: Called with a rank that has answered, on a thread of its own.
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
        self._answered = answered
        self._thread = start_thread(self._answer, "actorflow pulse")

    def ask(self, rank: int) -> None:
        """Ask a rank whether it is alive."""
        self._send(_ASK, rank)
        # What has never got through says nothing of the rank: a firewall may let MPI alone pass.
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
            except OSError:  # nothing has come; or what was sent has not arrived, on some systems
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
        """Whether a process of this host has taken processor time since it was asked before."""
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
    """What Linux tells of a process; None elsewhere, or if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()
