"""The edges of a program between ranks: their tags, and the actors at their ends.

In each frame, every edge between two ranks carries exactly one message: the tensor, or, from a frame that has stopped,
an empty one. So whatever happens on one rank, no other waits for ever, and the next frame finds the edge in order.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow.actors.frame import Frame
from actorflow.actors.op import OpActor, Wiring
from actorflow.core import clock_ns, release
from actorflow.devices.base import Fence, IdleLane, Lane
from actorflow.devices.memory import Bucket
from actorflow.errors import GraphError, TransportError
from actorflow.ops.collective import AllReduce
from actorflow.plan.ranks import Identity
from actorflow.ranks.collectives import Run
from actorflow.trace.counters import NodeState
from actorflow.transport.base import Received, Sent

if TYPE_CHECKING:
    from actorflow.ranks.peers import Peers

_RUNNING = int(NodeState.RUNNING)
#: Frames of a graph from the oldest in flight on that may have begun; messages of one edge are told apart modulo this.
WINDOW = 1024


class Exchange:
    """Messages of one program to and from other ranks."""

    def __init__(self, peers: Peers, identity: Identity) -> None:
        self.peers = peers  # counterparts on the other ranks
        self.transport = peers.transport  # carries the messages
        self.identity = identity  # the selection of ops that all ranks must have alike
        self.actors: Sequence[ChannelActor] = ()  # the program's ends of channels and parts of collectives
        self.agreed = False  # whether all ranks have been found to have the same program
        self.agreement: asyncio.Task[None] | None = None
        self._edges: dict[tuple[int, bool], list[str]] = {}
        self._tags: dict[tuple[int, str], int] = {}

    def connect(self, actors: Sequence[ChannelActor]) -> None:
        """Say which actors are at this rank's ends, once they are all there."""
        self.actors = actors
        for actor in actors:
            if isinstance(actor, _EdgeActor):
                self._edges.setdefault((actor.peer, isinstance(actor, SendActor)), []).append(actor.edge)

    @property
    def most_edges(self) -> int:
        """The most edges that lead from one rank to another here."""
        return max(map(len, self._edges.values()), default=0)

    def agree(self, first_tag: int) -> None:
        """All ranks have the same program. Number the edges by their names; make the groups of collectives."""
        for (peer, _), edges in self._edges.items():
            # Both sides have the same names, whatever the order in which the graph was built.
            for index, edge in enumerate(sorted(edges)):
                self._tags[peer, edge] = first_tag + index * WINDOW
        for ranks in sorted({operation.ranks for operation in self._operations()}):
            self.transport.group(ranks)
        self.agreed = True

    def _operations(self) -> Iterable[AllReduce]:
        return (actor.node.operation for actor in self.actors if isinstance(actor.node.operation, AllReduce))

    def expect(self, frame: Frame) -> None:
        """A frame has started."""
        self.peers.enter(frame, self.identity)

    def skip(self, frame: Frame) -> None:
        """A frame has stopped."""
        self.peers.stopped(frame)

    def refuse(self, number: int, error: BaseException) -> None:
        """A frame cannot start here: stop it on the other ranks."""
        serial = self.peers.refuse(number, error, self.identity)
        self.void(serial)

    def void(self, serial: int) -> None:
        """Do what the other ranks wait for, for a frame that this rank never had."""
        for actor in self.actors:
            actor.void(serial)

    def send(self, serial: int, peer: int, edge: str, value: Any, done: Sent) -> None:
        """Send a frame's message along an edge; an empty one if the value is None."""
        if isinstance(value, np.ndarray):
            value = np.asarray(value, order="C")
        data = memoryview(b"") if value is None else self._bytes_of(value)
        self.transport.send(peer, self._tags[peer, edge] + serial % WINDOW, data, done)

    def receive(self, serial: int, peer: int, edge: str, buffer: Any, done: Received) -> None:
        """Receive a frame's message; 0 bytes mean that the frame has stopped over there."""
        self.transport.receive(peer, self._tags[peer, edge] + serial % WINDOW, self._bytes_of(buffer), done)

    def _bytes_of(self, array: Any) -> memoryview:
        if not array.nbytes:
            return memoryview(bytearray(1))  # an empty message would say that the frame has stopped
        return self.transport.bytes_of(array)

    def ready(self, serial: int, operation: AllReduce, run: Run | None) -> None:
        """This rank's part of a collective is ready; None if its frame has stopped."""
        self.peers.collectives.ready(serial, operation, run)


class ChannelLane(IdleLane):
    """Messages to or from one rank. They overlap, so that nothing follows from their order."""


class _MessageFence(Fence):
    """A message that is under way."""

    __slots__ = ("begun_ns", "waiters")

    def __init__(self, lane: Lane, frame: Frame) -> None:
        super().__init__(lane, frame)
        self.begun = True
        self.begun_ns = clock_ns()
        self.waiters: list[Callable[[], None]] = []

    def add_waiter(self, waiter: Callable[[], None]) -> None:
        if self.done:
            asyncio.get_running_loop().call_soon(waiter)
        else:
            self.waiters.append(waiter)

    def end(self, passed: Callable[[Fence], None]) -> None:
        self.done = True
        self.elapsed_ns = clock_ns() - self.begun_ns
        for waiter in self.waiters:
            waiter()
        self.waiters.clear()
        passed(self)


class ChannelActor(OpActor):
    """Base of both ends of channels, and of collectives."""

    __slots__ = ("_expected", "exchange")

    def __init__(self, wiring: Wiring, exchange: Exchange) -> None:
        super().__init__(wiring._replace(inline_ns=-1))
        self.exchange = exchange  # messages of the program
        self.attempts = None  # timeout and retries are those of the op that it was made for
        self._expected: set[Frame] = set()

    @abstractmethod
    def start(self, frame: Frame, fence: _MessageFence) -> None:
        """Hand the message to the transport."""

    @abstractmethod
    def void(self, serial: int) -> None:
        """Do what the other ranks wait for, for a frame that has stopped or never was on this rank."""

    def expect(self, frame: Frame) -> None:
        """A frame has started that will come here."""
        self._expected.add(frame)

    def skip(self, frame: Frame) -> None:
        """The frame has stopped. A message that is under way goes on without it."""
        if frame in self._expected:
            self._expected.discard(frame)
            self.void(frame.serial)
        else:
            frame.outstanding.pop(self, None)

    def begin(self, frame: Frame) -> int:
        self._expected.discard(frame)
        fence = _MessageFence(self.lane, frame)
        if frame.monitor is not None:
            self.show(frame, _RUNNING)
        frame.outstanding[self] = fence
        self.start(frame, fence)
        self._tell(frame, fence)
        return clock_ns()

    def replay(self, inputs: list[Any], number: int) -> Any:
        raise GraphError(f"{self.what} cannot be replayed")

    def _follows(self, fence: Fence) -> bool:
        return False

    def _ended(self, frame: Frame, fence: _MessageFence, error: BaseException | None) -> None:
        if frame.outstanding.get(self) is not fence:  # the frame has stopped
            return
        if error is None:
            release(self.freed, frame)
            fence.end(self._passed)
            frame.wake()
        else:
            del frame.outstanding[self]
            if isinstance(error, TransportError):
                frame.stop_with(error, at_once=True)
            else:
                end_ns = clock_ns()
                self.failed(frame, error, end_ns - fence.begun_ns, end_ns, self.key)


class _EdgeActor(ChannelActor):
    """One end of an edge."""

    __slots__ = ("edge", "peer")

    def __init__(self, wiring: Wiring, exchange: Exchange, peer: int, edge: str) -> None:
        super().__init__(wiring, exchange)
        self.peer = peer  # the other rank
        self.edge = edge  # name of the edge


class SendActor(_EdgeActor):
    """The end of an edge that sends."""

    __slots__ = ()

    @property
    def what(self) -> str:
        return f"{self.edge} (send)"

    def start(self, frame: Frame, fence: _MessageFence) -> None:
        (value,) = self.read(frame.values)
        self.exchange.send(frame.serial, self.peer, self.edge, value, partial(self._ended, frame, fence))

    def void(self, serial: int) -> None:
        self.exchange.send(serial, self.peer, self.edge, None, lambda _: None)


class ReceiveActor(_EdgeActor):
    """The end of an edge that receives."""

    __slots__ = ("bucket",)

    def __init__(self, wiring: Wiring, exchange: Exchange, peer: int, edge: str, bucket: Bucket) -> None:
        super().__init__(wiring, exchange, peer, edge)
        self.bucket = bucket  # where buffers come from

    @property
    def what(self) -> str:
        return f"{self.edge} (receive from rank {self.peer})"

    def start(self, frame: Frame, fence: _MessageFence) -> None:
        buffer = frame.values[self.outputs[0].slot] = self.bucket.take()
        self.exchange.receive(frame.serial, self.peer, self.edge, buffer, partial(self._arrived, frame, fence))

    def void(self, serial: int) -> None:
        # The other rank may have sent a message before it knew, which has to be received.
        buffer = np.empty(self.bucket.spec.shape, self.bucket.spec.dtype)
        self.exchange.receive(serial, self.peer, self.edge, buffer, lambda _, __: None)

    def _arrived(self, frame: Frame, fence: _MessageFence, size_bytes: int, error: BaseException | None) -> None:
        if size_bytes or error is not None:
            self._ended(frame, fence, error)
        # Else the frame has stopped over there; the note that says so, and why, is on its way and stops it here, too.


class AllReduceActor(ChannelActor):
    """One rank's part of a collective."""

    __slots__ = ("bucket", "operation")

    def __init__(self, wiring: Wiring, exchange: Exchange, operation: AllReduce, bucket: Bucket) -> None:
        super().__init__(wiring, exchange)
        self.operation = operation  # the collective
        self.bucket = bucket  # where buffers for the result come from

    @property
    def what(self) -> str:
        return f"{self.operation.group} (all-reduce over ranks {', '.join(map(str, self.operation.ranks))})"

    def start(self, frame: Frame, fence: _MessageFence) -> None:
        (source,) = self.read(frame.values)
        target = frame.values[self.outputs[0].slot] = self.bucket.take()
        # The arrays are held here: the others need this rank's part even when the frame has stopped here.
        run = partial(self._reduce, frame, fence, np.asarray(source, order="C"), target)
        self.exchange.ready(frame.serial, self.operation, run)

    def void(self, serial: int) -> None:
        self.exchange.ready(serial, self.operation, None)

    def _reduce(
        self,
        frame: Frame,
        fence: _MessageFence,
        source: npt.NDArray[Any],
        target: npt.NDArray[Any],
        done: Callable[[], None],
    ) -> None:
        def reduced(error: BaseException | None) -> None:
            self._ended(frame, fence, error)
            done()

        group = self.exchange.transport.group(self.operation.ranks)
        group.all_reduce(self.operation.operation, source, target, reduced)


def messages_under_way(frames: Iterable[Frame]) -> Counter[tuple[int, int, bool]]:
    """Frames in which a message waits for another rank, by blob (`Node.id`), that rank, and whether this one sends."""
    return Counter(
        (actor.node_id, actor.peer, isinstance(actor, SendActor))
        for frame in frames
        for actor in [*frame.outstanding]
        if isinstance(actor, _EdgeActor)
    )
