"""The page behind each kind of server: who may look, what is served, and that it ends when asked to."""

import asyncio
import contextlib
import itertools
import re
from importlib import resources

import pytest
from aiohttp import ClientSession, WSCloseCode, WSMsgType, WSServerHandshakeError

import actorflow as af
from actorflow.web import serve

FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:{port}",
    "localhost",
    "localhost:1",
    "127.0.0.1:{port}.evil.example",
    "127.0.0.1.evil.example:{port}",
    "user@127.0.0.1:{port}",
    "127.0.0.1:{port}/",
    "[::1]:x",
    "[",
    "",
]
FOREIGN_ORIGINS = [
    "http://evil.example",
    "http://evil.example:{port}",
    "http://localhost:1",
    "http://localhost",
    "null",
    "",
    "file://",
    "ftp://localhost:{port}",
    "http://localhost:{port}@evil.example",
    "http://localhost:{port}/path",
]
STATIC = resources.files("actorflow.web").joinpath("static")


@contextlib.asynccontextmanager
async def served_elsewhere(view):
    """The status of a request by another address of this machine."""
    headers = {"Host": f"127.0.0.2:{view.port}"}
    async with ClientSession() as session, session.get(view.url, headers=headers) as response:
        yield response.status


async def receive(socket, viewer, condition) -> None:
    while not condition(viewer):
        message = await socket.receive()
        assert message.type in {WSMsgType.TEXT, WSMsgType.BINARY}, message
        viewer.take(message.data)


class TestWhoMayLook:
    async def test_a_foreign_host_is_refused(self, served, training) -> None:
        async with served(training.graph) as client:
            for host, path in itertools.product(FOREIGN_HOSTS, ["/", "/static/main.js", "/stream", "/nothing"]):
                own = host.format(port=client.port)
                async with client.get(path, headers={"Host": own}) as response:
                    assert response.status == 403, (own, path)

    @pytest.mark.together("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
    async def test_the_loopback_is_served(self, served, training, host) -> None:
        async with served(training.graph) as client:
            own = host.format(port=client.port)
            response = await client.get("/", headers={"Host": own, "Origin": f"http://{own}"})
            assert response.status == 200

    async def test_a_foreign_origin_is_refused(self, served, training) -> None:
        async with served(training.graph) as client:
            for origin in FOREIGN_ORIGINS:
                headers = {"Origin": origin.format(port=client.port)}
                for path in ("/", "/static/main.js"):
                    async with client.get(path, headers=headers) as response:
                        assert response.status == 403, (origin, path)
                with pytest.raises(WSServerHandshakeError) as caught:
                    await client.ws_connect("/stream", headers=headers)
                assert caught.value.status == 403, origin
            assert not client.page.stream.clients

    async def test_hosts_can_be_allowed(self, served, training) -> None:
        async with served(training.graph, allowed_hosts=["Graphs.Example.com", "10.0.0.5:8080"]) as client:
            for host, status in (
                ("graphs.example.com", 200),
                ("10.0.0.5:8080", 200),
                ("10.0.0.5", 403),
                ("graphs.example.com:81", 403),
            ):
                assert (await client.get("/", headers={"Host": host})).status == status
            headers = {"Host": "graphs.example.com", "Origin": "https://graphs.example.com"}
            assert (await client.get("/", headers=headers)).status == 200

    async def test_the_address_that_serve_binds_is_its_own(self, training) -> None:
        async with serve(training.graph, host="127.0.0.2", port=0) as view, ClientSession() as session:
            assert view.url == f"http://127.0.0.2:{view.port}/"
            async with session.get(view.url) as response:
                assert response.status == 200
        async with serve(training.graph, port=0) as view, served_elsewhere(view) as status:
            assert status == 403


class TestPage:
    async def test_security_headers_are_everywhere(self, served, training) -> None:
        async with served(training.graph) as client:
            for path, headers in (("/", {}), ("/static/main.js", {}), ("/nothing", {}), ("/", {"Host": "evil"})):
                response = await client.get(path, headers=headers)
                policy = response.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'self'")
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Referrer-Policy"] == "no-referrer"

    async def test_files_have_their_types(self, served, training) -> None:
        types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
        async with served(training.graph) as client:
            for file in STATIC.iterdir():
                response = await client.get(f"/static/{file.name}")
                assert response.content_type == types[file.name[file.name.rfind(".") :]]
                content = await response.read()
                if file.name == "index.html":  # with what it will need, so that a browser asks for all of that at once
                    modules = {name.name for name in STATIC.glob("*.js")} - {"arrange-worker.js", "graphs.js"}
                    links = re.findall(rb' *<link rel="modulepreload" href="static/([^"]*)">\n?', content)
                    assert {link.decode() for link in links} == modules
                    content = re.sub(rb' *(<link rel="modulepreload"[^>]*>)+\n', b"", content)
                assert content == file.read_bytes()

    async def test_what_is_known_is_not_sent_again(self, served, training) -> None:
        async with served(training.graph) as client:
            first = await client.get("/static/main.js")
            again = await client.get("/static/main.js", headers={"If-None-Match": first.headers["ETag"]})
            assert again.status == 304
            assert again.headers["ETag"] == first.headers["ETag"]
            changed = await client.get("/static/main.js", headers={"If-None-Match": '"other"'})
            assert changed.status == 200

    @pytest.mark.together("name", ["..%2fapp.py", "%2e%2e/app.py", "app.py", "", "%00"])
    async def test_nothing_else_is_served(self, served, training, name) -> None:
        async with served(training.graph) as client:
            assert (await client.get(f"/static/{name}")).status == 404

    @pytest.mark.parametrize("method", ["post", "put", "delete"])
    async def test_nothing_can_be_written(self, served, training, method) -> None:
        async with served(training.graph) as client:
            assert (await client.request(method, "/")).status == 405

    def test_no_address_but_its_own(self) -> None:
        for file in STATIC.iterdir():
            text = file.read_text("utf-8")
            addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text)) - {"http://www.w3.org"}
            assert not addresses, file.name

    def test_no_inline_code(self) -> None:
        page = STATIC.joinpath("index.html").read_text("utf-8")
        assert re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL) == [""]
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page)

    def test_text_never_becomes_markup(self) -> None:
        for file in STATIC.iterdir():
            if file.name.endswith(".js"):
                assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", file.read_text())


class TestStream:
    async def test_snapshot_then_deltas(self, served, training, viewer) -> None:
        async with served(training.graph) as client, client.ws_connect("/stream") as socket:
            await receive(socket, viewer, lambda viewer: "status" in viewer.seen)
            assert [message.type for message in viewer.messages] == ["graph", "states", "status"]
            await training.run()
            await receive(socket, viewer, lambda viewer: viewer.frames["finished"] == 1)
            await receive(socket, viewer, lambda viewer: viewer.calls["loss"] == 1)
            # A value belongs to a curve once the run has given it out, and a message may lie between that and the end.
            await receive(socket, viewer, lambda viewer: "loss/out" in viewer.curves)
            assert len(viewer.curves["loss/out"]) == 1

    async def test_resync_over_the_socket(self, served, training, viewer) -> None:
        async with served(training.graph) as client, client.ws_connect("/stream") as socket:
            await receive(socket, viewer, lambda viewer: "status" in viewer.seen)
            await socket.send_json({"type": "resync"})
            count = len(viewer.messages)
            await receive(socket, viewer, lambda viewer: len(viewer.messages) == count + 3)
            assert viewer.messages[-2].full
            assert viewer.messages[-1].full

    @pytest.mark.parametrize("data", ["hello", b"\0", '{"type": "resync", "pad": "%s"}' % ("x" * 2000)])
    async def test_anything_else_ends_the_connection(self, served, training, viewer, data) -> None:
        async with served(training.graph) as client, client.ws_connect("/stream") as socket:
            await receive(socket, viewer, lambda viewer: "status" in viewer.seen)
            await (socket.send_bytes if isinstance(data, bytes) else socket.send_str)(data)
            while (message := await socket.receive()).type in {WSMsgType.TEXT, WSMsgType.BINARY}:
                pass
            assert message.type is WSMsgType.CLOSE
            assert message.data in {WSCloseCode.POLICY_VIOLATION, WSCloseCode.MESSAGE_TOO_BIG}

    async def test_below_a_prefix(self, served, training, viewer) -> None:
        async with served(training.graph, prefix="/graph") as client:
            response = await client.get("/graph", allow_redirects=False)
            assert response.status in {307, 308}  # Starlette adds the slash itself
            assert response.headers["Location"].endswith("graph/")
            page = await (await client.get("/graph")).text()
            for link in re.findall(r'(?:src|href)="([^"]+)"', page):
                assert (await client.get(f"/graph/{link}")).status == 200
            assert (await client.get("/graph/", headers={"Host": "evil.example"})).status == 403
            async with client.ws_connect("/graph/stream") as socket:
                await receive(socket, viewer, lambda viewer: "status" in viewer.seen)

    async def test_of_a_subgraph_the_whole_is_shown(self, served, training, viewer) -> None:
        part = training.graph["block0"]
        async with served(part) as client, client.ws_connect("/stream") as socket:
            await receive(socket, viewer, lambda viewer: "status" in viewer.seen)
            assert "loss" in viewer.names

    async def test_an_error_in_the_stream_closes_it_and_is_logged(self, served, training, monkeypatch, caplog) -> None:
        def fail(_client):
            raise RuntimeError("broken")

        async with served(training.graph) as client:
            monkeypatch.setattr(client.page.stream, "_news", fail)
            async with client.ws_connect("/stream") as socket:
                message = await socket.receive()
                assert (message.type, message.data) == (WSMsgType.CLOSE, WSCloseCode.INTERNAL_ERROR)
        assert "the live page of graph 'training' failed" in caplog.text


class TestEnding:
    async def test_open_sockets_are_told(self, training, viewer) -> None:
        async with ClientSession() as session:
            async with serve(training.graph, port=0) as view:
                socket = await session.ws_connect(f"{view.url}stream")
                await receive(socket, viewer, lambda viewer: "status" in viewer.seen)
                closing = asyncio.create_task(socket.receive())
            message = await closing
            assert (message.type, message.data) == (WSMsgType.CLOSE, WSCloseCode.GOING_AWAY)
            await socket.close()

    async def test_a_browser_that_does_not_answer_does_not_hold_it_up(self, training) -> None:
        async with serve(training.graph, port=0) as view:
            reader, writer = await asyncio.open_connection(view.host, view.port)
            writer.write(
                f"GET /stream HTTP/1.1\r\nHost: {view.host}:{view.port}\r\nUpgrade: websocket\r\n"
                "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
            )
            assert b"101" in await reader.readline()
        # Never a close frame from here: leaving the block must not wait for one.
        await reader.read()
        writer.close()

    async def test_the_port_is_free_again(self, training) -> None:
        async with serve(training.graph, port=0) as first:
            pass
        async with serve(training.graph, port=first.port) as second:
            assert second.port == first.port

    async def test_a_taken_port_is_an_error_and_leaves_nothing(self, training) -> None:
        async with serve(training.graph, port=0) as view:
            with pytest.raises(OSError, match=str(view.port)):
                async with serve(training.graph, port=view.port):
                    pytest.fail("served on a taken port")

    @pytest.mark.parametrize("port", [-1, 65_536])
    def test_a_port_that_there_is_not(self, training, port) -> None:
        # uvloop would take another one.
        with pytest.raises(ValueError, match=f"serve: port must be from 0 to 65535, got {port}"):
            serve(training.graph, port=port)

    async def test_what_is_not_started_says_how(self, training) -> None:
        serving = serve(training.graph, port=0)
        assert "await serve(...)>" in repr(serving)
        async with serving as view:
            assert repr(serving) == f"<Serving of graph {training.graph.name!r}, started: {view!r}>"

    async def test_nothing_is_watched_after_the_end(self, training, viewer) -> None:
        async with ClientSession() as session, serve(training.graph, port=0) as view:
            async with session.ws_connect(f"{view.url}stream") as socket:
                await receive(socket, viewer, lambda viewer: "status" in viewer.seen)
                assert training.graph.engine.monitor is not None
        assert training.graph.engine.monitor is None

    async def test_a_body_that_fails_still_closes(self, training) -> None:
        with pytest.raises(RuntimeError, match="mine"):
            async with serve(training.graph, port=0) as view:
                raise RuntimeError("mine")
        async with serve(training.graph, port=view.port):
            pass


async def test_the_page_is_part_of_the_public_face() -> None:
    assert af.web.serve is serve
