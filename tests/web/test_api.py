"""Answers for programs: graph, states, errors, health, metrics, the trace; and the token."""

import asyncio
import contextlib
import json
import re
import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, CookieJar, WSMsgType, WSServerHandshakeError, web
from aiohttp.test_utils import TestServer

import actorflow as af
from actorflow.errors import MissingExtraError
from actorflow.web import api, create_app, serve


async def read(client: Any, path: str) -> Any:
    async with client.get(path) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "application/json"
        return json.loads(await response.text())


class TestContent:
    async def test_the_graph(self, served, training) -> None:
        async with served(training.graph) as client:
            for _ in range(2):
                graph = await read(client, "/api/graph")
                assert [node["name"] for node in graph["nodes"]] == [node.name for node in training.graph.nodes]
                assert graph["revision"] == training.graph.revision
                training.graph.blob(f"late{training.graph.revision}", ())

    async def test_the_state(self, served, training) -> None:
        async with served(training.graph) as client:
            assert {op["state"] for op in (await read(client, "/api/state"))["ops"]} == {"idle"}
            for _ in range(3):
                await training.run()
            state = await read(client, "/api/state")
            assert state["frames"] == {"started": 3, "finished": 3, "failed": 0, "cancelled": 0, "in_flight": 0}
            assert [op["name"] for op in state["ops"]] == [op.name for op in training.graph.ops]
            for op in state["ops"]:
                assert (op["state"], op["calls"], op["failed"]) == ("done", 3, 0)
                assert 0 < op["p50_us"] <= op["p99_us"]
            assert [device["place"] for device in state["memory"]] == ["cpu"]

    async def test_what_no_frame_computes_is_constant(self, served) -> None:
        graph = af.Graph("constants")
        x = graph.blob("x", ())
        y = x + 1.0
        async with graph, served(graph) as client:
            await graph.run({x: 1}, fetch=y)
            states = {op["name"]: (op["state"], op["calls"]) for op in (await read(client, "/api/state"))["ops"]}
            assert states == {"number": ("constant", 0), "sum": ("done", 1)}

    async def test_a_running_op_while_somebody_watches(self, served, gated) -> None:
        async with served(gated.graph) as client, client.ws_connect("/stream") as socket:
            assert (await socket.receive()).type is WSMsgType.TEXT
            run = gated.start()
            await gated.entered.wait()
            states = {op["name"]: op["state"] for op in (await read(client, "/api/state"))["ops"]}
            assert states == {"first": "done", "hold": "running", "last": "waiting"}
            assert (await read(client, "/healthz"))["frames"]["in_flight"] == 1
            gated.release.set()
            await run

    async def test_errors(self, served) -> None:
        graph = af.Graph("failing")

        def fail(x: Any) -> Any:
            raise ValueError("no <b>good</b>")

        x = graph.blob("x", ())
        graph.function("fail", fail, af.TensorSpec.of(()))(x)
        async with graph, served(graph) as client:
            with contextlib.suppress(af.OpError):
                await graph.run({x: np.float32(1)})
            errors = await read(client, "/api/errors")
            assert errors["failed"] == 1
            (newest,) = errors["newest"]
            assert (newest["op"], newest["frame"]) == ("fail", 0)
            assert "no <b>good</b>" in newest["message"]

    async def test_failed_calls(self, served, flaky) -> None:
        pytest.importorskip("prometheus_client")
        from prometheus_client.parser import text_string_to_metric_families

        await flaky.run(failing=2)
        async with served(flaky.graph) as client:
            state = await read(client, "/api/state")
            async with client.get("/metrics") as response:
                families = {family.name: family for family in text_string_to_metric_families(await response.text())}
        assert {op["name"]: (op["calls"], op["failed"]) for op in state["ops"]} == {"flaky": (1, 2), "steady": (1, 0)}
        samples = families["actorflow_op_failures"].samples
        assert families["actorflow_op_failures"].documentation == "Calls of an op that have failed, repeated or not."
        assert {s.labels["op"]: s.value for s in samples if s.name == "actorflow_op_failures_total"} == {"flaky": 2}
        assert {s.labels["graph"] for s in samples} == {"flaky"}

    async def test_metrics(self, served, training) -> None:
        pytest.importorskip("prometheus_client")
        from prometheus_client.parser import text_string_to_metric_families

        for _ in range(2):
            await training.run()
        async with served(training.graph) as client, client.get("/metrics") as response:
            assert response.status == 200
            families = {family.name: family for family in text_string_to_metric_families(await response.text())}
        calls = {s.labels["op"]: s.value for s in families["actorflow_op_calls"].samples if s.name.endswith("_total")}
        assert calls == {op.name: 2 for op in training.graph.ops}
        assert not families["actorflow_op_failures"].samples
        ends = {s.labels["end"]: s.value for s in families["actorflow_frames"].samples if s.name.endswith("_total")}
        assert ends == {"finished": 2, "failed": 0, "cancelled": 0}
        assert {s.labels["kind"] for s in families["actorflow_memory_bytes"].samples} == {"held", "used", "peak"}

    async def test_a_registry_of_ones_own_takes_them_on_the_loop(self, training, monkeypatch) -> None:
        prometheus = pytest.importorskip("prometheus_client")
        taken_in, families = [], api._families

        def noting(name: str, graph: af.Graph) -> Any:
            taken_in.append(threading.get_ident())
            return families(name, graph)

        await training.run()
        monkeypatch.setattr(api, "_families", noting)
        registry = prometheus.CollectorRegistry()
        registry.register(af.web.collector(training.graph, af.Graph("other")))
        here = prometheus.generate_latest(registry).decode()
        there = await asyncio.to_thread(prometheus.generate_latest, registry)
        assert there.decode() == here
        for name, count in ((training.graph.name, 1), ("other", 0)):
            assert f'actorflow_frames_total{{end="finished",graph="{name}"}} {count}.0' in here
        assert {taken_in[0], taken_in[2]} == {threading.get_ident()}
        with pytest.raises(ValueError, match="graphs must have different names, got other, other"):
            af.web.collector(af.Graph("other"), af.Graph("other"))

    async def test_what_is_long_is_not_written_on_the_loop(self, served, training, monkeypatch) -> None:
        prometheus = pytest.importorskip("prometheus_client")
        threads: dict[str, int] = {}

        def noting(name: str, function: Any) -> Any:
            def noted(*args: Any, **options: Any) -> Any:
                threads[name] = threading.get_ident()
                return function(*args, **options)

            return noted

        monkeypatch.setattr(prometheus, "generate_latest", noting("/metrics", prometheus.generate_latest))
        monkeypatch.setattr(api, "json", SimpleNamespace(dumps=noting("/api/state", json.dumps)))
        async with served(training.graph) as client:
            for path in ("/metrics", "/api/state"):
                async with client.get(path) as response:
                    assert response.status == 200
        assert threads.keys() == {"/metrics", "/api/state"}
        assert threading.get_ident() not in threads.values()

    async def test_metrics_without_their_package(self, served, training, monkeypatch) -> None:
        def missing(_: Any) -> None:
            raise MissingExtraError("/metrics needs 'prometheus_client': pip install 'actorflow[metrics]'")

        monkeypatch.setattr(api, "exposition", missing)
        async with served(training.graph) as client, client.get("/metrics") as response:
            assert response.status == 501
            assert "actorflow[metrics]" in await response.text()

    async def test_the_trace(self, served, training) -> None:
        for _ in range(3):
            await training.run()
        async with served(training.graph) as client:
            trace = await read(client, "/trace.json")
        calls = Counter(e["name"] for e in trace["traceEvents"] if e["ph"] in "Xb" and e["cat"] == "call")
        assert calls == {op.name: 3 for op in training.graph.ops}
        frames = [e["name"] for e in trace["traceEvents"] if e["ph"] == "b" and e["cat"] == "frame"]
        assert frames == ["frame 0", "frame 1", "frame 2"]


PATHS = [
    "/",
    "/static/main.js",
    "/api/graph",
    "/api/state",
    "/api/errors",
    "/api/pipelines",
    "/api/control",
    "/trace.json",
    "/metrics",
    "/healthz",
]


class TestWhoMayLook:
    @pytest.mark.together("path", PATHS[2:])
    async def test_a_foreign_host_or_origin_is_refused(self, served, training, path) -> None:
        async with served(training.graph) as client:
            for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
                async with client.get(path, headers=headers) as response:
                    assert response.status == 403
                    assert "evil" in await response.text()

    async def test_a_token_is_asked_for(self, served, training) -> None:
        async with served(training.graph, token="open-sesame") as client:
            for path in [*PATHS, "/nothing"]:
                for shown in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": f"actorflow-{client.port}=wrong"}):
                    async with client.get(path, headers=shown) as response:
                        assert response.status == 401, path
            with pytest.raises(WSServerHandshakeError) as caught:
                await client.ws_connect("/stream")
            assert caught.value.status == 401
            async with client.get("/healthz", headers={"Authorization": "Bearer open-sesame"}) as response:
                assert response.status == 200

    async def test_a_browser_that_shows_the_token_gets_a_cookie(self, served, training) -> None:
        async with served(training.graph, token="open-sesame") as client:
            async with client.get("/?token=wrong") as response:
                assert (response.status, "Set-Cookie" in response.headers) == (401, False)
            async with client.get("/?token=open-sesame", headers={"Host": "evil.example"}) as response:
                assert (response.status, "Set-Cookie" in response.headers) == (403, False)
            async with client.get("/?token=wrong&token=open-sesame") as response:
                assert response.status == 200
                cookie = response.headers["Set-Cookie"]
                assert "HttpOnly" in cookie
                assert "SameSite=Lax" in cookie
            async with client.get("/api/graph") as response:
                assert response.status == 200
            async with client.ws_connect("/stream") as socket:
                assert (await socket.receive()).type is WSMsgType.TEXT

    async def test_the_cookie_is_no_token(self, served, training) -> None:
        """It goes to all servers of the host: what they get is good for looking at this page, and nothing else."""
        async with served(training.graph, token="look", control_token="steer", control=True) as client:
            cookies = set()
            for token in ("look", "steer"):
                response = await client.get(f"/?token={token}")
                cookies.add(response.cookies[f"actorflow-{client.port}"].value)
            (stolen,) = cookies
            assert "look" not in stolen
            assert "steer" not in stolen
            async with ClientSession() as thief:
                address = f"http://127.0.0.1:{client.port}"
                cookie = {"Cookie": f"actorflow-{client.port}={stolen}"}
                origin = {"Origin": address, "Referer": f"{address}/", "Content-Type": "application/json"}
                for headers in ({}, {"Authorization": f"Bearer {stolen}"}, {"Authorization": "Bearer "}):
                    shown = {**cookie, **origin, **headers}
                    async with thief.post(f"{address}/api/control/pause", headers=shown, data="{}") as response:
                        assert response.status == 401
                        assert "Authorization: Bearer" in await response.text()
                    async with thief.get(f"{address}/api/control", headers=shown) as response:
                        assert not (await response.json())["allowed"]
                async with thief.get(f"{address}/?token={stolen}") as response:
                    assert response.status == 401
        assert training.graph.paused is None

    async def test_it_outlives_the_server(self, training) -> None:
        """So that a page that is open comes back when its program is started again with the same token."""
        async with ClientSession(cookie_jar=CookieJar(unsafe=True)) as session:
            async with serve(training.graph, port=0, token="same") as view, session.get(view.url) as response:
                assert response.status == 200
            for token, status in (("same", 200), ("other", 401)):
                async with serve(training.graph, port=view.port, token=token):
                    async with session.get(f"http://127.0.0.1:{view.port}/healthz") as response:
                        assert response.status == status

    async def test_pages_on_one_port_keep_their_tokens_apart(self, training, make_training_graph) -> None:
        app = web.Application()
        app.add_subapp("/one", create_app(training.graph, token="look", control_token="steer", control=True))
        app.add_subapp("/two", create_app(make_training_graph("other")[0], token="two"))
        async with TestServer(app) as server, ClientSession(cookie_jar=CookieJar(unsafe=True)) as session:

            async def status(path: str) -> int:
                async with session.get(server.make_url(path)) as response:
                    return response.status

            asked = ["/one/?token=steer", "/two/", "/two/?token=two", "/one/healthz", "/two/healthz"]
            assert [await status(path) for path in asked] == [200, 401, 200, 200, 200]
            (cookie,) = session.cookie_jar
            two, one = cookie.value.split(":")
            assert [await status(path) for path in ("/one/?token=look", "/two/healthz")] == [200, 200]
            (cookie,) = session.cookie_jar
            assert cookie.value == f"{one}:{two}"
            session.cookie_jar.update_cookies({cookie.key: "a:b:c:d:e:f:g:h:i:j"}, server.make_url("/"))
            assert await status("/one/?token=steer") == 200
            (cookie,) = session.cookie_jar
            assert cookie.value == f"{one}:a:b:c:d:e:f:g"

    @pytest.mark.together(
        ("options", "problem"),
        [
            ({"allowed_hosts": "graphs.example.com"}, "list of hosts, got the text 'graphs.example.com'"),
            ({"allowed_hosts": ["https://graphs.example.com"]}, "got 'https://graphs.example.com'"),
            ({"allowed_hosts": ["graphs.example.com/graph"]}, "got 'graphs.example.com/graph'"),
            ({"allowed_hosts": [""]}, "got ''"),
            ({"max_clients": -1}, "at least 0, got -1"),
            ({"token": " a"}, "no spaces at its ends"),
            ({"token": "a\n"}, "no spaces at its ends"),
            ({"token": "a", "control_token": "a", "control": True}, "must not be token="),
        ],
    )
    def test_options_with_which_nobody_or_anybody_could_get_in(self, training, options, problem) -> None:
        with pytest.raises(ValueError, match=re.escape(problem)):
            create_app(training.graph, **options)

    async def test_an_address_other_than_the_loopback_demands_a_token(self, training) -> None:
        async with (
            serve(training.graph, host="0.0.0.0", port=0) as view,
            ClientSession(cookie_jar=CookieJar(unsafe=True)) as session,
        ):
            assert view.token is not None
            assert len(view.token) >= 24
            async with session.get(f"http://127.0.0.1:{view.port}/") as response:
                assert response.status == 401
            async with session.get(view.url) as response:
                assert response.status == 200
        async with serve(training.graph, port=0) as view:
            assert view.token is None
        with pytest.raises(ValueError, match="empty"):
            create_app(training.graph, token="")

    async def test_too_many_clients_are_turned_away(self, served, training) -> None:
        async with served(training.graph, max_clients=2) as client:
            async with client.ws_connect("/stream") as first, client.ws_connect("/stream") as second:
                for socket in (first, second):
                    assert (await socket.receive()).type is WSMsgType.TEXT
                async with client.ws_connect("/stream") as third:
                    message = await third.receive()
                    assert (message.type, message.data) == (WSMsgType.CLOSE, 1013)
            while True:  # one that leaves makes room, once the server has seen it
                async with client.ws_connect("/stream") as again:
                    if (await again.receive()).type is WSMsgType.TEXT:
                        break
                await asyncio.sleep(0)
