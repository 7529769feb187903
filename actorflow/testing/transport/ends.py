"""How callbacks come, what waiting costs, and the end."""

from __future__ import annotations

import asyncio
import time

from actorflow.errors import TransportError
from actorflow.testing.conformance.report import Deviation, NotApplicable, Topic, expect
from actorflow.testing.transport.peers import Peers, content

__all__ = ["ENDS"]

ENDS = Topic("ends")

_WAIT_S = 1.0
_MOST_OF_A_CORE = 0.05


@ENDS.requires(
    "bind", "bind() to the same loop changes nothing; to another one while something is under way, it raises"
)
async def _bind(peers: Peers) -> None:
    peers.transport.bind(peers.loop)
    other, tag, buffer = peers.partner(), peers.tag(), bytearray(10)
    received = peers.receive(other, tag, buffer)
    elsewhere = asyncio.new_event_loop()
    try:
        peers.transport.bind(elsewhere)
    except TransportError:
        pass
    else:
        raise Deviation("TransportError from bind() to another loop with a receive under way", "it is bound")
    finally:
        elsewhere.close()
    await asyncio.gather(peers.send(other, tag, content(peers.transport.rank, 10)), received)
    expect(buffer == content(other, 10), "the message", "other bytes")


@ENDS.requires("idle", "waiting takes no processor time")
async def _idle(peers: Peers) -> None:
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
async def _callbacks(peers: Peers) -> None:
    if peers.transport.size > 1:
        await peers.exchange(100)
        await peers.barrier()
    await peers.turns()
    expect(not peers.faults, "no such callback", "; ".join(sorted(set(peers.faults))))


@ENDS.requires("close", "close() gives up what is under way, calls nothing back, and may be called again")
async def _close(peers: Peers) -> None:
    called: list[object] = []
    transport, buffer = peers.transport, bytearray(peers.chunk_bytes * 2)
    if transport.size > 1:
        for rank in peers.others:
            for size in (0, 10, len(buffer)):
                transport.receive(rank, peers.tag(), memoryview(buffer)[:size], lambda *got: called.append(got))
                transport.send(rank, peers.tag(), memoryview(buffer)[:size], called.append)
        await peers.barrier()
    peers.call(transport.close)
    peers.call(transport.close)
    await peers.turns()
    expect(not called, "no callback after close()", str(called))
    try:
        transport.post(transport.rank, b"late")
    except TransportError:
        return
    raise Deviation("TransportError from post() after close()", "it is accepted")
