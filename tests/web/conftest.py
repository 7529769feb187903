"""Graphs to look at, and what reads the live page's messages as another client would: by the documented format."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import struct
import subprocess
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import actorflow as af

SQUARE = af.TensorSpec.of((4, 4))
SCALAR = af.TensorSpec.of(())
STATE_COLUMNS = [
    ("index", "I"),
    ("calls", "I"),
    *[(f"{name}_us", "f") for name in ("mean", "last", "p50", "p99")],
    ("state", "B"),
    ("track", "B"),
]
CALL_COLUMNS = [("start", "d"), ("node", "I"), ("frame", "I"), ("us", "f"), ("track", "H")]

CHROMIUM = Path("/usr/bin/chromium")
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--log-level=3",
    # Lets a test speak of a foreign site without leaving this machine.
    "--host-resolver-rules=MAP evil.example 127.0.0.1",
]
#: Only a failing test waits this long.
PATIENCE_S = 45.0


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any] | None:
    """In CI each browser test runs on one of the two event loops, by its name, as most of its time is the browser's."""
    if item.get_closest_marker("browser") is None or os.environ.get("ACTORFLOW_FULL_TESTS"):
        return None  # on both, as any other
    if importlib.util.find_spec("uvloop") is None or zlib.crc32(item.name.encode()) % 2:
        return {"asyncio": asyncio.new_event_loop}
    import uvloop

    return {"uvloop": uvloop.new_event_loop}


def decode(message: str | bytes) -> SimpleNamespace:
    """A message by the format in docs/watching.md, without help of the code that wrote it."""
    if isinstance(message, str):
        return SimpleNamespace(**json.loads(message))
    kind, count, base, seq, time, revision, reserved = struct.unpack_from("<IIIIdII", message)
    assert reserved == 0
    columns = {}
    offset = 32
    for name, code in CALL_COLUMNS if kind == 3 else STATE_COLUMNS:
        columns[name] = struct.unpack_from(f"<{count}{code}", message, offset)
        offset += struct.calcsize(f"<{code}") * count
    assert len(message) == offset
    if kind == 3:
        assert seq == 0
        return SimpleNamespace(type="calls", lost=base, time=time, revision=revision, **columns)
    full = {1: True, 2: False}[kind]
    return SimpleNamespace(type="states", full=full, base=base, seq=seq, time=time, revision=revision, **columns)


@dataclass
class Viewer:
    """A client's picture of a graph, put together from messages; it asserts that each fits the one before."""

    messages: list[SimpleNamespace] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    states: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    curves: dict[str, list[float | None]] = field(default_factory=dict)
    frames: dict[str, int] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    timeline: list[tuple[str, str, int]] = field(default_factory=list)
    tracks: list[str] = field(default_factory=list)

    def take(self, raw: str | bytes) -> SimpleNamespace:
        message = decode(raw)
        self.messages.append(message)
        if message.type == "graph":
            self.names = [node["name"] for node in message.nodes]
            self.seen = {}
        elif message.type in {"states", "status"}:
            assert self.names, "a delta came before the graph"
            if message.full:
                assert message.base == 0
            else:
                assert message.base == self.seen[message.type], "a gap, or something twice"
            assert message.seq > message.base
            self.seen[message.type] = message.seq
            getattr(self, f"_{message.type}")(message)
        elif message.type == "tracks":
            self.tracks = message.names
        elif message.type == "calls":
            columns = zip(message.node, message.track, message.frame, strict=True)
            self.timeline += [(self.names[node], self.tracks[track], frame) for node, track, frame in columns]
        return message

    def _states(self, message: SimpleNamespace) -> None:
        for index, calls, state in zip(message.index, message.calls, message.state, strict=True):
            self.calls[self.names[index]] = calls
            self.states[self.names[index]] = state

    def _status(self, message: SimpleNamespace) -> None:
        if message.full:
            self.curves, self.failures, self.notes = {}, [], []
        self.frames = message.frames
        self.failures += message.failures
        self.notes += message.notes
        for name, (frames, values) in message.curves.items():
            assert len(frames) == len(values)
            self.curves.setdefault(name, []).extend(values)


class FakeSocket:
    """A browser's end of the stream; `gate` cleared, it takes nothing, as a slow one does."""

    def __init__(self) -> None:
        self.viewer = Viewer()
        self.raw: list[str | bytes] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.blocked = asyncio.Event()
        self._arrived = asyncio.Condition()

    async def send_str(self, data: str) -> None:
        await self._take(data)

    async def send_bytes(self, data: bytes) -> None:
        await self._take(data)

    async def _take(self, data: str | bytes) -> None:
        if not self.gate.is_set():
            self.blocked.set()
            await self.gate.wait()
            self.blocked.clear()
        self.raw.append(data)
        self.viewer.take(data)
        async with self._arrived:
            self._arrived.notify_all()

    async def until(self, condition: Callable[[Viewer], bool]) -> Viewer:
        async with self._arrived:
            await self._arrived.wait_for(lambda: condition(self.viewer))
        return self.viewer


@dataclass
class Gated:
    """A graph whose middle op runs until it is let go."""

    graph: af.Graph
    x: af.Blob
    release: asyncio.Event
    entered: asyncio.Event

    def start(self) -> asyncio.Task[Any]:
        return asyncio.create_task(self.graph.run({self.x: np.zeros((4, 4), "float32")}))


@pytest.fixture
async def gated() -> Any:
    graph = af.Graph("gated")
    release, entered = asyncio.Event(), asyncio.Event()

    async def hold(x: Any) -> Any:
        entered.set()
        await release.wait()
        return x

    x = graph.blob("x", (4, 4))
    y = graph.function("first", lambda x: x + 1, SQUARE)(x)
    z = graph.function("hold", hold, SQUARE)(y)
    graph.function("last", lambda x: x.mean(), SCALAR)(z)
    async with graph:
        yield Gated(graph, x, release, entered)


def training_graph(name: str = "training", blocks: int = 4) -> tuple[af.Graph, af.Blob, af.Blob]:
    """A small graph of the shape of a training step: forward, backward, updates of variables."""
    graph = af.Graph(name)
    x = h = graph.blob("x", (4, 4))
    forward = []
    for i in range(blocks):
        scope = graph.subgraph(f"block{i}")
        w = scope.variable("w", (4, 4), init=0.5)
        y = scope.function("apply", lambda h, w: h * w, SQUARE)(h, w)
        forward.append((scope, h, w))
        h = y
    loss = graph.function("loss", lambda h: h.mean(), SCALAR)(h)
    grad = graph.function("loss_grad", lambda h: h / h.size, SQUARE)(h)
    for scope, h, w in reversed(forward):
        gw = scope.function("grad_w", lambda g, h: g * h, SQUARE)(grad, h)
        grad = scope.function("grad_h", lambda g, w: g * w, SQUARE)(grad, w)
        [w, gw] >> scope.function("update", lambda w, g: w - 0.1 * g) >> [w]
    return graph, x, loss


@pytest.fixture
def make_training_graph() -> Callable[..., tuple[af.Graph, af.Blob, af.Blob]]:
    return training_graph


@pytest.fixture
async def training() -> Any:
    graph, x, loss = training_graph()
    async with graph:
        yield SimpleNamespace(graph=graph, x=x, loss=loss, run=lambda: graph.run({x: np.ones((4, 4), "float32")}))


@pytest.fixture
def viewer() -> Viewer:
    return Viewer()


@pytest.fixture(scope="session")
def decode_message() -> Callable[[str | bytes], SimpleNamespace]:
    return decode


@pytest.fixture
async def fake_socket() -> FakeSocket:
    return FakeSocket()


@pytest.fixture
async def make_fake_socket() -> Callable[[], FakeSocket]:
    return FakeSocket


class Page:
    """A browser's page, and everything that it complained of."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _heard(self, message: Any) -> None:
        # A page that is still open when its server has ended tries to come back: the browser's word, not the page's.
        if message.type in {"error", "warning"} and "ERR_CONNECTION_REFUSED" not in message.text:
            self.complaints.append(message.text)

    async def open(self, url: str) -> None:
        await self.page.goto(url)
        await self.until("actorflow.connection === 'live' && actorflow.framesDrawn > 0")

    async def look(self, expression: str) -> Any:
        """A value of the page; `actorflow` is its window to tests."""
        return await self.page.evaluate(f"() => ({expression})")

    async def until(self, expression: str) -> None:
        """Wait until an expression is true. (Playwright's own wait evaluates text, which the page's policy forbids.)"""
        script = f"""async () => {{
            while (!(window.actorflow && ({expression}))) await new Promise((go) => setTimeout(go, 15));
        }}"""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.page.evaluate(script)
        except TimeoutError:
            pytest.fail(f"the page never came to {expression}; it complained of {self.complaints}")

    async def click_node(self, name: str) -> None:
        x, y = await self.look(f"actorflow.placeOf({name!r})")
        box = await self.page.locator("#graph").bounding_box()
        await self.page.mouse.click(box["x"] + x, box["y"] + y)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a browser that all tests share; each has profiles of its own in it."""
    missing = None
    if importlib.util.find_spec("playwright") is None:
        missing = "playwright is not installed"
    elif not CHROMIUM.exists():
        missing = f"{CHROMIUM} is not there: install Debian's chromium"
    if missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"browser tests must run in CI, but {missing}")
        pytest.skip(missing)
    profile = tmp_path_factory.mktemp("chromium")
    command = [CHROMIUM, "--headless", "--remote-debugging-port=0", f"--user-data-dir={profile}", *ARGS, "about:blank"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = next((line.split()[-1] for line in process.stderr if "DevTools listening on" in line), None)
        assert address is not None, "the browser ended at once"
        yield address
        process.terminate()
        process.communicate()


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        connected = await playwright.chromium.connect_over_cdp(chromium)
        yield connected
        await connected.close()


@pytest.fixture
async def new_page(browser: Any) -> AsyncIterator[Any]:
    """Makes pages, each in a profile of its own; a complaint of any fails the test."""
    pages: list[Page] = []
    contexts: list[Any] = []

    async def make(**options: Any) -> Page:
        context = await browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        pages.append(Page(await context.new_page()))
        return pages[-1]

    yield make
    for context in contexts:
        await context.close()
    for page in pages:
        assert not page.complaints
