"""Face of several machines to the engine: messages between ranks, and collectives.

A transport moves bytes and knows nothing of graphs. All methods are called on the loop's thread, and all callbacks come
there, never within the call that asked for them. A buffer that was handed over must stay as it is until its callback.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from actorflow.errors import PeerFailedError, PeerLostError, TransportError
from actorflow.threads import forget_in_child

#: Error that says how another rank has ended.
PeerError = PeerLostError | PeerFailedError

#: Called when a message has been received by the other side, or why not.
Sent = Callable[[BaseException | None], None]
#: Called with the number of bytes that arrived, or why none did.
Received = Callable[[int, BaseException | None], None]


class Listener(ABC):
    """Listener that is told a transport's news of the other ranks.

    Example:
        >>> import asyncio
        >>> from actorflow.transport import Listener, LocalWorld
        >>> class Printer(Listener):
        ...     def heard(self, rank, note):
        ...         print("rank", rank, "says", note)
        ...
        ...     def ended(self, error):
        ...         print("rank", error.rank, "has ended")
        >>> async def main():
        ...     first, second = LocalWorld(2).transports
        ...     for transport in first, second:
        ...         transport.bind(asyncio.get_running_loop())
        ...     first.listen(Printer())
        ...     second.post(0, b"hello")
        ...     second.close()
        ...     for _ in range(3):
        ...         await asyncio.sleep(0)
        >>> af.run(main())
        rank 1 says b'hello'
        rank 1 has ended
    """

    @abstractmethod
    def heard(self, rank: int, note: bytes) -> None:
        """A note has come (`Transport.post`), in the order in which that rank posted them."""

    @abstractmethod
    def ended(self, error: PeerError) -> None:
        """A rank has ended, and all its notes have come.

        Args:
            error: `PeerLostError` if it has died or does not answer; `PeerFailedError` if it has closed its transport.
                Transfers under way with it, of which it has not done its part, fail with the like by themselves.
        """

    def leaving(self) -> None:  # noqa: B027  most have nothing to say
        """This rank's transport is about to be closed: the last moment to post notes."""

    def awaited(self) -> Collection[int]:
        """The ranks that this one waits to hear from, besides those that the transport has messages under way with."""
        return ()


class RankGroup(ABC):
    """Some ranks that compute collectives together.

    Attributes:
        ranks: The ranks of the group, ascending.

    Example:
        >>> import asyncio
        >>> from actorflow.transport import LocalWorld
        >>> async def main():
        ...     arrays, ends = [np.array([1.0, 2.0]), np.array([10.0, 20.0])], []
        ...     for transport, array in zip(LocalWorld(2).transports, arrays):
        ...         transport.bind(asyncio.get_running_loop())
        ...         ends.append(asyncio.get_running_loop().create_future())
        ...         transport.group([0, 1]).all_reduce("sum", array, array, ends[-1].set_result)
        ...     await asyncio.gather(*ends)
        ...     return arrays
        >>> af.run(main())
        [array([11., 22.]), array([11., 22.])]
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)

    @abstractmethod
    def all_reduce(self, operation: str, source: Any, target: Any, done: Sent) -> None:
        """Reduce the ``source`` of all ranks of the group, and give each the result.

        All ranks of a group call it in the same order; calls overlap. The result is the same to the last bit on all
        ranks.

        Args:
            operation: ``"sum"``, ``"max"`` or ``"min"``.
            source: A C-contiguous host array of numbers; of one shape and dtype on all ranks.
            target: Where the result goes, of the same type; may be ``source`` itself.
            done: Called when ``target`` holds the result.
        """


class Transport(ABC):
    """This process among those that run the same program.

    Attributes:
        rank: Its number, from 0.
        size: How many there are.
        max_tag: The largest tag.
        liveness_s: For how many seconds a rank that this one waits for may give no sign of life before it is lost.
        name: Its name in errors and ``actorflow doctor``.
        hub: Its listener, once graphs use it.

    Example:
        >>> import asyncio
        >>> from actorflow.transport import LocalWorld
        >>> async def main():
        ...     loop, buffer = asyncio.get_running_loop(), bytearray(5)
        ...     first, second = LocalWorld(2).transports
        ...     for transport in first, second:
        ...         transport.bind(loop)
        ...     sent, received = loop.create_future(), loop.create_future()
        ...     first.send(1, 7, memoryview(b"hello"), sent.set_result)
        ...     second.receive(0, 7, memoryview(buffer), lambda *args: received.set_result(args))
        ...     print(await sent, await received, buffer)
        >>> af.run(main())
        None (5, None) bytearray(b'hello')
    """

    name: str = "transport"
    hub: Listener | None = None

    def __init__(self, rank: int, size: int, max_tag: int, liveness_s: float = math.inf) -> None:
        self.rank = rank
        self.size = size
        self.max_tag = max_tag
        self.liveness_s = liveness_s
        self._is_forked = False
        forget_in_child(self)

    @abstractmethod
    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the loop that callbacks come on. Idempotent; another loop only while nothing is under way.

        Raises:
            TransportError: if something is under way on another loop that still runs.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave: give up the transfers under way and free the memory held; nothing is called back any more. Idempotent.

        The other ranks are told (`Listener.ended`), and wait for this one no more.
        """

    def close_with_others(self) -> None:
        """The program ends: close, and wait until the other ranks have closed or are lost, if they need that."""
        self.close()

    @abstractmethod
    def send(self, rank: int, tag: int, data: memoryview, done: Sent) -> None:
        """Send bytes to another rank.

        Messages of one tag between two ranks arrive in the order in which they were sent. ``done`` is called when the
        other side has asked for the message (`receive`) and has it, or will without further help of this process: it
        is the credit for another one. Messages may have any size.

        Args:
            rank: The other side, not this rank.
            tag: From 0 to `max_tag`.
            data: Contiguous bytes of the host; empty ones carry no data, and tell the other side so.
            done: Called with None, or with `PeerLostError`, `PeerFailedError` or another `TransportError`.
        """

    @abstractmethod
    def receive(self, rank: int, tag: int, buffer: memoryview, done: Received) -> None:
        """Receive bytes from another rank into a writable, contiguous buffer of the host.

        ``done`` gets the number of bytes, and None or an error, as that of `send` does: all of the buffer, or 0 for an
        empty message. Any other number is an error.
        """

    @abstractmethod
    def post(self, rank: int, note: bytes) -> None:
        """Send a note of any size to a rank, this one included, for its `Listener`. Nothing needs to ask for it."""

    @abstractmethod
    def listen(self, listener: Listener | None) -> None:
        """Set the listener of notes; those that came before are kept for it, and it hears which ranks have ended."""

    @abstractmethod
    def group(self, ranks: Sequence[int]) -> RankGroup:
        """The group of these ranks, made on first use.

        All of its ranks call this, in the same order for groups that share ranks; it may block until they have.
        A group's reductions fail if one of them has ended.
        """

    def takes(self, kind: str) -> bool:
        """True if arrays of this kind of device can be sent as they are, without a copy to the host."""
        return kind == "cpu"

    def bytes_of(self, array: Any) -> memoryview:
        """The memory of a C-contiguous array, of the host or of a kind of device that this transport `takes`."""
        return memoryview(array.reshape(-1).view(np.uint8))

    def forget_parent(self) -> None:
        """In the child of a fork: this is not its rank."""
        self._is_forked = True

    def check_process(self) -> None:
        """Raises TransportError in the child of a fork: there are other ranks, and it is none."""
        if self._is_forked and self.size > 1:
            raise TransportError(
                f"this process was forked from rank {self.rank} of {self.size}, and is not a rank itself: start "
                "processes that run graphs of several ranks by their launcher, others by 'spawn' or 'forkserver'"
            )

    def check_rank(self, rank: int) -> None:
        """Raises TransportError if there is no such rank, or if it is this one."""
        if not 0 <= rank < self.size or rank == self.rank:
            raise TransportError(f"rank {self.rank} of {self.size} cannot send to or receive from rank {rank}")

    def check_address(self, rank: int, tag: int) -> None:
        """Raises TransportError if nothing can be sent to or received from a rank with a tag."""
        self.check_rank(rank)
        if not 0 <= tag <= self.max_tag:
            raise TransportError(f"tags go from 0 to {self.max_tag}, got {tag} for rank {rank}")

    def check_group(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """The ranks of a group, ascending.

        Raises:
            TransportError: if one is not there, or twice, or if this rank is not among them.
        """
        ascending = tuple(sorted(ranks))
        if (
            len(set(ascending)) != len(ascending)
            or self.rank not in ascending
            or not 0 <= ascending[0] <= (ascending[-1]) < self.size
        ):
            raise TransportError(
                f"rank {self.rank} of {self.size} cannot be of a group of ranks {list(ranks)}: each must exist, once, "
                f"and rank {self.rank} be among them"
            )
        return ascending


def flat(data: memoryview) -> memoryview:
    """Contiguous memory as plain bytes; raises TransportError if it is not contiguous."""
    if not data.c_contiguous:
        raise TransportError(f"a message must be contiguous, got strides {data.strides} for shape {data.shape}")
    if data.format == "B" and data.ndim == 1:
        return data
    return data.cast("B") if data.nbytes else memoryview(b"")


#: Functions that combine two arrays into ``out``, by the name of the operation.
OPERATIONS: dict[str, Callable[..., Any]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def combine(operation: str, one: Any, other: Any, out: Any) -> None:
    """Combine two arrays; infinities and NaN are values, whatever NumPy is told to do about them where it is called."""
    with np.errstate(all="ignore"):
        OPERATIONS[operation](one, other, out=out)


#: Names of the dtypes that add up and have an order; those of ``ml_dtypes`` have no kind of their own.
_DTYPES = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_DTYPES |= {"float16", "bfloat16", "float32", "float64"}


def check_reduction(operation: str, source: Any, target: Any) -> None:
    """Check the arrays a rank hands to `RankGroup.all_reduce`; raises TransportError naming the one at fault."""
    if operation not in OPERATIONS:
        raise TransportError(f"all_reduce computes {', '.join(OPERATIONS)}, not {operation!r}")
    for name, array in (("source", source), ("target", target)):
        if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
            raise TransportError(f"the {name} of all_reduce must be a C-contiguous host array, got {_described(array)}")
    if (source.shape, source.dtype) != (target.shape, target.dtype):
        raise TransportError(
            f"all_reduce of {_described(source)} needs a target of that type, got {_described(target)}"
        )
    if source.dtype.name not in _DTYPES or not source.dtype.isnative:
        raise TransportError(f"all_reduce cannot compute with dtype {source.dtype.str} ({source.dtype.name})")
    if not target.flags.writeable:
        raise TransportError(f"the target of all_reduce must be writable, and this {_described(target)} is not")


def _described(array: Any) -> str:
    if isinstance(array, np.ndarray):
        return f"{array.dtype}{list(array.shape)}" + ("" if array.flags.c_contiguous else " with strides")
    return type(array).__name__
