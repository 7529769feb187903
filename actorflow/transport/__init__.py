"""Messages between ranks: all of them in one process, or over MPI."""

from actorflow.transport.base import Group, Listener, PeerError, Received, Sent, Transport
from actorflow.transport.local import LocalTransport, LocalWorld

__all__ = ["Group", "Listener", "LocalTransport", "LocalWorld", "PeerError", "Received", "Sent", "Transport"]
