"""However long a graph is watched, its memory stays what it was: ring, times, quantiles, curves, failures, clients."""

import asyncio
import contextlib
import gc
import socket
import tracemalloc
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, WSMsgType

import actorflow as af
from actorflow.trace.counters import Scalars
from tests.support.effort import FULL

#: Calls in all, and before memory is looked at for the first time: the ring is full by then, and so is all else.
TOTAL, WARM = (10_000_000, 500_000) if FULL else (100_000, 60_000)
#: Ops of the graph: what takes its time here is calls, not frames.
OPS = 100
#: What the figures may be apart, in bytes: messages under way to the clients. An object per call would be far more.
SLACK = 512 * 1024

VECTOR = af.TensorSpec.of((4,))


def observed() -> af.Graph:
    """A long chain; a scalar at its end, which becomes a curve; an op that fails where it is fed a negative number."""
    graph = af.Graph("observed", trace_capacity=1 << 14)
    value = graph.blob("x", (4,))

    def checked(x: Any) -> Any:
        if x[0] < 0:
            raise ValueError("negative")
        return x

    value = graph.function("check", checked, VECTOR)(value)
    for number in range(OPS - 2):
        value = graph.function(f"op {number}", lambda x: x, VECTOR)(value)
    graph.function("loss", lambda x: np.float32(x[0]), af.TensorSpec.of(()))(value)
    graph.engine.scalars = graph.engine.resources.scalars = Scalars(limit=200)
    return graph


async def follow(url: str, heard: asyncio.Event) -> None:
    """A page that shows everything."""
    async with ClientSession() as session, session.ws_connect(url, max_msg_size=0) as socket:
        await socket.send_json({"type": "timeline", "on": True})
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                heard.set()


async def run_until(graph: af.Graph, calls: int) -> None:
    good, bad = np.ones(4, "float32"), -np.ones(4, "float32")
    while graph.engine.trace.total < calls:
        async for _ in graph.stream([{"x": good}] * 10, in_flight=3):
            pass
        try:
            await graph.run({"x": bad})
        except af.OpError:
            continue
        raise AssertionError("a negative number must fail")


def connect_and_read_nothing(host: str, port: int) -> socket.socket:
    """A page that asks for everything and then stops: what it misses must not be kept for it."""
    stopped = socket.socket()
    stopped.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stopped.connect((host, port))
    stopped.sendall(
        f"GET /stream HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
    )
    request = b'{"type": "timeline", "on": true}'
    stopped.sendall(bytes([0x81, 0x80 | len(request)]) + bytes(4) + request)  # masked by zeros
    return stopped


async def in_use(graph: af.Graph, heard: asyncio.Event) -> int:
    """Bytes, when the page has been told what happened; the least of some looks, as messages are under way."""
    looks = []
    for _ in range(3):
        heard.clear()
        await graph.run({"x": np.ones(4, "float32")})
        await asyncio.wait_for(heard.wait(), 60)
        gc.collect()
        looks.append(tracemalloc.get_traced_memory()[0])
    return min(looks)


@pytest.mark.slow
@pytest.mark.any_loop
@pytest.mark.timeout(3000)
async def test_memory_stays_flat() -> None:
    graph, heard = observed(), asyncio.Event()
    async with graph, af.web.serve(graph, port=0) as view:
        reader = asyncio.create_task(follow(f"ws://{view.host}:{view.port}/stream", heard))
        with contextlib.closing(connect_and_read_nothing(view.host, view.port)) as stopped:
            await asyncio.wait_for(heard.wait(), 60)
            assert b"101 Switching" in await asyncio.to_thread(stopped.recv, 64, socket.MSG_PEEK)
            tracemalloc.start()
            try:
                await run_until(graph, WARM)
                before = await in_use(graph, heard)
                await run_until(graph, TOTAL)
                after = await in_use(graph, heard)
            finally:
                tracemalloc.stop()
        reader.cancel()
        await asyncio.wait([reader])
    assert graph.engine.frames.failed > 50, "more than are kept"
    assert len(graph.engine.scalars.series["loss/out"]) == 200
    assert after - before < SLACK, f"{before:,} bytes after {WARM:,} calls, {after:,} after {TOTAL:,}"
