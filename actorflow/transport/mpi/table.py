"""The MPI requests that are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from mpi4py import MPI

__all__ = ["Call", "Ended", "Entry", "Table"]

#: Called with the number of bytes that a receive got, and with MPI's error code, or 0.
Ended = Callable[[int, int], object]
#: A callback and what it is called with.
Call = tuple[Callable[..., object], tuple[object, ...]]


class Entry(NamedTuple):
    """What a request is about.

    Attributes:
        ranks: The other side, or all ranks of a collective.
        is_receive: Whether it can be cancelled; else, others must do something for it to end.
        ended: Called when it has ended.
    """

    ranks: Sequence[int]
    is_receive: bool
    ended: Ended


class Table:
    """Requests, in the order in which they were started.

    Args:
        wake: Called when one has been started.

    Attributes:
        sends: How many of them are no receives.
        loop: The one that callbacks come on.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.sends = 0
        self._wake = wake
        self._is_closed = False
        self._requests: list[MPI.Request] = []
        self._entries: list[Entry] = []
        self._dropped: list[MPI.Request] = []
        self.loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self._requests)

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the loop that callbacks come on, and that hears of those that raise."""
        self.loop = loop

    def start(self, start: Callable[[], MPI.Request], entry: Entry) -> None:
        """Start one; that it cannot be started is told like any other end."""
        try:
            request = start()
        except MPI.Exception as error:
            self.call_soon(entry.ended, 0, error.Get_error_code())
        else:
            self._requests.append(request)
            self._entries.append(entry)
            self.sends += not entry.is_receive
        self._wake()

    def poll(self) -> bool:
        """Let MPI go on, and call back for what has ended.

        Returns:
            Whether anything has.
        """
        if not self._requests:
            return False
        statuses: list[MPI.Status] = []
        try:
            indices = MPI.Request.Testsome(self._requests, statuses)
            if not indices:
                return False
            ended = [(i, status.count, 0) for i, status in zip(indices, statuses, strict=False)]
        except MPI.Exception as error:
            ended = self._after(error, statuses)
        ended.sort()
        calls: list[Call] = [(self._entries[i].ended, (count, code)) for i, count, code in ended]
        for i, _, _ in reversed(ended):
            self._remove(i)
        self.call(calls)
        return bool(calls)

    def call(self, calls: Iterable[Call]) -> None:
        """Make callbacks; what one of them raises does not touch the others."""
        for function, args in calls:
            if self._is_closed:
                return
            try:
                function(*args)
            except Exception as error:  # noqa: BLE001  told as the loop tells of its own callbacks
                if self.loop is not None:
                    context = {"message": f"callback {function} of a transport failed", "exception": error}
                    self.loop.call_exception_handler(context)

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Make a callback at the loop's next turn."""
        assert self.loop is not None
        self.loop.call_soon(self.call, [(function, args)])

    def close(self) -> None:
        """Give everything up, and call back no more."""
        self._is_closed = True
        self.drop()

    def drop(self, rank: int | None = None, *, only_receives: bool = False) -> list[Entry]:
        """Give requests up: receives are cancelled; what cannot be is left to MPI, and its memory kept until it ends.

        Args:
            rank: Those that this rank has to do with; None for all.
            only_receives: Leave the others.

        Returns:
            What they were about, in order.
        """
        found = [
            i
            for i, entry in enumerate(self._entries)
            if (rank is None or rank in entry.ranks) and (entry.is_receive or not only_receives)
        ]
        entries = [self._entries[i] for i in found]
        for i in reversed(found):
            request, is_receive = self._requests[i], self._entries[i].is_receive
            self._remove(i)
            with suppress(MPI.Exception):
                if is_receive:
                    request.Cancel()
                self._dropped.append(request)
        kept = []
        for request in self._dropped:
            with suppress(MPI.Exception):
                if not request.Test():
                    kept.append(request)
        self._dropped = kept
        return entries

    def lose(self, rank: int) -> None:
        """A rank has died: what is under way with it has failed."""
        self.call([(entry.ended, (0, MPI.ERR_PROC_FAILED)) for entry in self.drop(rank)])

    def _remove(self, i: int) -> None:
        self.sends -= not self._entries[i].is_receive
        del self._requests[i], self._entries[i]

    def _after(self, error: MPI.Exception, statuses: list[MPI.Status]) -> list[tuple[int, int, int]]:
        """What has ended, when something has ended badly: which ones MPI's binding does not say then."""
        indices = [i for i, request in enumerate(self._requests) if not request]
        if error.Get_error_class() != MPI.ERR_IN_STATUS:
            return [(i, 0, error.Get_error_code()) for i in indices]
        pending = MPI.ERR_PROC_FAILED_PENDING
        known = [status for status in statuses if MPI.Get_error_class(status.error) != pending]
        if len(known) != len(indices):
            return [(i, 0, MPI.ERR_OTHER) for i in indices]
        return [(i, status.count, status.error) for i, status in zip(indices, known, strict=True)]
