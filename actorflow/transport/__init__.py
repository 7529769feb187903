"""Messages between ranks: all of them in one process, or over MPI."""

from actorflow.transport.base import Group, Listener, Received, Sent, Transport
from actorflow.transport.local import LocalTransport, LocalWorld

__all__ = ["Group", "Listener", "LocalTransport", "LocalWorld", "Received", "Sent", "Transport"]
