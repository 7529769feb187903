"""The stream's other end: its picture is the graph's, whatever comes between; and it says why it got none."""

import asyncio
import contextlib
import json
import socket
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

import actorflow as af
from actorflow.trace.counters import NodeState
from actorflow.web.client import Address, Picture, follow
from actorflow.web.live import LiveStream


def give_up(problem: str) -> None:
    raise ConnectionError(problem)


class Peer:
    """The socket of a client of a stream in this process, which takes in every message at once."""

    def __init__(self) -> None:
        self.picture = Picture()
        self.raw: list[str | bytes] = []
        self.fits: list[bool] = []
        self.changed = asyncio.Event()

    async def send_str(self, data: str) -> None:
        self._take(data)

    async def send_bytes(self, data: bytes) -> None:
        self._take(data)

    def _take(self, data: str | bytes) -> None:
        self.raw.append(data)
        self.fits.append(self.picture.take(data))
        self.changed.set()

    async def until(self, condition: Any) -> None:
        while not condition(self.picture):
            self.changed.clear()
            await self.changed.wait()


@contextlib.asynccontextmanager
async def streaming(graph: af.Graph, peer: Peer):
    stream = LiveStream(graph, interval_s=1e6, linger_s=1e6, heartbeat_s=1e6, vitals_s=0.0)
    client = stream.join(peer)
    writer = asyncio.create_task(stream.write(client))
    try:
        await peer.until(lambda picture: picture.is_complete)
        yield stream
    finally:
        stream.leave(client)
        writer.cancel()
        await asyncio.wait([writer])
        await stream.aclose()


def agrees(picture: Picture, graph: af.Graph) -> bool:
    profile = graph.engine.profile
    calls = [profile[op.id].calls if op.id in profile else 0 for op in graph.ops]
    failed = [profile[op.id].failed if op.id in profile else 0 for op in graph.ops]
    assert (picture.failed <= failed).all()
    if picture.failed.tolist() != failed:
        return False
    return picture.states.calls.tolist() == calls and picture.frames["started"] == graph.engine.frames.started


class TestPicture:
    async def test_it_is_the_graph(self, training) -> None:
        peer = Peer()
        async with streaming(training.graph, peer) as stream:
            assert not peer.picture.states.calls.any()
            for _ in range(3):
                await training.run()
                stream.tick()
                await peer.until(lambda picture: agrees(picture, training.graph))
            await peer.until(lambda picture: picture.vitals)
        picture = peer.picture
        assert picture.name == "training"
        assert picture.ops == [op.name for op in training.graph.ops]
        assert set(picture.states.state.tolist()) == {NodeState.DONE}
        means = [training.graph.engine.profile[op.id].total_ns / 3e3 for op in training.graph.ops]
        assert picture.states.mean_us == pytest.approx(np.array(means), rel=1e-6)
        assert picture.frames == {"started": 3, "finished": 3, "failed": 0, "cancelled": 0}
        frame, value = picture.curves["loss/out"]
        assert (frame, value) == training.graph.engine.scalars.series["loss/out"][-1]
        assert [device["place"] for device in picture.vitals["memory"]] == ["cpu"]
        assert all(peer.fits)

    async def test_failed_calls_while_they_are_repeated_and_afterwards(self, flaky) -> None:
        peer = Peer()
        async with streaming(flaky.graph, peer) as stream:
            flaky.failing = 3
            run = asyncio.create_task(flaky.graph.run({flaky.x: np.float32(1)}))
            await flaky.repeating.wait()
            stream.tick()
            await peer.until(lambda picture: agrees(picture, flaky.graph))
            assert peer.picture.failed.tolist() == [3, 0]
            assert peer.picture.states.state[0] == NodeState.RUNNING
            flaky.go_on.set()
            await run
            for failing in (0, 1):
                await flaky.run(failing)
                stream.tick()
                await peer.until(lambda picture: agrees(picture, flaky.graph))
            assert peer.picture.failed.tolist() == [4, 0]
            later = Peer()
            async with streaming(flaky.graph, later):
                assert later.picture.failed.tolist() == [4, 0], "a snapshot has them, too"
        assert all(peer.fits)

    async def test_a_failed_call_is_told_of_long_before_it_is_repeated(self) -> None:
        graph, peer, entered, go_on = af.Graph("patient"), Peer(), asyncio.Event(), asyncio.Event()

        async def fail(x: Any) -> Any:
            entered.set()
            await go_on.wait()
            raise ValueError("not yet")

        x = graph.blob("x", ())
        graph.function("fail", fail, af.TensorSpec.of(()), retries=1, backoff=3600)(x)
        async with graph, streaming(graph, peer) as stream:
            run = asyncio.create_task(graph.run({x: np.float32(1)}))
            await entered.wait()
            stream.tick()
            await peer.until(lambda picture: picture.states.state[0] == NodeState.RUNNING)
            (frame,) = graph.engine.running
            go_on.set()
            while not frame.resting:
                await asyncio.sleep(0)
            stream.tick()
            async with asyncio.timeout(60):
                await peer.until(lambda picture: picture.failed.tolist() == [1])
            run.cancel()
            await asyncio.wait([run])
        assert all(peer.fits)

    async def test_a_changed_graph_begins_anew(self, training) -> None:
        peer = Peer()
        async with streaming(training.graph, peer) as stream:
            training.graph.function("extra", lambda x: x, af.TensorSpec.of(()))(training.loss)
            stream.tick()
            await peer.until(lambda picture: picture.is_complete and "extra" in picture.ops)
            await training.run()
            stream.tick()
            await peer.until(lambda picture: agrees(picture, training.graph))
        assert all(peer.fits)

    async def test_failures_with_the_names_of_ops(self) -> None:
        graph, peer = af.Graph("failing"), Peer()

        def fail(x: Any) -> Any:
            raise ValueError("no")

        x = graph.blob("x", ())
        graph.function("fail", fail, af.TensorSpec.of(()))(x)
        async with graph, streaming(graph, peer) as stream:
            for _ in range(60):
                with contextlib.suppress(af.OpError):
                    await graph.run({x: np.float32(1)})
            stream.tick()
            await peer.until(lambda picture: picture.frames["failed"] == 60)
        assert len(peer.picture.failures) == 50
        newest = peer.picture.failures[-1]
        assert (newest["frame"], peer.picture.names[newest["op_id"]]) == (59, "fail")

    async def test_what_is_missing_is_noticed(self, training) -> None:
        peer = Peer()
        async with streaming(training.graph, peer) as stream:
            snapshot = list(peer.raw)
            for _ in range(2):
                await training.run()
                stream.tick()
                await peer.until(lambda picture: agrees(picture, training.graph))
        deltas = [
            raw for raw in peer.raw[len(snapshot) :] if isinstance(raw, bytes) or "status" in json.loads(raw)["type"]
        ]
        late = Picture()
        assert all(map(late.take, snapshot))
        assert [late.take(raw) for raw in deltas[2:]] == [False, False]
        assert not late.states.calls.any()
        assert late.take(json.dumps({"type": "heartbeat", "states": 1, "status": 1}))
        assert not late.take(json.dumps({"type": "heartbeat", "states": 99, "status": 1}))
        assert all(map(late.take, deltas))
        assert agrees(late, training.graph)

    def test_a_delta_before_any_snapshot_does_not_fit(self) -> None:
        status = {"type": "status", "full": False, "base": 0, "seq": 1, "time": 0.0, "frames": {}, "curves": {}}
        assert not Picture().take(json.dumps({**status, "failures": [], "notes": []}))


class TestAddress:
    @pytest.mark.together(
        ("text", "url", "token"),
        [
            ("127.0.0.1:8080", "http://127.0.0.1:8080/", None),
            ("localhost:8080/some/graph/", "http://localhost:8080/some/graph/", None),
            ("[::1]:80", "http://[::1]:80/", None),
            ("http://127.0.0.1:8080/?token=a%2Fb", "http://127.0.0.1:8080/", "a/b"),
            ("https://graphs.example.com", "https://graphs.example.com/", None),
            ("graphs.example.com:443/?token=x&token=y", "http://graphs.example.com:443/", "x"),
        ],
    )
    def test_is_understood(self, text, url, token) -> None:
        assert Address.parse(text) == Address(url, token)

    @pytest.mark.together("text", ["", "8080", ":8080", "localhost", "a:b", "ftp://a:1", "ws://a:1", "http://", "[:1"])
    def test_is_refused(self, text) -> None:
        with pytest.raises(ValueError, match="expected HOST:PORT or the address of a live page"):
            Address.parse(text)


def address(client: Any, token: str | None = None, prefix: str = "") -> Address:
    return Address(f"http://127.0.0.1:{client.port}{prefix}/", token)


async def first_of(address: Address) -> Picture:
    async with contextlib.aclosing(follow(address, give_up)) as pictures:
        return await anext(pictures)


class TestFollow:
    @pytest.mark.parametrize("prefix", ["", "/some/graph"])
    async def test_a_graph(self, served, training, prefix) -> None:
        async with served(training.graph, prefix=prefix, token="open-sesame") as client:
            following = follow(address(client, "open-sesame", prefix), give_up)
            async with contextlib.aclosing(following) as pictures:
                async for picture in pictures:
                    if picture.is_complete:
                        break
                await training.run()
                async for picture in pictures:
                    if agrees(picture, training.graph):
                        break

    @pytest.mark.together(
        ("options", "token", "prefix", "problem"),
        [
            ({"token": "right"}, None, "", "asks for a token: --token, or ACTORFLOW_TOKEN"),
            ({"token": "right"}, "wrong", "", "does not accept the token"),
            ({}, None, "/nowhere", r"no live page at http://127.0.0.1:\d+/nowhere/ \(HTTP 404\)"),
            ({"max_clients": 0}, None, "", "has as many clients as it takes"),
        ],
    )
    async def test_why_there_is_none(self, served, training, options, token, prefix, problem) -> None:
        async with served(training.graph, **options) as client:
            with pytest.raises(ConnectionError, match=problem):
                await first_of(address(client, token, prefix))

    async def test_a_server_that_takes_no_websockets(self) -> None:
        async def refuse(_: web.Request) -> web.Response:
            return web.Response(status=426)  # uvicorn, without a library for them

        app = web.Application()
        app.router.add_get("/stream", refuse)
        async with TestClient(TestServer(app)) as client:
            with pytest.raises(ConnectionError, match=r"takes no WebSockets.*: pip install websockets"):
                await first_of(address(client))

    async def test_a_name_that_is_not_allowed(self, served, training, monkeypatch) -> None:
        async with served(training.graph) as client:
            monkeypatch.setattr("actorflow.web.access.HostCheck._is_known", lambda *_: False)
            with pytest.raises(ConnectionError, match=r"allowed_hosts=\['127.0.0.1:\d+'\] \(.*\), or name the path"):
                await first_of(address(client))

    async def test_nobody_is_there(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        with pytest.raises(ConnectionError, match=f"nothing answers at http://127.0.0.1:{port}/: "):
            await first_of(Address(f"http://127.0.0.1:{port}/", None))

    async def test_somebody_else_is_there(self) -> None:
        async def say(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(say, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ConnectionError, match="no live page answers at"):
                await first_of(Address(f"http://127.0.0.1:{port}/", None))

    async def test_it_comes_back_to_a_server_that_comes_back(self, training) -> None:
        problems: list[str] = []
        async with af.web.serve(training.graph, port=0) as view:
            pictures = follow(Address(view.url, None), problems.append)
            first = await anext(pictures)
            assert first.name == "training"

        async def again() -> Picture:
            async for picture in pictures:
                if picture is not first and picture.is_complete:
                    return picture
            raise AssertionError

        coming = asyncio.create_task(again())
        while not problems:
            await asyncio.sleep(0)
        assert "has closed the connection" in problems[0]
        async with af.web.serve(training.graph, port=view.port):
            assert agrees(await coming, training.graph)
            await pictures.aclose()

    async def test_a_server_that_comes_back_with_another_token(self, training) -> None:
        async with af.web.serve(training.graph, port=0, token="one") as view:
            pictures = follow(Address.parse(view.url), lambda _: None)
            await anext(pictures)
        async with af.web.serve(training.graph, port=view.port, token="two"):
            with pytest.raises(ConnectionError, match="does not accept the token"):
                async for _ in pictures:
                    pass

    @pytest.mark.together("message", ["hello", "3", "[1]", "{}", '{"type": "graph"}', '{"type": "status"}', b"abc"])
    async def test_somebody_speaks_otherwise(self, message) -> None:
        async def answer(request: web.Request) -> web.WebSocketResponse:
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            await (socket.send_str if isinstance(message, str) else socket.send_bytes)(message)
            await socket.receive()
            return socket

        app = web.Application()
        app.router.add_get("/stream", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            here = Address.parse(f"127.0.0.1:{runner.addresses[0][1]}")
            with pytest.raises(ConnectionError, match="is not a live page of this version"):
                await anext(follow(here, give_up))
        finally:
            await runner.cleanup()

    async def test_silence_is_the_end(self, training, monkeypatch) -> None:
        monkeypatch.setattr("actorflow.web.client._SILENCE_S", 1e-6)
        async with af.web.serve(training.graph, port=0) as view:
            with pytest.raises(ConnectionError, match="has been silent for"):
                async for _ in follow(Address.parse(view.url), give_up):
                    pass
