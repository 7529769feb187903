"""What goes wrong in MPI, in the words of this package; which ranks have died, where the MPI can tell."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from mpi4py import MPI

from actorflow.errors import PeerLostError, TransportError
from actorflow.transport.base import PeerError

_DEATHS = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)


class Failures:
    """The dead ranks of a communicator.

    An MPI with ULFM (user-level failure mitigation) tells which they are; another one ends the job.

    Args:
        comm: Of all ranks.
        ends: How ranks have ended, as far as this rank has heard.

    Attributes:
        dead: Those that the MPI knows to be.
    """

    def __init__(self, comm: MPI.Intracomm, ends: Mapping[int, PeerError]) -> None:
        self.ends = ends
        self.dead: set[int] = set()
        self._told: set[int] = set()
        self._comm = comm
        self._group = comm.Get_group()
        try:
            comm.Get_failed().Free()
            self._can_tell = True
        except (MPI.Exception, NotImplementedError):
            self._can_tell = False

    def news(self) -> list[int]:
        """Ranks that have died since the last time, ascending."""
        self._look()
        new = sorted(self.dead - self._told)
        self._told.update(new)
        return new

    def any_dead(self) -> bool:
        """Whether a rank has died, by now."""
        self._look()
        return bool(self.dead)

    def _look(self) -> None:
        if not self._can_tell:
            return
        failed = self._comm.Get_failed()
        if failed.size > len(self.dead):
            self._comm.Ack_failed()  # receives from any rank go on
            self.dead.update(MPI.Group.Translate_ranks(failed, list(range(failed.size)), self._group))
        failed.Free()

    def error(self, code: int, ranks: Sequence[int], doing: str) -> TransportError:
        """The error for an error code of MPI.

        Args:
            code: Of something that had to do with ``ranks``.
            doing: What failed, for the message.
        """
        if MPI.Get_error_class(code) in _DEATHS:
            for rank in self.ends.keys() & ranks:
                return copy.copy(self.ends[rank])
            self._look()
            dead = sorted(self.dead.intersection(ranks))
            if dead or len(ranks) == 1:
                return PeerLostError(dead[0] if dead else ranks[0])
        return TransportError(f"{doing}: {', '.join(MPI.Get_error_string(code).split(chr(10)))}")

    def free(self) -> None:
        """Give back what MPI holds for this."""
        self._group.Free()
