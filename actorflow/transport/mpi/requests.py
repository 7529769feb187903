"""Requests of MPI that are under way, and messages that are several of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mpi4py import MPI

#: Called with the number of bytes that a receive got, and with MPI's error code, or 0.
Ended = Callable[[int, int], object]

_PAGE = 128  # requests that one look tests: MPI takes some 20 ns for each, whether it has ended or not
_SPARSE = _PAGE // 4  # a page with as few is joined with another
_FEW = 4  # so few are tested one by one, which takes half the time
_status = MPI.Status()  # of the one that was tested last
_Ended = tuple[int, int, int]  # index of a request, the bytes that it has received, and MPI's error code, or 0


class Kind:
    """Requests of one kind, and how many of them have ended.

    Args:
        key: Their name in the last words of other ranks, which count them as well; None for none.
    """

    __slots__ = ("is_receive", "key", "ranks", "through")

    def __init__(self, ranks: Sequence[int], is_receive: bool, key: Hashable = None) -> None:
        self.ranks = ranks  # the other side, or all ranks of a collective
        self.is_receive = is_receive  # whether they can be cancelled; else, others must do something for them to end
        self.key = key
        self.through = 0  # how many have ended


#: Kind of a request, and the function called at its end.
Entry = tuple[Kind, Ended]


class _Page:
    """Some requests, in the order in which they were started."""

    __slots__ = ("entries", "number", "requests")

    def __init__(self, number: int) -> None:
        self.number = number
        self.requests: list[MPI.Request] = []
        self.entries: list[Entry] = []

    def ended(self) -> list[_Ended]:
        """Requests that have ended, in order."""
        if len(self.requests) > _FEW:
            return self._ended_of_many()
        found: list[_Ended] = []
        for i, request in enumerate(self.requests):
            try:
                if request.Test(_status):
                    found.append((i, _status.count if self.entries[i][0].is_receive else 0, 0))
            except MPI.Exception as error:
                if not request:
                    found.append((i, 0, error.Get_error_code()))
        return found

    def _ended_of_many(self) -> list[_Ended]:
        statuses: list[MPI.Status] = []
        try:
            indices = MPI.Request.Testsome(self.requests, statuses)
            if not indices:
                return []
            return sorted((i, status.count, 0) for i, status in zip(indices, statuses, strict=False))
        except MPI.Exception as error:
            return sorted(_after(self.requests, error, statuses))


class Table:
    """Requests, in pages: a look tests those of one, so that it costs the same however many there are."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.sends = 0  # how many of them are not receives
        self._wake = wake  # called when one has been started
        self._is_closed = False
        self._pages = deque([_Page(0)])  # the next to be looked at first
        self._newest = self._pages[0]
        self._dropped: list[tuple[MPI.Request, Kind]] = []
        self._gone: dict[int, Mapping[Hashable, int]] = {}
        self.loop: asyncio.AbstractEventLoop | None = None  # the one that callbacks come on

    def __len__(self) -> int:
        return sum(len(page.requests) for page in self._pages)

    @property
    def pages(self) -> int:
        """Number of looks that see all requests."""
        return len(self._pages)

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the loop that callbacks come on, and that hears of those that raise."""
        self.loop = loop

    def start(self, kind: Kind, ended: Ended, start: Callable[..., MPI.Request], *args: Any) -> None:
        """Start one by calling ``start(*args)``; that it cannot be started is told like any other end."""
        if self._gone and not self._gone.keys().isdisjoint(kind.ranks):
            self.call_soon(ended, 0, MPI.ERR_PROC_FAILED)
            return
        try:
            request = start(*args)
        except MPI.Exception as error:
            self.call_soon(ended, 0, error.Get_error_code())
        else:
            page = self._newest
            if len(page.requests) >= _PAGE:
                page = self._newest = _Page(page.number + 1)
                self._pages.append(page)
            page.requests.append(request)
            page.entries.append((kind, ended))
            if not kind.is_receive:
                self.sends += 1
        self._wake()

    def poll(self) -> bool:
        """Let MPI go on, and call back for the requests of one page that have ended; returns whether anything has."""
        page = self._pages[0]
        if len(self._pages) > 1:
            self._turn_over(page)
        if not page.requests:
            return False
        found = page.ended()
        if not found:
            return False
        taken = []
        for i, count, code in reversed(found):
            kind, ended = self._remove(page, i)
            kind.through += 1
            taken.append((kind, ended, count, code))
        for _, ended, count, code in reversed(taken):
            self.call(ended, count, code)
        if self._gone and any(self._is_left(kind) for kind in (*[kind for kind, *_ in taken], *self._sweep())):
            self._fail_what_is_left()
        return True

    def _turn_over(self, page: _Page) -> None:
        """Look at the next page next time, and put this one behind the others, or the rest of it on the next."""
        self._pages.popleft()
        following = self._pages[0]
        if page is not self._newest and len(page.requests) <= _SPARSE:
            if len(following.requests) + len(page.requests) <= _PAGE and following is not self._newest:
                following.requests[:0], following.entries[:0] = page.requests, page.entries
                page.requests, page.entries = following.requests, following.entries
                return
            if not page.requests:
                return
        self._pages.append(page)

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Make a callback, unless this is closed; its exception is told as the loop tells of its own callbacks."""
        if self._is_closed:
            return
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001  it must not touch other callbacks
            if self.loop is not None:
                context = {"message": f"callback {function} of a transport failed", "exception": error}
                self.loop.call_exception_handler(context)

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Make a callback at the loop's next turn; if that has been closed, nothing waits for it."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon(self.call, function, *args)

    def close(self) -> None:
        """Give everything up, and call back no more."""
        self._is_closed = True
        self.drop()

    def drop(self, which: Callable[[Kind], bool] = lambda _: True) -> list[Ended]:
        """Give requests up: receives are cancelled, the others left to MPI, and their memory kept until they end.

        Returns:
            Functions that would have been called at their ends, in order.
        """
        dropped = []
        for page in sorted(self._pages, key=lambda page: page.number):
            found = [i for i, (kind, _) in enumerate(page.entries) if which(kind)]
            dropped += [page.entries[i][1] for i in found]
            for i in reversed(found):
                request, (kind, _) = page.requests[i], self._remove(page, i)
                with suppress(MPI.Exception):
                    if kind.is_receive:
                        request.Cancel()
                    self._dropped.append((request, kind))
        self._sweep()
        return dropped

    def _sweep(self) -> list[Kind]:
        """Forget requests given up that have ended; returns those that ended before they were cancelled: they count."""
        kept, counted, status = [], [], MPI.Status()
        for request, kind in self._dropped:
            with suppress(MPI.Exception):
                if not request.Test(status):
                    kept.append((request, kind))
                elif not status.Is_cancelled():
                    kind.through += 1
                    counted.append(kind)
        self._dropped = kept
        return counted

    def lose(self, rank: int, done: Mapping[Hashable, int] | None = None) -> None:
        """A rank has ended: requests under way with it have failed, and so do those started from now on.

        Args:
            done: How many requests of each kind had ended there, by `Kind.key`: as many end here, too. None if that is
                unknown.
        """
        if rank not in self._gone:
            self._gone[rank] = {} if done is None else done
            self._fail_what_is_left()

    def _is_left(self, kind: Kind) -> bool:
        """True if a rank that has ended did no more requests of this kind."""
        gone = self._gone
        return any(rank in gone and kind.through >= gone[rank].get(kind.key, 0) for rank in kind.ranks)

    def _fail_what_is_left(self) -> None:
        """Fail the requests that ranks which have ended did not do their part of.

        It looks at all: so only when a rank ends, and when the last that it has done of some kind comes through.
        """
        self._sweep()
        for ended in self.drop(self._is_left):
            self.call(ended, 0, MPI.ERR_PROC_FAILED)

    def ranks(self) -> set[int]:
        """The ranks that must do something for the requests under way to end."""
        return {rank for page in self._pages for kind, _ in page.entries for rank in kind.ranks}

    def _remove(self, page: _Page, i: int) -> Entry:
        del page.requests[i]
        entry = page.entries.pop(i)
        if not entry[0].is_receive:
            self.sends -= 1
        return entry


def _after(requests: Sequence[MPI.Request], error: MPI.Exception, statuses: list[MPI.Status]) -> list[_Ended]:
    """Find the requests that have ended when one has failed, which MPI's binding does not tell."""
    indices = [i for i, request in enumerate(requests) if not request]
    if error.Get_error_class() != MPI.ERR_IN_STATUS:
        return [(i, 0, error.Get_error_code()) for i in indices]
    pending = MPI.ERR_PROC_FAILED_PENDING
    known = [status for status in statuses if MPI.Get_error_class(status.error) != pending]
    if len(known) != len(indices):
        return [(i, 0, MPI.ERR_OTHER) for i in indices]
    return [(i, status.count, status.error) for i, status in zip(indices, known, strict=True)]


#: Parts of one message, or of the reductions of a group, that are under way at once. MPI looks through all that are for
#: each one that comes: with thousands, nothing seems to move any more.
AT_ONCE = 32


def chunks(data: memoryview, chunk_bytes: int) -> list[memoryview]:
    """The parts of a message that MPI carries; one, at least."""
    if len(data) <= chunk_bytes:
        return [data]
    return [data[i : i + chunk_bytes] for i in range(0, len(data), chunk_bytes)]


class Parts:
    """Several requests that end as one."""

    __slots__ = ("_code", "_count", "_ended", "_size_bytes")

    def __init__(self, count: int, ended: Ended) -> None:
        self._count = count
        self._ended = ended  # called when all have ended, with the bytes of all, and the first error code that is not 0
        self._size_bytes = 0
        self._code = 0

    def __call__(self, count: int, code: int) -> None:
        """One has ended."""
        self._size_bytes += count
        self._code = self._code or code
        self._count -= 1
        if not self._count:
            self._ended(self._size_bytes, self._code)


class Row:
    """The parts of one message, one behind the other, a few of them under way at once."""

    __slots__ = ("_code", "_ended", "_left", "_size_bytes", "_start", "_under_way")

    def __init__(self, parts: list[memoryview], start: Callable[[memoryview, Ended], None], ended: Ended) -> None:
        self._left = deque(parts)
        self._start = start  # starts the request of a part; is given the function to call at its end
        self._ended = ended  # called when all have ended, or none is under way after an error
        self._under_way = 0
        self._size_bytes = 0
        self._code = 0
        self._fill()

    def _fill(self) -> None:
        while self._left and self._under_way < AT_ONCE:
            self._under_way += 1
            self._start(self._left.popleft(), self._part_ended)

    def _part_ended(self, count: int, code: int) -> None:
        self._under_way -= 1
        self._size_bytes += count
        if code:
            self._code = self._code or code
            self._left.clear()
        self._fill()
        if not self._under_way:
            self._ended(self._size_bytes, self._code)
