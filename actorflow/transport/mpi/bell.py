"""How a rank that sleeps is woken: a byte on a socket that its event loop watches."""

from __future__ import annotations

import mmap
import socket
from contextlib import suppress
from time import monotonic

from mpi4py import MPI

from actorflow.transport.mpi.memory import remove_names, shared_memory

#: Words of 4 bytes between the flags of two ranks: a cache line.
_STRIDE = 16
#: How recently a rank of another host was heard of that is not rung.
_LATELY_S = 1e-3
#: An address that routers do not forward (RFC 5737); a datagram socket that is connected to it sends nothing.
_ELSEWHERE = ("192.0.2.1", 9)


class Bell:
    """Rings at other ranks, and is rung.

    Ranks of one host see in shared memory who is parked, so that nobody is rung in vain: a number that is odd while
    its rank is parked, and counts how often it was. Ranks of other hosts are rung unless they were heard of lately.
    A ring that is lost costs latency alone, since parked ranks look now and then.

    Args:
        comm: Of all ranks, which make their bells together.
        host: Address by which the other hosts reach this one; None for that of its route to others.
        shared: Look at ranks of the same host in shared memory.

    Attributes:
        host: The address of its socket.
        neighbours: The ranks of this host, this one included.
    """

    def __init__(self, comm: MPI.Intracomm, host: str | None = None, shared: bool = True) -> None:
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.neighbours = frozenset(node.allgather(comm.rank))
        remove_names(node)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.host = host or ("127.0.0.1" if node.size == comm.size else _own_address())
        self._socket.bind((self.host, 0))
        leader = node.bcast(comm.rank)
        self._map = shared_memory(node, node.size * _STRIDE * 4) if shared else mmap.mmap(-1, node.size * _STRIDE * 4)
        self._flags = memoryview(self._map).cast("I")
        self._mine = node.rank * _STRIDE
        self._flags[self._mine] = 1  # parked, until there is a loop
        cards = comm.allgather((self._socket.getsockname(), leader, node.rank * _STRIDE))
        self._addresses = [address for address, _, _ in cards]
        self._slots = [slot if shared and its == leader else -1 for _, its, slot in cards]
        self._rung = [0] * comm.size
        self._heard_s = [0.0] * comm.size
        node.Free()

    def fileno(self) -> int:
        """Of the socket, for the event loop."""
        return self._socket.fileno()

    def park(self, sending: bool) -> None:
        """From now on this rank must be rung.

        Args:
            sending: Also by those who ask for messages, as some of this rank's are not asked for yet.
        """
        self._flags[self._mine + 1] = sending
        self._flags[self._mine] += 1

    def wake(self) -> None:
        """This rank looks by itself again."""
        self._flags[self._mine] = (self._flags[self._mine] + 1) % (1 << 32)

    def drain(self) -> None:
        """Take the rings off the socket."""
        with suppress(OSError):
            while True:
                self._socket.recv(16)

    def ring(self, rank: int) -> None:
        """Something is there for a rank."""
        slot = self._slots[rank]
        if slot >= 0:
            times = self._flags[slot]
            if not times & 1 or times == self._rung[rank]:
                return
            self._rung[rank] = times
        elif monotonic() - self._heard_s[rank] < _LATELY_S:
            return
        with suppress(OSError):  # its buffer is full of rings, or it is gone
            self._socket.sendto(b"\0", self._addresses[rank])

    def nudge(self, rank: int) -> None:
        """A message of that rank has been asked for."""
        slot = self._slots[rank]
        if slot >= 0 and self._flags[slot + 1]:
            self.ring(rank)

    def heard(self, rank: int) -> None:
        """A message has come."""
        if self._slots[rank] < 0:
            self._heard_s[rank] = monotonic()
        else:
            self.nudge(rank)

    def close(self) -> None:
        """Free the socket and the memory."""
        self._socket.close()
        self._flags.release()
        self._map.close()


def _own_address() -> str:
    """The address that other hosts see this one by."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError:  # no route
            return socket.gethostbyname(socket.gethostname())
        address: str = probe.getsockname()[0]
        return address
