"""Models as an ASGI application: the same answers as through aiohttp, mounted, and clients that hang up."""

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from aiohttp import ClientSession

import actorflow as af
from actorflow.serve import Limits
from actorflow.serve.inference import HEAD_BYTES
from tests.serve.serving import Client, Gate, binary_tensor, serve, ten_times, tensor, until
from tests.web.serving import HOST, uvicorned

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)
AS_TEXT = json.dumps({"inputs": [tensor("x", ROWS)]}).encode()
AS_BINARY = json.dumps({"inputs": [binary_tensor("x", ROWS)]}).encode()
INFER = "/v2/models/ten_times/infer"
#: Requests: a path, a body for those that have one, and headers.
REQUESTS: list[tuple[str, bytes | None, dict[str, str]]] = [
    *[(path, None, {}) for path in ("/v2", "/v2/health/live", "/v2/models", "/v2/models/ten_times", "/nowhere", INFER)],
    ("/v2/models/ten_times/versions/1", None, {}),
    ("/v2/models/ten_times/versions/2", None, {}),
    ("/v2/models/none/ready", None, {}),
    ("/v2/models", b"", {}),
    ("/v2/repository/index", b"{}", {}),
    (INFER, AS_TEXT, {}),
    (INFER, gzip.compress(AS_TEXT), {"Content-Encoding": "gzip"}),
    (INFER, AS_BINARY + ROWS.tobytes(), {HEAD_BYTES: f"{len(AS_BINARY)}"}),
    (INFER, AS_TEXT, {"Authorization": "Bearer wrong"}),
    (INFER, b"{", {}),
    (INFER, bytes(2000), {}),
    (INFER, json.dumps({"inputs": [tensor("x", ROWS[:, :2])]}).encode(), {}),
]


@asynccontextmanager
async def mounted(models: dict[str, Any], **options: Any) -> AsyncIterator[tuple[int, Any]]:
    """A program of FastAPI with models at ``/models``: its port, and what is mounted."""
    from fastapi import FastAPI

    served = af.serve.asgi(models, **options)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await served.aclose()

    app = FastAPI(lifespan=lifespan)
    app.mount("/models", served)
    async with uvicorned(app) as port:
        yield port, served._service


async def test_the_answers_are_those_of_the_other_door() -> None:
    options = {"token": "secret", "limits": Limits(body_bytes=1000)}

    async def answers(port: int, root: str) -> list[Any]:
        found = []
        for path, body, headers in REQUESTS:
            client = await Client.open(port)
            client.send(f"{root}{path}", body, {"Authorization": "Bearer secret"} | headers)
            answer = await client.answer()
            kept = {name: answer.headers.get(name) for name in ("content-type", "allow", HEAD_BYTES.lower())}
            found.append((path, answer.status, kept, answer.body))
        return found

    async with serve({"ten_times": ten_times()}, **options) as served:
        expected = await answers(served.port, "")
    async with mounted({"ten_times": ten_times()}, **options) as (port, _):
        assert await answers(port, "/models") == expected
    assert {status for _, status, *_ in expected} == {200, 400, 401, 404, 405, 413}


async def test_events_come_through_it() -> None:
    graph = af.Graph("halving")
    n = graph.blob("n", ["batch"], "int64")
    half = n // 2
    model = af.Model(graph, {"n": n}, {"half": half, "done": af.ops.less(half, 2)})
    async with mounted({"halving": model}, feedback={"n": "half"}, until="done") as (port, _):
        async with ClientSession(f"http://{HOST}:{port}/models/v2/models/halving/") as session:
            async with session.post("generate_stream", json={"n": 8}) as response:
                assert (response.status, response.content_type) == (200, "text/event-stream")
                events = [json.loads(line[5:]) for line in (await response.text()).splitlines() if line]
            assert [event["half"] for event in events] == [4, 2, 1]
            async with session.post("generate", json={"n": "no number"}) as response:
                assert response.status == 400


async def test_a_client_that_hangs_up_is_not_computed_for() -> None:
    gate = Gate()
    async with mounted({"gated": gate.model()}) as (port, service):
        client = await Client.open(port)
        client.send("/models/v2/models/gated/infer", AS_TEXT)
        await until(lambda: gate.inside)
        await client.hang_up()
        await until(lambda: gate.cancelled)
        await until(lambda: not service.in_flight)
        assert service.models.find("gated", None).cancelled == 1
