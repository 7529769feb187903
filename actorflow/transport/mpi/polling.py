"""Polling of MPI: all the time while there is news, seldom while there is none; and wake-ups by other ranks."""

from __future__ import annotations

import asyncio
import contextvars
import mmap
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

from mpi4py import MPI

from actorflow.transport.mpi.library import remove_names, shared_memory

if TYPE_CHECKING:
    from actorflow.transport.mpi.transport import MPITransport

_LOOKS = 4  # looks in one callback of the loop: its own turn costs more than one look
#: Looks without news before the rank parks. Few cost less than to be rung, many somewhat more: those pay where the
#: other ranks have cores of their own and answer soon. Where they share cores, looking only keeps the rank from
#: running that is waited for.
_FEW_LOOKS, _MANY_LOOKS = 12, 100
#: The same while ranks that have cores of their own reduce: MPI's own messages do not ring, so a parked rank
#: answers by its timer, after as long as these looks take.
_REDUCING_LOOKS = 600
#: A core that was offered to others and came back later than this went to a program that does not wait for ranks.
_TAKEN_S = 1e-4
#: Rings within this time after parking let a rank try many looks. When they were in vain, it lets some such
#: rings go by before it tries again: twice as many each time, up to the most. So it is with offering the core.
_SOON_S = 2e-4
_MOST_IGNORED = 255
#: Time between looks at pending requests while the rank is parked, as a share of the time for which nothing happened.
_SHARE = 1 / 16
_SHORTEST_S, _LONGEST_S = 1e-3, 0.05
_HEARTBEAT_S = 0.5  # time between looks with nothing under way: to hear of deaths, and of notes whose ring was lost


class State(Enum):
    """State of `Poller`."""

    UNBOUND = "unbound"
    SPINNING = "spinning"
    PARKED = "parked"
    CLOSED = "closed"


class Poller:
    """Spins, parks and wakes.

    While there is news, it looks at every turn of the loop, so the application gets its turns, too. After some looks
    without news it parks: a rank that sends something rings it, and a timer looks ever more seldom at requests under
    way, since MPI's own messages do not ring.

    A rank that has rung another one parks without a look, unless they reduce: the kernel likes to wake that one on the
    same core, where it could not run meanwhile.
    """

    def __init__(self, watched: MPITransport, bell: Bell) -> None:
        self._watched = watched  # the requests that are looked at
        self._bell = bell  # how others wake this rank
        self._limit = _FEW_LOOKS
        self._ignored = self._to_ignore = 0
        self._kept = self._to_keep = 0
        self._state = State.UNBOUND
        self._looks = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._call_soon: Callable[..., asyncio.Handle]
        self._next: asyncio.Handle | None = None
        self._news_s = self._checked_s = 0.0
        # A context of its own: callbacks must not run in that of whatever happened to wake it.
        self._context = contextvars.Context()

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Go on, on another loop."""
        self._leave()
        self._loop, self._call_soon = loop, loop.call_soon
        loop.add_reader(self._bell.fileno(), self._rung)
        self._checked_s = loop.time()
        if self._state is State.UNBOUND:
            self._state = State.PARKED
        elif self._state is State.SPINNING:  # the other loop has ended before it parked
            self._bell.park(self._watched.sending)
            self._state = State.PARKED
        self.wake()

    def wake(self) -> None:
        """Something was started here, or may have come."""
        self._looks = 0
        if self._state is State.PARKED:
            self._unpark()
            self._next = self._call_soon(self._turn, context=self._context)

    def close(self) -> None:
        """Look no more. Idempotent."""
        if self._state is not State.CLOSED:
            self._state = State.CLOSED
            self._leave()

    def _unpark(self) -> None:
        self._state = State.SPINNING
        self._bell.wake()
        self._cancel_next()

    def _is(self, state: State) -> bool:
        return self._state is state

    def _leave(self) -> None:
        self._cancel_next()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._bell.fileno())
        self._loop = None

    def _cancel_next(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _rung(self) -> None:
        self._bell.drain()
        if self._state is State.PARKED and self._loop is not None and self._loop.time() - self._news_s < _SOON_S:
            if self._to_ignore:
                self._to_ignore -= 1
            else:
                self._limit = _MANY_LOOKS
        self._looks = 0
        if self._state is State.PARKED:
            self._unpark()
            self._context.run(self._turn)

    def _turn(self) -> None:
        state = self._state
        if state is not State.SPINNING:
            return
        self._bell.settle()
        if self._bell.has_rung and self._limit == _FEW_LOOKS and not self._watched.reducing:
            self._park()
            return
        poll = self._watched.poll
        for _ in range(_LOOKS):
            if poll():
                if self._looks >= _FEW_LOOKS:
                    self._ignored = 0
                self._looks = 0
                break
            self._looks += 1
        else:
            if not self._to_keep:
                self._offer_core()
        if self._state is not state:  # a callback has closed the transport
            return
        if self._looks < self._limit or (self._looks < _REDUCING_LOOKS and self._watched.reducing):
            self._next = self._call_soon(self._turn, context=self._context)
        else:
            self._park()

    def _offer_core(self) -> None:
        """Let others run that wait for this core; park if they do not give it back soon, and offer it less often."""
        begin_s = perf_counter()
        os.sched_yield()
        if perf_counter() - begin_s > _TAKEN_S:
            self._kept = self._to_keep = min(2 * self._kept + 1, _MOST_IGNORED)
            self._looks = max(self._limit, _REDUCING_LOOKS)
        else:
            self._kept //= 2

    def _park(self) -> None:
        assert self._loop is not None
        self._state = State.PARKED
        self._bell.has_rung = False
        self._to_keep = max(self._to_keep - 1, 0)
        if self._limit == _MANY_LOOKS:
            self._limit = _FEW_LOOKS
            self._ignored = self._to_ignore = min(2 * self._ignored + 1, _MOST_IGNORED)
        self._bell.park(self._watched.sending)
        self._news_s = self._loop.time()
        self._look()  # once more: messages from before others could see that it is parked did not ring

    def _look(self) -> None:
        """Look once while parked, and say when to look again."""
        self._next = None
        loop = self._loop
        if self._watched.poll(whole=True):
            self.wake()
            return
        if not self._is(State.PARKED):
            return
        assert loop is not None
        now_s = loop.time()
        if now_s - self._checked_s >= _HEARTBEAT_S:
            self._checked_s = now_s
            self._watched.check()
            if not self._is(State.PARKED):
                return
        delay_s = _HEARTBEAT_S
        if self._watched.pending:
            delay_s = min(max((now_s - self._news_s) * _SHARE, _SHORTEST_S), _LONGEST_S)
        self._next = loop.call_later(delay_s, self._look, context=self._context)


_STRIDE = 16  # words of 4 bytes between the flags of two ranks: a cache line
_LATELY_S = 1e-3  # a rank of another host that was heard of so recently is not rung
#: An address that routers do not forward (RFC 5737); a datagram socket that is connected to it sends nothing.
_ELSEWHERE = ("192.0.2.1", 9)


class Bell:
    """Rings at other ranks, and is rung.

    A ring is a datagram: of a Unix socket, which takes half the time, if all ranks are on one host. Ranks of one host
    see in shared memory which of them are parked, so that none is rung in vain: a number that is odd while its rank is
    parked, and counts how often it was. Ranks of other hosts are rung unless they were heard of lately. A ring that is
    lost costs latency alone, since parked ranks look now and then.

    Args:
        comm: Of all ranks, which make their bells together.
        host: Address by which the other hosts reach this one; None for that of its route to others.
        shared: Look at ranks of the same host in shared memory.
    """

    def __init__(self, comm: MPI.Intracomm, host: str | None = None, shared: bool = True) -> None:
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.neighbours = frozenset(node.allgather(comm.rank))  # the ranks of this host, this one included
        remove_names(node)
        is_alone = node.size == comm.size
        self.host = host or ("127.0.0.1" if is_alone else _own_address())
        if is_alone and sys.platform == "linux":
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.bind("")  # Linux finds a name, which is of no file
        else:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.bind((self.host, 0))
        self._socket.setblocking(False)
        leader = node.bcast(comm.rank)
        self._map = shared_memory(node, node.size * _STRIDE * 4) if shared else mmap.mmap(-1, node.size * _STRIDE * 4)
        self._flags = memoryview(self._map).cast("I")
        self._mine = node.rank * _STRIDE
        self._flags[self._mine] = 1  # parked, until there is a loop
        cards = comm.allgather((self._socket.getsockname(), leader, node.rank * _STRIDE))
        self._addresses = [address for address, _, _ in cards]
        self._slots = [slot if shared and its == leader else -1 for _, its, slot in cards]
        self._rung = [0] * comm.size
        self._owed: set[int] = set()
        #: A message of that rank has been asked for. It is rung by `settle`, unless an answer rings it before that.
        self.nudge = self._owed.add
        self.has_rung = False  # whether it has rung at a rank since this was set to False
        self._heard_s = [0.0] * comm.size
        node.Free()

    def fileno(self) -> int:
        """Descriptor of the socket, for the event loop."""
        return self._socket.fileno()

    def park(self, sending: bool) -> None:
        """From now on this rank must be rung.

        Args:
            sending: Also by those who ask for messages, as some of this rank's are not asked for yet.
        """
        with suppress(OSError):
            while True:  # those of ranks that rang at the same time would wake this one for nothing
                self._socket.recv(16)
        self._flags[self._mine + 1] = sending
        self._flags[self._mine] += 1

    def wake(self) -> None:
        """This rank looks by itself again."""
        self._flags[self._mine] = (self._flags[self._mine] + 1) % (1 << 32)

    def drain(self) -> None:
        """Take a ring off the socket. Others are left for `park`, as finding that there is none takes long."""
        with suppress(OSError):
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
            self.has_rung = True

    def settle(self) -> None:
        """Ring at the ranks that were nudged, if they wait for it."""
        if not self._owed:
            return
        for rank in self._owed:
            slot = self._slots[rank]
            if slot >= 0 and self._flags[slot + 1]:
                self.ring(rank)
        self._owed.clear()

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
