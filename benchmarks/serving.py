"""What does a request over HTTP cost beside one of a batcher itself, and how long do others wait for a long one?"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from aiohttp import web

import actorflow as af
from benchmarks.harness import Budget, Case, Harness, Relation, Row, Table
from benchmarks.service.names import ask

__all__ = ["measure"]

_ROOT = Path(__file__).parents[1]
_CLIENTS, _FEATURES = 32, 64
_US = 1e-6
_TICK_S = 0.001
#: Numbers of a long request: 10 MB of JSON.
_NUMBERS = 500_000
_HEAD = "Inference-Header-Content-Length"

BATCHER, NOTHING = "batcher.run", "aiohttp, a handler that reads the body"
BY_JSON, BY_BYTES = "af.serve, JSON", "af.serve, binary data"
IDLE, READING, AT_ONCE = "idle", "af.serve, 10 MB of JSON", "aiohttp, json.loads of it in a thread"


async def measure(harness: Harness) -> list[Table]:
    """The server in this process, its clients in another one: its processor time is that of this process."""
    return [*await _of_requests(harness), await _of_long_ones(harness)]


def _model() -> af.Model:
    graph = af.Graph("tiny", deterministic=True)
    x = graph.blob("x", ("batch", _FEATURES))
    return af.Model(graph, {"x": x}, {"y": af.ops.scale(x, 2.0)})


def _inference(rows: Any, *, binary: bool) -> bytes:
    entry = {"name": "x", "shape": list(rows.shape), "datatype": "FP32"}
    if binary:
        entry["parameters"] = {"binary_data_size": rows.nbytes}
    else:
        entry["data"] = rows.reshape(-1).tolist()
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": binary}}).encode()
    body = head + (rows.tobytes() if binary else b"")
    return _request("/v2/models/tiny/infer", body, f"{_HEAD}: {len(head)}\r\n" if binary else "")


def _request(path: str, body: bytes, more: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _nothing(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=b"{}", content_type="application/json")


async def _at_once(request: web.Request) -> web.Response:
    text = await request.read()
    await af.threads.in_thread(lambda: np.array(json.loads(text)["inputs"][0]["data"]))  # type: ignore[attr-defined]
    return web.Response(body=b"{}", content_type="application/json")


@asynccontextmanager
async def _server(app: web.Application) -> AsyncIterator[int]:
    async with af.serve.Server(app, port=0) as server:
        yield server.port


def _app() -> web.Application:
    limits = af.serve.Limits(queue_rows=1 << 20)
    app = af.serve.create_app({"tiny": _model()}, limits=limits, page=False, max_rows=_CLIENTS)
    app._client_max_size = 1 << 30
    app.router.add_post("/nothing", _nothing)
    app.router.add_post("/at_once", _at_once)
    return app


async def _of_requests(harness: Harness) -> list[Table]:
    rows = np.random.default_rng(0).random((1, _FEATURES), np.float32)
    requests = harness.pick(8_000, 320)
    requested = {BY_JSON: _inference(rows, binary=False), BY_BYTES: _inference(rows, binary=True)}
    requested[NOTHING] = _request("/nothing", requested[BY_JSON].partition(b"\r\n\r\n")[2])
    processor_us: dict[str, list[float]] = {BATCHER: [], **{name: [] for name in requested}}
    model = _model()

    async def batched(batcher: af.Batcher) -> float:
        async def caller() -> None:
            for _ in range(requests // _CLIENTS):
                await batcher.run({"x": rows})

        processor_s, start = process_time(), perf_counter()
        await asyncio.gather(*[caller() for _ in range(_CLIENTS)])
        processor_us[BATCHER].append((process_time() - processor_s) / requests / _US)
        return (perf_counter() - start) / requests / _US

    async def over_http(port: int, name: str) -> float:
        async with _clients(port, requested[name], requests) as go:
            processor_s = process_time()
            seconds = await go()
            processor_us[name].append((process_time() - processor_s) / requests / _US)
        return float(seconds / requests / _US)

    async with _server(_app()) as port, model.graph, model.batched(max_rows=_CLIENTS) as batcher:
        cases: dict[str, Case] = {BATCHER: lambda: batched(batcher)}
        cases |= {name: partial(over_http, port, name) for name in requested}
        title = f"{_CLIENTS} clients, one row of {_FEATURES} numbers each"
        table = await harness.compare(title, "us per request", cases, reference=NOTHING)
    found = {name: Row(name, figures[-harness.rounds :]) for name, figures in processor_us.items()}
    budget = Budget("at most 150 us above a handler that does nothing", BY_BYTES, Relation.MORE, 150.0, NOTHING)
    title += ": processor of the server"
    return [table, Table(title, "us per request, all threads", found, NOTHING, [budget])]


@asynccontextmanager
async def _clients(port: int, request: bytes, requests: int) -> AsyncIterator[Case]:
    """Another process, which sends a request so often when the function is called; gives how long it took."""
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "benchmarks.serving", str(port), str(requests), str(len(request))]
    process = await asyncio.create_subprocess_exec(*command, cwd=_ROOT, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(request)
        await process.stdout.readline()  # all are connected

        async def go() -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"go\n")
            line = await process.stdout.readline()
            if not line:
                raise RuntimeError("the clients failed: there was no load")
            return float(line)

        yield go
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _of_long_ones(harness: Harness) -> Table:
    """The longest time that other requests wait for the loop beside a long one."""
    numbers = np.random.default_rng(0).random((_NUMBERS // _FEATURES, _FEATURES), np.float32)
    long = _inference(numbers[: harness.pick(len(numbers), 100)], binary=False)
    at_once = _request("/at_once", long.partition(b"\r\n\r\n")[2])

    async def longest_ms(port: int, request: bytes | None) -> float:
        stop = asyncio.Event()
        async with _clients(port, request or long, 1) as go:
            lag = asyncio.create_task(_longest_lag_ms(stop))
            await (asyncio.sleep(harness.pick(500, 5) / 1000) if request is None else go())
            stop.set()
            return await lag

    async with _server(_app()) as port:
        cases: dict[str, Case] = {
            IDLE: partial(longest_ms, port, None),
            READING: partial(longest_ms, port, long),
            AT_ONCE: partial(longest_ms, port, at_once),
        }
        return await harness.compare(
            "lag of the loop beside one request of 10 MB", "ms, longest", cases, reference=IDLE
        )


async def _longest_lag_ms(stop: asyncio.Event) -> float:
    """The longest time for which the loop did nothing else, by a ticker that wants to go on each millisecond."""
    longest = 0.0
    while not stop.is_set():
        start = perf_counter()
        await asyncio.sleep(_TICK_S)
        longest = max(longest, perf_counter() - start - _TICK_S)
    return longest * 1e3


async def _ask_all(port: int, requests: int, size: int) -> None:
    """The load: each client asks again as soon as it has its answer."""
    request = sys.stdin.buffer.read(size).replace(b"PORT", str(port).encode(), 1)
    clients = min(_CLIENTS, requests)
    begun = asyncio.Barrier(clients + 1)

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await begun.wait()
        for _ in range(requests // clients):
            await ask(reader, writer, request)
        writer.close()
        await writer.wait_closed()

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
        print("connected", flush=True)
        await asyncio.to_thread(sys.stdin.buffer.readline)
        start = perf_counter()
        await begun.wait()
    print(perf_counter() - start, flush=True)


if __name__ == "__main__":
    af.run(_ask_all(*map(int, sys.argv[1:])))
