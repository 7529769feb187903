"""A pulse whose datagrams are lost, of a rank that is alone: it closes all the same."""

import sys
from types import SimpleNamespace
from typing import Any, cast

import mpi4py

mpi4py.rc.initialize = False

from actorflow.transport.mpi.deaths import Pulse  # noqa: E402


class Unheard(Pulse):
    def _send(self, kind: bytes, rank: int) -> None:
        """Lose the message."""


if __name__ == "__main__":
    comm = SimpleNamespace(rank=0, bcast=lambda value: value, allgather=lambda value: [value])
    pulse = Unheard(cast("Any", comm), "127.0.0.1", frozenset({0}), lambda _: None)
    pulse.close()
    sys.stdout.write("closed\n")
