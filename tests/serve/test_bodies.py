"""Bodies of requests: packed, too large, without an end, late; and what clients do that hang up."""

import asyncio
import gzip
import json
import socket
import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiohttp import web

import actorflow as af
from actorflow.serve import Limits, create_app
from tests.serve.serving import Client, Gate, Served, binary_tensor, serve, ten_times, tensor, until

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)
TEXT = json.dumps({"inputs": [tensor("x", ROWS)]}).encode()
PATH = "/v2/models/model/infer"


def packed(kind: str, data: bytes) -> bytes:
    return gzip.compress(data) if kind == "gzip" else zlib.compress(data)


@pytest.mark.parametrize("kind", ["gzip", "deflate", "GZIP"])
async def test_packed_bodies(kind: str) -> None:
    head = json.dumps({"inputs": [binary_tensor("x", ROWS)]}).encode()
    async with serve({"model": ten_times()}) as served:
        for body, headers in (
            (TEXT, {}),
            (head + ROWS.tobytes(), {"Inference-Header-Content-Length": str(len(head))}),
        ):
            encoding = {"Content-Encoding": kind}
            answer = await served.ask(PATH, packed(kind.lower(), body), {**headers, **encoding})
            assert np.array_equal(answer.output("y"), 10 * ROWS)


@pytest.mark.together(
    ("body", "encoding", "status", "message"),
    [
        (TEXT, "br", 415, "expected a body that is packed by gzip or deflate"),
        (TEXT, "gzip, deflate", 415, "expected a body that is packed by gzip or deflate"),
        (gzip.compress(TEXT, mtime=0)[:-1], "gzip", 400, "what is packed has no end"),
        (gzip.compress(TEXT, mtime=0) + b"more", "gzip", 400, "something follows the end"),
        (gzip.compress(TEXT, mtime=0)[:10] + b"\xff" * 20, "gzip", 400, "the body cannot be read"),
        (b"\x1f\x8b", "gzip", 400, "what is packed has no end"),
        (b"", "gzip", 400, "expected JSON"),
        (zlib.compress(bytes(1 << 20)), "deflate", 413, "expected a body of at most 100,000 bytes"),
        (lambda: gzip.compress(bytes(100 << 20), mtime=0), "gzip", 413, "expected a body of at most 100,000 bytes"),
    ],
    ids=["unknown", "twice", "cut", "followed", "damaged", "short", "empty", "bomb", "larger-bomb"],
)
async def test_packed_bodies_that_are_wrong(body: Any, encoding: str, status: int, message: str) -> None:
    body = body() if callable(body) else body
    limits = Limits(body_bytes=100_000, pending_bytes=200_000)
    async with serve({"model": ten_times()}, limits=limits) as served:
        answer = await served.ask(PATH, body, {"Content-Encoding": encoding})
        assert answer.status == status
        assert message in answer.error
        assert served.service._account.held_bytes == 0
        assert (await served.ask(PATH, TEXT)).status == 200


async def test_a_server_that_unpacks_bodies_itself() -> None:
    """aiohttp's runner does unless it is told not to, as another program may not."""
    app = create_app({"model": ten_times()})
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        served = Served(SimpleNamespace(port=runner.addresses[0][1]), app)  # type: ignore[arg-type]
        for kind in ("gzip", "deflate"):
            answer = await served.ask(PATH, packed(kind, TEXT), {"Content-Encoding": kind})
            assert np.array_equal(answer.output("y"), 10 * ROWS)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("length", ["101", str(1 << 30), "9" * 18])
async def test_a_length_that_is_too_large_is_refused_at_once(length: str) -> None:
    async with serve({"model": ten_times()}, limits=Limits(body_bytes=100)) as served:
        for headers in ({}, {"Expect": "100-continue"}):
            answer = await served.ask(PATH, b"", {"Content-Length": length, **headers})
            assert (answer.status, answer.error) == (413, "expected a body of at most 100 bytes")


@pytest.mark.parametrize("length", ["-1", "many", "1, 2", "9" * 5000])
async def test_a_length_that_is_none(length: str) -> None:
    """What aiohttp cannot read it refuses itself."""
    async with serve({"model": ten_times()}) as served:
        assert (await served.ask(PATH, TEXT, {"Content-Length": length})).status == 400
        assert (await served.ask(PATH, TEXT)).status == 200


async def test_a_client_that_asks_before_it_sends() -> None:
    async with serve({"model": ten_times()}) as served:
        client = await Client.open(served.port)
        client.send(PATH, b"", {"Content-Length": str(len(TEXT)), "Expect": "100-continue"})
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(TEXT)
        assert np.array_equal((await client.answer()).output("y"), 10 * ROWS)


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def test_a_body_in_chunks() -> None:
    async with serve({"model": ten_times()}) as served:
        body = b"".join(chunk(TEXT[at : at + 7]) for at in range(0, len(TEXT), 7)) + chunk(b"")
        answer = await served.ask(PATH, body, {"Transfer-Encoding": "chunked"})
        assert np.array_equal(answer.output("y"), 10 * ROWS)
        answer = await served.ask(PATH, body[:20] + b"zz" + body[20:], {"Transfer-Encoding": "chunked"})
        assert answer.status == 400


async def test_a_body_in_chunks_without_an_end() -> None:
    async with serve({"model": ten_times()}, limits=Limits(body_bytes=100_000)) as served:
        client = await Client.open(served.port)
        client.send(PATH, b"", {"Transfer-Encoding": "chunked"})

        async def send_on() -> None:
            while True:
                client.writer.write(chunk(b" " * 10_000))
                await client.writer.drain()

        sending = asyncio.create_task(send_on())
        answer = await client.answer()
        assert answer.status == 413
        assert answer.error == "expected a body of at most 100,000 bytes"
        sending.cancel()
        await asyncio.wait([sending])
        assert (await served.ask(PATH, TEXT)).status == 200


async def test_a_body_that_does_not_come() -> None:
    async with serve({"model": ten_times()}, limits=Limits(body_timeout_s=0.01)) as served:
        answer = await served.ask(PATH, TEXT, {"Content-Length": str(len(TEXT) + 1)})
        assert (answer.status, answer.error) == (408, "expected the whole body within 0.01 s")


async def test_room_for_all_bodies() -> None:
    """Bodies that wait for their results take room, which later ones then lack."""
    gate = Gate()
    limits = Limits(pending_bytes=len(TEXT) * 2 - 1)
    async with serve({"model": gate.model()}, limits=limits) as served:
        client = await Client.open(served.port)
        client.send(PATH, TEXT)
        await until(lambda: gate.inside == 1)
        answer = await served.ask(PATH, TEXT)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert "have no room for another one" in answer.error
        gate.open.set()
        assert (await client.answer()).status == 200
        assert (await served.ask(PATH, TEXT)).status == 200


def wide() -> af.Model:
    """Of a number, so many that the system does not keep them for a client."""
    graph = af.Graph("wide")
    x = graph.blob("x", ("batch", 1))
    return af.Model(graph, {"x": x}, {"y": af.ops.matmul(x, graph.constant(np.ones((1, 4_000_000), np.float32)))})


def asks_for_bytes(rows: int = 1) -> bytes:
    wanted = {"binary_data_output": True}
    return json.dumps({"inputs": [tensor("x", np.ones((rows, 1), np.float32))], "parameters": wanted}).encode()


async def test_answers_count_until_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that do not read leave no room for others, and are ended in time, which gives it back."""
    async with serve({"model": wide()}, limits=Limits(pending_bytes=52_000_000), max_rows=0) as served:
        (hosted,) = served.service.models
        clients = []
        for count in range(1, 4):
            client = await Client.open(served.port)
            client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(PATH, asks_for_bytes())
            clients.append(client)
            await until(lambda n=count: hosted.answers[200] == n)
            assert served.service._account.held_bytes > 16_000_000 * count
        answer = await served.ask(PATH, asks_for_bytes())
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        clients[0].writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await clients[0].answer()).output("y").shape == (1, 4_000_000)
        await until(lambda: served.service.in_flight == 2)
        assert (await served.ask(PATH, asks_for_bytes())).status == 200
        for client in clients[1:]:
            await client.hang_up()
        await until(lambda: served.service.in_flight == 0)
        assert served.service._account.held_bytes == 0
        monkeypatch.setattr("actorflow.web.server.TAKING_TIMEOUT_S", 0.01)
        client = await Client.open(served.port)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(PATH, asks_for_bytes())
        await until(lambda: hosted.answers[200] == 5 and served.service.in_flight == 0)
        assert served.service._account.held_bytes == 0
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.answer()


@pytest.mark.parametrize("batched", [True, False])
async def test_a_client_that_hangs_up(batched: bool) -> None:
    """Its rows are not computed, or its frame is cancelled; the figures say so, and others get their results."""
    gate = Gate()
    rows = ROWS[:1]
    text = json.dumps({"inputs": [tensor("x", rows)]}).encode()
    limits = Limits(in_flight=1)
    async with serve({"model": gate.model(batched=batched)}, limits=limits) as served:
        (hosted,) = served.service.models
        clients = []
        for count in range(1, 4):
            clients.append(await Client.open(served.port))
            clients[-1].send(PATH, text)
            await until(lambda n=count: served.service.in_flight == n)
            await until(lambda: gate.inside == 1)
        first, second, third = clients
        await second.hang_up()  # it waits
        await until(lambda: hosted.cancelled == 1)
        assert gate.cancelled == 0
        await first.hang_up()  # it is computed
        await until(lambda: hosted.cancelled == 2 and gate.cancelled == 1)
        if hosted._batcher is not None:
            assert hosted._batcher.statistics().cancelled == 2
        gate.open.set()
        assert np.array_equal((await third.answer()).output("y"), rows)
        assert gate.rows == 2
        assert hosted.model.graph.engine.frames.cancelled == 1
        metrics = (await served.get("/metrics")).body.decode()
        assert 'actorflow_serve_cancelled_total{model="model",version="1"} 2.0' in metrics
        assert 'actorflow_serve_answers_total{model="model",status="200",version="1"} 1.0' in metrics
        assert served.service.in_flight == served.service._account.held_bytes == 0


async def test_a_client_that_hangs_up_within_its_body() -> None:
    async with serve({"model": ten_times()}) as served:
        client = await Client.open(served.port)
        client.send(PATH, TEXT[:10], {"Content-Length": "1000"})
        await until(lambda: served.service._account.held_bytes == 10)
        await client.hang_up()
        await until(lambda: served.service.in_flight == 0)
        assert served.service._account.held_bytes == 0
        assert (await served.ask(PATH, TEXT)).status == 200


async def test_a_long_text_is_read_while_others_are_answered() -> None:
    """Another request comes in after the long one and is answered before it."""
    order: list[str] = []
    rows = np.random.default_rng(0).random((60_000, 3), np.float32)
    text = json.dumps({"inputs": [tensor("x", rows)]}).encode()
    async with serve({"model": ten_times()}, limits=Limits(queue_rows=1 << 20)) as served:

        async def ask(name: str, body: bytes) -> Any:
            answer = await served.ask(PATH, body)
            order.append(name)
            return answer

        long = asyncio.create_task(ask("long", text))
        await until(lambda: served.service._turn.locked())
        await ask("short", TEXT)
        assert np.array_equal((await long).output("y"), 10 * rows)
        assert order == ["short", "long"]
