"""Commands through the page: who may give them, what they do, and the buttons in a real browser on a training."""

import asyncio
import errno
import itertools
import json
import logging
from collections.abc import Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest
from aiohttp import ClientSession, WSMsgType, web
from aiohttp.test_utils import TestServer

import actorflow as af
from actorflow import nn, ops
from actorflow.transport.local import LocalWorld
from actorflow.web import create_app, serve
from actorflow.web.http import Request
from actorflow.web.page import Page as ServedPage
from tests.web.browsing import Page
from tests.web.serving import by_aiohttp

LOOK, STEER = "only-look", "open-sesame"
BEARER = {"Authorization": f"Bearer {STEER}"}
COMMANDS = ["pause", "resume", "step", "cancel", "in_flight", "save", "check_finite", "call"]
WRONG = [
    ("pause", "[]", 400),
    ("pause", "{", 400),
    ("pause", "[" * 1000, 400),
    ("pause", '{"frames": 1}', 400),
    ("pause", " " * 2000, 413),
    ("step", '{"frames": 0}', 400),
    ("step", '{"frames": true}', 400),
    ("step", '{"frames": 1.0}', 400),
    ("step", '{"frames": "1"}', 400),
    ("step", '{"frames": 100000000000}', 400),
    ("cancel", '{"frame": -1}', 400),
    ("in_flight", "{}", 400),
    ("in_flight", '{"in_flight": 0}', 400),
    ("in_flight", '{"in_flight": 1025}', 400),
    ("in_flight", '{"in_flight": NaN}', 400),
    ("check_finite", '{"on": 1}', 400),
    ("check_finite", '{"pause": "true"}', 400),
    ("check_finite", '{"nan": true}', 400),
    ("call", '{"frame": -1}', 400),
]


async def command(client: Any, name: str, content: Any = None, **headers: str) -> Any:
    """A command of a program that knows the token, unless other headers are given."""
    return await client.request(
        "POST", f"/api/control/{name}", json={} if content is None else content, headers=headers or BEARER
    )


@asynccontextmanager
async def socket_of(client: Any) -> Any:
    """Messages on control to a client, as they come."""
    async with client.ws_connect("/stream", headers=BEARER) as socket:

        async def told(condition: Any) -> dict[str, Any]:
            while True:
                message = await socket.receive()
                assert message.type in {WSMsgType.TEXT, WSMsgType.BINARY}
                if message.type is WSMsgType.TEXT:
                    content = json.loads(message.data)
                    if content["type"] == "control" and condition(content):
                        return dict(content)

        yield told


class TestWhoMay:
    async def test_nobody_where_it_is_not_offered(self, served, training) -> None:
        async with served(training.graph, token=STEER) as client:
            for name in COMMANDS:
                assert (await command(client, name)).status == 404
            content = await (await client.get("/api/control", headers=BEARER)).json()
            assert (content["offered"], content["allowed"]) == (False, False)
        assert training.graph.paused is None

    async def test_only_who_shows_the_token(self, served, training) -> None:
        async with served(training.graph, control=True, token=LOOK, control_token=STEER) as client:
            refused = (
                ({}, 401),
                ({"Authorization": "Bearer wrong"}, 401),
                ({"Authorization": STEER}, 401),
                ({"Authorization": f"Basic {STEER}"}, 401),
                ({"Authorization": f"Bearer {LOOK}"}, 403),
                ({**BEARER, "Origin": "http://evil.example"}, 403),
                ({**BEARER, "Origin": f"http://localhost:{client.port + 1}"}, 403),
                ({**BEARER, "Origin": "null"}, 403),
                ({**BEARER, "Host": "evil.example"}, 403),
            )
            for name, (headers, status) in itertools.product(COMMANDS, refused):
                response = await client.request("POST", f"/api/control/{name}", json={}, headers=headers)
                assert response.status == status, headers
                assert (await response.text()).startswith(f"{status}: ")
            for name, method in itertools.product(COMMANDS, ("GET", "HEAD", "PUT", "DELETE")):
                response = await client.request(method, f"/api/control/{name}", headers=BEARER)
                assert (response.status, response.headers["Allow"]) == (405, "POST")
        assert training.graph.paused is None

    async def test_one_token_is_for_both(self, served, training) -> None:
        async with served(training.graph, control=True, token=STEER) as client:
            assert (await client.get("/api/control")).status == 401
            assert (await (await client.get("/api/control", headers=BEARER)).json())["allowed"]
            assert (await command(client, "pause")).status == 200

    async def test_all_may_look_where_there_is_only_a_token_for_control(self, served, training) -> None:
        async with served(training.graph, control=True, control_token=STEER) as client:
            for path in ("/", "/api/graph", "/?token=wrong"):
                assert (await client.get(path)).status == 200
            assert not (await (await client.get("/api/control")).json())["allowed"]
            assert (await client.request("POST", "/api/control/pause", json={})).status == 401
            assert (await command(client, "pause")).status == 200

    async def test_a_cookie_commands_nothing(self, served, training) -> None:
        """Browsers send it unasked: to this server for pages of others, and to others of the same host."""
        async with served(training.graph, control=True, token=LOOK, control_token=STEER) as client:
            origin = {"Origin": f"http://127.0.0.1:{client.port}"}
            for token in (LOOK, STEER):
                assert (await client.get(f"/?token={token}")).status == 200
                for name in COMMANDS:
                    response = await command(client, name, **origin)
                    assert (response.status, "Authorization: Bearer" in await response.text()) == (401, True)
                    response = await client.request("POST", f"/api/control/{name}?token={token}", json={})
                    assert response.status == 401, "nor does an address, which others may be made to open"
            assert training.graph.paused is None
            assert (await command(client, "pause", **origin, **BEARER)).status == 200

    async def test_what_a_form_can_send_is_refused(self, served, training) -> None:
        async with served(training.graph, control=True, token=STEER) as client:
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
                headers = {**BEARER, "Content-Type": kind}
                response = await client.request("POST", "/api/control/pause", data=b"{}", headers=headers)
                assert response.status == 415
        assert training.graph.paused is None

    async def test_there_is_no_control_without_a_token(self, training) -> None:
        for make in (create_app, af.web.asgi):
            with pytest.raises(ValueError, match="control=True needs token="):
                make(training.graph, control=True)
            with pytest.raises(ValueError, match="are for control=True"):
                make(training.graph, token="x", control_token="y")
            with pytest.raises(ValueError, match="must not be empty"):
                make(training.graph, control=True, control_token="")
            with pytest.raises(TypeError, match=r"expected checkpoints= to be a folder, .* or a Trainer, got Graph"):
                make(training.graph, control=True, token="x", checkpoints=training.graph)

    async def test_serve_makes_one_up(self, training) -> None:
        async with serve(training.graph, port=0, control=True) as view:
            assert view.token is not None
            assert len(view.token) >= 24
            assert view.url.endswith(f"?token={view.token}")
        async with serve(training.graph, port=0, control=True, control_token="a&b") as view:
            assert view.token is None
            assert view.url.endswith("?token=a%26b")


class TestCommands:
    async def test_pause_step_resume(self, served, gated, caplog) -> None:
        gated.release.set()
        await gated.start()
        async with served(gated.graph, control=True, token=STEER) as client, socket_of(client) as told:
            with caplog.at_level(logging.WARNING, "actorflow"):
                content = await (await command(client, "pause")).json()
            assert (content["done"], content["paused"]["reason"]) == ("paused", "from the page, by 127.0.0.1")
            assert "graph 'gated': paused from the live page, by 127.0.0.1" in caplog.text
            message = await told(lambda message: message["paused"])
            assert message["command"]["text"] == "paused"
            assert message["command"]["by"] == "127.0.0.1"
            runs = [gated.start() for _ in range(3)]
            await told(lambda message: message["paused"]["waiting"] == 3)
            assert (await command(client, "step", {"frames": 2})).status == 200
            await asyncio.gather(*runs[:2])
            assert gated.graph.engine.frames.started == 3
            assert not runs[2].done()
            await command(client, "resume")
            await runs[2]
            assert (await told(lambda message: not message["paused"]))["command"]["text"] == "resumed"
            response = await command(client, "step")
            assert (response.status, await response.text()) == (
                409,
                "409: graph 'gated' cannot be stepped: it is not paused\n",
            )

    async def test_cancel(self, served, gated) -> None:
        runs = [gated.start() for _ in range(3)]
        await gated.entered.wait()
        async with served(gated.graph, control=True, token=STEER) as client:
            while (content := await (await client.get("/api/control", headers=BEARER)).json())["frames"] != [0, 1, 2]:
                pass
            assert content["paused"] is None
            content = await (await command(client, "cancel", {"frame": 1})).json()
            assert content["cancelled"] == [1]
            with pytest.raises(af.RunCancelledError, match=r"was cancelled from the page, by 127\.0\.0\.1"):
                await runs[1]
            response = await command(client, "cancel", {"frame": 1})
            assert response.status == 409
            assert "frame 1 of graph 'gated' is not in flight; in flight: 0, 2" in await response.text()
            assert (await (await command(client, "cancel")).json())["done"] == "cancelled 2 frames"
            results = await asyncio.gather(*runs, return_exceptions=True)
            assert {type(result) for result in results} == {af.RunCancelledError}

    async def test_how_many_frames_of_a_stream_overlap(self, served, gated) -> None:
        feeds = [{gated.x: np.zeros((4, 4), "float32")}] * 20
        async with served(gated.graph, control=True, token=STEER) as client, socket_of(client) as told:
            response = await command(client, "in_flight", {"in_flight": 3})
            assert (response.status, await response.text()) == (409, "409: no stream was named; running: none\n")
            async with aclosing(gated.graph.stream(feeds)) as stream:
                first = asyncio.ensure_future(anext(stream))
                await told(lambda message: message["streams"] == [{"stream": 0, "in_flight": 1}])
                assert (await command(client, "in_flight", {"in_flight": 3})).status == 200
                await told(lambda message: message["streams"] == [{"stream": 0, "in_flight": 3}])
                while gated.graph.engine.frames.in_flight < 3:
                    await asyncio.sleep(0)
                async with aclosing(gated.graph.stream(feeds)) as other:
                    second = asyncio.ensure_future(anext(other))
                    await told(lambda message: len(message["streams"]) == 2)
                    assert (await command(client, "in_flight", {"in_flight": 2})).status == 409
                    assert (await command(client, "in_flight", {"in_flight": 2, "stream": 7})).status == 409
                    assert (await command(client, "in_flight", {"in_flight": 2, "stream": 1})).status == 200
                    assert (stream.in_flight, other.in_flight) == (3, 2)
                    gated.release.set()
                    await asyncio.gather(first, second)

    async def test_wrong_arguments(self, served, training) -> None:
        async with served(training.graph, control=True, token=STEER) as client:
            headers = {**BEARER, "Content-Type": "application/json"}
            for name, body, status in WRONG:
                response = await client.request("POST", f"/api/control/{name}", data=body, headers=headers)
                assert response.status == status, (name, body)
                assert (await response.text()).startswith(f"{status}: expected ")
            for name, known in {"pause": "", "step": " but frames", "in_flight": " but in_flight and stream"}.items():
                response = await command(client, name, {"count": 1})
                assert await response.text() == f"400: expected no argument{known}, got 'count'\n"
        assert training.graph.paused is None

    async def test_half_a_command_is_none(self, gated) -> None:
        """Of what was to cancel one frame nothing came, which would mean all of them."""
        app = af.web.asgi(gated.graph, control=True, token=STEER)
        run = gated.start()
        await gated.entered.wait()
        headers = {"host": "localhost", "content-type": "application/json", "content-length": "12"} | BEARER
        for came in ([], [b""], [b'{"fr']):
            messages = [{"type": "http.request", "body": body, "more_body": True} for body in came]
            messages.append({"type": "http.disconnect"})
            sent: list[Any] = []
            scope = {
                "type": "http",
                "method": "POST",
                "path": "/api/control/cancel",
                "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
                "server": ("127.0.0.1", 80),
            }

            async def receive(messages: list[Any] = messages) -> Any:
                return messages.pop(0)

            async def send(message: Any, sent: list[Any] = sent) -> None:
                sent.append(message)

            await app(scope, receive, send)
            assert sent[0]["status"] == 400
        gated.release.set()
        await run
        assert gated.graph.engine.frames.cancelled == 0

    async def test_a_client_that_leaves_within_its_command_is_no_failure(self, gated, caplog, monkeypatch) -> None:
        reading, answered = asyncio.Event(), asyncio.Event()
        body, respond = Request.body, ServedPage.respond

        async def watched_body(request: Request) -> bytes:
            reading.set()
            return await body(request)

        async def watched_respond(page: ServedPage, request: Request) -> Any:
            try:
                return await respond(page, request)
            finally:
                answered.set()

        monkeypatch.setattr(Request, "body", watched_body)
        monkeypatch.setattr(ServedPage, "respond", watched_respond)
        async with by_aiohttp(gated.graph, control=True, token=STEER) as client:
            _, writer = await asyncio.open_connection("127.0.0.1", client.port)
            lines = [
                "POST /api/control/pause HTTP/1.1",
                f"Host: localhost:{client.port}",
                f"Authorization: Bearer {STEER}",
            ]
            lines += ["Content-Type: application/json", "Content-Length: 12", "", "{"]
            writer.write("\r\n".join(lines).encode())
            await writer.drain()
            await reading.wait()
            writer.close()
            await answered.wait()
        assert gated.graph.paused is None
        assert not caplog.records

    async def test_a_checkpoint_in_a_folder(self, served, training, tmp_path) -> None:
        for _ in range(3):
            await training.run()
        values = {variable.name: variable.value for variable in training.graph.variables}
        async with served(training.graph, control=True, token=STEER, checkpoints=tmp_path / "saved") as client:
            content = await (await command(client, "save")).json()
        assert Path(content["path"]).name == "checkpoint-0000000003.safetensors"
        assert content["done"] == "saved checkpoint-0000000003.safetensors"
        await training.run()
        await af.load_checkpoint(training.graph, content["path"])
        for variable in training.graph.variables:
            np.testing.assert_array_equal(variable.value, values[variable.name])
        assert training.graph.engine.next_number == 3

    async def test_a_checkpoint_that_cannot_be_saved(self, served, training, tmp_path) -> None:
        async with served(training.graph, control=True, token=STEER) as client:
            response = await command(client, "save")
            assert (response.status, await response.text()) == (
                409,
                "409: there is nowhere to save to: give the page checkpoints=\n",
            )
        (tmp_path / "file").write_text("no folder")
        async with served(training.graph, control=True, token=STEER, checkpoints=tmp_path / "file") as client:
            response = await command(client, "save")
            assert response.status == 409
            assert "the folder cannot be used" in await response.text()
        full = SimpleNamespace(save=AsyncMock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        async with served(training.graph, control=True, token=STEER, checkpoints=full) as client:
            response = await command(client, "save")
            assert (response.status, "No space left" in await response.text()) == (409, True)

    async def test_ranks_save_together_or_not_at_all(self, served, tmp_path) -> None:
        first, second = LocalWorld(2).transports
        graph = af.Graph("ranks", world=first)
        loss = ops.softmax_loss(nn.MLP(3, hidden=(6,))(graph.blob("x", (8, 5))), graph.blob("labels", (8,), "int64"))
        folder = af.Checkpoints(graph, tmp_path)
        trainer = nn.Trainer(loss, nn.SGD(0.1).minimize(loss), checkpoints=folder)
        for checkpoints in (folder, trainer):
            async with served(graph, control=True, token=STEER, checkpoints=checkpoints) as client:
                response = await command(client, "save")
                assert response.status == 409
                assert "must save the same steps" in await response.text()
        for transport in (first, second):
            transport.close()

    async def test_one_who_only_watches_sees_who_has_paused_it(self, served, training) -> None:
        async with served(training.graph, token=STEER) as client, socket_of(client) as told:
            training.graph.pause("for the night")
            message = await told(lambda message: message["paused"])
            assert (message["paused"]["reason"], message["command"]) == ("for the night", None)
            training.graph.resume()
            await told(lambda message: not message["paused"])


@pytest.fixture
async def lesson(tmp_path: Path) -> Any:
    """A training without end, a step of which takes some milliseconds, that its page can save."""
    graph = af.Graph("lesson")
    x, labels = graph.blob("x", (8, 5)), graph.blob("labels", (8,), "int64")
    loss = ops.softmax_loss(nn.MLP(3, hidden=(6,))(x), labels)
    checkpoints = af.Checkpoints(graph, tmp_path / "lesson")
    trainer = nn.Trainer(loss, nn.SGD(0.1).minimize(loss), checkpoints=checkpoints)
    random = np.random.default_rng(0)

    async def feeds() -> Any:
        while True:
            await asyncio.sleep(0.002)
            yield {x: random.standard_normal((8, 5)).astype("float32"), labels: random.integers(0, 3, 8)}

    async def train() -> None:
        async with aclosing(trainer.steps(feeds())) as steps:
            async for _ in steps:
                pass

    async with graph:
        task = asyncio.create_task(train())
        yield SimpleNamespace(graph=graph, trainer=trainer, task=task, checkpoints=checkpoints)
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.browser
@pytest.mark.slow
class TestPage:
    async def test_a_training_is_held_stepped_and_let_go(self, lesson, page_of) -> None:
        async with page_of(lesson.graph, control=True) as page:
            await page.until("actorflow.control.allowed && actorflow.frames.finished > 0")
            await page.page.click("#pause")
            await page.until("actorflow.control.paused?.waiting === 1 && actorflow.frames.inFlight === 0")
            await page.page.locator("#pause").get_by_text("Resume").wait_for()
            await page.page.locator("#control-note").get_by_text("Paused from the page, by 127.0.0.1").wait_for()
            await page.page.locator("#held").get_by_text("paused from the page").wait_for()
            started = lesson.graph.engine.frames.started
            for steps in (1, 2):
                await page.page.click("#step")
                await page.until(f"actorflow.frames.finished === {started + steps}")
                await page.until("actorflow.control.paused.waiting === 1")
            assert lesson.graph.engine.frames.started == started + 2
            await page.page.keyboard.press("n")
            await page.until(f"actorflow.frames.finished === {started + 3}")
            await page.page.focus("#graph")
            await page.page.keyboard.press("Space")
            await page.until(f"actorflow.frames.finished > {started + 3} && !actorflow.control.paused")
            await page.page.locator("#pause").get_by_text("Pause").wait_for()
            await page.page.locator("#step:disabled").wait_for()

    async def test_frames_in_flight_are_cancelled_when_that_is_confirmed(self, gated, page_of) -> None:
        runs = [gated.start() for _ in range(3)]
        async with page_of(gated.graph, control=True, alone=True) as page:
            await page.until("actorflow.control.allowed && actorflow.frames.inFlight === 3")
            await page.page.route("**/api/control", lambda route: route.fulfill(body="of a proxy, say"))
            await page.page.click("#cancel")
            await page.until("document.getElementById('control-note').textContent === 'The server cannot be reached'")
            assert not await page.page.evaluate("document.getElementById('cancel-dialog').open")
            await page.page.unroute("**/api/control")
            await page.page.click("#cancel")
            await page.page.click("#cancel-dialog button:has-text('Keep')")
            assert gated.graph.engine.frames.in_flight == 3
            await page.page.keyboard.press("x")
            await page.until("document.getElementById('cancel-dialog').open")
            await page.page.select_option("#cancel-frame", label="Frame 1")
            await page.page.click("#cancel-yes")
            await page.until("actorflow.frames.cancelled === 1")
            with pytest.raises(af.RunCancelledError):
                await runs[1]
            await page.page.click("#cancel")
            await page.until("document.getElementById('cancel-dialog').open")
            await page.page.click("#cancel-yes")
            await page.until("actorflow.frames.cancelled === 3 && actorflow.frames.inFlight === 0")
            await page.page.locator("#control-note").get_by_text("Cancelled 2 frames").wait_for()
            await asyncio.wait(runs)

    async def test_the_dialog_follows_the_frames_in_flight(self, gated, page_of) -> None:
        async with page_of(gated.graph, control=True) as page:
            first = gated.start()
            await page.until("actorflow.control.allowed && actorflow.frames.inFlight === 1")
            await page.page.click("#cancel")
            await page.page.select_option("#cancel-frame", label="Frame 0")
            gated.release.set()
            await first
            await page.until("document.getElementById('cancel-frame').selectedOptions[0].text === 'Frame 0 has ended'")
            assert await page.page.is_disabled("#cancel-yes")
            gated.release.clear()
            second = gated.start()
            await page.until("[...document.getElementById('cancel-frame').options].some((o) => o.text === 'Frame 1')")
            await page.page.select_option("#cancel-frame", label="Frame 1")
            await page.until("!document.getElementById('cancel-yes').disabled")
            await page.page.click("#cancel-yes")
            with pytest.raises(af.RunCancelledError):
                await second

    async def test_a_stream_can_be_stopped(self, training, page_of) -> None:
        asked = 0

        def feeds() -> Iterator[dict[str, Any]]:
            nonlocal asked
            while True:
                asked += 1
                yield {"x": np.ones((4, 4), "float32")}

        async with page_of(training.graph, control=True) as page:
            stream = training.graph.stream(feeds(), in_flight=2)
            await anext(stream)
            await page.until("actorflow.control.allowed && actorflow.control.streams?.length === 1")
            await page.page.get_by_role("button", name="Stop stream 0").click()
            await page.page.click("#stop-dialog button:has-text('Go on')")
            await anext(stream)
            await page.page.get_by_role("button", name="Stop stream 0").click()
            await page.page.click("#stop-dialog button:has-text('Stop stream')")
            await page.until("document.getElementById('control-note').textContent.startsWith('Stopped stream 0')")
            left = [result async for result in stream]
            assert 2 + len(left) == asked == training.graph.engine.frames.finished, "each feed got its frame"
            await page.until("actorflow.control.streams.length === 0")

    async def test_a_stream_that_waits_in_a_paused_graph_ends_when_it_is_stopped(self, training) -> None:
        stream = training.graph.stream([{"x": np.ones((4, 4), "float32")}] * 9, in_flight=1)
        await anext(stream)
        training.graph.pause()
        rest = asyncio.ensure_future(anext(stream, None))
        while training.graph.paused.waiting < 1:
            await asyncio.sleep(0)
        stream.finish()
        training.graph.resume()
        while await rest is not None:
            rest = asyncio.ensure_future(anext(stream, None))
        assert training.graph.engine.frames.started <= 2
        assert not stream.is_running
        stream.finish()

    async def test_the_frames_of_a_stream(self, lesson, page_of) -> None:
        async with page_of(lesson.graph, control=True) as page:
            await page.until("actorflow.control.allowed && actorflow.control.streams?.length === 1")
            box = page.page.locator("#streams input")
            assert await box.input_value() == "2"
            await box.fill("5")
            await box.press("Enter")
            await page.until("actorflow.control.streams[0].in_flight === 5")
            assert lesson.graph.streams[0].in_flight == 5
            await box.fill("0")
            await box.press("Enter")
            await page.page.locator("#control-note").get_by_text("Expected a whole number").wait_for()
            assert lesson.graph.streams[0].in_flight == 5
            lesson.graph.streams[0].in_flight = 3
            await page.until("document.querySelector('#streams input').value === '3'")

    async def test_a_checkpoint_of_a_training(self, lesson, page_of) -> None:
        async with page_of(lesson.graph, control=True, checkpoints=lesson.trainer) as page:
            await page.until("actorflow.control.allowed && actorflow.frames.finished > 2")
            await page.page.click("#pause")
            await page.until("actorflow.control.paused?.waiting === 1 && actorflow.frames.inFlight === 0")
            await page.page.click("#step")  # a feed may have been taken before the pause: its step is begun by now
            await page.until("actorflow.control.paused.steps === 0 && actorflow.control.paused.waiting === 1")
            await page.page.click("#save")
            await page.until("document.getElementById('control-note').textContent.includes('Saved checkpoint-')")
        (step,) = lesson.checkpoints.steps()
        assert step == lesson.graph.engine.next_number

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    async def test_on_a_phone_everything_is_in_reach(self, lesson, page_of, scheme) -> None:
        async with page_of(
            lesson.graph,
            control=True,
            checkpoints=lesson.trainer,
            viewport={"width": 375, "height": 700},
            has_touch=True,
            color_scheme=scheme,
        ) as page:
            await page.until("actorflow.control.allowed && actorflow.control.streams?.length === 1")
            await page.page.tap("#pause")
            await page.until("actorflow.control.paused")
            assert await page.look("document.documentElement.scrollWidth <= innerWidth")
            for name in ("pause", "step", "cancel", "save"):
                box = await page.page.locator(f"#{name}").bounding_box()
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= 375
                assert box["height"] >= 30

    async def test_who_may_only_look_sees_no_button(self, lesson, new_page) -> None:
        async with serve(lesson.graph, port=0, control=True, token=LOOK, control_token=STEER) as view:
            page = await new_page()
            await page.open(view.url.replace(STEER, LOOK))
            assert await page.page.is_hidden("#control")
            await page.page.keyboard.press("Space")
            lesson.graph.pause("for <b>lunch</b>")
            await page.until("!document.getElementById('control').hidden")
            assert await page.page.is_hidden("#pause")
            assert await page.page.is_hidden("#save")
            await page.page.locator("#control-note").get_by_text("Paused for <b>lunch</b>").wait_for()
            await page.page.keyboard.press("Space")
            assert lesson.graph.paused is not None
            lesson.graph.resume()
            await page.until("document.getElementById('control').hidden")

    async def test_two_pages_see_what_either_does(self, lesson, new_page) -> None:
        async with serve(lesson.graph, port=0, control=True) as view:
            first, second = await new_page(), await new_page()
            await first.open(view.url)
            await second.open(view.url)
            await first.until("actorflow.control.allowed")
            await second.until("actorflow.control.allowed")
            await first.page.click("#pause")
            await second.until("actorflow.control.paused")
            await second.page.click("#pause")
            await first.until("actorflow.control.command?.text === 'resumed'")
            await first.until("document.getElementById('control-note').textContent === 'Resumed by 127.0.0.1'")

    async def test_two_pages_on_one_host_keep_to_themselves(self, training, make_training_graph, new_page) -> None:
        """And to what else is served there: cookies go to every port of a host."""
        stolen: list[str] = []

        async def look_at_cookies(request: web.Request) -> web.Response:
            stolen.append(request.headers.get("Cookie", ""))
            return web.Response(text="<!doctype html><title>elsewhere</title>", content_type="text/html")

        other, _, _ = make_training_graph("other")
        foreign = web.Application()
        foreign.router.add_get("/{path:.*}", look_at_cookies)  # browsers ask for an icon, too
        async with (
            other,
            serve(training.graph, port=0, control=True) as view,
            serve(other, port=0, control=True, token=LOOK, control_token=STEER) as second,
            TestServer(foreign) as thief,
        ):
            page = await new_page()
            beside = Page(await page.page.context.new_page())
            await page.open(f"{view.url}&kept=1#colour=time")
            await beside.open(second.url)
            for tab, shown in ((page, "/?kept=1"), (beside, "/")):
                await tab.until("actorflow.control.allowed")
                assert await tab.look("location.pathname + location.search") == shown
            assert await page.look("document.getElementById('colour').value") == "time"
            await page.page.click("#pause")
            await page.until("actorflow.control.paused")
            assert (training.graph.paused is None, other.paused is None) == (False, True)
            await beside.page.click("#pause")
            await beside.until("actorflow.control.paused")
            await page.page.reload()
            await page.until("actorflow.control.allowed && actorflow.control.paused")
            await page.page.click("#pause")
            await page.until("!actorflow.control.paused")
            assert (training.graph.paused is None, other.paused is None) == (True, False)

            opened = Page(await page.page.context.new_page())  # without a token
            await opened.open(f"http://{view.host}:{view.port}/")
            assert not await opened.look("actorflow.control.allowed")
            await opened.page.goto(str(thief.make_url("/")))
            assert [f"actorflow-{each.port}=" in stolen[0] for each in (view, second)] == [True, True]
            for each in (view, second):
                assert not [token for token in (view.token, LOOK, STEER) if token in stolen[0]]
                address = f"http://{each.host}:{each.port}"
                headers = {"Cookie": stolen[0], "Origin": address, "Content-Type": "application/json"}
                async with ClientSession() as session:
                    for name in COMMANDS:
                        async with session.post(f"{address}/api/control/{name}", headers=headers, data="{}") as reply:
                            assert reply.status == 401
            assert not beside.complaints + opened.complaints
            for tab in (beside, opened):
                await tab.page.close()
