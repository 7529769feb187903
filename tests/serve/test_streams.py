"""Requests of one caller over a WebSocket: each message a step, a slot until the connection ends."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType, WSServerHandshakeError

import actorflow as af
from actorflow.serve import Limits, app
from tests.serve.serving import GRACE_S, Gate, Served, mixed, serve, ten_times, tensor, until
from tests.serve.test_sequences import smooth, step, sums


@asynccontextmanager
async def stream(served: Served, path: str = "sums", **options: Any) -> AsyncIterator[ClientWebSocketResponse]:
    url = f"http://127.0.0.1:{served.port}/v2/models/{path}/stream"
    async with asyncio.timeout(GRACE_S), ClientSession() as client, client.ws_connect(url, **options) as socket:
        yield socket


def values(*numbers: float) -> bytes:
    return np.array(numbers, np.float32).tobytes()


async def say(socket: ClientWebSocketResponse, *messages: bytes | dict[str, Any]) -> list[Any]:
    """What is answered: an output's number, or an error's text."""
    found: list[Any] = []
    for message in messages:
        if isinstance(message, bytes):
            await socket.send_bytes(message)
        else:
            await socket.send_json(message)
        answer = await socket.receive()
        if answer.type == WSMsgType.BINARY:
            found.append(np.frombuffer(answer.data, np.float32).tolist())
            continue
        content = json.loads(answer.data)
        found.append(content["error"] if "error" in content else content["outputs"][0]["data"])
    return found


def sessions(served: Served) -> int:
    hosted = next(iter(served.service.models))
    assert hosted._batcher is not None
    return hosted._batcher.statistics().sessions


async def test_messages_are_steps_of_a_session_that_ends_with_the_connection() -> None:
    async with serve({"sums": sums()}) as served:
        async with stream(served) as one, stream(served, "sums/versions/1") as two:
            assert await say(one, values(1), step(2), values(3)) == [[101], [103], [106]]
            assert await say(two, values(1)) == [[101]]
            assert sessions(served) == 2
        await until(lambda: sessions(served) == 0)
        assert not served.service.sockets
        (hosted,) = served.service.models
        assert hosted.answers[200] == 4
        assert served.service.in_flight == 0


async def test_a_wrong_message_is_answered_and_the_state_stays() -> None:
    async with serve({"sums": sums(), "mixed": mixed()}) as served:
        async with stream(served) as socket:
            two_rows = {"inputs": [tensor("x", np.ones((2, 1), np.float32))]}
            found = await say(socket, values(1), values(1, 2), b"", {"inputs": 1}, two_rows, values(1))
            assert (found[0], found[-1]) == ([101], [102])
            reasons = ["expected 4 bytes of binary data"] * 2 + ["a list of objects as inputs", "has 1 row, got 2"]
            for error, why in zip(found[1:-1], reasons, strict=True):
                assert why in error
        async with stream(served, "mixed") as socket:
            assert "has 3 inputs: expected a text with JSON" in (await say(socket, b"abc"))[0]


async def test_models_without_state_and_with_open_axes() -> None:
    graph = af.Graph("lengths")
    words = graph.blob("words", ("batch", "time", 2))
    many = af.Graph("many")
    pixels = many.blob("x", ("batch", "height", "width"))
    models = {"ten": ten_times(), "lengths": af.Model(graph, {"words": words}, {"y": af.ops.sum(words, (1, 2))})}
    models["many"] = af.Model(many, {"x": pixels}, {"y": pixels * 2})
    async with serve(models) as served:
        async with stream(served, "ten") as socket:
            assert await say(socket, values(1, 2, 3)) == [[10, 20, 30]]
        async with stream(served, "lengths") as socket:
            assert await say(socket, values(1, 2), values(1, 2, 3, 4)) == [[3], [10]]
        async with stream(served, "many") as socket:
            assert "several open axes" in (await say(socket, values(1)))[0]


async def test_a_caller_that_hangs_up_in_a_step_frees_its_slot() -> None:
    gate = Gate()
    async with serve({"sums": sums(gate)}, limits=Limits(sequences=1)) as served:
        async with stream(served) as socket:
            await socket.send_bytes(values(1))
            await until(lambda: gate.inside == 1)
            with pytest.raises(WSServerHandshakeError) as full:
                async with stream(served):
                    pass
            assert full.value.status == 503
            assert socket._response.connection is not None
            socket._response.connection.transport.abort()  # type: ignore[union-attr]
            await until(lambda: gate.cancelled == 1 and sessions(served) == 0)
        gate.open.set()
        async with stream(served) as socket:
            assert await say(socket, values(5)) == [[105]]


async def test_a_caller_that_reads_nothing_holds_up_nobody_and_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = af.Graph("long")
    total = graph.state("total", ("batch", 1))
    following = total + graph.blob("x", ("batch", 1))
    total.assign(following)
    long = af.ops.concat([following] * 16, 1)
    for _ in range(4):
        long = af.ops.concat([long] * 16, 1)  # 4 MB, more than the system keeps for a client
    model = af.Model(graph, {"x": graph["x"]}, {"y": long})

    async def ask_and_read_nothing(slow: ClientWebSocketResponse) -> Any:
        assert slow._response.connection is not None
        transport: Any = slow._response.connection.transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        transport.pause_reading()
        for number in range(4):
            await slow.send_bytes(values(number))
        return transport

    async with serve({"sums": model}) as served, stream(served, max_msg_size=1 << 23) as other:
        async with stream(served) as slow:
            transport = await ask_and_read_nothing(slow)
            assert [(await say(other, values(1)))[0][-1] for _ in range(3)] == [1, 2, 3]
            assert sessions(served) == 2
            transport.abort()
            await until(lambda: sessions(served) == 1)
        monkeypatch.setattr(app, "TAKING_TIMEOUT_S", 0.01)
        async with stream(served) as slow:
            transport = await ask_and_read_nothing(slow)
            await until(lambda: sessions(served) == 1)
            transport.abort()
        monkeypatch.undo()
        assert (await say(other, values(1)))[0][-1] == 4


async def test_a_silent_caller_is_ended() -> None:
    async with serve({"sums": sums()}, limits=Limits(sequence_idle_s=0.05)) as served, stream(served) as socket:
        assert (await socket.receive()).type == WSMsgType.CLOSE
        assert socket.close_code == 1000
        await until(lambda: sessions(served) == 0)


async def test_streams_end_with_the_server_and_those_under_way_get_their_answer() -> None:
    gate = Gate()
    async with serve({"sums": sums(gate)}) as served, stream(served) as busy, stream(served) as idle:
        await busy.send_bytes(values(1))
        await until(lambda: gate.inside == 1)
        draining = asyncio.ensure_future(served.server.drain(GRACE_S))
        await until(lambda: served.service.draining)
        gate.open.set()
        assert await say(idle, values(1)) == ["the server is about to end"]
        assert (await idle.receive()).type == WSMsgType.CLOSE
        assert idle.close_code == 1001
        assert np.frombuffer((await busy.receive()).data, np.float32) == [101]
        assert await draining == 0
        closing = asyncio.ensure_future(served.server.aclose())
        assert (await busy.receive()).type == WSMsgType.CLOSE
        assert busy.close_code == 1001
        await closing


async def test_who_is_not_let_in_gets_no_stream() -> None:
    async with serve({"sums": sums()}, token="secret", limits=Limits(body_bytes=100)) as served:
        for headers, status in (({}, 401), ({"Authorization": "Bearer secret"}, 400)):
            answer = await served.get("/v2/models/sums/stream", **headers)
            assert answer.status == status
        with pytest.raises(WSServerHandshakeError) as unknown:
            async with stream(served, "none", headers={"Authorization": "Bearer secret"}):
                pass
        assert unknown.value.status == 404
        async with stream(served, headers={"Authorization": "Bearer secret"}) as socket:
            await socket.send_bytes(bytes(1000))
            assert (await socket.receive()).type == WSMsgType.CLOSE
            assert socket.close_code == 1009
        await until(lambda: sessions(served) == 0)


async def test_many_callers_share_frames_and_none_is_lost() -> None:
    async def call(served: Served, number: int) -> list[Any]:
        async with stream(served, "smooth") as socket:
            return await say(socket, *[values(number)] * 4)

    given = {"state": {"h": "hn"}, "fixed": {"rate": 8}}
    async with serve({"smooth": smooth()}, **given) as served:
        answers = await asyncio.gather(*[call(served, number) for number in range(40)])
        assert answers == [[[8 * n], [12 * n], [14 * n], [15 * n]] for n in range(40)]
        (hosted,) = served.service.models
        assert hosted._batcher is not None
        assert hosted._batcher.statistics().frames < 160
        await until(lambda: sessions(served) == 0)
