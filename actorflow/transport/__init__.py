"""Messages between ranks: all of them in one process, or over MPI."""

from actorflow.transport.base import Listener, PeerError, RankGroup, Received, Sent, Transport
from actorflow.transport.local import LocalTransport, LocalWorld

__all__ = ["RankGroup", "Listener", "LocalTransport", "LocalWorld", "PeerError", "Received", "Sent", "Transport"]
