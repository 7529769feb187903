"""The page as an ASGI application: mounted, below prefixes, by itself, and before a client that does not read."""

import asyncio
import itertools
import logging
from typing import Any

import pytest
from aiohttp import ClientSession, WSCloseCode, WSMsgType, WSServerHandshakeError

from actorflow.web.asgi import asgi, unless_gone
from actorflow.web.asgi import below as path_below
from actorflow.web.http import MAX_MESSAGE_BYTES
from tests.web.serving import HOST, uvicorned


async def ask(app: Any, path: str = "/", **scope: Any) -> list[dict[str, Any]]:
    """Messages that an application sends for one request, from a scope with no more than a server must give."""
    sent: list[dict[str, Any]] = []
    kind = scope.get("type", "http")
    start = {"http": {"type": "http.request"}, "websocket": {"type": "websocket.connect"}}[kind]
    messages = itertools.chain([start], itertools.repeat({"type": f"{kind}.disconnect"}))

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    whole = {"type": "http", "method": "GET", "path": path, "headers": [(b"host", b"localhost:80")]}
    await app({**whole, "server": ("localhost", 80), **scope}, receive, send)
    return sent


class TestMounted:
    async def test_in_fastapi_beside_other_routes(self, training) -> None:
        from fastapi import FastAPI

        app = FastAPI()
        app.get("/ping")(lambda: "pong")
        app.mount("/some/graph", asgi(training.graph, token="open-sesame"))
        async with uvicorned(app) as port, ClientSession(f"http://{HOST}:{port}") as session:
            async with session.get("/ping") as response:
                assert await response.json() == "pong"
            async with session.get("/some/graph/") as response:
                assert response.status == 401
            headers = {"Authorization": "Bearer open-sesame"}
            for path, content_type in (
                ("/", "text/html"),
                ("/static/main.js", "text/javascript"),
                ("/api/graph", "application/json"),
            ):
                async with session.get(f"/some/graph{path}", headers=headers) as response:
                    assert (response.status, response.content_type) == (200, content_type)
            async with session.ws_connect("/some/graph/stream", headers=headers) as socket:
                message = await socket.receive()
                assert message.type is WSMsgType.TEXT
            with pytest.raises(WSServerHandshakeError) as caught:
                await session.ws_connect("/some/graph/stream")
            assert caught.value.status == 401

    @pytest.mark.parametrize("is_in_path", [True, False])
    async def test_behind_a_proxy_that_takes_a_prefix_off(self, training, is_in_path) -> None:
        """As uvicorn says it, whose paths begin with the root path, and as frameworks do, which set that alone."""
        from starlette.applications import Starlette

        app = Starlette()
        app.mount("/graph", asgi(training.graph, token="open-sesame"))

        async def proxied(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "root_path": "/proxy"}, receive, send)

        server = uvicorned(app, root_path="/proxy") if is_in_path else uvicorned(proxied)
        async with server as port, ClientSession(f"http://{HOST}:{port}") as session:
            async with session.get(
                "/graph/static/main.js", headers={"Authorization": "Bearer open-sesame"}
            ) as response:
                assert response.status == 200
            async with session.get("/graph/?token=open-sesame&x=1", allow_redirects=False) as response:
                assert (response.status, "Set-Cookie" in response.headers) == (200, True)

    @pytest.mark.together(
        ("path", "root", "below"),
        [
            ("/", "", "/"),
            ("/graph/stream", "", "/graph/stream"),
            ("/graph/stream", "/graph", "/stream"),
            ("/graph", "/graph", ""),
            ("/graph/", "/graph", "/"),
            ("/a/graph/stream", "/a/graph", "/stream"),
            ("/graph/stream", "/a/b/graph", "/stream"),
            ("/stream", "/a/graph", "/stream"),
            ("/graphs/stream", "/graph", "/graphs/stream"),
            ("/graph/graph", "/graph", "/graph"),
        ],
    )
    def test_the_path_below_the_prefix(self, path, root, below) -> None:
        assert path_below(path, root) == below


class TestByItself:
    async def test_its_lifespan_closes_it(self, training) -> None:
        app = asgi(training.graph)
        async with uvicorned(app) as port, ClientSession() as session:
            async with session.get(f"http://{HOST}:{port}/healthz") as response:
                assert (await response.json())["status"] == "ok"
            async with session.ws_connect(f"http://{HOST}:{port}/stream") as socket:
                assert (await socket.receive()).type is WSMsgType.TEXT
                assert training.graph.engine.monitor is not None
        assert training.graph.engine.monitor is None

    async def test_it_may_be_started_again(self, training) -> None:
        app = asgi(training.graph)
        for _ in range(2):
            async with uvicorned(app) as port, ClientSession() as session:
                async with session.ws_connect(f"http://{HOST}:{port}/stream") as socket:
                    assert (await socket.receive()).type is WSMsgType.TEXT

    async def test_after_its_end_clients_are_sent_away(self, training) -> None:
        app = asgi(training.graph)
        async with uvicorned(app, lifespan="off") as port, ClientSession() as session:
            async with session.ws_connect(f"http://{HOST}:{port}/stream") as socket:
                assert (await socket.receive()).type is WSMsgType.TEXT
                await app.aclose()
                while (message := await socket.receive()).type in {WSMsgType.TEXT, WSMsgType.BINARY}:
                    pass
                assert (message.type, message.data) == (WSMsgType.CLOSE, WSCloseCode.GOING_AWAY)
            async with session.ws_connect(f"http://{HOST}:{port}/stream") as socket:
                message = await socket.receive()
                assert (message.type, message.data) == (WSMsgType.CLOSE, WSCloseCode.GOING_AWAY)
            await app.aclose()

    async def test_an_unknown_scope_is_an_error(self, training) -> None:
        with pytest.raises(ValueError, match="lifespan, got 'smtp'"):
            await asgi(training.graph)({"type": "smtp"}, None, None)


class TestServersThatSayLittle:
    """Keys that the specification lets a server leave out."""

    async def test_no_raw_path_no_client(self, training) -> None:
        start, body = await ask(asgi(training.graph), "/static/main.js")
        assert start["status"] == 200
        assert dict(start["headers"])[b"content-length"] == str(len(body["body"])).encode()

    async def test_no_server(self, training) -> None:
        start, _ = await ask(asgi(training.graph), server=None)
        assert start["status"] == 403  # which port is its own cannot be told
        start, _ = await ask(asgi(training.graph, allowed_hosts=["localhost:80"]), server=None)
        assert start["status"] == 200

    async def test_a_refused_websocket_without_the_extension(self, training) -> None:
        app = asgi(training.graph, token="open-sesame")
        assert await ask(app, "/stream", type="websocket") == [{"type": "websocket.close", "code": 1008}]

    async def test_bytes_that_are_no_text_in_headers(self, training) -> None:
        app = asgi(training.graph, token="open-sesame")
        for header in (
            (b"authorization", b"Bearer \xff"),
            (b"cookie", b"actorflow-80=\xff; =;;"),
            (b"origin", b"\xff"),
        ):
            start, _ = await ask(app, headers=[(b"host", b"localhost"), header])
            assert start["status"] in {401, 403}
        start, _ = await ask(app, headers=[(b"host", b"localhost")], query_string=b"token=\xff&token=open-sesame&b=%ff")
        assert (start["status"], b"set-cookie" in dict(start["headers"])) == (200, True)
        for path in (b"/a/\xe9%20\r", b"//evil.example/\xe9%20\r", b"/javascript:\xe9%20\r"):
            start, _ = await ask(
                app,
                "/prefix",
                root_path="/prefix",
                headers=[(b"host", b"localhost")],
                raw_path=path,
                query_string=b"token=open-sesame&b=\xff",
            )
            last = path.replace(b"\xe9%20\r", b"%E9%20%0D").rpartition(b"/")[2]
            location = dict(start["headers"])[b"location"]
            assert (start["status"], location) == (308, b"./%s/?token=open-sesame&b=%%FF" % last)


class Counting:
    """Sends until it is through, whatever the client does, and counts."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self.sent = 0
        self.begun = asyncio.Event()

    async def attend(self, socket: Any, _: object) -> None:
        self.begun.set()
        for _ in range(self.messages):
            await socket.send_bytes(b"\0" * 1_000_000)
            self.sent += 1
        await socket.close(1000)


async def test_a_client_that_does_not_read_holds_sends_back(served, training, monkeypatch) -> None:
    """So that nothing queues up in the server: the stream then leaves out what a client had no time for."""
    counting = Counting(100)
    async with served(training.graph) as client:
        monkeypatch.setattr(client.page, "attend", counting.attend)
        async with client.ws_connect("/stream", max_msg_size=0) as socket:
            transport = socket.get_extra_info("transport") or socket._conn.transport
            transport.pause_reading()
            await counting.begun.wait()
            for _ in range(2000):
                await asyncio.sleep(0)
            assert counting.sent < 50
            transport.resume_reading()
            received = 0
            while (await socket.receive()).type is WSMsgType.BINARY:
                received += 1
        assert received == counting.sent == 100


async def test_long_messages_are_refused_below_the_servers_own_limit(served, training, caplog) -> None:
    caplog.set_level(logging.ERROR)
    async with served(training.graph) as client:
        for size, codes in ((MAX_MESSAGE_BYTES, {1008}), (MAX_MESSAGE_BYTES + 1, {1009}), (20_000_000, {1009, None})):
            async with client.ws_connect("/stream") as socket:
                assert (await socket.receive()).type is WSMsgType.TEXT
                try:
                    await socket.send_str(" " * size)
                except ConnectionError:
                    assert size > MAX_MESSAGE_BYTES  # it was cut off while it still sent
                while (message := await socket.receive()).type in {WSMsgType.TEXT, WSMsgType.BINARY}:
                    pass
                assert (message.data if message.type is WSMsgType.CLOSE else None) in codes
        while client.page.stream.clients:  # the server sees the last one's end
            await asyncio.sleep(0)
    assert not caplog.records


async def test_who_only_asks_for_the_head_gets_no_body(served, training) -> None:
    async with served(training.graph) as client:
        for path in ("/", "/api/graph", "/nothing"):
            async with client.request("HEAD", path) as head, client.get(path) as whole:
                assert head.status == whole.status
                assert head.headers["Content-Length"] == whole.headers["Content-Length"]
                assert await head.read() == b""


async def test_wrong_frame_ancestors_are_errors(training) -> None:
    for wrong in (
        "*",
        "localhost:8888",
        "http://a; script-src *",
        "http://a b",
        "http://a,b",
        "",
        "'self'",
        "http://a/b",
    ):
        with pytest.raises(ValueError, match="expected an origin such as"):
            asgi(training.graph, frame_ancestors=[wrong])
    with pytest.raises(ValueError, match="a list of origins, got the text"):
        asgi(training.graph, frame_ancestors="http://localhost:8888")
    with pytest.raises(TypeError, match="allowed_host"):
        asgi(training.graph, allowed_host=["a"])


async def test_frame_ancestors_are_named_in_the_policy(served, training) -> None:
    async with served(training.graph, frame_ancestors=["http://localhost:8888", "https://*.example.com:*"]) as client:
        for path, headers in (("/", {}), ("/nothing", {}), ("/", {"Host": "evil"})):
            async with client.get(path, headers=headers) as response:
                policy = response.headers["Content-Security-Policy"]
                assert "; frame-ancestors http://localhost:8888 https://*.example.com:*; object-src" in policy
                assert "X-Frame-Options" not in response.headers  # which would hide it from those, too


class TestUnlessGone:
    """What a handler awaits, beside the messages of its request."""

    class Request:
        def __init__(self) -> None:
            self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
            self.readers = 0

        async def receive(self) -> dict[str, Any]:
            self.readers += 1
            try:
                return await self.messages.get()
            finally:
                self.readers -= 1

    async def test_what_ends_before(self) -> None:
        request = self.Request()
        request.messages.put_nowait({"type": "http.request"})  # an empty body
        assert await unless_gone(request, asyncio.sleep(0, "done")) == "done"
        assert request.readers == 0

        async def fail() -> None:
            raise KeyError("no such row")

        with pytest.raises(KeyError, match="no such row"):
            await unless_gone(request, fail())
        assert request.readers == 0

    @pytest.mark.parametrize("by", ["client", "caller"])
    async def test_work_is_cancelled_and_has_ended(self, by: str) -> None:
        from starlette.exceptions import HTTPException

        request, begun, ended = self.Request(), asyncio.Event(), []

        async def work() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        waiting = asyncio.ensure_future(unless_gone(request, work()))
        await begun.wait()
        if by == "client":
            request.messages.put_nowait({"type": "http.disconnect"})
        else:
            waiting.cancel()
        with pytest.raises(HTTPException if by == "client" else asyncio.CancelledError) as caught:
            await waiting
        assert getattr(caught.value, "status_code", 499) == 499
        assert (ended, request.readers) == ([True], 0)
