"""Requirements on how a transport calls back and what waiting costs, and on the end of ranks."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import numpy as np

from actorflow.errors import PeerFailedError, PeerLostError, TransportError
from actorflow.testing.conformance.report import Deviation, NotApplicable, Topic, expect, refusing
from actorflow.testing.conformance.transport_bench import RankBench, content
from actorflow.transport import PeerError

ENDS = Topic("ends")

_WAIT_S = 1.0
_MOST_OF_A_CORE = 0.05


@ENDS.requires(
    "bind", "bind() to the same loop changes nothing; to another one while something is under way, it raises"
)
async def _bind(peers: RankBench) -> None:
    peers.transport.bind(peers.loop)
    other, tag, buffer = peers.partner(), peers.tag(), bytearray(10)
    received = peers.receive(other, tag, buffer)
    refused = refusing(TransportError, "from bind() to another loop with a receive under way", "it is bound")
    with closing(asyncio.new_event_loop()) as elsewhere, refused:
        peers.transport.bind(elsewhere)
    await asyncio.gather(peers.send(other, tag, content(peers.transport.rank, 10)), received)
    expect(buffer == content(other, 10), "the message", "other bytes")


@ENDS.requires("idle", "waiting takes no processor time")
async def _idle(peers: RankBench) -> None:
    if not peers.measure_idle:
        raise NotApplicable("not asked for")
    others = peers.others
    tag = peers.tag()
    received = [peers.receive(rank, tag, bytearray(100)) for rank in others]
    await peers.barrier()
    await asyncio.sleep(_WAIT_S / 4)  # what was hot cools down
    before_s = time.process_time()
    await asyncio.sleep(_WAIT_S)
    share = (time.process_time() - before_s) / _WAIT_S
    await asyncio.gather(*(peers.send(rank, tag, bytes(100)) for rank in others), *received)
    expect(share <= _MOST_OF_A_CORE, f"at most {_MOST_OF_A_CORE:.0%} of a core", f"{share:.1%}")


@ENDS.requires("callbacks", "callbacks come once, on the loop, never within the call that asked for them")
async def _callbacks(peers: RankBench) -> None:
    if peers.transport.size > 1:
        await peers.exchange(100)
        await peers.barrier()
    await peers.turns()
    expect(not peers.faults, "no such callback", "; ".join(sorted(set(peers.faults))))


@ENDS.requires("leaves", "what a rank leaves undone fails for the others, what it has done its part of does not")
async def _leaves(peers: RankBench) -> None:
    if peers.freeze is not None:
        raise NotApplicable("the last rank is frozen instead")
    await _end_of_one(peers, PeerFailedError, _close_at_once)


@ENDS.requires("frozen", "a rank that does not answer any more is lost to the others, which go on")
async def _frozen(peers: RankBench) -> None:
    if peers.freeze is None:
        raise NotApplicable("the last rank leaves instead")
    await _end_of_one(peers, PeerLostError, _stand_still)


async def _end_of_one(peers: RankBench, kind: type[PeerError], end: Callable[[RankBench], Awaitable[None]]) -> None:
    """The last rank ends in some way; the others check what becomes of what they have under way with it."""
    transport, last = peers.transport, peers.transport.size - 1
    everybody, own, sizes = range(transport.size), transport.rank, (0, 10, peers.chunk_bytes * 5 // 2)
    others, tags, later = peers.others, [peers.tag() for _ in sizes], [peers.tag() for _ in sizes]
    undone = [_messages(peers, last, tag, size) for tag, size in zip(tags, sizes, strict=True) if own != last]
    sums = [np.zeros(size) for size in (1, 70_000)]
    await asyncio.gather(
        *(peers.exchange(size) for size in sizes), *(peers.reduce(everybody, "sum", np.ones(x.size), x) for x in sums)
    )
    if own == last:
        for rank in others:
            peers.call(transport.post, rank, b"the last")
        peers.is_out = True
        await end(peers)
        return
    undone.append([peers.reduce(everybody, "sum", np.ones(1), np.zeros(1))])
    await _fail(undone, kind, last)
    found = await peers.hear_of_end(last)
    expect(isinstance(found, kind), f"ended() with {kind.__name__}", repr(found))
    expect(peers.notes[last][-1:] == [b"the last"], "all its notes before ended()", repr(peers.notes[last][-1:]))
    undone = [_messages(peers, last, tag, size) for tag, size in zip(later, sizes, strict=True)]
    undone.append([peers.reduce(everybody, "sum", np.ones(1), np.zeros(1))])
    peers.call(transport.post, last, b"nobody hears this")
    await _fail(undone, kind, last)
    if len(others) > 1:
        await peers.exchange(10)
    total = np.zeros(1)
    await peers.reduce([rank for rank in everybody if rank != last], "sum", np.ones(1), total)
    expect(total[0] == last, f"a sum over the {last} that are left", str(total[0]))


def _messages(peers: RankBench, rank: int, tag: int, size: int) -> list[asyncio.Future[Any]]:
    """Messages in which the other rank takes no part, two each way."""
    sent = [peers.send(rank, tag, bytes(size)) for _ in range(2)]
    return sent + [peers.receive(rank, tag, bytearray(size)) for _ in range(2)]


async def _fail(undone: list[list[asyncio.Future[Any]]], kind: type[PeerError], rank: int) -> None:
    """Check that all of it fails since a rank has ended."""
    for future in itertools.chain.from_iterable(undone):
        try:
            result = await future
        except kind as error:
            expect(error.rank == rank, f"{kind.__name__} of rank {rank}", f"of rank {error.rank}")
        else:
            raise Deviation(f"{kind.__name__} of rank {rank}", f"{result!r}")


async def _close_at_once(peers: RankBench) -> None:
    called: list[object] = []
    for rank in peers.others:
        tag = peers.tag()
        peers.transport.receive(rank, tag, memoryview(bytearray(10)), lambda *got: called.append(got))
        peers.transport.send(rank, tag, memoryview(bytes(10)), called.append)
    await _closed(peers, called)


async def _stand_still(peers: RankBench) -> None:
    assert peers.freeze is not None
    peers.freeze()


async def _closed(peers: RankBench, called: list[object]) -> None:
    before = len(called)  # another rank may have closed already
    peers.call(peers.transport.close)
    peers.call(peers.transport.close)
    await peers.turns()
    expect(len(called) == before, "no callback after close()", str(called[before:]))


@ENDS.requires("close", "close() gives up what is under way, calls nothing back, and may be called again")
async def _close(peers: RankBench) -> None:
    called: list[object] = []
    transport, buffer = peers.transport, bytearray(peers.chunk_bytes * 2)
    others = [rank for rank in range(transport.size) if rank != transport.rank and rank not in peers.ends]
    for rank in others:
        for size in (0, 10, len(buffer)):
            transport.receive(rank, peers.tag(), memoryview(buffer)[:size], lambda *got: called.append(got))
            transport.send(rank, peers.tag(), memoryview(buffer)[:size], called.append)
    if others:
        await peers.barrier()
    await _closed(peers, called)
    with refusing(TransportError, "from post() after close()"):
        transport.post(transport.rank, b"late")
