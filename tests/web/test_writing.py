"""Long answers: one at a time, shared by those who ask meanwhile, and in slices, so that a graph hardly notices."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.trace.recording import TraceCopy
from actorflow.web import http
from actorflow.web.http import CHUNK_BYTES, Refused, Writer


class Gate:
    """Answers that wait in their thread until they are let go; says how many there were, and at a time."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.state = 0
        self.most = self._now = 0
        self._reached = asyncio.Semaphore(0)
        self._passes = threading.Semaphore(0)
        self._loop = asyncio.get_running_loop()

    def answer(self, name: str) -> Any:
        def begin() -> Iterator[str]:
            self.begun.append(name)
            return pieces(self.state)

        def pieces(state: int) -> Iterator[str]:
            self._now += 1
            self.most = max(self.most, self._now)
            self._loop.call_soon_threadsafe(self._reached.release)
            assert self._passes.acquire(timeout=60)
            yield f"{name}{state}"
            self._now -= 1

        return begin

    async def reached(self) -> None:
        async with asyncio.timeout(60):
            await self._reached.acquire()

    def let_go(self, count: int = 1) -> None:
        self._passes.release(count)


@pytest.fixture
async def gate() -> Gate:
    return Gate()


async def asked(writer: Writer, name: str, gate: Gate) -> asyncio.Task[list[bytes]]:
    """Somebody who waits for an answer."""
    task = asyncio.create_task(writer.write(name, gate.answer(name)))
    await asyncio.sleep(0)
    return task


async def test_one_is_for_all_who_ask_before_it_is_begun(gate) -> None:
    writer = Writer()
    first = await asked(writer, "a", gate)
    await gate.reached()
    gate.state = 1
    others = [await asked(writer, "a", gate) for _ in range(10)]
    gate.let_go(2)
    assert await first == [b"a0"]
    answers = await asyncio.gather(*others)
    assert answers == [[b"a1"]] * 10, "what they get was there when they asked"
    assert len({id(chunk) for (chunk,) in answers}) == 1, "nothing is copied"
    assert (gate.begun, gate.most) == (["a", "a"], 1)
    await writer.aclose()


async def test_different_ones_wait_for_each_other(gate) -> None:
    writer = Writer()
    tasks = [await asked(writer, name, gate) for name in "abcab"]
    gate.let_go(4)
    assert await asyncio.gather(*tasks) == [[f"{name}0".encode()] for name in "abcab"]
    assert (gate.begun, gate.most) == (["a", "b", "c", "a"], 1), "the second b came before the first was begun"
    await writer.aclose()


async def test_who_leaves_takes_nothing_from_others(gate) -> None:
    writer = Writer()
    begun, first, second = [await asked(writer, "a", gate) for _ in range(3)]
    await gate.reached()
    for leaving in (begun, first):
        leaving.cancel()
    await asyncio.wait([begun, first])
    gate.let_go(2)
    assert await second == [b"a0"]
    assert gate.begun == ["a", "a"]
    await writer.aclose()


async def test_an_error_reaches_all_and_the_next_one_is_right(gate) -> None:
    def fail() -> Iterator[str]:
        yield "a"
        raise ValueError("broken")

    writer = Writer()
    results = await asyncio.gather(*[writer.write("a", fail) for _ in range(3)], return_exceptions=True)
    assert [str(result) for result in results] == ["broken"] * 3
    gate.let_go()
    assert await writer.write("a", gate.answer("a")) == [b"a0"]
    await writer.aclose()


async def test_closing_ends_what_is_written_and_what_waits(gate) -> None:
    writer = Writer()
    tasks = [await asked(writer, name, gate) for name in "aab"]
    await gate.reached()
    await writer.aclose()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, Refused)
        assert result.response.status == 503
    gate.let_go(2)
    assert await writer.write("b", gate.answer("b")) == [b"b0"], "a page may be opened again"
    assert gate.begun == ["a", "b"]
    await writer.aclose()


class Clock:
    """A tenth of a slice passes between two looks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(http, "perf_counter", self)

    def __call__(self) -> float:
        self.now_s += http._SLICE_S / 10
        return self.now_s


class Rests:
    """In place of the event that ends the writing: counts its rests, and ends it at one of them."""

    def __init__(self, last: int) -> None:
        self.count = 0
        self.last = last

    def wait(self, timeout_s: float) -> bool:
        assert timeout_s >= 2 * http._SLICE_S, "most of the time is the loop's"
        self.count += 1
        return self.count == self.last


def test_a_thread_rests_after_each_slice(monkeypatch) -> None:
    Clock(monkeypatch)
    rests: Any = Rests(last=10**9)
    text = ["é" * 1000] * 1000
    chunks = http._written(text, rests)
    assert b"".join(chunks).decode() == "".join(text)
    assert 80 <= rests.count <= 125
    assert max(map(len, chunks)) <= 2 * CHUNK_BYTES + 2000


def test_a_thread_ends_at_its_next_rest(monkeypatch) -> None:
    Clock(monkeypatch)
    taken = 0

    def pieces() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "piece"

    rests: Any = Rests(last=3)
    assert http._written(pieces(), rests) == []
    assert taken < 50


async def test_a_trace_comes_in_short_pieces() -> None:
    """So that a slice can end: whatever has many nodes, tracks, frames or calls."""
    graph = af.Graph("long")
    value = graph.blob("x", ())
    for number in range(300):
        value = graph.function(f"op{number}", lambda x: x, af.TensorSpec.of(()), lane=f"lane {number % 7}")(value)
    async with graph:
        async for _ in graph.stream([{"x": np.float32(1)}] * 20, in_flight=3):
            pass
        pieces = [*TraceCopy.of(graph).pieces()]
        whole = TraceCopy.of(graph).recording().to_json()
    assert "".join(pieces) == whole
    assert json.loads(whole)["otherData"]["actorflow"]["graph"] == "long"
    assert max(map(len, pieces)) < 1000
    assert len(pieces) > 20 * 300


@pytest.mark.parametrize("path", ["/trace.json", "/api/state", "/api/graph", "/metrics"])
async def test_parallel_downloads_are_one(served, training, monkeypatch, path) -> None:
    await training.run()
    begun = []
    write = Writer.write

    async def counted(writer: Writer, what: str, begin: Any) -> Any:
        def count() -> Any:
            begun.append(what)
            return begin()

        return await write(writer, what, count)

    monkeypatch.setattr(Writer, "write", counted)
    arrived, together = 0, asyncio.Event()
    async with served(training.graph) as client:
        respond = client.page.respond

        async def wait_for_others(request: Any) -> Any:
            nonlocal arrived
            arrived += 1
            if arrived == 12:
                together.set()
            await together.wait()
            return await respond(request)

        monkeypatch.setattr(client.page, "respond", wait_for_others)
        responses = await asyncio.gather(*[client.get(path) for _ in range(12)])
        bodies = {await response.read() for response in responses}
    assert {response.status for response in responses} == {200}
    assert len(begun) <= 2, "the one that was begun with the first, and one for all others"
    assert len(bodies) <= len(begun)
    if path == "/trace.json":
        calls = [event for event in json.loads(bodies.pop())["traceEvents"] if event.get("cat") == "call"]
        assert len({event["name"] for event in calls}) == len(training.graph.ops)
