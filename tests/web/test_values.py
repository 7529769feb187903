"""Values on the page: only where they are offered, only for those who have the token, and only while somebody looks."""

import asyncio
import base64
import contextlib
import gc
import itertools
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType, WSServerHandshakeError
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

import actorflow as af
from actorflow.cli.terminal import serve_page
from actorflow.runtime.taps import Taps
from actorflow.trace.values import statistics_of
from actorflow.web import values as web_values
from actorflow.web.live import LiveStream
from actorflow.web.pictures import described
from actorflow.web.values import NORMS_S, VALUES_S, Values
from tests.support.effort import FULL

#: What the secret blob holds, and no number that is shown otherwise has these digits.
SECRET = 8765.4375
#: The test of memory: frames in all, and before memory is looked at for the first time.
TOTAL, WARM = (1_000_000, 200_000) if FULL else (6_000, 3_000)
SLACK = 512 * 1024


def guarded(name: str = "guarded") -> af.Graph:
    graph = af.Graph(name)
    x = graph.blob("x", (2, 3))
    af.ops.tanh(af.ops.scale(x, 2.0, name="double"), name="last")
    return graph


@contextlib.asynccontextmanager
async def running(graph: af.Graph, feed: Any = None) -> AsyncIterator[asyncio.Task[None]]:
    """Frames on and on."""
    feeds = {"x": np.full((2, 3), SECRET / 2, "f")} if feed is None else feed

    async def run() -> None:
        while True:
            await graph.run(feeds)
            await asyncio.sleep(0)

    task = asyncio.create_task(run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


@contextlib.asynccontextmanager
async def watching(client: Any, path: str = "/stream", **options: Any) -> AsyncIterator[Any]:
    """A WebSocket that has been told of the graph."""
    async with client.ws_connect(path, **options) as socket:
        await hear(socket, "graph")
        yield socket


async def ask(socket: Any, of: af.Blob | None, norms: bool = False, token: str | None = None) -> dict[str, Any]:
    """Ask for values; the answer says whether one may."""
    await socket.send_json({"type": "values", "of": None if of is None else of.id, "norms": norms, "token": token})
    return await hear(socket, "values")


async def hear(socket: ClientWebSocketResponse, kind: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        async for message in socket:
            if message.type is WSMsgType.TEXT and (content := json.loads(message.data))["type"] == kind:
                assert isinstance(content, dict)
                return content
    raise AssertionError(f"the connection ended before {kind}")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


def open_taps(graph: af.Graph) -> int:
    return len(graph.engine.resources.taps.open)


class TestWhoMay:
    async def test_nobody_unless_it_is_offered(self, served) -> None:
        graph = guarded()
        async with graph, served(graph) as client, watching(client) as socket, running(graph):
            answer = await ask(socket, graph["double/out"], norms=True)
            assert (answer["offered"], answer["allowed"]) == (False, False)
            assert open_taps(graph) == 0

    async def test_everybody_where_there_is_no_token(self, served) -> None:
        graph = guarded()
        async with graph, served(graph, values=True) as client, watching(client) as socket, running(graph):
            assert (await ask(socket, graph["double/out"]))["allowed"]
            sample = await hear(socket, "sample")
            assert sample["min"] == sample["max"] == SECRET
            assert (sample["shape"], sample["dtype"]) == ([2, 3], "float32")

    @pytest.mark.parametrize("options", [{"token": "secret"}, {"control": True, "control_token": "secret"}])
    async def test_only_those_who_show_the_token(self, served, options) -> None:
        """A cookie lets one look, and is not enough: other servers of the host are sent it, too."""
        graph = guarded()
        async with graph, served(graph, values=True, **options) as client, running(graph):
            await client.get("/?token=secret")
            async with watching(client) as socket:
                for wrong in (None, "", "wrong", *[cookie.value for cookie in client.session.cookie_jar]):
                    answer = await ask(socket, graph["double/out"], norms=True, token=wrong)
                    assert (answer["offered"], answer["allowed"]) == (True, False)
                    assert open_taps(graph) == 0
                assert (await ask(socket, graph["double/out"], token="secret"))["allowed"]
                assert (await hear(socket, "sample"))["min"] == SECRET
                assert not (await ask(socket, graph["double/out"]))["allowed"]
                assert open_taps(graph) == 0, "each request shows it"

    @pytest.mark.parametrize("shows", ["nothing", "cookie", "token"])
    async def test_no_route_has_a_value_without_the_token(self, served, shows) -> None:
        """All there are, by all methods, while another client looks and the trace has statistics of what it saw."""
        graph = guarded()
        async with graph, served(graph, values=True, token="secret", control=True) as client, running(graph):
            url = f"http://127.0.0.1:{client.port}"
            async with ClientSession(headers={"Authorization": "Bearer secret"}) as other:
                looking = await other.ws_connect(f"{url}/stream")
                await hear(looking, "graph")
                await ask(looking, graph["double/out"], norms=True, token="secret")
                await hear(looking, "sample")
                await until(lambda: bool(graph.engine.trace.values))
                if shows == "cookie":
                    await client.get("/?token=secret")
                headers = {"Authorization": "Bearer secret"} if shows == "token" else {}
                found = []
                # With the token, commands would be carried out.
                paths = [path for path in client.page._routes if shows != "token" or "/api/control/" not in path]
                assert {"/trace.json", "/api/state", "/api/curves", "/metrics", "/stream"} <= {*paths}
                methods = ("GET", "HEAD", "POST", "PUT", "OPTIONS") if FULL or shows == "nothing" else ("GET", "POST")
                for path in (*paths, "/api/values", "/values"):
                    for method in methods:
                        answer = await client.request(method, path, headers=headers, allow_redirects=False)
                        assert shows != "nothing" or answer.status == 401, (method, path)
                        found += [path] if str(SECRET).encode() in await answer.read() else []
                assert found == (["/trace.json"] if shows == "token" else [])
                if shows == "nothing":
                    with pytest.raises(WSServerHandshakeError, match="401"):
                        await client.ws_connect("/stream")
                else:
                    async with watching(client, headers=headers) as socket:
                        await ask(socket, graph["double/out"], norms=True)
                        for _ in range(12):
                            message = await socket.receive()
                            content = message.data if isinstance(message.data, bytes) else message.data.encode()
                            assert str(SECRET).encode() not in content
                            assert b'"sample"' not in content
                await looking.close()

    async def test_another_origin_is_refused(self, served) -> None:
        graph = guarded()
        async with graph, served(graph, values=True) as client, running(graph):
            for origin in ("http://evil.example", f"http://evil.example:{client.port}", "null", "http://localhost:1"):
                with pytest.raises(WSServerHandshakeError, match="403"):
                    await client.ws_connect("/stream", headers={"Origin": origin})
                assert (await client.get("/trace.json", headers={"Origin": origin})).status == 403
            assert open_taps(graph) == 0

    @pytest.mark.together(
        "wrong",
        [
            {},
            {"of": None, "norms": True},
            {"of": "x", "norms": False, "token": None},
            {"of": True, "norms": False, "token": None},
            {"of": None, "norms": 1, "token": None},
            {"of": None, "norms": False, "token": 7},
            {"of": None, "norms": False, "token": None, "more": 1},
        ],
    )
    async def test_wrong_requests_end_the_connection(self, served, wrong) -> None:
        graph = guarded()
        async with graph, served(graph, values=True) as client, client.ws_connect("/stream") as socket:
            await socket.send_json({"type": "values", **wrong})
            async with asyncio.timeout(60):
                async for _ in socket:
                    pass
            assert socket.close_code == 1008

    @pytest.mark.together("of", [-1, 10**12, 0, 5])
    async def test_what_is_no_blob_has_no_value(self, served, of) -> None:
        graph = guarded()
        graph.blob("thing", (), "object")
        ids = {node.id for node in graph.nodes if isinstance(node, af.Blob) and not node.spec.is_object}
        async with graph, served(graph, values=True) as client, watching(client) as socket:
            await socket.send_json({"type": "values", "of": of, "norms": False, "token": None})
            assert (await hear(socket, "values"))["allowed"]
            assert open_taps(graph) == 0 or of in ids


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When frames began that are sampled."""
    times: list[float] = []
    begin = Taps.begin

    def counted(self: Taps, frame: Any, program: Any, now_s: float) -> None:
        times.append(now_s)
        begin(self, frame, program, now_s)

    monkeypatch.setattr(Taps, "begin", counted)
    return times


async def offered(graph: af.Graph, clients: int = 1) -> tuple[LiveStream, list[Any]]:
    stream = LiveStream(graph, values=Values(graph, offered=True))
    await stream.structure()
    return stream, [stream.join(None) for _ in range(clients)]  # type: ignore[arg-type]


def look(stream: LiveStream, client: Any, of: af.Blob | None, norms: bool = False) -> None:
    assert client.ask(
        json.dumps({"type": "values", "of": None if of is None else of.id, "norms": norms, "token": None})
    )


@pytest.mark.any_loop
class TestSampling:
    @pytest.mark.slow
    async def test_at_most_ten_frames_a_second_for_all(self, begun) -> None:
        """However many look, at however much, and however often they change their minds."""
        graph = guarded()
        af.ops.relu(graph.variable("w", (3,), init=1.0), name="read")
        [graph["w"], graph["w"]] >> graph.op("step", af.ops.Sum()) >> [graph["w"]]
        async with graph, running(graph):
            stream, clients = await offered(graph, 5)
            blobs = [graph[name] for name in ("x", "double/out", "last/out", "w")]
            turn = 0
            while len(begun) < 22:
                turn += 1
                for number, client in enumerate(clients):
                    look(stream, client, blobs[(turn // 50 + number) % 4] if turn % 20 else None, norms=number == 0)
                    stream.values.take(client.viewer)
                await asyncio.sleep(0)
            await stream.aclose()
        assert int(1 / VALUES_S) + 1 + 3 <= 10 < 1 / VALUES_S + 4
        assert NORMS_S > 1
        assert min(later - earlier for earlier, later in zip(begun, begun[10:], strict=False)) > 1

    async def test_taps_end_with_their_clients(self) -> None:
        graph = guarded()
        async with graph, running(graph):
            stream, (first, second) = await offered(graph, 2)
            for client in (first, second):
                look(stream, client, graph["double/out"], norms=True)
            await until(lambda: "sample" in first.viewer.news and "sample" in second.viewer.news)
            assert open_taps(graph) == 1, "one for both"
            stream.leave(first)
            await asyncio.sleep(0)
            assert open_taps(graph) == 1
            look(stream, second, None)
            await until(lambda: open_taps(graph) == 0)
            look(stream, second, graph["x"])
            await until(lambda: "sample" in second.viewer.news)
            stream.leave(second)
            await until(lambda: open_taps(graph) == 0)
            await stream.aclose()

    async def test_what_a_variable_holds_while_no_frame_runs(self) -> None:
        """Before the first frame, after one, while the graph is paused, at its end; frames keep their numbers."""
        graph = guarded()
        w = graph.variable("w", (3,), init=[1, 2, 3])
        af.ops.relu(w, name="read")
        seen = []

        async def see() -> None:
            look(stream, client, w)
            await until(lambda: "sample" in client.viewer.news)
            sample = json.loads(client.viewer.news["sample"])
            seen.append((sample["frame"], sample["max"]))
            look(stream, client, None)

        async with graph:
            stream, (client,) = await offered(graph)
            await see()
            await graph.run({"x": np.zeros((2, 3), "f")})
            await see()
            graph.pause("for a look")
            w.value = [4, 5, 6]
            await see()
            graph.resume()
            assert (await graph.run({"x": np.zeros((2, 3), "f")})).frames == (1,)
        await see()
        await stream.aclose()
        assert seen == [(None, 3), (0, 3), (0, 6), (1, 6)]

    async def test_a_closed_server_ends_them(self) -> None:
        graph = guarded()
        async with graph, running(graph):
            async with af.web.serve(graph, port=0, values=True) as view, ClientSession() as session:
                async with watching(session, f"{view.url}stream") as socket:
                    await ask(socket, graph["x"])
                    await hear(socket, "sample")
                await until(lambda: open_taps(graph) == 0)
                socket = await session.ws_connect(f"{view.url}stream")
                await hear(socket, "graph")
                await ask(socket, graph["x"])
                await hear(socket, "sample")
            assert open_taps(graph) == 0

    async def test_a_client_that_takes_nothing_has_nothing_sampled(self, begun, monkeypatch) -> None:
        monkeypatch.setattr(web_values, "VALUES_S", 0.0)
        graph = guarded()
        async with graph, running(graph):
            stream, (client,) = await offered(graph)
            look(stream, client, graph["x"])
            await until(lambda: "sample" in client.viewer.news)
            before = graph.engine.frames.finished
            await until(lambda: graph.engine.frames.finished > before + 2000)
            assert len(begun) <= 2, "one that is told, and one that waits"
            assert len(client.viewer.news) == 2
            stream.values.take(client.viewer)
            await until(lambda: "sample" in client.viewer.news)
            await stream.aclose()

    async def test_values_are_described_in_a_thread(self, monkeypatch) -> None:
        threads = []
        describe = web_values.described

        def noted(*arguments: Any) -> Any:
            threads.append(threading.current_thread())
            return describe(*arguments)

        monkeypatch.setattr(web_values, "described", noted)
        graph = guarded()
        async with graph, running(graph):
            stream, (client,) = await offered(graph)
            look(stream, client, graph["x"])
            await until(lambda: "sample" in client.viewer.news)
            await stream.aclose()
        assert threads
        assert threading.current_thread() not in threads

    async def test_an_accelerator(self) -> None:
        graph = af.Graph("g")
        x = graph.blob("x", (2, 3), place="sim:0")
        af.ops.tanh(af.ops.scale(x, 2.0, name="double"), name="last")
        with graph.at("sim:0"):
            w = graph.variable("w", (300, 300), init=1.0)
            [w, w] >> graph.op("step", af.ops.Sum()) >> [w]
        async with graph, running(graph):
            stream, (client, other) = await offered(graph, 2)
            look(stream, client, graph["double/out"])
            look(stream, other, w, norms=True)
            await until(lambda: "sample" in client.viewer.news and "norms" in other.viewer.news)
            assert json.loads(client.viewer.news["sample"])["min"] == SECRET
            (layer,) = json.loads(other.viewer.news["norms"])["layers"]
            assert layer["update"] == pytest.approx(layer["weight"])
            await stream.aclose()

    async def test_norms_are_those_of_numpy(self) -> None:
        graph = af.Graph("trained")
        x, labels = graph.blob("x", (8, 5)), graph.blob("labels", (8,), "int64")
        scores = af.nn.InnerProduct(3)(af.nn.InnerProduct(4)(x))
        loss = af.ops.softmax_loss(scores, labels, name="loss")
        af.nn.SGD(0.1, momentum=0.9).minimize(loss)
        feed = {x: np.random.default_rng(0).normal(size=(8, 5)).astype("f"), labels: np.arange(8) % 3}
        kept: dict[int, dict[str, Any]] = {}
        names = [variable.name for variable in graph.variables if not variable.is_state]
        async with graph:
            stream, (client,) = await offered(graph)
            look(stream, client, None, norms=True)
            while "norms" not in client.viewer.news:
                values = {name: graph[name].value for name in names}
                kept[graph.engine.next_number] = values
                await graph.run(feed)
            told = json.loads(client.viewer.news["norms"])
            await stream.aclose()
        frame = told["frame"]
        found = {graph_name(graph, layer["id"]): layer for layer in told["layers"]}
        assert {*found} == {*names}
        for name in names:
            before, after = kept[frame][name], kept[frame + 1][name]
            assert found[name]["weight"] == pytest.approx(np.linalg.norm(before), rel=1e-5)
            assert found[name]["update"] == pytest.approx(np.linalg.norm(after - before), rel=1e-3)
            if frame == 0:  # no velocity yet
                assert found[name]["update"] == pytest.approx(0.1 * found[name]["gradient"], rel=1e-3)

    async def test_a_graph_that_trains_nothing_has_no_norms(self) -> None:
        graph = guarded()
        async with graph:
            stream, (client,) = await offered(graph)
            look(stream, client, None, norms=True)
            await until(lambda: "norms" in client.viewer.news)
            assert json.loads(client.viewer.news["norms"])["layers"] == []
            await stream.aclose()

    @pytest.mark.slow
    @pytest.mark.timeout(3000)
    async def test_memory_stays_flat(self, monkeypatch) -> None:
        """Over very many frames, with several clients that look at values and norms."""
        monkeypatch.setattr(web_values, "VALUES_S", 0.0 if not FULL else VALUES_S)
        monkeypatch.setattr(web_values, "NORMS_S", 0.0 if not FULL else NORMS_S)
        graph = af.Graph("g", trace_capacity=1 << 10)
        x = graph.blob("x", (4, 8, 8, 3))
        w = graph.variable("w", (16, 16), init=1.0)
        [w, graph.constant(np.ones((16, 16), "f"))] >> graph.op("step", af.ops.Sum()) >> [w]
        af.ops.relu(af.ops.scale(x, 2.0, name="double"))
        graph.engine.trace._values = type(graph.engine.trace._values)(maxlen=64)
        feed = {"x": np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype("f")}
        async with graph:
            stream, clients = await offered(graph, 4)
            for client, name in zip(clients, ("x", "double/out", "w", "w"), strict=True):
                look(stream, client, graph[name], norms=True)

            async def run(frames: int) -> int:
                taken = 0
                async for _ in graph.stream((feed for _ in range(frames)), in_flight=3):
                    for client in clients:
                        taken += len(stream.values.take(client.viewer))
                gc.collect()
                return taken

            tracemalloc.start()
            try:
                await run(WARM)
                before = tracemalloc.get_traced_memory()[0]
                taken = await run(TOTAL - WARM)
                after = tracemalloc.get_traced_memory()[0]
            finally:
                tracemalloc.stop()
            assert taken > 50
            assert after - before < SLACK, f"{before:,} bytes after {WARM:,} frames, {after:,} after {TOTAL:,}"
            await stream.aclose()


def graph_name(graph: af.Graph, node_id: int) -> str:
    return next(node.name for node in graph.nodes if node.id == node_id)


def levels(view: dict[str, Any]) -> Any:
    shape = (view["count"], view["height"], view["width"], view["channels"])
    return np.frombuffer(base64.b64decode(view["levels"]), np.uint8).reshape(shape)


def scaled(part: Any) -> Any:
    part = part.astype("d")
    low, high = np.nanmin(part), np.nanmax(part)
    return 1 + np.rint(254 * (part - low) / (high - low))


def shown(array: Any, is_kernel: bool = False) -> dict[str, Any]:
    return described(array, statistics_of(array), is_kernel)


class TestViews:
    @pytest.mark.together(
        ("shape", "take"),
        [
            ((20, 28, 28, 1), lambda a: a[:12]),
            ((5, 8, 9, 3), lambda a: a[:5]),
            ((40, 8, 9, 3), lambda a: a[:12]),
            ((2, 3, 32, 32), lambda a: np.moveaxis(a, 1, -1)),
            ((4, 8, 8, 50), lambda a: np.stack([a[n, :, :, c] for n in range(4) for c in range(6)])[..., None]),
            ((9, 150, 130, 1), lambda a: a[:, ::3, ::3]),
            ((7, 10), lambda a: a[None, :, :, None]),
            ((100, 600), lambda a: a[None, :64, ::3, None]),
            ((32, 1, 1, 10), lambda a: a[None, :, 0, 0, :, None]),
            ((28, 30), lambda a: a[None, ..., None]),
            ((16, 17, 3), lambda a: a[None]),
            ((2, 5, 6, 7, 1), lambda a: a[0]),
        ],
    )
    def test_pictures(self, shape, take) -> None:
        array = np.random.default_rng(0).normal(size=shape).astype("f")
        expected = take(array)
        view = shown(array)["view"]
        assert view["kind"] == "picture"
        np.testing.assert_array_equal(levels(view), scaled(expected))
        assert (view["low"], view["high"]) == (expected.min(), expected.max())

    def test_kernels(self) -> None:
        kernel = np.random.default_rng(0).normal(size=(5, 5, 3, 20)).astype("f")
        np.testing.assert_array_equal(
            levels(shown(kernel, is_kernel=True)["view"]), scaled(kernel.transpose(3, 0, 1, 2)[:12])
        )

    def test_what_is_not_finite_is_no_level(self) -> None:
        found = shown(np.array([[1, np.nan, 3], [np.inf, 2, -np.inf]], "f"))
        assert levels(found["view"])[0, :, :, 0].tolist() == [[1, 0, 255], [0, 128, 0]]
        assert (found["nan"], found["infinite"], found["mean"]) == (1, 2, 2.0)
        assert levels(shown(np.full((2, 2), np.nan))["view"]).max() == 0

    @pytest.mark.parametrize("size", [2, 512, 513, 100_003])
    def test_lines(self, size) -> None:
        vector = np.random.default_rng(0).normal(size=size)
        vector[1] = np.nan
        view = shown(vector)["view"]
        ends = np.linspace(0, size, (size if size <= 512 else 256) + 1).astype(int)
        parts = [vector[a:b][np.isfinite(vector[a:b])] for a, b in itertools.pairwise(ends)]
        assert view["low"] == [part.min() if part.size else None for part in parts]
        assert view["high"] == [part.max() if part.size else None for part in parts]
        assert view["size"] == size

    @given(
        array=stn.arrays(
            st.sampled_from(["float16", "float32", "float64", "int8", "uint16", "int64", "bool", "complex64"]),
            stn.array_shapes(min_dims=0, max_dims=5, max_side=9, min_side=0),
        ),
        is_kernel=st.booleans(),
    )  # fmt: skip
    def test_everything_is_described(self, array, is_kernel) -> None:
        found = json.loads(json.dumps(shown(array, is_kernel), allow_nan=False))
        assert found["shape"] == [*array.shape]
        if found["view"] and found["view"]["kind"] == "picture":
            levels(found["view"])

    def test_they_are_small(self) -> None:
        rng = np.random.default_rng(0)
        for shape in ((500, 700, 3), (64, 224, 224, 3), (3000, 3000), (1_000_000,), (8, 112, 112, 64)):
            assert len(json.dumps(shown(rng.random(shape, "f")))) < 200_000

    def test_of_objects_only_the_shape(self) -> None:
        found = shown(np.array(["text", None], object))
        assert (found["shape"], found["histogram"], found["view"]) == ((2,), None, None)


@pytest.mark.any_loop
class TestOtherServers:
    @pytest.mark.parametrize("shown", [True, False])
    async def test_a_server_of_models(self, shown: bool) -> None:
        graph = guarded()
        app = af.serve.create_app({"model": graph}, values=shown, token="secret")
        headers = {"Authorization": "Bearer secret"}
        async with TestServer(app) as server, ClientSession(headers=headers) as session, running(graph):
            async with watching(session, f"{server.make_url('/graph/model/stream')}") as socket:
                assert not (await ask(socket, graph["double/out"]))["allowed"]
                answer = await ask(socket, graph["double/out"], token="secret")
                assert (answer["offered"], answer["allowed"]) == (shown, shown)
                while shown and (await hear(socket, "sample"))["min"] != SECRET:
                    pass  # a frame that warms the model up

    @pytest.mark.parametrize("values", [True, False])
    async def test_the_page_of_a_command(self, values: bool) -> None:
        graph = guarded()
        async with graph, contextlib.AsyncExitStack() as stack, ClientSession() as session:
            url = await serve_page(stack, graph, 0, values=values)
            async with watching(session, f"{url}stream") as socket:
                assert (await ask(socket, None))["allowed"] is values
