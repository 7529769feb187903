"""One rank of the job that measures messages. Each round measures mpi4py and the transport, one after the other."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from mpi4py import MPI

import actorflow as af
from actorflow.transport import Transport

SMALL, LARGE = 1024, 64 << 20
_TINY, _MANY = 16, 10_000
_TAG, _ANSWER = 1, 2


class Raw:
    """Blocking calls of mpi4py."""

    def __init__(self, other: int) -> None:
        self.comm = MPI.COMM_WORLD.Dup()
        self.other = other

    async def send(self, data: memoryview) -> None:
        self.comm.Send((data, MPI.BYTE), self.other, _TAG)

    async def receive(self, buffer: memoryview) -> None:
        self.comm.Recv((buffer, MPI.BYTE), self.other, _TAG)

    async def flood(self, first: bool, count: int, under_way: int) -> None:
        """Many messages one way, some of them under way at once."""
        start = self.comm.Issend if first else self.comm.Irecv
        for begun in range(0, count, under_way):
            buffers = [bytearray(_TINY) for _ in range(min(under_way, count - begun))]
            MPI.Request.Waitall([start((buffer, MPI.BYTE), self.other, _TAG) for buffer in buffers])


class Over:
    """The same over a transport, as coroutines."""

    def __init__(self, transport: Transport, other: int) -> None:
        self.transport = transport
        self.other = other
        self.loop = asyncio.get_running_loop()

    async def send(self, data: memoryview) -> None:
        self.transport.send(self.other, _TAG, data, _nothing)

    async def receive(self, buffer: memoryview) -> None:
        future = self.loop.create_future()
        self.transport.receive(self.other, _TAG, buffer, lambda _, error: future.set_result(error))
        error = await future
        if error is not None:
            raise error

    async def flood(self, first: bool, count: int, under_way: int) -> None:
        """Many messages one way, some of them under way at once."""
        left, ended, all_ended = count, 0, self.loop.create_future()

        def start() -> None:
            nonlocal left
            left -= 1
            if first:
                self.transport.send(self.other, _TAG, memoryview(bytes(_TINY)), end)
            else:
                self.transport.receive(self.other, _TAG, memoryview(bytearray(_TINY)), lambda _, error: end(error))

        def end(error: BaseException | None) -> None:
            nonlocal ended
            _nothing(error)
            ended += 1
            if left:
                start()
            elif ended == count:
                all_ended.set_result(None)

        for _ in range(min(under_way, count)):
            start()
        await all_ended


def _nothing(error: BaseException | None) -> None:
    if error is not None:
        raise error


async def ping_pong(end: Raw | Over, first: bool, count: int, pause_s: float = 0.0) -> float:
    """Half round trip in us."""
    out, back = memoryview(bytes(SMALL)), memoryview(bytearray(SMALL))
    total_s = 0.0
    for _ in range(count):
        if pause_s:
            await asyncio.sleep(pause_s)
        start_s = time.perf_counter()
        if first:
            await end.send(out)
            await end.receive(back)
        else:
            await end.receive(back)
            await end.send(out)
        total_s += time.perf_counter() - start_s
    return total_s / count / 2 * 1e6


async def beside_others(end: Raw | Over, first: bool, count: int) -> float:
    """Half round trip in us after a pause, while two other processes compute."""
    start = asyncio.create_subprocess_exec
    others = [await start(sys.executable, "-c", "while True: pass") for _ in range(2 * first)]
    try:
        await asyncio.sleep(0.1)  # until they do
        return await ping_pong(end, first, count, 0.02 if first else 0.0)
    finally:
        for other in others:
            other.kill()
            await other.wait()


async def one_way(end: Raw | Over, first: bool, buffer: bytearray) -> float:
    """Time in ms for a large message and an empty answer."""
    data, answer = memoryview(buffer), memoryview(bytearray(1))
    start_s = time.perf_counter()
    if first:
        await end.send(data)
        await end.receive(answer)
    else:
        await end.receive(data)
        await end.send(answer)
    return (time.perf_counter() - start_s) * 1e3


async def busy(end: Raw | Over, first: bool, count: int, under_way: int) -> float:
    """Processor time in us that a small message costs its sender."""
    before_s = time.process_time()
    await end.flood(first, count, under_way)
    return (time.process_time() - before_s) / count * 1e6


async def idle(end: Over, first: bool, seconds: float) -> float:
    """Share of a core in percent that rank 0 uses while it waits for a message."""
    buffer = memoryview(bytearray(SMALL))
    if not first:
        await asyncio.sleep(seconds * 1.5)
        await end.send(buffer)
        return 0.0
    waiting = asyncio.ensure_future(end.receive(buffer))
    await asyncio.sleep(seconds * 0.25)
    before_s = time.process_time()
    await asyncio.sleep(seconds)
    share = (time.process_time() - before_s) / seconds * 100
    await waiting
    return share


async def main(rounds: int, quick: bool, figures: list[str]) -> None:
    """Measure, and print what rank 0 has found."""
    world = af.world()
    world.bind(asyncio.get_running_loop())
    first, other = world.rank % 2 == 0, world.rank ^ 1
    raw, over = Raw(other), Over(world, other)
    buffer = bytearray(LARGE >> 6 if quick else LARGE)
    count = 20 if quick else 2_000
    measured: dict[str, Callable[[Any], Awaitable[float]]] = {
        "hot": lambda end: ping_pong(end, first, count),
        "crowd": lambda end: ping_pong(end, first, count),
        # The side that answers waits without a pause, as its peer's messages tell it when.
        "cold": lambda end: ping_pong(end, first, 2 if quick else 20, 0.02 if first else 0.0),
        "beside": lambda end: beside_others(end, first, 2 if quick else 20),
        "large": lambda end: one_way(end, first, buffer),
        **{
            f"busy {under_way}": lambda end, under_way=under_way: busy(end, first, _MANY >> (5 * quick), under_way)
            for under_way in (1, 16, _MANY)
        },
        "idle": lambda end: idle(end, first, 0.1 if quick else 1.0),
    }
    found: dict[str, dict[str, list[float]]] = {}
    for name in figures:
        ends = {"transport": over} if name == "idle" else {"mpi4py": raw, "transport": over}
        samples: dict[str, list[float]] = {who: [] for who in ends}
        for number in range(-1, rounds):
            for who, end in ends.items():
                figure = await measured[name](end)
                if number >= 0:
                    samples[who].append(figure)
        found[name] = samples
    if world.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    af.run(main(int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3:]))
