"""The service under 200 clients, some of whom hang up; its refusals; its end."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from aiohttp import web

import actorflow as af

SCRIPT = Path(__file__).parents[2] / "examples" / "service.py"
CLIENTS = 200

_spec = importlib.util.spec_from_file_location("service", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
service = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(service)


class Gate:
    """An async function that holds its frames back while it is closed, and tells when as many as wanted are there."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.inside = 0
        self.rows = 0
        self._wanted: tuple[int, asyncio.Event] | None = None

    async def __call__(self, image: np.ndarray) -> np.ndarray:
        self._count(1)
        self.rows += len(image)
        try:
            await self.open.wait()
        finally:
            self._count(-1)
        return image

    async def holds(self, count: int) -> None:
        """Wait until so many frames are held back."""
        if self.inside != count:
            self._wanted = count, asyncio.Event()
            await self._wanted[1].wait()

    def _count(self, change: int) -> None:
        self.inside += change
        if self._wanted is not None and self.inside == self._wanted[0]:
            self._wanted[1].set()


def gated_model(gate: Gate) -> Any:
    """The service's network behind a gate."""
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


class Client:
    """One connection with one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def ask(
        cls, port: int, path: str, body: bytes | None = None, content_type: str = "application/json"
    ) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = [
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            "Connection: close",
            f"Content-Type: {content_type}",
            f"Content-Length: {len(body or b'')}",
        ]
        writer.write("\r\n".join([*head, "", ""]).encode() + (body or b""))
        return cls(reader, writer)

    async def answer(self) -> Answer:
        head, _, body = (await self._reader.read()).partition(b"\r\n\r\n")
        self._writer.close()
        await self._writer.wait_closed()
        return Answer(int(head.split()[1]) if head else None, body)

    async def hang_up(self) -> None:
        self._writer.transport.abort()
        await self._writer.wait_closed()


class Answer(NamedTuple):
    status: int | None
    body: bytes


async def get(port: int, path: str) -> Answer:
    return await (await Client.ask(port, path)).answer()


async def classify(port: int, image: np.ndarray) -> Client:
    return await Client.ask(port, "/classify", json.dumps({"image": image.tolist()}).encode())


def images(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, service.SIZE, service.SIZE), dtype=np.uint8)


async def waiting(model: Any, count: int) -> None:
    """Wait until so many rows wait in the service's queue."""
    (batcher,) = model.graph.engine.batchers.values()
    while batcher.statistics().waiting_rows != count:
        await asyncio.sleep(0)


async def test_200_clients_of_whom_some_hang_up() -> None:
    gate = Gate()
    model = gated_model(gate)
    frames = model.graph.engine.frames
    batch = images(CLIENTS)
    leaving = set(range(10, CLIENTS, 7))
    async with serve(model) as port:
        gate.open.clear()
        first = await classify(port, batch[0])
        await gate.holds(1)
        started = frames.started
        others = await asyncio.gather(*(classify(port, image) for image in batch[1:]))
        await gate.holds(2)  # one more frame, of those that came first
        (batcher,) = model.graph.engine.batchers.values()
        while batcher.statistics().waiting_rows + batcher.statistics().rows.total < CLIENTS:
            await asyncio.sleep(0)
        clients = [first, *others]
        for i in leaving:
            await clients[i].hang_up()
        while batcher.statistics().cancelled < len(leaving):
            await asyncio.sleep(0)
        assert (await get(port, "/ping")) == (200, b"pong\n")
        assert frames.cancelled == 0  # nobody else loses anything
        gate.open.set()
        staying = [i for i in range(CLIENTS) if i not in leaving]
        answers = await asyncio.gather(*(clients[i].answer() for i in staying))
        assert (frames.failed, frames.in_flight) == (0, 0)
        assert frames.started - started < 20
        expected = (await model.graph.run({model.images: batch.reshape(-1, 8, 8, 1)}))[model.probabilities]
        for i, answer in zip(staying, answers, strict=True):
            assert answer.status == 200
            np.testing.assert_allclose(json.loads(answer.body)["probabilities"], expected[i], rtol=1e-4, atol=1e-7)
        assert len({answer.body for answer in answers}) == len(staying)


async def test_who_hangs_up_in_the_queue_is_not_computed() -> None:
    gate = Gate()
    model = gated_model(gate)
    async with serve(model) as port:
        gate.open.clear()
        batch = images(5)
        clients = []
        for i in range(2):
            clients.append(await classify(port, batch[i]))
            await gate.holds(i + 1)
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
        gate.open.clear()
        batch = images(5)
        clients = []
        for i in range(2):
            clients.append(await classify(port, batch[i]))
            await gate.holds(i + 1)
        clients += [await classify(port, image) for image in batch[2:4]]
        await waiting(model, 2)
        assert await (await classify(port, batch[4])).answer() == (503, b"too busy, try again\n")
        gate.open.set()
        assert [(await client.answer()).status for client in clients] == [200] * 4


async def test_who_waits_too_long_is_sent_away() -> None:
    gate = Gate()
    model = gated_model(gate)
    async with serve(model, timeout_s=0.02) as port:
        gate.open.clear()
        clients = [await classify(port, image) for image in images(3)]
        answers = await asyncio.gather(*(client.answer() for client in clients))
        assert answers == [(503, b"too busy, try again\n")] * 3
        gate.open.set()
        while model.graph.engine.frames.in_flight:
            await asyncio.sleep(0)


async def test_shutdown_cancels_what_runs() -> None:
    gate = Gate()
    model = gated_model(gate)
    async with serve(model) as port:
        gate.open.clear()
        clients = [await classify(port, images(1)[0])]
        await gate.holds(1)
        clients += await asyncio.gather(*(classify(port, image) for image in images(20)))
        await gate.holds(2)
    assert [await client.answer() for client in clients] == [(None, b"")] * 21
    frames = model.graph.engine.frames
    assert (frames.cancelled, frames.in_flight) == (2, 0)


async def test_answers() -> None:
    model = service.make_model()
    (image,) = images(1)
    async with serve(model) as port:
        expected = (await model.graph.run({model.images: image.reshape(1, 8, 8, 1)}))[model.probabilities][0]
        in_json = await (await classify(port, image)).answer()
        raw = await Client.ask(port, "/classify", image.tobytes(), "application/octet-stream")
        assert json.loads(in_json.body) == {"probabilities": expected.tolist()}
        assert await raw.answer() == in_json
        assert np.isclose(expected.sum(), 1)
        assert await get(port, "/ping") == (200, b"pong\n")
        health = await get(port, "/healthz")
        assert json.loads(health.body) == {"started": 6, "in_flight": 0, "finished": 6, "failed": 0, "cancelled": 0}
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
        found = [np.argmax(json.loads((await client.answer()).body)["probabilities"]) for client in clients]
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
        answer = await (await Client.ask(port, "/classify", body)).answer()
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
