"""Notes."""

from __future__ import annotations

from actorflow.testing.conformance.report import Topic, expect
from actorflow.testing.transport.peers import Peers, content

NOTES = Topic("notes")

_SIZES = (0, 1, 100, 4_000, 5_000, 1 << 20, 7, 100_000, 3)


@NOTES.requires("kept", "notes that come before somebody listens are kept")
async def _kept(peers: Peers) -> None:
    for rank in range(peers.transport.size):
        peers.call(peers.transport.post, rank, b"first")
    await peers.turns()
    peers.call(peers.transport.listen, peers)
    await peers.hear(1)
    for rank, notes in peers.notes.items():
        expect(notes[0] == b"first", f"the first note of rank {rank}", repr(notes[0][:20]))


@NOTES.requires("order", "notes of any size arrive in the order in which their rank posted them, from this rank, too")
async def _order(peers: Peers) -> None:
    own = peers.transport.rank
    for i, size in enumerate(_SIZES):
        for rank in range(peers.transport.size):
            peers.call(peers.transport.post, rank, content(own, size, i))
    await peers.hear(1 + len(_SIZES))
    for rank, notes in peers.notes.items():
        for i, (note, size) in enumerate(zip(notes[1:], _SIZES, strict=False)):
            expect(note == content(rank, size, i), f"note {i} of rank {rank}, {size:,} bytes", f"{len(note):,} others")


@NOTES.requires("beside", "notes and messages do not hinder each other")
async def _beside(peers: Peers) -> None:
    known = 1 + len(_SIZES)
    for i in range(50):
        for rank in range(peers.transport.size):
            peers.call(peers.transport.post, rank, b"%d" % i)
        if peers.transport.size > 1:
            await peers.exchange(1_000 * i, i)
    await peers.hear(known + 50)
    for rank, notes in peers.notes.items():
        found = notes[known : known + 50]
        expect(found == [b"%d" % i for i in range(50)], f"all notes of rank {rank}", str(found))
