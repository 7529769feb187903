"""How long does an unrelated handler of a web service wait while its clients load a graph?"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter

import numpy as np

import actorflow as af
from benchmarks.harness import Budget, Case, Harness, Relation, Table

__all__ = ["measure"]

_ROOT = Path(__file__).parents[1]
_CLIENTS = 200
_PING_EVERY_S = 0.005
#: Number of requests after which a client hangs up instead of reading the answer.
_HANG_UP = 20

_IMAGE = json.dumps({"image": np.random.default_rng(0).integers(0, 256, (8, 8)).tolist()}).encode()
_PING = b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_LOADS = {
    "healthz": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "classify": b"POST /classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_IMAGE), _IMAGE),
}

IDLE, LOADED, WITHOUT = "idle service", f"{_CLIENTS} clients run the graph", f"{_CLIENTS} clients run no graph"


async def measure(harness: Harness) -> list[Table]:
    """99th percentile of a ping's time to ``examples/service.py``: server, load and ping are three processes."""
    seconds = harness.pick(3000, 200) / 1000
    async with _server() as port:

        async def idle() -> float:
            return await _ping_ms(port, seconds)

        async def loaded(load: str) -> float:
            async with _load(port, load, seconds):
                return await _ping_ms(port, seconds)

        cases: dict[str, Case] = {IDLE: idle, WITHOUT: lambda: loaded("healthz"), LOADED: lambda: loaded("classify")}
        budget = Budget("within 5 ms of idle", LOADED, Relation.MORE, 5.0, IDLE)
        title = "a ping beside requests that come as fast as they are answered"
        return [await harness.compare(title, "ms, p99", cases, reference=IDLE, budgets=[budget])]


@asynccontextmanager
async def _server() -> AsyncIterator[int]:
    command = [sys.executable, "examples/service.py", "0"]
    process = await asyncio.create_subprocess_exec(*command, cwd=_ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        yield int(line.rstrip("/\n").rpartition(":")[2])
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def _load(port: int, load: str, seconds: float) -> AsyncIterator[None]:
    """Clients at work from now on until shortly after the block."""
    command = [sys.executable, "-m", "benchmarks.service", str(port), load, str(seconds)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=_ROOT, stdout=pipe)
    try:
        assert process.stdout is not None
        await process.stdout.readline()  # all have had an answer
        yield
        if await process.wait():
            raise RuntimeError("the clients failed: there was no load")
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _ping_ms(port: int, seconds: float) -> float:
    """Ping for so long; the 99th percentile of the time to the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    times = []
    end = perf_counter() + seconds
    while perf_counter() < end:
        start = perf_counter()
        await _ask(reader, writer, _PING)
        times.append(perf_counter() - start)
        await asyncio.sleep(_PING_EVERY_S)
    writer.close()
    await writer.wait_closed()
    return float(np.percentile(times, 99)) * 1e3


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"expected status 200, got {head.splitlines()[0]!r}")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(length))


async def _clients(port: int, request: bytes, seconds: float) -> None:
    """The load: each client asks again as soon as it has its answer."""
    begun = asyncio.Barrier(_CLIENTS + 1)

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await _ask(reader, writer, request)
        await begun.wait()
        end = perf_counter() + seconds + 0.2
        count = number  # so that not all hang up at once
        while perf_counter() < end:
            count += 1
            if count % _HANG_UP:
                await _ask(reader, writer, request)
            else:
                writer.write(request)
                await writer.drain()
                writer.transport.abort()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()

    async with asyncio.TaskGroup() as group:
        for number in range(_CLIENTS):
            group.create_task(client(number))
        await begun.wait()
        print("begun", flush=True)


if __name__ == "__main__":
    af.run(_clients(int(sys.argv[1]), _LOADS[sys.argv[2]], float(sys.argv[3])))
