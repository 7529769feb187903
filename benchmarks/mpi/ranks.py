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
        "large": lambda end: one_way(end, first, buffer),
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
