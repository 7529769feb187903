"""One transport on one loop after the other, with something left over on the first."""

import asyncio
import sys

import numpy as np

import actorflow as af
from actorflow.transport import Listener, PeerError
from actorflow.transport.mpi import MPITransport

world = MPITransport(chunk_bytes=1 << 10)
other = 1 - world.rank
group = world.group([0, 1])
#: More parts than are under way at once.
LARGE = bytes(range(256)) * 400


class Heard(Listener):
    def __init__(self) -> None:
        self.notes: list[bytes] = []
        self.event = asyncio.Event()

    def heard(self, rank: int, note: bytes) -> None:
        self.notes.append(note)
        self.event.set()

    def ended(self, error: PeerError) -> None:
        raise AssertionError(f"rank {error.rank} lives")


def given_up(*_: object) -> None:
    sys.exit("called back on another loop")


def exchange(tag: int, what: bytes) -> tuple[bytearray, list[asyncio.Future[object]]]:
    loop = asyncio.get_running_loop()
    buffer, sent, received = bytearray(len(what)), loop.create_future(), loop.create_future()
    world.receive(other, tag, memoryview(buffer), lambda _, error: received.set_result(error))
    world.send(other, tag, memoryview(what), sent.set_result)
    return buffer, [sent, received]


async def first() -> None:
    world.bind(asyncio.get_running_loop())
    buffer, futures = exchange(1, b"one")
    assert await asyncio.gather(*futures) == [None, None]
    assert buffer == b"one"
    world.receive(other, 7, memoryview(bytearray(10)), given_up)
    for what in (LARGE, b"behind"):
        world.send(other, 8, memoryview(what), given_up)
    if world.rank == 0:
        group.all_reduce("sum", np.ones(10_000), np.zeros(10_000), given_up)
    world.post(other, b"for the second")


async def second() -> None:
    loop = asyncio.get_running_loop()
    world.bind(loop)
    heard = Heard()
    world.listen(heard)
    world.post(other, b"bound")  # until then, what the other sends could still come on the first, as that shuts down
    while len(heard.notes) < 2:
        heard.event.clear()
        await heard.event.wait()
    assert heard.notes == [b"for the second", b"bound"], heard.notes
    for what in (b"two", b"three"):  # the tag of what was given up
        buffer, futures = exchange(7, what)
        assert await asyncio.gather(*futures) == [None, None]
        assert buffer == what, buffer
    for what in (LARGE, b"behind"):  # had begun before
        buffer, came = bytearray(len(what)), loop.create_future()
        world.receive(other, 8, memoryview(buffer), lambda _, error, came=came: came.set_result(error))
        assert await came is None
        assert buffer == what
    for size in (10_000, 5) if world.rank == 1 else (5,):  # so had the first for rank 0
        total, reduced = np.zeros(size), loop.create_future()
        group.all_reduce("sum", np.ones(size), total, reduced.set_result)
        assert await reduced is None
        assert (total == 2).all()
    world.listen(None)


af.run(first())
af.run(second())
world.close()
sys.stdout.write(f"rank {world.rank} has ended\n")
