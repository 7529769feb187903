"""Who may ask a server of models, and what others see of it."""

import asyncio
import json
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

import actorflow as af
from actorflow.errors import DTypeError, GraphError, MissingExtraError
from actorflow.serve import Limits, Server, create_app
from tests.serve.serving import Client, Gate, Served, serve, ten_times, tensor, until

TEXT = json.dumps({"inputs": [tensor("x", np.ones((1, 3), np.float32))]}).encode()
PATH = "/v2/models/model/infer"
WITHOUT = [
    {"Authorization": each} for each in ("Bearer wrong", "secrets", "secret", "Basic secret", "Bearersecret", "")
]


async def test_without_the_token() -> None:
    async with serve({"model": ten_times()}, token="secret") as served:
        for shown in ({}, *WITHOUT, {"Cookie": "token=secret"}):
            for path, body in (("/v2", None), ("/v2/models/model", None), ("/metrics", None), (PATH, TEXT)):
                answer = await served.ask(path, body, shown)
                assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
                assert answer.error == "expected the server's token, Authorization: Bearer TOKEN"
        assert (await served.get("/v2?token=secret")).status == 401
        assert (await served.get("/graph/model/")).status == 401
        for path in ("/v2/health/live", "/v2/health/ready"):
            assert (await served.get(path)).status == 200
        token = {"Authorization": "bearer secret"}
        assert (await served.ask(PATH, TEXT, {**token, "Host": "anything.example"})).status == 200
        assert (await served.get("/graph/model/healthz", **token)).status == 200


@pytest.mark.together(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1:1"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "models.example"}, 200),
        ({"Origin": "https://models.example"}, 200),
    ],
)
async def test_what_a_page_of_another_site_may_send(headers: dict[str, str], status: int) -> None:
    """A browser on this machine reaches the loopback, by a name of its own too."""
    async with serve({"model": ten_times()}, allowed_hosts=["models.example"]) as served:
        for path, body in (("/v2", None), (PATH, TEXT), ("/metrics", None)):
            assert (await served.ask(path, body, headers)).status == status


PAGE = "https://app.example"
READS = {"access-control-allow-origin": PAGE, "vary": "Origin"}


@pytest.mark.parametrize("token", [None, "secret"])
async def test_pages_of_an_allowed_origin(token: str | None) -> None:
    bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with serve({"model": ten_times()}, allowed_origins=[PAGE], token=token) as served:
        asks = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
        answer = await served.ask(PATH, None, asks, method="OPTIONS")
        assert answer.status == 204
        assert answer.headers["access-control-allow-headers"].startswith("Authorization, Content-Type, Inference-")
        assert answer.headers.items() >= READS.items()
        for path, body, status in (("/v2", None, 200), (PATH, TEXT, 200), (PATH, b"{", 400), ("/v2/none", None, 404)):
            answer = await served.ask(path, body, {"Origin": PAGE, **bearer})
            assert answer.status == status
            assert answer.headers.items() >= READS.items()
        for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {}):
            assert (await served.ask(PATH, None, headers, method="OPTIONS")).status == 403
            answer = await served.ask(PATH, TEXT, {**headers, **bearer})
            assert answer.status == (403 if headers and token is None else 200)
            assert "access-control-allow-origin" not in answer.headers
        assert (await served.ask(PATH, TEXT, {"Origin": PAGE, "Host": "evil.example"})).status == (
            401 if token else 403
        )
    async with serve({"model": ten_times()}) as served:
        assert (await served.ask(PATH, None, {"Origin": PAGE}, method="OPTIONS")).status == 405


async def test_all_origins_need_a_token() -> None:
    with pytest.raises(ValueError, match="it needs a token"):
        create_app({"model": ten_times()}, allowed_origins=["*"])
    for origin in ("app.example", "https://app.example/", "ftp://app.example", "https://"):
        with pytest.raises(ValueError, match="expected an origin such as"):
            create_app({"model": ten_times()}, allowed_origins=[origin])
    with pytest.raises(TypeError, match="allowed_origins must be a list of texts"):
        create_app({"model": ten_times()}, allowed_origins=PAGE)
    async with serve({"model": ten_times()}, allowed_origins=["*"], token="secret") as served:
        answer = await served.ask(PATH, TEXT, {"Origin": "http://any", "Authorization": "Bearer secret"})
        assert answer.headers["access-control-allow-origin"] == "http://any"


async def test_a_foreign_host_is_told_what_allows_it() -> None:
    async with serve({"model": ten_times()}) as served:
        text = (await served.ask("/v2", None, {"Host": "models.example"})).json["error"]
    assert text.endswith(
        "serve it with allowed_hosts=['models.example'] (--allowed-host models.example of actorflow serve)"
    )


async def test_other_addresses_need_a_token() -> None:
    for host in ("0.0.0.0", "192.0.2.1", "::", "models.example", ""):
        with pytest.raises(ValueError, match="which others can reach, needs a token"):
            Server(create_app({"model": ten_times()}), host)
    for host in ("127.0.0.1", "::1", "localhost"):
        Server(create_app({"model": ten_times()}), host)
    Server(create_app({"model": ten_times()}, token="secret"), "0.0.0.0")


async def test_live_pages() -> None:
    models = {"model": ten_times(), "other": {"1": ten_times(), "2": ten_times()}}
    async with serve(models) as served:
        assert [hosted.page for hosted in served.service.models] == [
            "/graph/model/",
            "/graph/other/1/",
            "/graph/other/2/",
        ]
        for hosted in served.service.models:
            assert (await served.get(hosted.page or "")).status == 200
        assert (await served.get("/graph/none/")).status == 404
    async with serve(models, page=False) as served:
        assert (await served.get("/graph/model/")).status == 404


async def test_metrics() -> None:
    models = {"model": ten_times(), "other": {"1": ten_times(), "2": ten_times()}}
    async with serve(models, limits=Limits(warm_up_s=0)) as served:
        for path, count in ((PATH, 3), ("/v2/models/other/infer", 2)):
            for _ in range(count):
                assert (await served.ask(path, TEXT)).status == 200
        assert (await served.ask(PATH, b"{}")).status == 400
        text = (await served.get("/metrics")).body.decode()
        families = list(text_string_to_metric_families(text))
        assert len({family.name for family in families}) == len(families)
        samples = {(s.name, *sorted(s.labels.values())): s.value for family in families for s in family.samples}
        assert samples["actorflow_serve_answers_total", "1", "200", "model"] == 3
        assert samples["actorflow_serve_answers_total", "1", "400", "model"] == 1
        assert samples["actorflow_serve_answers_total", "2", "200", "other"] == 2
        assert samples["actorflow_serve_latency_seconds_count", "1", "model"] == 4
        assert samples["actorflow_frames_total", "finished", "other/2"] == 2
        assert samples["actorflow_batch_requests_total", "0", "finished", "model/1"] == 3
        assert samples["actorflow_serve_held_bytes",] == 0


async def test_metrics_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Any:
        raise MissingExtraError("/metrics needs 'prometheus_client': pip install 'actorflow[metrics]'")

    monkeypatch.setattr("actorflow.serve.metrics.exposition", missing)
    async with serve({"model": ten_times()}) as served:
        answer = await served.get("/metrics")
        assert answer.status == 501
        assert "actorflow[metrics]" in answer.error


@pytest.mark.together("name", ["", "a/b", "..", ".", " ", "a b", "größe", "a\nb", "a%2Fb", "a?b", "{a}", "x" * 201])
def test_names_that_cannot_stand_in_a_path(name: str) -> None:
    with pytest.raises(ValueError, match="in names and versions, got"):
        create_app({name: ten_times()})
    with pytest.raises(ValueError, match="in names and versions, got"):
        create_app({"model": {name: ten_times()}})


@pytest.mark.parametrize("name", ["model-1.2", "a_b", "a+b@c~d"])
async def test_names_of_all_kinds(name: str) -> None:
    async with serve({name: ten_times()}) as served:
        assert (await served.ask(f"/v2/models/{name}/infer", TEXT)).json["model_name"] == name
        (hosted,) = served.service.models
        assert (await served.get(hosted.page or "")).status == 200


def test_what_cannot_be_served() -> None:
    graph = af.Graph("complex")
    af.ops.scale(graph.blob("x", ("batch",), "complex64"), 2.0)
    with pytest.raises(DTypeError, match="cannot be served"):
        create_app({"model": graph})
    with pytest.raises(ValueError, match="at least one model"):
        create_app({})
    with pytest.raises(ValueError, match="at least one version"):
        create_app({"model": {}})
    with pytest.raises(TypeError, match=r"expected an af\.Model or an af\.Graph to serve, got int"):
        create_app({"model": 3})  # type: ignore[dict-item]
    with pytest.raises(GraphError, match="cannot be fed in batches"):
        create_app({"model": ten_times()}, batch_axis="time")
    with pytest.raises(ValueError, match="token must not be empty"):
        create_app({"model": ten_times()}, token="")


async def test_below_a_path_of_another_application() -> None:
    outer = web.Application()
    app = create_app({"model": ten_times()})
    outer.add_subapp("/models", app)
    runner = web.AppRunner(outer, handler_cancellation=True, auto_decompress=False, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        served = Served(SimpleNamespace(port=runner.addresses[0][1]), app)  # type: ignore[arg-type]
        assert (await served.ask(f"/models{PATH}", TEXT)).status == 200
        await served.service.warming
        assert (await served.get("/models/v2/health/ready")).json == {"ready": True}
        assert (await served.get("/models/graph/model/")).status == 200
        assert (await served.get("/models/v2/nothing")).error == "there is nothing at '/models/v2/nothing'"
    finally:
        await runner.cleanup()
    assert served.service.draining


async def test_more_connections_than_are_served() -> None:
    gate = Gate()
    app = create_app({"model": gate.model()})
    async with Server(app, port=0, max_connections=1) as server:
        first = await Client.open(server.port)
        first.send(PATH, TEXT)
        await until(lambda: gate.inside == 1)
        second = await Client.open(server.port)
        second.send("/v2")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await second.answer()
        gate.open.set()
        assert (await first.answer()).status == 200


async def test_idle_connections_make_room() -> None:
    """Those that have waited longest first, whether a request has come on them, a part of one, or none."""
    gate = Gate()
    app = create_app({"model": gate.model()})
    async with Server(app, port=0, max_connections=4) as server:
        silent, busy, half, kept = [await Client.open(server.port) for _ in range(4)]
        busy.send(PATH, TEXT)
        await until(lambda: gate.inside == 1)
        half.writer.write(b"GET /v2 HTTP/1.1\r\n")
        kept.send("/v2", None, {"Connection": "keep-alive"})
        assert b"200 OK" in await kept.reader.readline()
        news = []
        for gone in (silent, half, kept):
            news.append(new := await Client.open(server.port))
            new.send("/v2/health/live", None, {"Connection": "keep-alive"})
            assert b"200 OK" in await new.reader.readline()
            with suppress(ConnectionError):
                await gone.reader.read()
            assert gone.reader.at_eof() or gone.reader.exception()
            await until(lambda: len(server._runner.server.connections) == 4)
        gate.open.set()
        assert (await busy.answer()).status == 200
        for client in (silent, half, kept, *news):
            await client.hang_up()


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf")])
def test_a_time_to_keep_connections_is_above_0(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"keep_alive_s must be (positive|finite|a time in seconds), got"):
        Server(create_app({"model": ten_times()}), keep_alive_s=wrong)


async def test_connections_are_kept_for_a_time() -> None:
    async with Server(create_app({"model": ten_times()}), port=0, keep_alive_s=0.01) as server:
        for path in ("/v2", None):
            client = await Client.open(server.port)
            if path is not None:
                client.send(path, None, {"Connection": "keep-alive"})
                await client.reader.readuntil(b"\r\n\r\n")
            await client.reader.read()  # ends when the server has closed it
            await client.hang_up()
    assert Server(create_app({"model": ten_times()}))._runner._kwargs["keepalive_timeout"] == 75
