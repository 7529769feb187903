"""Triton's generate extension: one row in JSON, steps that feed each other, and answers as they come."""

import asyncio
import json
import shutil
from typing import Any

import pytest
from aiohttp import ClientSession

import actorflow as af
from actorflow.serve import Limits, app, create_app
from tests.serve.serving import Client, Gate, serve, ten_times, until
from tests.serve.test_clients import program
from tests.serve.test_sequences import sums


def counting(gate: Any = None) -> af.Model:
    """Counts down from a number by a step, and adds up what it has seen."""
    graph = af.Graph("counting")
    n, by = graph.blob("n", ("batch",), "int64"), graph.blob("by", ("batch",), "int64")
    total = graph.state("total", ("batch",), "int64")
    following = n - (by if gate is None else graph.function("gate", gate, by.spec)(by))
    added = total + n
    total.assign(added)
    outputs = {"next": following, "total": added, "done": af.ops.less_equal(following, 0)}
    return af.Model(graph, {"n": n, "by": by}, outputs)


GIVEN: dict[str, Any] = {"feedback": {"n": "next"}, "until": "done", "limit": 50}


def events(body: bytes) -> list[Any]:
    *lines, last = body.split(b"\n\n")
    assert last == b""
    assert all(line.startswith(b"data: ") for line in lines)
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]


async def ask(served: Any, path: str, body: Any) -> Any:
    url = f"http://127.0.0.1:{served.port}/v2/models/{path}"
    async with ClientSession() as client, client.post(url, json=body) as response:
        return response.status, response.content_type, await response.read()


async def test_steps_feed_each_other_until_one_says_so_or_the_limit_is_reached() -> None:
    async with serve({"count": counting(), "ten": ten_times()}, **GIVEN) as served:
        status, kind, body = await ask(served, "count/generate", {"n": 5, "parameters": {"by": 2}})
        assert (status, kind) == (200, "application/json")
        about = {"model_name": "count", "model_version": "1"}
        assert json.loads(body) == about | {"next": [3, 1, -1], "total": [5, 8, 9], "done": [False, False, True]}
        status, kind, body = await ask(served, "count/versions/1/generate_stream", {"n": [5], "by": 2, "limit": 2})
        assert (status, kind) == (200, "text/event-stream")
        first = {"next": 3, "total": 5, "done": False}
        assert events(body) == [about | first, about | {"next": 1, "total": 8, "done": False}]
        assert len(events((await ask(served, "count/generate_stream", {"n": 99, "by": 1}))[2])) == 50
        for end in "generate", "generate_stream":  # a model that feeds nothing back has one answer
            status, _, body = await ask(served, f"ten/{end}", {"x": [1, 2, 3]})
            found = json.loads(body) if end == "generate" else events(body)[0]
            assert (status, found["y"]) == (200, [10, 20, 30])
        hosted = next(iter(served.service.models))
        assert hosted.answers[200] == 3
        assert hosted._batcher is not None
        assert hosted._batcher.statistics().sessions == 0
        assert "generate" in (await served.get("/v2")).json["extensions"]


async def test_callers_share_frames() -> None:
    async with serve({"count": counting()}, **GIVEN) as served:
        asked = [ask(served, "count/generate", {"n": n, "by": 1}) for n in range(1, 21)]
        for n, (status, _, body) in enumerate(await asyncio.gather(*asked), 1):
            total = json.loads(body)["total"]
            assert (status, total if n == 1 else total[-1]) == (200, n * (n + 1) // 2)
        (hosted,) = served.service.models
        assert hosted._batcher is not None
        assert hosted._batcher.statistics().frames < 150  # of 210 steps


@pytest.mark.parametrize("end", ["generate", "generate_stream"])
async def test_what_is_wrong_is_refused(end: str) -> None:
    async with serve({"count": counting(), "sums": sums(), "ten": ten_times()}, **GIVEN) as served:
        for name, body, why in (
            ("count", {"n": 1}, "needs input 'by'"),
            ("count", {"n": 1, "by": 1, "bye": 1}, "there is no input 'bye'; did you mean 'by'"),
            ("count", {"n": 1.5, "by": 1}, "input 'n': expected values for INT64"),
            ("count", {"n": "one", "by": 1}, "input 'n': expected values for INT64"),
            ("count", {"n": 1 << 70, "by": 1}, "input 'n': expected values for INT64"),
            ("count", {"n": [1, 2], "by": [1, 2]}, "expected one row"),
            ("count", {"n": [[1]], "by": 1}, "input 'n': expected shape"),
            ("count", {"n": 1, "by": 1, "limit": 0}, "a positive number of steps"),
            ("count", [1], "expected a JSON object"),
            ("count", {"parameters": 1}, "expected a JSON object"),
            ("sums", {"x": 1}, "nothing says what its steps feed each other"),
        ):
            status, _, answer = await ask(served, f"{name}/{end}", body)
            assert (status, why in json.loads(answer)["error"]) == (400, True), answer
    with pytest.raises(af.GraphError, match="no model has an input 'm'"):
        create_app({"count": counting()}, feedback={"m": "next"})
    with pytest.raises(af.GraphError, match="has no output 'nxt'; did you mean 'next'"):
        create_app({"count": counting()}, feedback={"n": "nxt"})


async def test_an_error_on_the_way_is_the_last_event() -> None:
    def fails(by: Any) -> Any:
        calls.append(1)
        if len(calls) > 2:
            raise ValueError("broken")
        return by

    calls: list[int] = []
    async with serve({"count": counting(fails)}, **GIVEN, page=False) as served:
        calls.clear()
        status, _, body = await ask(served, "count/generate_stream", {"n": 9, "by": 1})
        *steps, last = events(body)
        assert (status, len(steps) <= 2, "failed with ValueError: broken" in last["error"]) == (200, True, True)


async def test_a_client_that_hangs_up_frees_its_slot_one_step_later_at_most() -> None:
    gate = Gate()
    async with serve({"count": counting(gate)}, limits=Limits(sequences=1), **GIVEN | {"limit": 10**6}) as served:
        (hosted,) = served.service.models
        url = f"http://127.0.0.1:{served.port}/v2/models/count/generate_stream"
        async with ClientSession() as client:
            gate.open.set()
            response = await client.post(url, json={"n": 10_000, "by": 0})
            await response.content.readline()
            gate.open.clear()
            await until(lambda: gate.inside == 1)
            response.close()
            assert hosted._batcher is not None
            await until(lambda: gate.cancelled == 1 and hosted._batcher.statistics().sessions == 0)
        gate.open.set()
        assert (await ask(served, "count/generate", {"n": 1, "by": 1}))[0] == 200
        await until(lambda: served.service.in_flight == 0)


async def test_a_client_that_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the end of its time is told to it, which it does not read either."""
    graph = af.Graph("long")
    n = graph.blob("n", ("batch",), "int64")
    following = n + 1
    texts = af.ops.tile(af.ops.reshape(af.ops.cast(following, "float32"), (-1, 1)), (1, 1 << 16))
    model = af.Model(graph, {"n": n}, {"next": following, "long": texts})
    given: dict[str, Any] = {"feedback": {"n": "next"}, "limit": 10**6}
    async with serve({"long": model, "count": counting()}, **given) as served:
        hosted = next(iter(served.service.models))
        assert hosted._batcher is not None
        monkeypatch.setattr(app, "TAKING_TIMEOUT_S", 0.05)
        client = await Client.open(served.port)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send("/v2/models/long/generate_stream", b'{"n": 0}')
        await until(lambda: hosted._batcher.statistics().sessions == 1)
        await until(lambda: hosted._batcher.statistics().sessions == 0 and served.service.in_flight == 0)
        monkeypatch.undo()
        assert hosted._batcher.statistics().steps < 100
        assert (await ask(served, "long/generate", {"n": 0, "limit": 1}))[0] == 200
        await client.hang_up()


async def test_curl_shows_events_as_they_come() -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    async with serve({"count": counting()}, **GIVEN) as served:
        url = f"http://127.0.0.1:{served.port}/v2/models/count/generate_stream"
        out = await program(curl, "-sN", url, "-d", '{"n": 3, "by": 1}')
        assert [each["next"] for each in events(out)] == [2, 1, 0]
