"""Collectives: MPI's own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from actorflow.transport.base import RankGroup, Sent, check_reduction, combine
from actorflow.transport.mpi.messages import Link
from actorflow.transport.mpi.requests import AT_ONCE, Kind, Parts

_INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
_TYPES = {
    "float32": MPI.FLOAT,
    "float64": MPI.DOUBLE,
    **{name: getattr(MPI, f"{name.upper()}_T") for name in _INTEGERS},
}
_NATIVE = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}


class Operations:
    """Operations that MPI reduces with.

    Its own maximum and minimum leave open which rank's operand comes first, and so whether the result is NaN or which
    sign a zero has, which could differ between ranks. For floats they are made of NumPy's, in the order of the ranks.
    """

    def __init__(self) -> None:
        self._own: dict[tuple[str, str], MPI.Op] = {}

    def get(self, operation: str, dtype: np.dtype[Any]) -> MPI.Op:
        """The operation for arrays of a dtype that MPI knows."""
        if operation == "sum" or dtype.kind != "f":
            return _NATIVE[operation]
        op = self._own.get((operation, dtype.name))
        if op is None:
            op = self._own[operation, dtype.name] = MPI.Op.Create(partial(_combine, operation, dtype), commute=False)
        return op

    def free(self) -> None:
        """Give back the resources of MPI."""
        for op in self._own.values():
            op.Free()
        self._own.clear()


def _combine(operation: str, dtype: np.dtype[Any], lower: Any, higher: Any, _: MPI.Datatype) -> None:
    """Reduce into the second of two pieces of memory; the first is of lower ranks."""
    target = np.frombuffer(higher, dtype)
    combine(operation, np.frombuffer(lower, dtype), target, out=target)


class MPIGroup(RankGroup):
    """Some ranks, with a communicator of their own.

    Args:
        comm: The communicator of all ranks, of which these make one, unless they are all or one of them has ended.
    """

    def __init__(self, ranks: Sequence[int], comm: MPI.Intracomm, link: Link, operations: Operations) -> None:
        super().__init__(ranks)
        self._comm = comm
        self._is_own = len(self.ranks) < comm.size and link.failures.ends.keys().isdisjoint(self.ranks)
        if self._is_own:
            everybody = comm.Get_group()
            members = everybody.Incl(self.ranks)
            self._comm = comm.Create_group(members)
            members.Free()
            everybody.Free()
        self.kind = Kind(self.ranks, False, ("group", *self.ranks))
        self._others = [rank for rank in self.ranks if rank != comm.rank]
        self._table, self._bell, self._failures, self._chunk_bytes = link
        self._operations = operations
        # Parts of all reductions, in one order: that in which they start must be the same on all ranks.
        self._left: deque[tuple[Callable[[], MPI.Request], Parts]] = deque()
        self.under_way = 0  # parts that have been started and have not ended

    def all_reduce(self, operation: str, source: Any, target: Any, done: Sent) -> None:
        check_reduction(operation, source, target)
        loop = self._table.loop
        if not self._failures.ends.keys().isdisjoint(self._others):
            self._table.call_soon(self._reduced, operation, target, target, done, loop, 0, MPI.ERR_PROC_FAILED)
            return
        if not self._others or not source.size:
            np.copyto(target, source)
            self._table.call_soon(done, None)
            return
        # MPI has no type for 16 bits: the sum is rounded once.
        wire = target if source.dtype.name in _TYPES else np.empty(source.shape, np.float32)
        if wire is not source:
            np.copyto(wire, source, casting="unsafe")
        flat = wire.reshape(-1)
        op, kind = self._operations.get(operation, wire.dtype), _TYPES[wire.dtype.name]
        step = max(1, self._chunk_bytes // wire.itemsize)
        starts = range(0, wire.size, step)
        ended = partial(self._reduced, operation, wire, target, done, loop)
        parts = Parts(len(starts), ended)
        for i in starts:
            part = (flat[i : i + step], kind)
            self._left.append((partial(self._comm.Iallreduce, MPI.IN_PLACE, part, op), parts))
        self._fill()

    def free(self) -> None:
        """Give back the resources of MPI."""
        if self._is_own:
            self._comm.Free()

    def _reduced(
        self,
        operation: str,
        wire: npt.NDArray[Any],
        target: npt.NDArray[Any],
        done: Sent,
        loop: asyncio.AbstractEventLoop | None,
        _: int,
        code: int,
    ) -> None:
        if not code:
            self._wake_others()  # one may wait for the message this rank has just passed on
        if loop is not self._table.loop:
            return
        error = None
        if code:
            error = self._failures.error(code, self.ranks, f"{operation} over ranks {list(self.ranks)}")
        elif wire is not target:
            np.copyto(target, wire, casting="unsafe")
        done(error)

    def _fill(self) -> None:
        while self._left and self.under_way < AT_ONCE:
            self.under_way += 1
            start, parts = self._left.popleft()
            self._table.start(self.kind, partial(self._part_ended, parts), start)
        self._wake_others()

    def _part_ended(self, parts: Parts, count: int, code: int) -> None:
        self.under_way -= 1
        self._fill()
        parts(count, code)

    def _wake_others(self) -> None:
        for rank in self._others:
            self._bell.ring(rank)
