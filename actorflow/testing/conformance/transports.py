"""Requirements on a transport's messages, notes, collectives and callbacks, on the cost of waiting, and on ends."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import PeerFailedError, PeerLostError, TransportError
from actorflow.testing.conformance.report import Deviation, NotApplicable, Topic, expect, refusing, same
from actorflow.testing.conformance.transport_bench import RankBench, content
from actorflow.transport import PeerError

EDGES = Topic("edges")

#: MPIs change from one way of sending to another about 8 to 64 KiB.
_SIZES = (0, 1, 1_000, 8_192, 16_385, 65_535, 65_537, 3_000_001)
_MANY = 200


@EDGES.requires("sizes", "messages of all sizes arrive as they were sent")
async def _sizes(peers: RankBench) -> None:
    for size in (*_SIZES, peers.chunk_bytes, peers.chunk_bytes + 1, 2 * peers.chunk_bytes, 5 * peers.chunk_bytes // 2):
        await peers.exchange(size, size)


@EDGES.requires("order", "messages of one tag arrive in the order in which they were sent, whatever their sizes")
async def _order(peers: RankBench) -> None:
    tag, own = peers.tag(), peers.transport.rank
    sizes = [1, 70_000, 10, peers.chunk_bytes + 5, 3, 0, 100_000, 2] * 2
    buffers = {rank: [bytearray(size) for size in sizes] for rank in peers.others}
    order: dict[int, list[int]] = {rank: [] for rank in buffers}
    received = []
    for i in range(len(sizes)):
        for rank in peers.others:
            future = peers.receive(rank, tag, buffers[rank][i])
            future.add_done_callback(partial(_record, order[rank], i))
            received.append(future)
    sent = [peers.send(rank, tag, content(own, size, i)) for i, size in enumerate(sizes) for rank in peers.others]
    await asyncio.gather(*received, *sent)
    for rank in peers.others:
        told = order[rank]
        expect(told == sorted(told), "callbacks of one tag in the order of the messages", str(told))
        for i, size in enumerate(sizes):
            expect(buffers[rank][i] == content(rank, size, i), f"message {i} of rank {rank}", "another message")


def _record(order: list[int], number: int, _: object) -> None:
    order.append(number)


@EDGES.requires("tags", "messages of different tags do not wait for each other, and are not mistaken")
async def _tags(peers: RankBench) -> None:
    tags, own = [*(peers.tag() for _ in range(8)), peers.transport.max_tag], peers.transport.rank
    sent = [peers.send(rank, tag, content(own, 50, tag)) for tag in tags for rank in peers.others]
    for tag in reversed(tags):
        for rank in peers.others:
            buffer = bytearray(50)
            await peers.receive(rank, tag, buffer)
            expect(buffer == content(rank, 50, tag), f"the message of tag {tag}", "another message")
    await asyncio.gather(*sent)


@EDGES.requires("empty", "an empty message tells the other side so, whatever the size of its buffer")
async def _empty(peers: RankBench) -> None:
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
async def _views(peers: RankBench) -> None:
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
async def _wrong_size(peers: RankBench) -> None:
    tag, own = peers.tag(), peers.transport.rank
    sent = [peers.send(rank, tag, content(own, size)) for size in (10, 30, 20) for rank in peers.others]
    for rank in peers.others:
        for size in (10, 30):
            with refusing(TransportError, f"for a message of {size} bytes where 20 are expected"):
                await peers.receive(rank, tag, bytearray(20))
        buffer = bytearray(20)
        await peers.receive(rank, tag, buffer)
        expect(buffer == content(rank, 20), "the message after those", "other bytes")
    await asyncio.gather(*sent, return_exceptions=True)


@EDGES.requires("many", "many messages are under way at once, in both directions")
async def _many(peers: RankBench) -> None:
    tags, own = [peers.tag() for _ in range(5)], peers.transport.rank
    buffers = {rank: [bytearray(2_000) for _ in range(_MANY)] for rank in peers.others}
    received = [peers.receive(rank, tags[i % 5], its[i]) for rank, its in buffers.items() for i in range(_MANY)]
    sent = [peers.send(rank, tags[i % 5], content(own, 2_000, i)) for i in range(_MANY) for rank in peers.others]
    await asyncio.gather(*received, *sent)
    for rank, its in buffers.items():
        for i, buffer in enumerate(its):
            expect(buffer == content(rank, 2_000, i), f"message {i} of rank {rank}", "another message")


@EDGES.requires("credit", "a send is done after the other side has asked for the message, not before")
async def _credit(peers: RankBench) -> None:
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
async def _reuse(peers: RankBench) -> None:
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
async def _address(peers: RankBench) -> None:
    transport, buffer = peers.transport, memoryview(bytearray(1))
    wrong = [(transport.rank, 1), (-1, 1), (transport.size, 1)]
    if transport.size > 1:
        wrong += [(peers.others[0], -1), (peers.others[0], transport.max_tag + 1)]
    for rank, tag in wrong:
        for call in (transport.send, transport.receive):
            with refusing(TransportError, f"for rank {rank}, tag {tag}", f"{call.__name__}() accepts them"):
                call(rank, tag, buffer, lambda *_: None)


NOTES = Topic("notes")

_NOTE_SIZES = (0, 1, 100, 4_000, 5_000, 1 << 20, 7, 100_000, 3)


@NOTES.requires("kept", "notes that come before somebody listens are kept")
async def _kept(peers: RankBench) -> None:
    for rank in range(peers.transport.size):
        peers.call(peers.transport.post, rank, b"first")
    await peers.turns()
    peers.call(peers.transport.listen, peers)
    await peers.hear(1)
    for rank, notes in peers.notes.items():
        expect(notes[0] == b"first", f"the first note of rank {rank}", repr(notes[0][:20]))


@NOTES.requires("order", "notes of any size arrive in the order in which their rank posted them, from this rank, too")
async def _note_order(peers: RankBench) -> None:
    own = peers.transport.rank
    for i, size in enumerate(_NOTE_SIZES):
        for rank in range(peers.transport.size):
            peers.call(peers.transport.post, rank, content(own, size, i))
    await peers.hear(1 + len(_NOTE_SIZES))
    for rank, notes in peers.notes.items():
        for i, (note, size) in enumerate(zip(notes[1:], _NOTE_SIZES, strict=False)):
            expect(note == content(rank, size, i), f"note {i} of rank {rank}, {size:,} bytes", f"{len(note):,} others")


@NOTES.requires("beside", "notes and messages do not hinder each other")
async def _beside(peers: RankBench) -> None:
    known = 1 + len(_NOTE_SIZES)
    for i in range(50):
        for rank in range(peers.transport.size):
            peers.call(peers.transport.post, rank, b"%d" % i)
        if peers.transport.size > 1:
            await peers.exchange(1_000 * i, i)
    await peers.hear(known + 50)
    for rank, notes in peers.notes.items():
        found = notes[known : known + 50]
        expect(found == [b"%d" % i for i in range(50)], f"all notes of rank {rank}", str(found))


GROUPS = Topic("groups")

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")
_COMBINE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def _part(rank: int, size: int, dtype: Any, seed: int = 0) -> npt.NDArray[Any]:
    return np.random.default_rng([rank, seed]).integers(0, 9, size).astype(dtype)


def _dtypes() -> list[np.dtype[Any]]:
    names = [np.dtype(name) for name in (*_INTEGERS, *_FLOATS)]
    try:
        import ml_dtypes
    except ImportError:
        return names
    return [*names, np.dtype(ml_dtypes.bfloat16)]


@GROUPS.requires("dtypes", "sums, maxima and minima of all dtypes")
async def _dtypes_of_all(peers: RankBench) -> None:
    ranks = range(peers.transport.size)
    for dtype in _dtypes():
        for operation, combine in _COMBINE.items():
            parts = [_part(rank, 100, dtype) for rank in ranks]
            expected = parts[0]
            for part in parts[1:]:
                expected = combine(expected, part)
            target = np.zeros(100, dtype)
            await peers.reduce(ranks, operation, parts[peers.transport.rank], target)
            same(target, expected, f"the {operation} of {dtype}")


@GROUPS.requires("shapes", "no axes, no elements, several axes, and more than a message carries")
async def _shapes(peers: RankBench) -> None:
    ranks = range(peers.transport.size)
    for shape in ((), (0,), (3, 0, 2), (2, 3, 5), (peers.chunk_bytes * 5 // 16,)):
        source = np.full(shape, peers.transport.rank + 1.0)
        target = np.zeros(shape)
        await peers.reduce(ranks, "sum", source, target)
        same(target, np.full(shape, sum(rank + 1.0 for rank in ranks)), f"the sum of shape {list(shape)}")


@GROUPS.requires("in_place", "the target may be the source")
async def _in_place(peers: RankBench) -> None:
    ranks = range(peers.transport.size)
    for dtype in _dtypes():
        array = _part(peers.transport.rank, 1_000, dtype)
        await peers.reduce(ranks, "max", array, array)
        same(array, np.maximum.reduce([_part(rank, 1_000, dtype) for rank in ranks]), f"the maximum of {dtype}")


@GROUPS.requires("overlap", "calls overlap, and may end in any order")
async def _overlap(peers: RankBench) -> None:
    ranks = range(peers.transport.size)
    sizes = [1, 200_000, 10, 50_000, 3] * 3
    targets = [np.zeros(size, np.float32) for size in sizes]
    calls = [
        peers.reduce(ranks, "sum", _part(peers.transport.rank, size, np.float32, i), targets[i])
        for i, size in enumerate(sizes)
    ]
    await asyncio.gather(*calls)
    for i, size in enumerate(sizes):
        expected = np.add.reduce([_part(rank, size, np.float32, i) for rank in ranks])
        same(targets[i], expected, f"sum {i} of {len(sizes)} at once")


@GROUPS.requires("same_bits", "the result is the same to the last bit on all ranks, for NaN and zeros with signs, too")
async def _same_bits(peers: RankBench) -> None:
    ranks, others = range(peers.transport.size), peers.others
    special = np.array([np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-40])
    for dtype in ("float16", "float32", "float64"):
        for size in (7, 1_001, 70_000):
            rng = np.random.default_rng([peers.transport.rank, size])
            values = rng.standard_normal(size)
            values[: size // 2] = rng.choice(special, size // 2)
            for operation in _COMBINE:
                target = np.zeros(size, dtype)
                with np.errstate(invalid="ignore"):
                    await peers.reduce(ranks, operation, values.astype(dtype), target)
                tag, theirs = peers.tag(), {rank: np.zeros(size, dtype) for rank in others}
                received = [peers.receive(rank, tag, array) for rank, array in theirs.items()]
                await asyncio.gather(*received, *(peers.send(rank, tag, target) for rank in others))
                nan = np.isnan(target)
                for rank, array in theirs.items():
                    expected = f"{operation} of {dtype} as on rank {rank}"
                    expect(np.array_equal(np.isnan(array), nan), expected, "NaN at other places")
                    equal = target[~nan].tobytes() == array[~nan].tobytes()
                    expect(equal, expected, "other bits")


@GROUPS.requires("subgroups", "groups of some ranks compute by themselves, and beside each other")
async def _subgroups(peers: RankBench) -> None:
    own = peers.transport.rank
    count = peers.transport.size
    groups: list[tuple[int, ...]] = [(a, b) for a in range(count) for b in range(a + 1, count)]
    groups += [(own,), tuple(range(count)), tuple(range(own % 2, count, 2))]
    mine = [ranks for ranks in groups if own in ranks]
    for ranks in mine:
        expect(peers.transport.group(ranks).ranks == ranks, f"ranks {ranks}", str(peers.transport.group(ranks).ranks))
    targets = [np.zeros(500) for _ in mine]
    calls = [
        peers.reduce(ranks, "sum", _part(own, 500, np.float64), target)
        for ranks, target in zip(mine, targets, strict=True)
    ]
    await asyncio.gather(*calls)
    for ranks, target in zip(mine, targets, strict=True):
        same(target, np.add.reduce([_part(rank, 500, np.float64) for rank in ranks]), f"the sum over ranks {ranks}")


@GROUPS.requires("refused", "what cannot be reduced, and groups without this rank, are refused at once")
async def _refused(peers: RankBench) -> None:
    transport, array = peers.transport, np.zeros(4)
    everybody = transport.group(range(transport.size))
    wrong = [
        ("product", array, array),
        ("sum", array, np.zeros(5)),
        ("sum", array, np.zeros(4, np.float32)),
        ("sum", array[::2], array[::2]),
        ("sum", np.zeros(4, object), np.zeros(4, object)),
        ("sum", np.zeros(4, ">f8"), np.zeros(4, ">f8")),
    ]
    for operation, source, target in wrong:
        with refusing(TransportError, f"for {operation} of {source.dtype}{list(source.shape)}"):
            everybody.all_reduce(operation, source, target, lambda _: None)
    for ranks in ((), (transport.size,), (transport.rank, transport.rank), (transport.rank, -1)):
        with refusing(TransportError, f"for a group of {ranks}", "it is made"):
            transport.group(ranks)


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
    """The last rank ends in some way; the others check how their messages with it end."""
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
