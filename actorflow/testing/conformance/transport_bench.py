"""Bench on which a transport is checked: messages that can be awaited, and an eye on how callbacks come."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from actorflow.testing.conformance.report import Deviation, NotApplicable, expect
from actorflow.transport import Listener, PeerError, Transport

_TURNS = 300  # turns of the loop after which what has not come would not come without being asked for
_TAGS = 1_000  # tags that the check of one requirement may take


class RankBench(Listener):
    """One rank of a transport that is checked, and how it reaches the others."""

    def __init__(
        self,
        transport: Transport,
        loop: asyncio.AbstractEventLoop,
        chunk_bytes: int,
        patience_s: float,
        measure_idle: bool,
        freeze: Callable[[], object] | None,
    ) -> None:
        self.transport = transport
        self.loop = loop  # the loop that callbacks must come on
        self.chunk_bytes = chunk_bytes  # messages larger than this are tried
        self.patience_s = patience_s  # after how many seconds what has not happened counts as never happening
        self.measure_idle = measure_idle  # whether the time that waiting takes is measured
        self.freeze = freeze  # what makes this rank stand still, if that is to be checked
        self.is_out = False  # whether this rank has ended before the others, and checks nothing more
        self.notes: dict[int, list[bytes]] = {rank: [] for rank in range(transport.size)}
        self.ends: dict[int, PeerError] = {}
        self.faults: list[str] = []
        self._is_calling = False
        self._thread = threading.get_ident()
        self._waits: Counter[str] = Counter()
        self._next_tag = 0
        self._heard = asyncio.Event()
        transport.bind(loop)

    @property
    def others(self) -> list[int]:
        """All other ranks, but for ranks that have ended; raises NotApplicable if there are none."""
        others = [rank for rank in range(self.transport.size) if rank != self.transport.rank and rank not in self.ends]
        if not others:
            raise NotApplicable("there is no other rank")
        return others

    def partner(self) -> int:
        """One other rank, whose partner this one is; raises NotApplicable if there is none."""
        partner = self.transport.rank ^ 1
        if partner not in self.others:
            raise NotApplicable("this rank has no partner: their number is odd")
        return partner

    def begin(self, number: int) -> None:
        """The next requirement: its tags are its own on all ranks, whatever they have checked before."""
        self._next_tag = number * _TAGS

    async def within_patience(self, check: Callable[[RankBench], Awaitable[None]]) -> None:
        """Check a requirement; raises Deviation if that does not end."""
        try:
            async with asyncio.timeout(self.patience_s):
                await check(self)
        except TimeoutError:
            raise Deviation(f"an end within {self.patience_s:g} s", f"waiting for {self.waiting()}") from None

    def tag(self) -> int:
        """A tag that is new on all ranks."""
        self._next_tag += 1
        return self._next_tag

    def send(self, rank: int, tag: int, data: Any) -> asyncio.Future[None]:
        """Send; done when the other side has asked for it."""
        future, done = self._future(f"a send to rank {rank}")
        self.call(self.transport.send, rank, tag, memoryview(data), done)
        return future

    def receive(self, rank: int, tag: int, buffer: Any) -> asyncio.Future[int]:
        """Receive; gives the number of bytes."""
        future, done = self._future(f"a message of rank {rank}")
        self.call(self.transport.receive, rank, tag, memoryview(buffer), lambda count, error: done(error, count))
        return future

    def reduce(self, ranks: Sequence[int], operation: str, source: Any, target: Any) -> asyncio.Future[None]:
        """Reduce over a group."""
        future, done = self._future(f"a reduction over ranks {list(ranks)}")
        self.call(self.transport.group(ranks).all_reduce, operation, source, target, done)
        return future

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call the transport, and watch that nothing is called back meanwhile."""
        self._is_calling = True
        try:
            function(*args)
        finally:
            self._is_calling = False

    async def exchange(self, size: int, seed: int = 0) -> None:
        """Send a message of a size to all others, and get theirs."""
        tag, own = self.tag(), self.transport.rank
        buffers = {rank: bytearray(size) for rank in self.others}
        received = [self.receive(rank, tag, buffer) for rank, buffer in buffers.items()]
        sent = [self.send(rank, tag, content(own, size, seed)) for rank in buffers]
        counts = await asyncio.gather(*received)
        await asyncio.gather(*sent)
        expect(counts == [size] * len(counts), f"{size} bytes from each rank", str(counts))
        for rank, buffer in buffers.items():
            expect(buffer == content(rank, size, seed), f"the {size:,} bytes that rank {rank} sent", "other bytes")

    async def barrier(self) -> None:
        """Wait for all ranks."""
        await self.exchange(0)

    async def turns(self) -> None:
        """Give everything that could happen by itself the time to."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    def waiting(self) -> str:
        """Description of the messages that have not come."""
        return ", ".join(f"{what} ({count} times)" for what, count in self._waits.items() if count) or "other ranks"

    def heard(self, rank: int, note: bytes) -> None:
        self.look("heard()")
        self.notes[rank].append(note)
        self._heard.set()

    def ended(self, error: PeerError) -> None:
        self.look("ended()")
        self.ends[error.rank] = error
        self._heard.set()

    async def hear_of_end(self, rank: int) -> PeerError:
        """Wait until a rank has ended; the error that says how."""
        while rank not in self.ends:
            self._heard.clear()
            await self._heard.wait()
        return self.ends[rank]

    async def hear(self, count: int) -> None:
        """Wait for ``count`` notes of each rank."""
        while any(len(notes) < count for notes in self.notes.values()):
            self._heard.clear()
            await self._heard.wait()

    def look(self, what: str) -> None:
        """Note faults in the way a callback comes."""
        if self._is_calling:
            self.faults.append(f"{what} within the call that asked for it")
        if threading.get_ident() != self._thread or asyncio.get_running_loop() is not self.loop:
            self.faults.append(f"{what} outside of the loop")

    def _future(self, what: str) -> tuple[asyncio.Future[Any], Callable[..., None]]:
        future: asyncio.Future[Any] = self.loop.create_future()
        self._waits[what] += 1

        def done(error: BaseException | None, value: Any = None) -> None:
            self.look(f"the callback of {what}")
            self._waits[what] -= 1
            if future.cancelled():
                return
            if future.done():
                self.faults.append(f"the callback of {what} twice")
            elif error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        return future, done


def content(rank: int, size: int, seed: int = 0) -> bytes:
    """Bytes that a rank sends: others for each rank and seed."""
    base = np.arange(size, dtype=np.uint32) * np.uint32(2654435761) + np.uint32((rank * 977 + seed * 7919) % (1 << 32))
    return (base >> np.uint32(13)).astype(np.uint8).tobytes()
