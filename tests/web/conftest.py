"""Graphs to look at, and what reads the live page's messages as another client would: by the documented format."""

import asyncio
import json
import os
import re
import struct
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.web import serve
from actorflow.web.live import LiveStream
from tests.web.browsing import LIGHT, Elsewhere, Page, browse, browse_firefox
from tests.web.serving import SERVERS, Served

SQUARE = af.TensorSpec.of((4, 4))
SCALAR = af.TensorSpec.of(())
STATE_COLUMNS = [
    ("index", "I"),
    ("calls", "I"),
    *[(f"{name}_us", "f") for name in ("mean", "last", "p50", "p99", "max")],
    ("state", "B"),
    ("track", "B"),
]
CALL_COLUMNS = [("start", "d"), ("node", "I"), ("frame", "I"), ("us", "f"), ("track", "H"), ("failed", "B")]

VIEWPORT = {"width": 1280, "height": 800}
#: Options of pages; all others are of what serves them.
WINDOW = {"viewport", "has_touch", "device_scale_factor", "color_scheme", "reduced_motion", "accept_downloads", "alone"}

PageOf = Callable[..., AbstractAsyncContextManager[Page]]
HAS_FAILED = pytest.StashKey[bool]()


def decode(message: str | bytes) -> SimpleNamespace:
    """A message by the format in docs/how-to/watching.md, without help of the code that wrote it."""
    if isinstance(message, str):
        return SimpleNamespace(**json.loads(message))
    kind, count, base, seq, time, revision, failing = struct.unpack_from("<IIIIdII", message)
    columns = {}
    offset = 32
    for name, code in CALL_COLUMNS if kind == 3 else STATE_COLUMNS:
        columns[name] = struct.unpack_from(f"<{count}{code}", message, offset)
        offset += struct.calcsize(f"<{code}") * count
    if kind == 3:
        assert (seq, failing, len(message)) == (0, 0, offset)
        return SimpleNamespace(type="calls", lost=base, time=time, revision=revision, **columns)
    full = {1: True, 2: False}[kind]
    offset = (offset + 3) // 4 * 4
    assert len(message) == offset + 8 * failing
    numbers = struct.unpack_from(f"<{2 * failing}I", message, offset)
    columns["failed"] = dict(zip(numbers[:failing], numbers[failing:], strict=True))
    return SimpleNamespace(type="states", full=full, base=base, seq=seq, time=time, revision=revision, **columns)


@dataclass
class Viewer:
    """A client's picture of a graph, put together from messages; it asserts that each fits the one before."""

    messages: list[SimpleNamespace] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    states: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    curves: dict[str, list[float | None]] = field(default_factory=dict)
    frames: dict[str, int] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    timeline: list[tuple[str, str, int]] = field(default_factory=list)
    tracks: list[str] = field(default_factory=list)
    announced: dict[int, str] = field(default_factory=dict)
    errors: list[str | None] = field(default_factory=list)

    def take(self, raw: str | bytes) -> SimpleNamespace:
        message = decode(raw)
        self.messages.append(message)
        if message.type == "graph":
            self.names = [node["name"] for node in message.nodes]
            self.seen, self.timeline, self.errors = {}, [], []
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
            self.tracks, self.announced = message.names, dict(message.errors)
        elif message.type == "calls":
            assert [at for at, failed in enumerate(message.failed) if failed] == list(self.announced)
            self.errors += [self.announced.get(at) for at in range(len(message.failed))]
            columns = zip(message.node, message.track, message.frame, strict=True)
            self.timeline += [(self.names[node], self.tracks[track], frame) for node, track, frame in columns]
        return message

    def _states(self, message: SimpleNamespace) -> None:
        assert message.failed.keys() <= set(message.index)
        assert all(message.failed.values())
        for index, calls, state in zip(message.index, message.calls, message.state, strict=True):
            self.calls[self.names[index]] = calls
            self.failed[self.names[index]] = message.failed.get(index, 0)
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


def wide_graph(stages: int, layers: int) -> af.Graph:
    """Stages beside each other, each of layers of 10 rows of 10 ops that read up to three of the row before."""
    graph = af.Graph("large")
    x = graph.blob("x", (4, 4))
    for s in range(stages):
        stage, before = graph.subgraph(f"stage{s}"), [x] * 10
        for number in range(layers):
            layer = stage.subgraph(f"layer{number}")
            for row in range(10):
                read = [dict.fromkeys([before[k], before[(k + 1) % 10], before[(3 * k + row) % 10]]) for k in range(10)]
                before = [layer.function(f"op{row}_{k}", lambda *xs: xs[0], SQUARE)(*read[k]) for k in range(10)]
    return graph


@pytest.fixture
def make_training_graph() -> Callable[..., tuple[af.Graph, af.Blob, af.Blob]]:
    return training_graph


@pytest.fixture
async def training() -> Any:
    graph, x, loss = training_graph()
    async with graph:
        yield SimpleNamespace(graph=graph, x=x, loss=loss, run=lambda: graph.run({x: np.ones((4, 4), "float32")}))


@dataclass
class Flaky:
    """A graph of an op whose next calls may fail and are repeated, and of one that reads what it gives."""

    graph: af.Graph
    x: af.Blob
    failing: int = 0
    repeating: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, x: Any) -> Any:
        if self.failing:
            self.failing -= 1
            raise ValueError("not yet")
        self.repeating.set()
        await self.go_on.wait()
        return x

    async def run(self, failing: int) -> Any:
        """A run of which some calls fail first; with more than ten, so does the run."""
        self.failing = failing
        self.go_on.set()
        return await self.graph.run({self.x: np.float32(1)})


@pytest.fixture
async def flaky() -> Any:
    graph = af.Graph("flaky")
    x = graph.blob("x", ())
    made = Flaky(graph, x)
    y = graph.function("flaky", made.call, SCALAR, retries=10, backoff=0)(x)
    graph.function("steady", lambda x: x, SCALAR)(y)
    async with graph:
        yield made


@pytest.fixture(params=SERVERS.values(), ids=SERVERS)
def served(request: pytest.FixtureRequest) -> Served:
    """The live page behind each kind of server."""
    server: Served = request.param
    return server


@pytest.fixture
def quick_vitals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients are told of memory and the like at every tick, so that no test waits for that."""
    assert LiveStream.__init__.__kwdefaults__ is not None
    monkeypatch.setitem(LiveStream.__init__.__kwdefaults__, "vitals_s", 0.0)


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


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """A browser that all tests share; each has profiles of its own in it."""
    with browse(tmp_path_factory.mktemp("chromium"), LIGHT) as (browser, _):
        yield browser


@pytest.fixture(scope="session")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """As `browser`."""
    with browse_firefox(tmp_path_factory.mktemp("firefox")) as browser:
        yield browser


@pytest.fixture(scope="session", params=["browser", "firefox"], ids=["chromium", "firefox"])
def each_browser(request: pytest.FixtureRequest) -> Elsewhere:
    """Each of the two, for tests that are run in both; of the scope of those, so that each is started once."""
    browser: Elsewhere = request.getfixturevalue(request.param)
    return browser


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember which tests failed, for those who tidy up after them."""
    report = yield
    if report.when == "call":
        item.stash[HAS_FAILED] = report.failed
    return report


@pytest.fixture(scope="module")
def kept_pages() -> Iterator[dict[Elsewhere, Page]]:
    """The page of each browser that tests of a file have one after the other."""
    kept: dict[Elsewhere, Page] = {}
    yield kept
    for page in kept.values():
        asyncio.run(page.page.context.close())


@pytest.fixture
async def new_page(
    browser: Elsewhere, kept_pages: dict[Elsewhere, Page], request: pytest.FixtureRequest
) -> AsyncIterator[Any]:
    """Makes pages, each in a profile of its own; a complaint of any fails the test.

    One without options is that of the test before, emptied; with ``alone`` it is not, as what a test does to it stays.
    What those of a failed test look like at its end is kept in build/screenshots; what all do, where
    $ACTORFLOW_SCREENSHOTS says.
    """
    async with pages_of(browser, kept_pages, request) as make:
        yield make


@pytest.fixture
def page_of(new_page: Any) -> PageOf:
    """Serves a graph, and opens its page: ``async with page_of(graph, control=True, viewport=...) as page``."""
    return partial(opened, new_page)


@pytest.fixture
async def page_of_each(
    each_browser: Elsewhere, kept_pages: dict[Elsewhere, Page], request: pytest.FixtureRequest
) -> AsyncIterator[PageOf]:
    """As `page_of`, in each browser."""
    async with pages_of(each_browser, kept_pages, request) as make:
        yield partial(opened, make)


@asynccontextmanager
async def opened(make: Callable[..., Any], graph: af.Graph, **options: Any) -> AsyncIterator[Page]:
    window = {name: options.pop(name) for name in WINDOW & options.keys()}
    async with serve(graph, port=0, **options) as view:
        page = await make(**window)
        await page.open(view.url)
        yield page


@asynccontextmanager
async def pages_of(
    browser: Elsewhere, kept: dict[Elsewhere, Page], request: pytest.FixtureRequest
) -> AsyncIterator[Any]:
    pages: list[Page] = []
    shared: list[Page] = []

    async def make(*, alone: bool = False, **options: Any) -> Page:
        is_shared = not (alone or options or shared)
        page = kept.pop(browser, None) if is_shared else None
        if page is None:
            context = await browser.new_context(**{"viewport": VIEWPORT, **options})
            page = Page(await context.new_page())
        pages.append(page)
        if is_shared:
            shared.append(page)
        return page

    yield make
    wanted = os.environ.get("ACTORFLOW_SCREENSHOTS")
    folder = Path(wanted or request.config.rootpath / "build/screenshots")
    name = re.sub(r"[^\w.]+", "-", request.node.name.removeprefix("test_")).strip("-")
    failed = request.node.stash.get(HAS_FAILED, True)
    for number, page in enumerate(pages):
        suffix = f"-{number + 1}" if number else ""
        await page.leave(folder / request.path.stem / f"{name}{suffix}.png" if failed or wanted else None, failed)
    complaints = [complaint for page in pages for complaint in page.complaints]
    for page in pages:
        if page in shared and not failed and not complaints and await page.is_emptied():
            kept[browser] = page
        else:
            await page.page.context.close()
    assert not complaints
