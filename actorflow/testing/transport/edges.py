"""Messages with tags."""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np

from actorflow.errors import TransportError
from actorflow.testing.conformance.report import Deviation, Topic, expect
from actorflow.testing.transport.peers import Peers, content, fails

EDGES = Topic("edges")

#: MPIs change from one way of sending to another about 8 to 64 KiB.
_SIZES = (0, 1, 1_000, 8_192, 16_385, 65_535, 65_537, 3_000_001)
_MANY = 200


@EDGES.requires("sizes", "messages of all sizes arrive as they were sent")
async def _sizes(peers: Peers) -> None:
    for size in (*_SIZES, peers.chunk_bytes, peers.chunk_bytes + 1, 2 * peers.chunk_bytes, 5 * peers.chunk_bytes // 2):
        await peers.exchange(size, size)


@EDGES.requires("order", "messages of one tag arrive in the order in which they were sent, whatever their sizes")
async def _order(peers: Peers) -> None:
    tag, own = peers.tag(), peers.transport.rank
    sizes = [1, 70_000, 10, peers.chunk_bytes + 5, 3, 0, 100_000, 2] * 2
    buffers = {rank: [bytearray(size) for size in sizes] for rank in peers.others}
    order: dict[int, list[int]] = {rank: [] for rank in buffers}
    received = []
    for i in range(len(sizes)):
        for rank in peers.others:
            future = peers.receive(rank, tag, buffers[rank][i])
            future.add_done_callback(partial(_note, order[rank], i))
            received.append(future)
    sent = [peers.send(rank, tag, content(own, size, i)) for i, size in enumerate(sizes) for rank in peers.others]
    await asyncio.gather(*received, *sent)
    for rank in peers.others:
        told = order[rank]
        expect(told == sorted(told), "callbacks of one tag in the order of the messages", str(told))
        for i, size in enumerate(sizes):
            expect(buffers[rank][i] == content(rank, size, i), f"message {i} of rank {rank}", "another message")


def _note(order: list[int], number: int, _: object) -> None:
    order.append(number)


@EDGES.requires("tags", "messages of different tags do not wait for each other, and are not mistaken")
async def _tags(peers: Peers) -> None:
    tags, own = [*(peers.tag() for _ in range(8)), peers.transport.max_tag], peers.transport.rank
    sent = [peers.send(rank, tag, content(own, 50, tag)) for tag in tags for rank in peers.others]
    for tag in reversed(tags):
        for rank in peers.others:
            buffer = bytearray(50)
            await peers.receive(rank, tag, buffer)
            expect(buffer == content(rank, 50, tag), f"the message of tag {tag}", "another message")
    await asyncio.gather(*sent)


@EDGES.requires("empty", "an empty message tells the other side so, whatever the size of its buffer")
async def _empty(peers: Peers) -> None:
    tag, own = peers.tag(), peers.transport.rank
    for size in (0, 100, 100_000, peers.chunk_bytes * 2):
        data = [b"", content(own, size), b"", content(own, size)]
        sent = [peers.send(rank, tag, part) for part in data for rank in peers.others]
        buffers = {rank: [bytearray(size) for _ in data] for rank in peers.others}
        received = {rank: [peers.receive(rank, tag, each) for each in buffers[rank]] for rank in peers.others}
        for rank in peers.others:
            counts = await asyncio.gather(*received[rank])
            expect(counts == [0, size, 0, size], f"{[0, size, 0, size]} bytes", str(counts))
            expect(buffers[rank][3] == content(rank, size), "the message after an empty one", "other bytes")
        await asyncio.gather(*sent)


@EDGES.requires("views", "read-only memory and memory of other types are sent, and filled, as bytes")
async def _views(peers: Peers) -> None:
    tag = peers.tag()
    values = np.arange(12.0).reshape(3, 4) + peers.transport.rank
    values.flags.writeable = False
    targets = {rank: np.zeros((3, 4)) for rank in peers.others}
    received = [peers.receive(rank, tag, target) for rank, target in targets.items()]
    sent = [peers.send(rank, tag, values) for rank in peers.others]
    await asyncio.gather(*received, *sent)
    for rank, target in targets.items():
        expected = np.arange(12.0).reshape(3, 4) + rank
        expect(np.array_equal(target, expected), f"{expected.tolist()}", f"{target.tolist()}")


@EDGES.requires("wrong_size", "a message of another size than expected fails its receive, not those after it")
async def _wrong_size(peers: Peers) -> None:
    tag, own = peers.tag(), peers.transport.rank
    sent = [peers.send(rank, tag, content(own, size)) for size in (10, 30, 20) for rank in peers.others]
    for rank in peers.others:
        for size in (10, 30):
            future = peers.receive(rank, tag, bytearray(20))
            await fails(future, TransportError, f"a message of {size} bytes where 20 are expected")
        buffer = bytearray(20)
        await peers.receive(rank, tag, buffer)
        expect(buffer == content(rank, 20), "the message after those", "other bytes")
    await asyncio.gather(*sent, return_exceptions=True)


@EDGES.requires("many", "many messages are under way at once, in both directions")
async def _many(peers: Peers) -> None:
    tags, own = [peers.tag() for _ in range(5)], peers.transport.rank
    buffers = {rank: [bytearray(2_000) for _ in range(_MANY)] for rank in peers.others}
    received = [peers.receive(rank, tags[i % 5], its[i]) for rank, its in buffers.items() for i in range(_MANY)]
    sent = [peers.send(rank, tags[i % 5], content(own, 2_000, i)) for i in range(_MANY) for rank in peers.others]
    await asyncio.gather(*received, *sent)
    for rank, its in buffers.items():
        for i, buffer in enumerate(its):
            expect(buffer == content(rank, 2_000, i), f"message {i} of rank {rank}", "another message")


@EDGES.requires("credit", "a send is done after the other side has asked for the message, not before")
async def _credit(peers: Peers) -> None:
    other = peers.partner()
    for size in (0, 1, 5_000, peers.chunk_bytes + 1):
        tag, ready = peers.tag(), peers.tag()
        sent = peers.send(other, tag, content(peers.transport.rank, size))
        await peers.turns()
        expect(not sent.done(), f"a send of {size:,} bytes waits for the other side", "it is done")
        told = peers.send(other, ready, b"")
        await peers.receive(other, ready, bytearray())
        buffer = bytearray(size)
        await asyncio.gather(told, peers.receive(other, tag, buffer), sent)
        expect(buffer == content(other, size), f"the {size:,} bytes", "other bytes")


@EDGES.requires("reuse", "the memory of a message may change once its send is done")
async def _reuse(peers: Peers) -> None:
    other, tag, own = peers.partner(), peers.tag(), peers.transport.rank
    data, buffer = bytearray(100_000), bytearray(100_000)
    for i in range(20):
        data[:] = content(own, len(data), i)
        received, sent = peers.receive(other, tag, buffer), peers.send(other, tag, data)
        await sent
        data[:] = bytes(len(data))
        await received
        expect(buffer == content(other, len(buffer), i), f"message {i} as it was sent", "other bytes")


@EDGES.requires("address", "ranks that are not there, this one, and tags out of range are refused at once")
async def _address(peers: Peers) -> None:
    transport, buffer = peers.transport, memoryview(bytearray(1))
    wrong = [(transport.rank, 1), (-1, 1), (transport.size, 1)]
    if transport.size > 1:
        wrong += [(peers.others[0], -1), (peers.others[0], transport.max_tag + 1)]
    for rank, tag in wrong:
        for call in (transport.send, transport.receive):
            try:
                call(rank, tag, buffer, lambda *_: None)
            except TransportError:
                continue
            raise Deviation(f"TransportError for rank {rank}, tag {tag}", f"{call.__name__}() accepts them")
