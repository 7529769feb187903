"""Models that are loaded and unloaded while the server runs, by Triton's model repository extension."""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, WSCloseCode, WSMsgType, WSServerHandshakeError

import actorflow as af
from tests.serve.serving import Client, Gate, Served, serve, ten_times, tensor, until
from tests.serve.test_clients import program
from tests.serve.test_sequences import answers, step, sums

ROW = json.dumps({"inputs": [tensor("x", np.ones((1, 3), np.float32))]}).encode()


def opens(factor: float = 1.0, gate: Any = None) -> Callable[[], af.Model]:
    """A function that opens a model, each time one whose results are larger by a factor than the one before."""
    opened = 0

    def opener() -> af.Model:
        nonlocal opened
        opened += 1
        graph = af.Graph(f"opened_{opened}")
        x = graph.blob("x", ("batch", 3))
        passed = x if gate is None else graph.function("gate", gate, x.spec)(x)
        return af.Model(graph, {"x": x}, {"y": af.ops.scale(passed, factor * opened)})

    return opener


async def change(served: Served, name: str, what: str) -> int:
    return (await served.ask(f"/v2/repository/models/{name}/{what}", b"{}")).status


async def index(served: Served, body: bytes = b"") -> dict[str, str]:
    found = (await served.ask("/v2/repository/index", body)).json
    return {f"{each['name']}/{each['version']}": each["state"] for each in found}


async def first(served: Served, path: str = "/v2/models/net/infer") -> float:
    answer = await served.ask(path, ROW)
    assert answer.status == 200, answer.body
    return float(answer.output("y")[0, 0])


async def test_models_are_loaded_anew_and_unloaded() -> None:
    async with serve({"net": {"1": opens(), "2": opens(100)}, "given": ten_times()}, page=True) as served:
        assert "model_repository" in (await served.get("/v2")).json["extensions"]
        assert [await first(served), await first(served, "/v2/models/net/versions/1/infer")] == [100, 1]
        assert await change(served, "net", "load") == 200
        assert [await first(served), await first(served, "/v2/models/net/versions/1/infer")] == [200, 2]
        assert b"opened_2" in (await served.get("/graph/net/1/api/graph")).body
        (answered,) = [each.answers for each in served.service.models if each.label == "net/2"]
        assert answered == {200: 2}  # figures go on
        assert await change(served, "net", "unload") == 200
        assert (await served.ask("/v2/models/net/infer", ROW)).error == "model 'net' is not loaded"
        assert (await served.get("/v2/models")).json == {"models": ["given"]}
        expected = {"net/1": "UNAVAILABLE", "net/2": "UNAVAILABLE", "given/1": "READY"}
        assert await index(served) == expected
        assert await index(served, b'{"ready": true}') == {"given/1": "READY"}
        assert await change(served, "given", "load") == 200  # there is nothing to read anew
        for what in ("unload", "load", "load"):
            assert await change(served, "given", what) == 200
        assert await change(served, "net", "load") == 200
        assert [await first(served), await first(served, "/v2/models/given/infer")] == [300, 10]
        assert (await served.ask("/v2/repository/models/other/load", b"")).status == 404
        assert (await served.ask("/v2/repository/index", b"[]")).error == "expected a JSON object"
        refused = await served.ask("/v2/repository/models/net/load", b'{"parameters": {"config": "{}"}}')
        assert refused.error.startswith("expected no parameters")


async def test_versions_share_requests() -> None:
    models = {"net": {"1": opens(), "2": opens(100), "3": opens(5)}, "given": ten_times()}
    async with serve(models, shares={"net/1": 3, "net/2": 1}) as served:
        assert [await first(served) for _ in range(8)] == [1, 1, 1, 100] * 2
        assert [await first(served, f"/v2/models/net/versions/{each}/infer") for each in "123"] == [1, 100, 5]
        assert await first(served) == 1  # those that name a version are not counted
        assert await first(served, "/v2/models/given/infer") == 10
        assert [sum(each.answers.values()) for each in served.service.models] == [8, 3, 1, 1]
        assert (await served.get("/v2/models/net")).status == 200
    # The description of a model is that of the version that computes its requests.
    async with serve({"net": {"1": opens(), "other": sums()}}, shares={"net/1": 1}) as served:
        assert (await served.get("/v2/models/net")).json["inputs"][0]["shape"] == [-1, 3]
        assert await first(served) == 1
    for shares, why in (
        ({"net/4": 1}, "shares: there is no version 'net/4'; did you mean 'net/"),
        ({"net/1": 0}, "shares: net/1 must be"),
        ({"net/1": 1, "net/other": 1}, "net/1 and net/other have different inputs or outputs"),
    ):
        with pytest.raises(af.GraphError, match=why):
            af.serve.create_app({"net": {"1": opens(), "other": sums()}}, shares=shares)
    with pytest.raises(af.GraphError, match="one of sums/1 and sums/2 keeps state"):
        af.serve.create_app({"sums": {"1": sums(), "2": doubled()}}, shares={"sums/1": 1, "sums/2": 1})


def doubled() -> af.Model:
    """A model that takes and gives what `sums` does, and keeps nothing."""
    graph = af.Graph("doubled")
    x = graph.blob("x", ("batch", 1))
    return af.Model(graph, {"x": x}, {"y": x * 2.0})


async def test_versions_that_share_requests_are_alike_when_loaded_anew() -> None:
    later = [doubled(), ten_times()]
    models = {"net": {"1": lambda: later.pop(0), "2": doubled()}}
    async with serve(models, shares={"net/1": 1, "net/2": 1}) as served:
        answer = await served.ask("/v2/repository/models/net/load", b"{}")
        assert answer.status == 400
        assert "cannot be loaded: GraphError: shares: net/1 and net/2 have different inputs or outputs" in answer.error
        row = {"inputs": [tensor("x", np.ones((1, 1), np.float32))]}
        assert [(await served.infer("net", row)).json["model_version"] for _ in range(4)] == list("1212")


async def test_sequences_that_end_are_shared() -> None:
    versions = {"1": sums(), "2": sums(init=200)}
    async with serve({"sums": versions}, shares={"sums/1": 1, "sums/2": 1}) as served:
        two = [step(1, start=True), step(1, end=True)]
        assert await answers(served, "sums", *two, *two, two[0], step(1), two[1]) == [101, 102, 201, 202, 101, 102, 103]
        assert [dict(each.answers) for each in served.service.models] == [{200: 5}, {200: 2}]  # of those that computed


async def test_a_step_that_its_sequence_cannot_take() -> None:
    graph = af.Graph("other")
    z, total = graph.blob("z", ("batch", 1)), graph.state("total", ("batch", 1))
    total.assign(following := total + z)
    models: dict[str, Any] = {"1": sums(), "2": af.Model(graph, {"z": z}, {"w": following})}
    async with serve({"sums": models}) as served:
        assert await answers(served, "sums/versions/1", step(1, start=True)) == [101]
        other = {"inputs": [tensor("z", np.ones((1, 1), np.float32))], "parameters": {"sequence_id": 7}}
        answer = await served.infer("sums", other)
        assert (answer.status, answer.error[:22]) == (400, "there is no sequence 7")
        assert await answers(served, "sums/versions/1", step(1)) == [102]


async def test_sequences_stay_with_the_version_that_they_began_on() -> None:
    gate = Gate()
    gate.open.set()
    versions = {"1": sums(gate), "2": sums(gate, init=200)}
    async with serve({"sums": versions}, shares={"sums/1": 1, "sums/2": 1}) as served:
        one, two = served.service.models
        steps = [step(1, 5, start=True), step(1, 6, start=True), step(1, 5), step(1, 5), step(1, 6), step(1, 6)]
        assert await answers(served, "sums", *steps) == [101, 201, 102, 103, 202, 203]
        assert [(await served.infer("sums", step(1, n))).json["model_version"] for n in (5, 5, 6, 6)] == list("1122")
        (other,) = await answers(served, "sums/versions/2", step(1, 5))
        assert "there is no sequence 5" in other[1]
        # Begun anew, on whichever has its turn, it is on that alone.
        assert await answers(served, "sums", *[step(1, 5, start=True)] * 2, *[step(1, 5)] * 2) == [101, 201, 202, 203]
        assert (one.sessions, two.sessions) == (0, 2)
        gate.open.clear()
        client = await Client.open(served.port)
        client.send("/v2/models/sums/infer", json.dumps(step(1, 5)).encode())  # by its share, one of version 1
        await until(lambda: gate.inside == 1)
        assert (one.in_flight, two.in_flight) == (1, 0)
        assert await change(served, "sums", "unload") == 200
        gate.open.set()
        assert (await client.answer()).output("y").item() == 204


async def test_the_repository_is_behind_the_token() -> None:
    async with serve({"net": opens()}, token="secret") as served:
        for path in ("index", "models/net/load", "models/net/unload"):
            assert (await served.ask(f"/v2/repository/{path}", b"{}")).status == 401
        answer = await served.ask("/v2/repository/index", b"", {"Authorization": "Bearer secret"})
        assert answer.json == [{"name": "net", "version": "1", "state": "READY", "reason": ""}]


@pytest.mark.parametrize("what", ["load", "unload"])
async def test_requests_in_flight_end_on_the_version_they_began_on(what: str) -> None:
    gate = Gate()
    async with serve({"net": opens(gate=gate)}, max_rows=0) as served:
        (old,) = served.service.models
        client = await Client.open(served.port)
        client.send("/v2/models/net/infer", ROW)
        await until(lambda: gate.inside == 1)
        waiting = asyncio.create_task(change(served, "net", what))
        if what == "load":
            await until(lambda: old not in [*served.service.models])
            newer = asyncio.create_task(first(served))
            await until(lambda: gate.inside == 2)
        assert await waiting == 200
        gate.open.set()
        assert (await client.answer()).output("y")[0, 0] == 1
        if what == "load":
            assert await newer == 2
        await until(lambda: old not in served.service._repository._open)
    assert gate.cancelled == 0


async def test_sequences_end_on_the_version_they_began_on() -> None:
    async with serve({"sums": lambda: sums()}) as served:
        (old,) = served.service.models
        assert await answers(served, "sums", step(1, start=True), step(1, 8, start=True)) == [101, 101]
        assert await change(served, "sums", "load") == 200
        # One goes on, another one begins anew, and a third one is of the new version.
        steps = (step(2), step(3, 8, start=True), step(4, 9, start=True), step(5, 8))
        assert await answers(served, "sums", *steps) == [103, 103, 104, 108]
        (new,) = served.service.models
        assert (old.sessions, new.sessions) == (1, 2)
        assert await answers(served, "sums", step(3, end=True)) == [106]
        await until(lambda: old not in served.service._repository._open)
        assert await answers(served, "sums", step(1, 9)) == [105]


async def test_streams_go_on_when_their_model_is_loaded_anew_and_end_when_it_is_unloaded() -> None:
    async def ask(socket: Any, value: float) -> float:
        await socket.send_bytes(np.float32(value).tobytes())
        return float(np.frombuffer(await socket.receive_bytes(), np.float32)[0])

    async with serve({"sums": lambda: sums()}) as served, ClientSession(served.server.url) as session:
        path, open_ = "/v2/models/sums/stream", served.service._repository._open
        async with session.ws_connect(path) as older:
            assert await ask(older, 1) == 101
            assert await change(served, "sums", "load") == 200
            assert await ask(older, 2) == 103
            async with session.ws_connect(path) as newer:
                assert await ask(newer, 1) == 101
                assert await change(served, "sums", "unload") == 200
                message = await newer.receive()
                assert (message.type, message.data) == (WSMsgType.CLOSE, WSCloseCode.GOING_AWAY)
            assert await ask(older, 3) == 106  # of a version that was replaced before
            assert len(open_) == 1
        await until(lambda: not open_)
        with pytest.raises(WSServerHandshakeError, match="404"):
            await session.ws_connect(path)


async def test_a_model_that_cannot_be_loaded_leaves_what_there_is(caplog: pytest.LogCaptureFixture) -> None:
    fails, opener = False, opens()

    def may_fail() -> af.Model:
        if fails:
            raise OSError("the file is gone")
        return opener()

    async with serve({"net": {"1": opens(), "2": may_fail}}) as served:
        before = [*served.service.models]
        fails = True
        answer = await served.ask("/v2/repository/models/net/load", b"{}")
        assert (answer.status, answer.error) == (400, "model 'net' cannot be loaded: OSError: the file is gone")
        assert [*served.service.models] == before
        assert {*served.service._repository._open} == {*before}
        assert await first(served) == 1
    assert "model net cannot be loaded: the file is gone" in caplog.text


async def test_a_load_goes_on_when_its_client_hangs_up() -> None:
    begun, goes_on, opener = asyncio.Event(), asyncio.Event(), opens()
    loop, loads = asyncio.get_running_loop(), 0

    def slow() -> af.Model:
        nonlocal loads
        loads += 1
        if loads > 1:
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(goes_on.wait(), loop).result(60)
        return opener()

    async with serve({"net": slow}) as served:
        client = await Client.open(served.port)
        client.send("/v2/repository/models/net/load", b"{}")
        await begun.wait()
        await client.hang_up()
        goes_on.set()
        (old,) = served.service.models
        await until(lambda: old not in served.service._repository._open)
        assert await first(served) == 2


async def test_the_client_for_triton_loads_and_unloads() -> None:
    pytest.importorskip("rapidjson", reason="tritonclient is not installed")
    script = """
import sys
import tritonclient.http as http
with http.InferenceServerClient(sys.argv[1]) as client:
    print([each["state"] for each in client.get_model_repository_index()])
    client.load_model("net")
    client.unload_model("net")
    print(client.is_model_ready("net"), [each["state"] for each in client.get_model_repository_index()])
    client.load_model("net")
    print(client.is_model_ready("net"))
    try:
        client.load_model("other")
    except http.InferenceServerException as error:
        print(error)
"""
    async with serve({"net": opens()}) as served:
        out = await program(sys.executable, "-c", script, f"127.0.0.1:{served.port}")
    lines = ["['READY']", "False ['UNAVAILABLE']", "True", "[404] there is no model 'other'"]
    assert out.decode().splitlines() == lines
