"""One transport on one loop after the other, with something left over on the first."""

import asyncio
import sys

import actorflow as af
from actorflow.transport import Listener

world = af.world()
other = 1 - world.rank


class Heard(Listener):
    def __init__(self) -> None:
        self.notes: list[bytes] = []
        self.event = asyncio.Event()

    def heard(self, rank: int, note: bytes) -> None:
        self.notes.append(note)
        self.event.set()

    def lost(self, rank: int) -> None:
        raise AssertionError(f"rank {rank} lives")


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
    world.receive(other, 7, memoryview(bytearray(10)), lambda *_: sys.exit("called back on a closed loop"))
    world.post(other, b"for the second")


async def second() -> None:
    world.bind(asyncio.get_running_loop())
    heard = Heard()
    world.listen(heard)
    while not heard.notes:
        heard.event.clear()
        await heard.event.wait()
    assert heard.notes == [b"for the second"], heard.notes
    for what in (b"two", b"three"):  # the tag of what was given up
        buffer, futures = exchange(7, what)
        assert await asyncio.gather(*futures) == [None, None]
        assert buffer == what, buffer
    world.listen(None)


af.run(first())
af.run(second())
sys.stdout.write(f"rank {world.rank} has ended\n")
