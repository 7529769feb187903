"""The clients of ``benchmarks service``, in a process of their own: ``python -m benchmarks.service.clients``.

Its arguments are a port, the name of a load, and seconds. They say when they have begun, and at the end what they got.
"""

from __future__ import annotations

import asyncio
import json
import sys
from time import perf_counter
from typing import Any

import numpy as np

import actorflow as af
from benchmarks.service.names import CLIENTS, ask

#: Number of requests after which a client hangs up instead of reading the answer.
_HANG_UP = 20


def _classify(image: list[Any]) -> bytes:
    body = json.dumps({"image": image}).encode()
    head = b"POST /classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


_IMAGE = np.random.default_rng(0).integers(0, 256, (8, 8)).tolist()
_LOADS = {
    "healthz": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "classify": _classify(_IMAGE),
    "classify a batch of one": _classify([_IMAGE]),
}


async def clients(port: int, request: bytes, seconds: float) -> None:
    """The load: each client asks again as soon as it has its answer."""
    begun = asyncio.Barrier(CLIENTS + 1)
    times: list[float] = []

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await ask(reader, writer, request)
        await begun.wait()
        end = perf_counter() + seconds + 0.2
        count = number  # so that not all hang up at once
        while perf_counter() < end:
            count += 1
            if count % _HANG_UP:
                start = perf_counter()
                await ask(reader, writer, request)
                times.append(perf_counter() - start)
            else:
                writer.write(request)
                await writer.drain()
                writer.transport.abort()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()

    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(client(number))
        await begun.wait()
        print("begun", flush=True)
        start = perf_counter()
    p99_ms = float(np.percentile(times, 99)) * 1e3
    print(json.dumps({"requests": len(times), "seconds": perf_counter() - start, "p99_ms": p99_ms}), flush=True)


if __name__ == "__main__":
    af.run(clients(int(sys.argv[1]), _LOADS[sys.argv[2]], float(sys.argv[3])))
