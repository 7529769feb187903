"""Ends of a server: nothing that was accepted is lost."""

import asyncio
import json
import logging
import socket
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.serve import Limits, Server, create_app
from actorflow.serve.body import receive
from tests.serve.serving import Client, Gate, Served, serve, tensor, until
from tests.support.held import Arrays, nothing_held

ROWS = np.ones((1, 3), np.float32)
TEXT = json.dumps({"inputs": [tensor("x", ROWS)]}).encode()
PATH = "/v2/models/model/infer"


@pytest.mark.parametrize("batched", [True, False])
async def test_drain(batched: bool) -> None:
    gate = Gate()
    async with serve({"model": gate.model(batched=batched)}) as served:
        clients = []
        for count in range(1, 5):
            clients.append(await Client.open(served.port))
            clients[-1].send(PATH, TEXT if count < 4 else TEXT[:10], {"Content-Length": str(len(TEXT))})
            await until(lambda n=count: served.service.in_flight == n)
        draining = asyncio.create_task(served.server.drain())
        await until(lambda: served.service.draining)
        for path in ("/v2/health/ready", "/v2/models/model/ready"):
            answer = await served.get(path)
            assert (answer.status, answer.json["ready"], answer.headers["connection"]) == (503, False, "close")
        assert (await served.get("/v2/health/live")).status == 200
        refused = await served.ask(PATH, TEXT)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.error == "the server is about to end"
        clients[-1].writer.write(TEXT[10:])  # the rest of a request that had begun
        gate.open.set()
        assert [(await client.answer()).status for client in clients] == [200] * 4
        assert await draining == 0
        with pytest.raises(ConnectionError):
            await Client.open(served.port)


async def test_drain_waits_until_answers_are_taken() -> None:
    """A client that reads slowly gets all of its answer, although all of it was computed long ago."""
    gate = Gate()
    gate.open.set()
    rows = np.ones((1_000_000, 3), np.float32)  # more than the system keeps for the client
    request = {
        "inputs": [{"name": "x", "shape": list(rows.shape), "datatype": "FP32"}],
        "parameters": {"binary_data_output": True},
    }
    request["inputs"][0]["parameters"] = {"binary_data_size": rows.nbytes}  # type: ignore[index]
    head = json.dumps(request).encode()
    async with serve({"model": gate.model()}, max_rows=0) as served:
        client = await Client.open(served.port)
        await until(lambda: served.server._runner.server.connections)
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(PATH, head + rows.tobytes(), {"Inference-Header-Content-Length": str(len(head))})
        (hosted,) = served.service.models
        await until(lambda: hosted.answers[200] == 1)
        assert await served.server.drain(0.05) == 1
        draining = asyncio.create_task(served.server.drain())
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert np.array_equal((await client.answer()).output("y"), rows)
        assert await draining == 0


async def test_drain_gives_up_in_time() -> None:
    gate = Gate()
    async with serve({"model": gate.model()}) as served:
        client = await Client.open(served.port)
        client.send(PATH, TEXT)
        await until(lambda: gate.inside == 1)
        assert await served.server.drain(0.01) == 1
    assert gate.cancelled == 1
    with pytest.raises(asyncio.IncompleteReadError):
        await client.answer()


async def test_the_end_without_a_drain() -> None:
    """Whoever waits gets no result; nothing is left of the server, and its graph runs elsewhere."""
    gate = Gate()
    model = gate.model()
    async with serve({"model": model}) as served:
        client = await Client.open(served.port)
        client.send(PATH, TEXT)
        await until(lambda: gate.inside == 1)
    await client.hang_up()
    gate.open.set()
    async with model.graph:
        assert np.array_equal((await model.run({"x": ROWS}))["y"], ROWS)
    await served.server.aclose()


async def test_an_address_that_is_in_use() -> None:
    async with serve({"model": Gate().model()}) as served:
        with pytest.raises(OSError, match=r"in use|[Aa]ddress"):
            async with Server(create_app({"model": Gate().model()}), port=served.port):
                pass


async def good(served: Served) -> int:
    return (await served.ask(PATH, TEXT)).status


async def malformed(served: Served) -> int:
    return (await served.ask(PATH, TEXT[:-1])).status


async def too_slow(served: Served) -> int:
    return (await served.infer("model", {"inputs": [tensor("x", ROWS)], "parameters": {"timeout": 1}})).status


async def hung_up(served: Served) -> int:
    client = await Client.open(served.port)
    client.send(PATH, TEXT)
    await until(lambda: served.service.in_flight)
    await client.hang_up()
    await until(lambda: not served.service.in_flight)
    return 499


async def give(x: np.ndarray) -> np.ndarray:
    await asyncio.sleep(0)
    return x


async def fail(x: np.ndarray) -> np.ndarray:
    await asyncio.sleep(0)
    raise ValueError("broken")


async def wait(x: np.ndarray) -> np.ndarray:
    await asyncio.Event().wait()
    return x


async def refuse(x: np.ndarray) -> np.ndarray:
    raise MemoryError


HELD = {
    "well": (200, give, good),
    "malformed": (400, give, malformed),
    "fails": (500, fail, good),
    "no room": (500, refuse, good),
    "too slow": (504, wait, too_slow),
    "client hangs up": (499, wait, hung_up),
}


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("name", HELD)
async def test_nothing_of_a_request_is_held(
    name: str, batched: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However a request is answered: its body, and arrays made of it, are free without the garbage collector."""
    status, function, ask = HELD[name]
    arrays = Arrays()

    async def watched(*given: Any) -> memoryview:
        received = await receive(*given)
        arrays.watch(received)
        return received

    async def watching(x: np.ndarray) -> np.ndarray:
        arrays.watch(x)
        return await function(x)

    graph = af.Graph("held")
    x = graph.blob("x", ("batch" if batched else 1, 3))
    model = af.Model(graph, {"x": x}, {"y": graph.function("f", watching, x.spec)(x)})
    caplog.set_level(logging.CRITICAL, "actorflow")  # records keep the errors that they tell of
    async with serve({"model": model}, limits=Limits(warm_up_s=0)) as served:
        assert await ask(served) == status
        monkeypatch.setattr("actorflow.serve.app.receive", watched)
        async with nothing_held(is_open=False) as arrays:
            for _ in range(3):
                assert await ask(served) == status
            await until(lambda: not arrays.alive)
