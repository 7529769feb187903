"""The service under 200 clients, some of whom hang up; its refusals; its end."""

import asyncio
import importlib.util
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

import actorflow as af
from tests.serve.serving import Answer, Client, Gate, until

SCRIPT = Path(__file__).parents[2] / "examples" / "service.py"
CLIENTS = 200

_spec = importlib.util.spec_from_file_location("service", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
service = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(service)


def gated_model(gate: Gate) -> Any:
    """The service's network behind a gate, which is open for the runs before it serves."""
    gate.open.set()
    graph = af.Graph("gated")
    images = graph.blob("images", ("batch", service.SIZE, service.SIZE, 1))
    held = graph.function("gate", gate, images.spec)(images)
    scores = service.network()(af.ops.scale(held, 1 / 255), training=False)
    return service.Model(graph, images, af.ops.softmax(scores))


@asynccontextmanager
async def serve(model: Any, queue_rows: int = 1024, timeout_s: float = 60.0) -> AsyncIterator[int]:
    """The service on a free port."""
    app = service.make_app(model, service.Limits(queue_rows, timeout_s))
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def classify(port: int, image: np.ndarray) -> Client:
    return await posted(port, json.dumps({"image": image.tolist()}).encode())


async def posted(port: int, body: bytes, content_type: str = "application/json") -> Client:
    client = await Client.open(port)
    client.send("/classify", body, {"Content-Type": content_type})
    return client


async def get(port: int, path: str) -> Answer:
    client = await Client.open(port)
    client.send(path)
    return await client.answer()


def told(answer: Answer) -> tuple[int, bytes]:
    return answer.status, answer.body


def images(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, service.SIZE, service.SIZE), dtype=np.uint8)


async def waiting(model: Any, count: int) -> None:
    """Wait until so many rows wait in the service's queue."""
    (batcher,) = model.graph.engine.batchers.values()
    await until(lambda: batcher.statistics().waiting_rows == count)


async def held(gate: Gate, port: int, pictures: np.ndarray) -> list[Client]:
    """Clients of whom each has a frame of its own, which is held back."""
    gate.open.clear()
    clients = []
    for i, image in enumerate(pictures):
        clients.append(await classify(port, image))
        await until(lambda i=i: gate.inside == i + 1)
    return clients


async def test_200_clients_of_whom_some_hang_up() -> None:
    gate = Gate()
    model = gated_model(gate)
    frames = model.graph.engine.frames
    batch = images(CLIENTS)
    leaving = set(range(10, CLIENTS, 7))
    async with serve(model) as port:
        clients = await held(gate, port, batch[:1])
        started = frames.started
        clients += await asyncio.gather(*(classify(port, image) for image in batch[1:]))
        await until(lambda: gate.inside == 2)  # one more frame, of those that came first
        (batcher,) = model.graph.engine.batchers.values()
        await until(lambda: batcher.statistics().waiting_rows + batcher.statistics().rows.total == CLIENTS)
        for i in leaving:
            await clients[i].hang_up()
        await until(lambda: batcher.statistics().cancelled == len(leaving))
        assert told(await get(port, "/ping")) == (200, b"pong\n")
        assert frames.cancelled == 0  # nobody else loses anything
        gate.open.set()
        staying = [i for i in range(CLIENTS) if i not in leaving]
        answers = await asyncio.gather(*(clients[i].answer() for i in staying))
        assert (frames.failed, frames.in_flight) == (0, 0)
        assert frames.started - started < 20
        expected = (await model.graph.run({model.images: batch.reshape(-1, 8, 8, 1)}))[model.probabilities]
        for i, answer in zip(staying, answers, strict=True):
            assert answer.status == 200
            np.testing.assert_allclose(answer.json["probabilities"], expected[i], rtol=1e-4, atol=1e-7)
        assert len({answer.body for answer in answers}) == len(staying)


async def test_who_hangs_up_in_the_queue_is_not_computed() -> None:
    gate = Gate()
    model = gated_model(gate)
    async with serve(model) as port:
        batch = images(5)
        clients = await held(gate, port, batch[:2])
        rows = gate.rows
        clients += [await classify(port, image) for image in batch[2:]]
        await waiting(model, 3)
        await clients[3].hang_up()
        await waiting(model, 2)
        gate.open.set()
        for i in (0, 1, 2, 4):
            assert (await clients[i].answer()).status == 200
        assert gate.rows - rows == 8  # two, in a frame for eight


async def test_who_comes_when_the_queue_is_full_is_sent_away() -> None:
    gate = Gate()
    model = gated_model(gate)
    async with serve(model, queue_rows=2) as port:
        batch = images(5)
        clients = await held(gate, port, batch[:2])
        clients += [await classify(port, image) for image in batch[2:4]]
        await waiting(model, 2)
        assert told(await (await classify(port, batch[4])).answer()) == (503, b"too busy, try again\n")
        gate.open.set()
        assert [(await client.answer()).status for client in clients] == [200] * 4


async def test_who_waits_too_long_is_sent_away() -> None:
    gate = Gate()
    model = gated_model(gate)
    async with serve(model, timeout_s=0.02) as port:
        gate.open.clear()
        clients = [await classify(port, image) for image in images(3)]
        answers = await asyncio.gather(*(client.answer() for client in clients))
        assert [*map(told, answers)] == [(503, b"too busy, try again\n")] * 3
        gate.open.set()
        await until(lambda: not model.graph.engine.frames.in_flight)


async def test_shutdown_cancels_what_runs() -> None:
    gate = Gate()
    model = gated_model(gate)
    async with serve(model) as port:
        clients = await held(gate, port, images(1))
        clients += await asyncio.gather(*(classify(port, image) for image in images(20)))
        await until(lambda: gate.inside == 2)
    for client in clients:
        with pytest.raises(asyncio.IncompleteReadError, match=r"^0 bytes read"):
            await client.answer()
    frames = model.graph.engine.frames
    assert (frames.cancelled, frames.in_flight) == (2, 0)


async def test_answers() -> None:
    model = service.make_model()
    (image,) = images(1)
    async with serve(model) as port:
        expected = (await model.graph.run({model.images: image.reshape(1, 8, 8, 1)}))[model.probabilities][0]
        in_json = await (await classify(port, image)).answer()
        raw = await posted(port, image.tobytes(), "application/octet-stream")
        assert in_json.json == {"probabilities": expected.tolist()}
        assert told(await raw.answer()) == told(in_json)
        assert np.isclose(expected.sum(), 1)
        health = await get(port, "/healthz")
        assert health.json == {"started": 6, "in_flight": 0, "finished": 6, "failed": 0, "cancelled": 0}
        page = await get(port, "/graph/")
        assert page.status == 200
        assert b"<!doctype html>" in page.body


@pytest.mark.slow
async def test_a_trained_service_recognizes_digits(digits_weights: Path) -> None:
    model = service.make_model()
    await af.load_weights(model.graph["digits"], digits_weights)
    test = af.data.digits().test
    async with serve(model) as port:
        pictures = (test.images[:100, :, :, 0] * 255).round().astype(np.uint8)
        clients = [await classify(port, image) for image in pictures]
        found = [np.argmax((await client.answer()).json["probabilities"]) for client in clients]
    assert np.count_nonzero(found == test.labels[:100]) >= 95


@pytest.mark.parametrize(
    ("body", "got"),
    [
        (b'{"image": [[1, 2]]}', b"shape (1, 2)"),
        (b'{"image": [["a"]]}', b"could not convert string"),
        (b'{"picture": []}', b"'image'"),
        (b"[1]", b"list indices"),
        (b"{", b"Expecting property name"),
        (b'{"image": [[1], [1, 2]]}', b"inhomogeneous"),
    ],
)
async def test_wrong_images_are_refused(body: bytes, got: bytes) -> None:
    async with serve(service.make_model()) as port:
        answer = await (await posted(port, body)).answer()
        assert answer.status == 400
        assert answer.body.startswith(b"expected an image of 8 x 8 grey values, got ")
        assert got in answer.body


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_program(number: signal.Signals, digits_weights: Path) -> None:
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-W", "error", SCRIPT, "--port", "0", "--weights", digits_weights]
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    port = int(line.rstrip("/\n").rpartition(":")[2])
    assert (await (await classify(port, images(1)[0])).answer()).status == 200
    process.send_signal(number)
    assert await process.communicate() == (b"", b"")
    assert process.returncode == 0
