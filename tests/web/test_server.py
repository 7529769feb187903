"""Clients that mean no good, or are slow, at the server's own connections: each is dropped in time and costs a line."""

import asyncio
import logging
import random
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from actorflow.web import http, serve, server
from actorflow.web.http import CHUNK_BYTES, Response
from actorflow.web.page import Page

ADAPTERS = {sys.modules["actorflow.web.server"]: "send", sys.modules["actorflow.web.asgi"]: "send_response"}
TOKEN = "open-sesame"
HEAD = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
COMMAND = (
    "POST /api/control/step HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer open-sesame\r\n"
    "Content-Type: application/json\r\n{length}\r\n\r\n"
)
#: Requests that no server can make sense of.
MALFORMED = [
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"nonsense\r\n\r\n",
    b"\xe2\x80\xae\r\n\r\n",
    b"G\xe2\x80\xaeT / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/9\r\n\r\n",
    b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: \xe2\x80\xae\x00\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
]
MUTATIONS = 200


@asynccontextmanager
async def connection(port: int) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def everything(reader: asyncio.StreamReader) -> bytes:
    """All bytes until the server closes the connection, in whatever way."""
    came = b""
    try:
        async with asyncio.timeout(60):
            while part := await reader.read(1 << 20):
                came += part
    except ConnectionError:
        pass
    return came


@contextmanager
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing that is logged meanwhile has a traceback, or more than a line."""
    with caplog.at_level(logging.DEBUG, "actorflow"):
        yield
    assert not [record for record in caplog.records if record.exc_info or "\n" in record.getMessage()]


class TestIncompleteRequests:
    async def test_half_sent_heads_are_closed(self, training, monkeypatch) -> None:
        monkeypatch.setattr(server, "_WAIT_S", 0.05)
        async with serve(training.graph, port=0) as view:
            head = HEAD.format(port=view.port).encode()
            starts = [head[: len(head) * k // 50] for k in range(50)]

            async def half(start: bytes) -> bytes:
                async with connection(view.port) as (reader, writer):
                    writer.write(start)
                    return await everything(reader)

            assert await asyncio.gather(*map(half, starts)) == [b""] * 50
            whole = b""
            while not whole:  # on a busy machine its time may be over before it is read
                whole = await half(head + head[:20])  # a whole request is answered, and the half one behind it is not
            assert whole.startswith(b"HTTP/1.1 200 OK")
            assert whole.count(b"HTTP/1.1") == 1

    async def test_bytes_one_by_one_win_no_time(self, training, monkeypatch) -> None:
        monkeypatch.setattr(server, "_WAIT_S", 0.05)
        async with serve(training.graph, port=0) as view, connection(view.port) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\nX: ")
            closed = asyncio.create_task(everything(reader))
            for _ in range(4000):  # fewer than a header may have
                if not writer.is_closing():
                    writer.write(b"x")
                await asyncio.sleep(0)
            assert await closed == b""

    @pytest.mark.parametrize("part", [b"", b'{"fra'])
    @pytest.mark.parametrize("length", ["Content-Length: 13", "Transfer-Encoding: chunked"])
    async def test_half_sent_bodies_are_refused(self, served, training, monkeypatch, part, length) -> None:
        monkeypatch.setattr(http, "BODY_TIMEOUT_S", 0.05)
        body = b"%x\r\n%s\r\n" % (len(part), part) if part and "chunked" in length else part
        training.graph.pause()
        async with served(training.graph, control=True, token=TOKEN) as client:
            async with connection(client.port) as (reader, writer):
                writer.write(COMMAND.format(port=client.port, length=length).encode() + body)
                async with asyncio.timeout(60):
                    assert await reader.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
            assert training.graph.paused.steps == 0
        training.graph.resume()

    async def test_and_their_connection_is_closed(self, training, monkeypatch) -> None:
        monkeypatch.setattr(http, "BODY_TIMEOUT_S", 0.05)
        async with serve(training.graph, port=0, control=True, token=TOKEN) as view:
            async with connection(view.port) as (reader, writer):
                writer.write(COMMAND.format(port=view.port, length="Content-Length: 13").encode())
                came = await everything(reader)
            assert came.startswith(b"HTTP/1.1 408 ")
            assert came.endswith(b"408: expected the whole body within 0.05 s\n")


class TestWhoDoesNotRead:
    async def test_is_dropped(self, served, training, monkeypatch) -> None:
        """Else the answer, and the connection, would be kept for as long as the client likes."""
        sent = asyncio.Event()
        long = Response(200, [bytes(CHUNK_BYTES)] * 1000)

        async def respond(page: Page, request: Any) -> Response:
            return long

        for module, send in ADAPTERS.items():
            monkeypatch.setattr(module, "TAKING_TIMEOUT_S", 0.05)
            monkeypatch.setattr(module, send, telling(sent, getattr(module, send)))
        async with served(training.graph) as client:
            monkeypatch.setattr(Page, "respond", respond)
            async with connection(client.port) as (reader, writer):
                writer.transport.pause_reading()
                writer.write(HEAD.format(port=client.port).encode())
                async with asyncio.timeout(60):
                    await sent.wait()
                writer.transport.resume_reading()
                assert len(await everything(reader)) < long.size_bytes

    async def test_who_does_gets_all(self, served, training, monkeypatch) -> None:
        long = Response(200, [bytes([k % 256]) * CHUNK_BYTES for k in range(200)])

        async def respond(page: Page, request: Any) -> Response:
            return long

        monkeypatch.setattr(Page, "respond", respond)
        async with served(training.graph) as client:
            assert await (await client.get("/healthz")).read() == b"".join(long.chunks)
            response = await client.request("HEAD", "/healthz")
            assert (await response.read(), response.headers["Content-Length"]) == (b"", str(long.size_bytes))

    async def test_the_loop_is_free_between_parts(self, served, training, monkeypatch) -> None:
        """However fast the client takes them."""
        turns, at = 0, []

        class Counted(list[bytes]):
            def __iter__(self) -> Iterator[bytes]:
                for chunk in super().__iter__():
                    at.append(turns)
                    yield chunk

        async def respond(page: Page, request: Any) -> Response:
            return Response(200, Counted([bytes(1000)] * 20))

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        monkeypatch.setattr(Page, "respond", respond)
        async with served(training.graph) as client:
            turning = asyncio.create_task(turn())
            await client.get("/healthz")
            turning.cancel()
        assert len(set(at)) == 20, "the loop came round between any two"


def telling(done: asyncio.Event, send: Any) -> Any:
    async def told(*arguments: Any, **options: Any) -> Any:
        try:
            return await send(*arguments, **options)
        finally:
            done.set()

    return told


async def test_connections_have_a_limit(training, caplog, monkeypatch) -> None:
    """Further ones are closed, unless one on which no request is answered can make room."""
    go_on, waiting, respond = asyncio.Event(), 0, Page.respond

    async def later(page: Page, request: Any) -> Response:
        nonlocal waiting
        waiting += 1
        await go_on.wait()
        return await respond(page, request)

    monkeypatch.setattr(Page, "respond", later)
    async with serve(training.graph, port=0, max_clients=0) as view, AsyncExitStack() as kept:
        head = HEAD.format(port=view.port).encode()
        ours = [await kept.enter_async_context(connection(view.port)) for _ in range(server._MORE_CONNECTIONS)]
        for _, writer in ours:
            writer.write(head)
        while waiting < len(ours):
            await asyncio.sleep(0)
        with caplog.at_level(logging.WARNING, "actorflow"):
            for _ in range(20):
                async with connection(view.port) as (reader, writer):
                    writer.write(head)
                    assert await everything(reader) == b""
        assert [record.getMessage() for record in caplog.records] == [
            "the live page has 64 connections, as many as it takes: further ones are closed"
        ]
        go_on.set()
        for reader, _ in ours:
            assert b"200 OK" in await reader.readline()
        more = [await kept.enter_async_context(connection(view.port)) for _ in range(20)]
        for reader, writer in more:
            writer.write(head)
            assert b"200 OK" in await reader.readline()
        for reader, _ in ours[:20]:
            await everything(reader)  # which ends, as they are closed


class TestMalformedRequests:
    async def test_are_a_line_in_the_log(self, training, caplog) -> None:
        async with serve(training.graph, port=0) as view:
            for request in MALFORMED:
                caplog.clear()
                with quiet(caplog):
                    async with connection(view.port) as (reader, writer):
                        writer.write(request)
                        assert (await everything(reader)).startswith(b"HTTP/1.0 400 Bad Request\r\n"), request
                (record,) = caplog.records
                text = record.getMessage()
                assert (record.levelname, record.name) == ("WARNING", "actorflow.web.server")
                assert text.startswith("Error handling request from 127.0.0.1: it cannot be read: "), request
                assert len(text) < 300
                assert text.isprintable()

    async def test_bodies_too(self, training, caplog) -> None:
        training.graph.pause()
        async with serve(training.graph, port=0, control=True, token=TOKEN) as view:
            bodies = {"Transfer-Encoding: chunked": b"zz\r\n", "Content-Encoding: gzip\r\nContent-Length: 4": b"abcd"}
            for length, body in bodies.items():
                with quiet(caplog):
                    async with connection(view.port) as (reader, writer):
                        writer.write(COMMAND.format(port=view.port, length=length).encode() + body)
                        assert b" 400 Bad Request" in await reader.readline()
            assert training.graph.paused.steps == 0
        training.graph.resume()

    async def test_an_error_of_the_page_has_its_traceback(self, training, caplog, monkeypatch) -> None:
        async def respond(page: Page, request: Any) -> Response:
            raise RuntimeError("broken")

        monkeypatch.setattr(Page, "respond", respond)
        async with serve(training.graph, port=0) as view, connection(view.port) as (reader, writer):
            writer.write(HEAD.format(port=view.port).encode())
            assert b"500 Internal Server Error" in await reader.readline()
        (record,) = caplog.records
        assert record.exc_info is not None
        assert "broken" in caplog.text

    async def test_whatever_bytes_come(self, training, caplog) -> None:
        chance = random.Random(0)
        async with serve(training.graph, port=0, control=True, token=TOKEN) as view:
            command = COMMAND.format(port=view.port, length="Content-Length: 2") + "{}"
            whole = (HEAD.format(port=view.port) + command).encode()
            with quiet(caplog):
                for _ in range(MUTATIONS):
                    request = bytearray(whole)
                    for _ in range(chance.randint(1, 5)):
                        at = chance.randrange(len(request))
                        request[at : at + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
                    async with connection(view.port) as (reader, writer):
                        writer.write(request)
                        writer.write_eof()
                        await everything(reader)
            async with connection(view.port) as (reader, writer):
                writer.write(HEAD.format(port=view.port).encode())
                assert b"401 Unauthorized" in await reader.readline()


async def test_a_foreign_host_is_told_what_allows_it(served, training) -> None:
    async with served(training.graph) as client:
        for host in ("graphs.example.com", "10.0.0.5:8080"):
            text = await (await client.get("/", headers={"Host": host})).text()
            assert text == (
                f"403: this page is not served to host {host!r}: if it is meant to be, serve it with "
                f"allowed_hosts=[{host!r}] (--allowed-host {host} of actorflow serve)\n"
            )
        origin = f"http://graphs.example.com:{client.port}"
        text = await (await client.get("/", headers={"Origin": origin})).text()
        assert f"allowed_hosts=['graphs.example.com:{client.port}']" in text
        for origin in ("null", "file://"):
            text = await (await client.get("/", headers={"Origin": origin})).text()
            assert text == f"403: this page is not served to origin {origin!r}\n"
