"""The last rank is killed; the others tell what becomes of what they have under way with it.

Arguments: idle or busy, bytes of a chunk.
"""

import asyncio
import ctypes
import os
import signal
import sys
import time

import numpy as np

import actorflow as af
from actorflow.transport import Listener, PeerError
from actorflow.transport.mpi import MPITransport
from actorflow.transport.mpi.library import library

CHUNK = int(sys.argv[2])
world = MPITransport(chunk_bytes=CHUNK)
dead = world.size - 1
LARGE = min(100 * CHUNK, 20 << 20)


class Watch(Listener):
    def __init__(self) -> None:
        self.lost_ranks: list[int] = []
        self.event = asyncio.Event()

    def heard(self, rank: int, note: bytes) -> None:
        assert world.rank == dead, "nobody posts to the living"

    def ended(self, error: PeerError) -> None:
        assert isinstance(error, af.PeerLostError)
        self.lost_ranks.append(error.rank)
        self.event.set()


async def main() -> None:
    loop, watch = asyncio.get_running_loop(), Watch()
    world.bind(loop)
    world.listen(watch)
    group, futures = world.group(range(world.size)), []

    def done() -> object:
        future = loop.create_future()
        futures.append(future)
        return lambda *result: future.set_result(result[-1])

    if world.rank == dead:
        await asyncio.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    begin_s = time.monotonic()
    if sys.argv[1] == "busy":
        for size in (10, LARGE):
            world.receive(dead, 1, memoryview(bytearray(size)), done())
            world.send(dead, 2, memoryview(bytes(size)), done())
        for size in (100, LARGE):  # one of them behind the large one, in the end
            world.send(dead, 2, memoryview(bytes(size)), done())
        for operation, size in (("sum", 5), ("max", LARGE // 8), ("sum", 5)):
            group.all_reduce(operation, np.ones(size), np.zeros(size), done())
        world.post(dead, bytes(100_000))
    errors = await asyncio.gather(*futures)
    await watch.event.wait()
    assert time.monotonic() - begin_s < 5, "found out late"
    futures.clear()
    world.receive(dead, 1, memoryview(bytearray(10)), done())
    world.send(dead, 1, memoryview(bytes(10)), done())
    group.all_reduce("sum", np.ones(5), np.zeros(5), done())
    errors += await asyncio.gather(*futures)
    again = Watch()
    world.listen(again)
    await again.event.wait()
    assert watch.lost_ranks == again.lost_ranks == [dead]
    assert all(isinstance(error, af.PeerLostError) and error.rank == dead for error in errors), errors
    futures.clear()
    (world.receive if world.rank == 0 else world.send)(1 - world.rank, 9, memoryview(bytearray(3)), done())
    assert await asyncio.gather(*futures) == [None], "the living go on"


af.run(main())
world.close()
assert ctypes.c_bool.in_dll(library(), "ompi_async_mpi_finalize").value, "the job would wait for the dead rank"
sys.stdout.write(f"rank {world.rank} has ended\n")
