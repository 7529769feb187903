"""Rank 0 closes its transport while messages wait behind a large one; arguments: within a callback, or outside."""

import asyncio
import sys

from actorflow.errors import PeerFailedError
from actorflow.transport import Listener, PeerError
from actorflow.transport.mpi import MPITransport

where = sys.argv[1]
transport = MPITransport(chunk_bytes=1 << 10)
#: More parts than are under way at once.
LARGE = bytes(100 << 10)
called: list[str] = []


class Watch(Listener):
    """Waits until the other rank has closed."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def heard(self, rank: int, note: bytes) -> None:
        raise AssertionError(note)

    def ended(self, error: PeerError) -> None:
        assert isinstance(error, PeerFailedError), error
        self.event.set()


async def main() -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: called.append(str(context)))
    transport.bind(loop)
    closed, came = asyncio.Event(), loop.create_future()

    def close(_: object) -> None:
        called.append("close")
        transport.close()
        closed.set()

    if transport.rank == 1:
        if where == "within":
            transport.receive(0, 5, memoryview(bytearray(LARGE)), lambda *result: came.set_result(result))
            assert await came == (len(LARGE), None)
        watch = Watch()
        transport.listen(watch)
        await watch.event.wait()
        return
    transport.send(1, 5, memoryview(LARGE), close)
    for what in (b"small", LARGE, b"last"):
        transport.send(1, 5, memoryview(what), lambda _: called.append("behind"))
    if where == "outside":
        loop.call_soon(close, None)
    await closed.wait()
    for _ in range(1000):
        await asyncio.sleep(0)
    assert called == ["close"], called


asyncio.run(main())
transport.close()
sys.stdout.write(f"rank {transport.rank} has ended\n")
