"""What one program exchanges with other ranks: its edges, their tags, its parts of collectives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.ops.collective import AllReduce
from actorflow.ranks.collectives import Run
from actorflow.ranks.identity import Identity
from actorflow.transport.base import Received, Sent

if TYPE_CHECKING:
    from actorflow.actors.channel import ChannelActor
    from actorflow.actors.frame import Frame
    from actorflow.ranks.channels import Channels

#: Frames of a graph that may be in flight at once; messages of one edge are told apart modulo this.
WINDOW = 1024


class Exchange:
    """What one program exchanges with other ranks.

    Attributes:
        channels: Of the engine.
        transport: What carries it.
        identity: What all ranks must have alike.
        actors: The program's ends of channels and parts of collectives.
        agreed: Whether all ranks have been found to have the same program.
    """

    def __init__(self, channels: Channels, identity: Identity) -> None:
        self.channels = channels
        self.transport = channels.transport
        self.identity = identity
        self.actors: list[ChannelActor] = []
        self.agreed = False
        self.agreement: asyncio.Task[None] | None = None
        self._first_tag = 0
        self._edges: dict[tuple[int, bool], list[str]] = {}
        self._tags: dict[tuple[int, str], int] = {}

    # -- before the first frame ---------------------------------------------------------------------------------

    def add_edge(self, peer: int, edge: str, is_sent: bool) -> None:
        """There is an edge to or from a rank."""
        self._edges.setdefault((peer, is_sent), []).append(edge)

    @property
    def most_edges(self) -> int:
        """The most edges that lead from one rank to another here."""
        return max(map(len, self._edges.values()), default=0)

    def agree(self, first_tag: int) -> None:
        """All ranks have the same program. Number the edges by their names; make the groups of collectives."""
        self._first_tag = first_tag
        for (peer, _), edges in self._edges.items():
            # Both sides have the same names, whatever the order in which the graph was built.
            for index, edge in enumerate(sorted(edges)):
                self._tags[peer, edge] = first_tag + index * WINDOW
        for ranks in sorted({operation.ranks for operation in self._operations()}):
            self.transport.group(ranks)
        self.agreed = True

    def _operations(self) -> Iterable[AllReduce]:
        return (actor.node.operation for actor in self.actors if isinstance(actor.node.operation, AllReduce))

    # -- frames: it is told of them as the turnstiles are ---------------------------------------------------------

    def expect(self, frame: Frame) -> None:
        """A frame has started."""
        self.channels.enter(frame, self.identity.ranks)

    def skip(self, frame: Frame) -> None:
        """A frame has stopped."""
        self.channels.stopped(frame)

    def forget(self, frame: Frame) -> None:
        """A frame has ended."""
        self.channels.leave(frame)

    def refuse(self, number: int, error: BaseException) -> None:
        """A frame cannot start here: stop it on the other ranks."""
        serial = self.channels.refuse(number, error)
        self.void(serial)

    def void(self, serial: int) -> None:
        """Do for a frame that this rank never had what the other ranks wait for."""
        for actor in self.actors:
            actor.void(serial)

    # -- messages -----------------------------------------------------------------------------------------------

    def send(self, serial: int, peer: int, edge: str, value: Any, done: Sent) -> None:
        """Send a frame's message along an edge; an empty one if the value is None."""
        if isinstance(value, np.ndarray):
            value = np.ascontiguousarray(value)
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
        self.channels.collectives.ready(serial, operation, run)
