"""Threads that cannot be started: what needs one fails at once and says why, or does without; nothing hangs later."""

import ast
import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

import actorflow as af
import actorflow.array as xp
from actorflow.devices import team
from actorflow.devices.sim import SimOptions
from actorflow.errors import ActorflowError, DeviceError
from actorflow.place import Place
from actorflow.serve import Limits
from actorflow.serve.account import Account
from actorflow.serve.pictures import Picture
from actorflow.testing.conformance.device_bench import DeviceBench
from actorflow.threads import in_thread, start_thread
from actorflow.web.api import routes
from actorflow.web.http import Request, Writer
from actorflow.web.live import LiveStream
from tests.serve.serving import serve, ten_times
from tests.support.effort import slow

PACKAGE = Path(af.__file__).parent
#: Only a failing test waits this long.
PATIENCE_S = 60.0
#: What starts threads, but for the functions of `actorflow.threads`.
STARTERS = {"Thread", "ThreadPool", "ThreadPoolExecutor", "Timer", "run_in_executor", "start_new_thread", "to_thread"}

Call = Callable[[], Awaitable[Any]]


class System:
    """A system that may be at its limit of threads.

    Attributes:
        asked: Names of the threads that were asked for, in order.
        refuses: Whether one is refused, by its name and its number in ``asked``.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refuses: Callable[[str, int], bool] = lambda name, number: False


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    made, start = System(), threading.Thread.start

    def start_if_possible(thread: threading.Thread) -> None:
        made.asked.append(thread.name)
        if made.refuses(thread.name, len(made.asked) - 1):
            raise RuntimeError("can't start new thread")  # as CPython says it
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_possible)
    monkeypatch.setattr(team, "cores", lambda: 3)  # whatever this machine has
    return made


# -- what starts threads -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def running(graph: af.Graph, y: af.Blob) -> AsyncIterator[Call]:
    """A run of a graph that is fed a one."""

    async def call() -> float:
        return float((await graph.run({"x": 1}))[y])

    yield call
    await graph.aclose()


@asynccontextmanager
async def lanes(system: System, folder: Path) -> AsyncIterator[Call]:
    """Functions on three lanes, and one that needs them all."""
    graph = af.Graph("g")
    x = graph.blob("x", ())
    parts = [_in_thread(graph, name, lambda x: x + 1, x) for name in "abc"]
    async with running(graph, _in_thread(graph, "total", lambda a, b, c: a + b + c, *parts)) as call:
        yield call


def _in_thread(graph: af.Graph, name: str, fn: Callable[..., Any], *inputs: af.Blob) -> af.Blob:
    """A function whose every call is one on its lane's thread."""
    made: af.Blob = graph.function(name, fn, af.TensorSpec.of((), "float32"), lane=name, timeout=PATIENCE_S)(*inputs)
    return made


@asynccontextmanager
async def simulated(system: System, folder: Path) -> AsyncIterator[Call]:
    """The thread of a simulated device."""
    graph = af.Graph("g")
    x = graph.blob("x", (3,), place="sim:0")
    y = af.ops.exp(af.ops.exp(x))

    async def call() -> list[float]:
        found: list[float] = (await graph.run({x: np.zeros(3, np.float32)}, fetch=[y]))[y].get().tolist()
        return found

    yield call
    await graph.aclose()


@asynccontextmanager
async def watched(system: System, folder: Path) -> AsyncIterator[Call]:
    """Streams whose work takes longer than the loop looks: until there is a thread, or one was refused."""

    def clock() -> int:
        names = [*system.asked[begin:], *[thread.name for thread in threading.enumerate()]]
        return time.perf_counter_ns() if any("events" in name for name in names) else 0

    graph = af.Graph("g", devices={"sim:0": SimOptions(kernel_s=1e-4, clock=clock)})
    x = graph.blob("x", (3,), place="sim:0")
    y = af.ops.exp(x)
    begin = 0

    async def call() -> list[float]:
        nonlocal begin
        begin = len(system.asked)
        found: list[float] = (await graph.run({x: np.zeros(3, np.float32)}, fetch=[y]))[y].get().tolist()
        return found

    yield call
    await graph.aclose()


@asynccontextmanager
async def helped(system: System, folder: Path) -> AsyncIterator[Call]:
    """A function that spreads its work over idle cores."""

    def spread(x: Any) -> Any:
        seen: list[int] = []
        team.team._worths.clear()  # nothing is known against it
        team.team.spread(range(6), seen.append)
        return x + sum(seen)

    graph = af.Graph("g")
    async with running(graph, _in_thread(graph, "spread", spread, graph.blob("x", ()))) as call:
        yield call


@asynccontextmanager
async def looked_after(system: System, folder: Path) -> AsyncIterator[Call]:
    """A graph whose event loop is watched."""
    graph = af.Graph("g", block_limit=PATIENCE_S, sequential=True)
    x = graph.blob("x", ())
    async with running(graph, graph.function("y", lambda x: x + 1, x.spec)(x)) as call:
        yield call


@asynccontextmanager
async def arrays(system: System, folder: Path) -> AsyncIterator[Call]:
    """Arrays that workers compute: awaited, and ahead of being asked for."""
    with xp.session():

        async def call() -> list[float]:
            x = xp.ones((800, 800))
            ahead = [xp.sin(x) * k for k in range(4)]
            found: list[float] = [float(each) for each in await xp.stack([xp.sum(x * 2.0), xp.sum(x + 3.0)])]
            return [*found, round(float(xp.sum(ahead[3])) / 640_000, 6)]

        yield call


@asynccontextmanager
async def placed_arrays(system: System, folder: Path) -> AsyncIterator[Call]:
    """Arrays that a device computes."""
    with xp.session():

        async def call() -> float:
            return float(await xp.sum(xp.ones(5).to_device("sim:0") * 3.0))

        yield call


@asynccontextmanager
async def loader(system: System, folder: Path) -> AsyncIterator[Call]:
    """Stages in threads, one behind the other."""
    data = af.pipeline.source(lambda epoch: iter(range(6))).map(_add_one, executor="thread", concurrency=2)
    made = data.map(_add_one, name="again", executor="thread")

    async def call() -> list[int]:
        async with made:
            return [item async for item in made]

    yield call
    await made.aclose()


def _add_one(item: int) -> int:
    return item + 1


@asynccontextmanager
async def processes(system: System, folder: Path) -> AsyncIterator[Call]:
    """Processes, which are waited for in a thread."""
    made = af.pipeline.source(range(6)).map(_add_one, executor="process")

    async def call() -> list[int]:
        async with made:
            return [item async for item in made]

    yield call


@asynccontextmanager
async def transfer(system: System, folder: Path) -> AsyncIterator[Call]:
    """Items to a device whose copies run in a thread."""
    made = af.pipeline.source([np.full(2, k, np.float32) for k in range(3)]).to("sim:0")

    async def call() -> list[float]:
        async with made:
            return [float(item.get().sum()) async for item in made]

    yield call


@asynccontextmanager
async def checkpoint(system: System, folder: Path) -> AsyncIterator[Call]:
    """A file that is written in a thread of the loop's executor."""
    graph = af.Graph("g")
    graph.variable("w", (2,), init=af.nn.init.constant(3.0))

    async def call() -> list[str]:
        path = folder / f"{len(system.asked)}.safetensors"
        try:
            await af.checkpoint.save_checkpoint(graph, path)
        finally:
            found = [each.name for each in folder.iterdir()]
            path.unlink(missing_ok=True)
        return ["saved" if name == path.name else name for name in found]

    yield call
    await graph.aclose()


@asynccontextmanager
async def swapped(system: System, folder: Path) -> AsyncIterator[Call]:
    """Weights that are checked and copied in a thread."""
    graph = af.Graph("g")
    w = graph.variable("w", ())
    model = af.Model(graph, {"x": graph.blob("x", ())}, {"y": graph["x"] * w})

    async def call() -> float:
        before = w.value
        await model.swap({"w": np.float32(7)})
        found, w.value = float(w.value), before
        return found

    yield call
    await graph.aclose()


@asynccontextmanager
async def loaded(system: System, folder: Path) -> AsyncIterator[Call]:
    """A model that a server opens in a thread."""
    async with serve({"net": ten_times}) as served:

        async def call() -> int:
            answer = await served.ask("/v2/repository/models/net/load", b"{}")
            if answer.status != 200:
                raise DeviceError(answer.json["error"])
            return int(answer.status)

        yield call


@asynccontextmanager
async def trace(system: System, folder: Path) -> AsyncIterator[Call]:
    """A trace that is saved in a thread."""
    graph = af.Graph("g")

    async def call() -> bool:
        await graph.save_trace(folder / "trace.json")
        return (folder / "trace.json").exists()

    yield call


@asynccontextmanager
async def tapped(system: System, folder: Path) -> AsyncIterator[Call]:
    """Values of a frame that are copied in a thread, as they are the caller's."""
    graph = af.Graph("g", sequential=True)
    x = graph.blob("x", (100_000,))
    af.ops.exp(x)
    tap = graph.tap(x)

    async def call() -> float:
        await graph.run({x: np.full(100_000, 2.0, np.float32)})
        return float((await anext(tap))[x].mean())

    yield call
    tap.close()
    await graph.aclose()


@asynccontextmanager
async def page(system: System, folder: Path) -> AsyncIterator[Call]:
    """Call of the live page that runs in a thread."""
    stream = LiveStream(af.Graph("g"))

    async def call() -> int:
        return (await stream.structure()).revision

    yield call
    await stream.aclose()


def answer(path: str) -> Callable[[System, Path], AbstractAsyncContextManager[Call]]:
    """Answers of the live page for programs."""

    @asynccontextmanager
    async def made(system: System, folder: Path) -> AsyncIterator[Call]:
        stream, writer = LiveStream(af.Graph("g")), Writer()
        answers: dict[str, Any] = {route.path: route.answer for route in routes(stream, writer)}
        request = Request("GET", path, path, "", (), "http", None, "", BytesIO())  # type: ignore[arg-type]

        async def call() -> int:
            return int((await answers[path](request)).status)

        yield call
        await writer.aclose()
        await stream.aclose()

    return made


@asynccontextmanager
async def picture(system: System, folder: Path) -> AsyncIterator[Call]:
    """A picture for a model, which is decoded in a thread."""
    content = BytesIO()
    Image.new("L", (1, 1), 255).save(content, "PNG")
    taken = Picture("x", np.dtype(np.float32), None, 1, True)

    async def call() -> float:
        account = Account(1 << 20)
        pixels = await taken.read(memoryview(content.getvalue()), {}, Limits(), account)
        assert not account.held_bytes  # whatever became of the thread
        return float(pixels.sum())

    yield call


@asynccontextmanager
async def conformance(system: System, folder: Path) -> AsyncIterator[Call]:
    """Call by a check of a device that runs in a thread."""
    bench = DeviceBench(Place.parse("cpu"), None, PATIENCE_S, None)

    async def call() -> int:
        return await bench.in_thread(lambda: 7, "a number")

    yield call


@dataclass(frozen=True)
class Case:
    """Something that starts threads.

    Attributes:
        module: Where they are started.
        make: Gives a call that needs them.
        threads: Part of their names.
        expected: What the call gives.
        error: What it raises when it gets none, and what that says; None where it does without.
    """

    module: str
    make: Callable[[System, Path], AbstractAsyncContextManager[Call]]
    threads: str
    expected: Any
    error: tuple[type[ActorflowError], str] | None = None


LANE = r"(?s)op '[abc]' .*thread 'actorflow-[abc]' cannot be started: can't start new thread.*created at .*test_threads"
SIM = "thread 'actorflow-sim:0' cannot be started: can't start new thread"
#: How asyncio and uvloop name the first thread of an executor.
EXECUTORS = "_0"
EXECUTOR = "a thread of the event loop's executor cannot be started: can't start new thread"
E = [round(float(np.exp(np.exp(np.float32(0)))), 6)] * 3

CASES = {
    "lanes": Case("devices.cpu", lanes, "actorflow-", 6.0, (af.OpError, LANE)),
    "simulated": Case("devices.sim.stream", simulated, "actorflow-sim", E, (af.OpError, f"(?s)op 'exp.*{SIM}")),
    "watched": Case("devices.stream", watched, "-events", [1.0] * 3),
    "helped": Case("devices.team", helped, "actorflow-team", 16.0),
    "looked after": Case("runtime.limits", looked_after, "actorflow-watchdog", 2.0),
    "arrays": Case("runtime.service", arrays, "actorflow-arrays", [1.28e6, 2.56e6, round(3 * np.sin(1.0), 6)]),
    "placed arrays": Case(
        "runtime.service",
        placed_arrays,
        "actorflow-arrays",
        15.0,
        (af.OpError, "(?s)thread 'actorflow-arrays' cannot be started.*test_threads"),
    ),
    "loader": Case(
        "devices.cpu",
        loader,
        "actorflow-",
        [2, 3, 4, 5, 6, 7],
        (
            af.StageError,
            "(?s)stage 'source' .*thread 'actorflow-source' cannot be started.*created at .*test_threads",
        ),
    ),
    "processes": Case("pipeline.loader", processes, EXECUTORS, [1, 2, 3, 4, 5, 6]),
    "transfer": Case(
        "devices.sim.stream", transfer, "-sim:0", [0.0, 2.0, 4.0], (af.StageError, f"(?s)stage 'to.*{SIM}")
    ),
    "checkpoint": Case("checkpoint.checkpoint", checkpoint, EXECUTORS, ["saved"], (DeviceError, EXECUTOR)),
    "swapped": Case("runtime.engine", swapped, EXECUTORS, 7.0, (DeviceError, EXECUTOR)),
    "loaded": Case("serve.repository", loaded, EXECUTORS, 200, (DeviceError, f"'net' cannot be loaded: .*{EXECUTOR}")),
    "trace": Case("graph.graph", trace, EXECUTORS, True, (DeviceError, EXECUTOR)),
    "tapped": Case("threads", tapped, EXECUTORS, 2.0),
    "page": Case("web.live", page, EXECUTORS, 0),
    "page's state": Case("web.http", answer("/api/state"), EXECUTORS, 200, (DeviceError, EXECUTOR)),
    "page's trace": Case("web.http", answer("/trace.json"), EXECUTORS, 200, (DeviceError, EXECUTOR)),
    "page's metrics": Case("web.http", answer("/metrics"), EXECUTORS, 200, (DeviceError, EXECUTOR)),
    "picture": Case("serve.pictures", picture, EXECUTORS, 1.0, (DeviceError, EXECUTOR)),
    "conformance": Case(
        "testing.conformance.device_bench",
        conformance,
        "actorflow-conformance",
        7,
        (DeviceError, "thread 'actorflow-conf"),
    ),
}
#: Where threads are started, too: in programs without a loop, which has tests of its own, and as a rank begins.
OTHERS = {"pipeline.sync", "transport.mpi.deaths"}


class State(NamedTuple):
    """Counts of what threads leave behind, besides these themselves."""

    lanes: int
    invited: int
    helpers: int


def state() -> State:
    return State(team.team._lanes, team.team._invited, team.team._threads)


async def outcome(call: Call) -> tuple[Any, ActorflowError | None]:
    """Result or error of a call, in time."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            return _rounded(await call()), None
        except ActorflowError as error:
            return None, error


def _rounded(found: Any) -> Any:
    return [round(each, 6) for each in found] if isinstance(found, list) and isinstance(found[0], float) else found


async def starts(case: Case, system: System, folder: Path) -> list[str]:
    """The threads that a call asks for that gets all of them."""
    system.refuses = lambda name, number: False
    before = len(system.asked)
    async with case.make(system, folder) as call:
        assert await outcome(call) == (case.expected, None)
        return system.asked[before:]


# -- tests -------------------------------------------------------------------------------------------------------------


@pytest.mark.any_loop
@pytest.mark.parametrize("name", slow(CASES, but=[name for name in CASES if name != "processes"]))
async def test_a_call_without_a_thread_fails_or_does_without_and_the_next_one_works(
    name: str, system: System, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case, before = CASES[name], state()
    async with case.make(system, tmp_path) as call:
        system.refuses = lambda name, number: case.threads in name
        for _ in range(2):
            found, error = await outcome(call)
            if case.error is None:
                assert (found, error) == (case.expected, None)
            else:
                with pytest.raises(case.error[0], match=case.error[1]):
                    raise error or AssertionError(f"expected an error, got {found!r}")
        assert any(case.threads in each for each in system.asked), "the call has asked for no thread: it shows nothing"
        system.refuses = lambda name, number: False
        for _ in range(2):
            assert await outcome(call) == (case.expected, None)
    if name == "looked after":
        assert "nobody watches the event loop of graph 'g'" in caplog.text
    await _ended(before)


@pytest.mark.any_loop
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("name", slow(CASES, but=[name for name in CASES if name != "processes"]))
async def test_any_one_thread_may_be_refused(name: str, lasting: bool, system: System, tmp_path: Path) -> None:
    case, before = CASES[name], state()
    asked = len(await starts(case, system, tmp_path))
    assert asked
    for refused in range(asked):
        system.asked.clear()
        system.refuses = lambda name, number, at=refused: number >= at if lasting else number == at  # type: ignore[misc]
        async with case.make(system, tmp_path) as call:
            found, error = await outcome(call)
            assert error is not None or found == case.expected
            assert error is None or "can't start new thread" in str(error)
            system.refuses = lambda name, number: False
            assert await outcome(call) == (case.expected, None)
    await _ended(before)


async def _ended(before: State) -> None:
    """Wait until what was there before is all that is there."""
    async with asyncio.timeout(PATIENCE_S):
        while state() != before:
            await asyncio.sleep(0)


@pytest.mark.parametrize("refused", ["actorflow-loader", "actorflow-source", "actorflow-_add_one"])
def test_a_loader_without_a_loop_needs_threads(refused: str, system: System) -> None:
    data = af.pipeline.source(lambda epoch: iter(range(6))).map(_add_one, executor="thread")
    system.refuses = lambda name, number: refused in name
    for _ in range(2):
        with pytest.raises(ActorflowError, match=rf"thread '{refused}.*' cannot be started: can't start new thread"):
            list(data.iter_sync())
    system.refuses = lambda name, number: False
    assert list(data.iter_sync()) == [1, 2, 3, 4, 5, 6]


def test_a_loader_without_a_loop_says_that_it_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_loop() -> asyncio.AbstractEventLoop:
        raise OSError(24, "Too many open files")

    data = af.pipeline.source(range(3))
    monkeypatch.setattr("actorflow.loop._loop_factory", lambda: no_loop)
    with pytest.raises(OSError, match="Too many open files"):
        list(data.iter_sync())
    monkeypatch.undo()
    assert list(data.iter_sync()) == [0, 1, 2]


async def test_arrays_on_a_device_say_that_there_is_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_loop() -> asyncio.AbstractEventLoop:
        raise OSError(24, "Too many open files")

    with xp.session():
        monkeypatch.setattr("actorflow.loop._loop_factory", lambda: no_loop)
        with pytest.raises(af.OpError, match="Too many open files"):
            float(xp.sum(xp.ones(5).to_device("sim:0")))
        monkeypatch.undo()
        assert float(xp.sum(xp.ones(5).to_device("sim:0"))) == 5.0


async def test_what_an_executor_has_refused_is_never_done(system: System) -> None:
    done: list[int] = []
    system.refuses = lambda name, number: True
    with pytest.raises(DeviceError, match="executor cannot be started"):
        await in_thread(lambda: done.append(1))
    system.refuses = lambda name, number: False
    await in_thread(lambda: done.append(2))
    assert done == [2]


async def test_an_executor_with_a_thread_may_do_what_it_says_it_has_refused(system: System) -> None:
    gate, began = threading.Event(), threading.Event()
    first = asyncio.ensure_future(in_thread(lambda: (began.set(), gate.wait(PATIENCE_S))))
    await asyncio.sleep(0)
    assert began.wait(PATIENCE_S)
    system.refuses = lambda name, number: gate.set() or first_ended() or True

    def first_ended() -> None:
        """The thread takes the next work before the refusal is told."""
        taken.wait(PATIENCE_S)

    taken = threading.Event()
    assert await in_thread(lambda: taken.set() or 5) == 5
    await first


def test_a_thread_whose_start_was_interrupted_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    done: list[int] = []
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start_thread(lambda: done.append(1), "actorflow-test")
    started[0].join(PATIENCE_S)
    assert not started[0].is_alive()
    assert not done


def test_one_place_starts_threads() -> None:
    found = Counter(
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path, node in _nodes_near(STARTERS)
        if _starts_threads(node) and path != PACKAGE / "threads.py"
    )
    # A loop with a clock of its own counts the calls that others make there.
    allowed = {each for each in found if each.startswith("testing/clock.py:")}
    assert len(allowed) == 1
    assert found.keys() == allowed


def _nodes_near(names: Iterable[str]) -> Iterator[tuple[Path, ast.AST]]:
    """The nodes of all modules that mention one of the names: to parse the others takes seconds."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if any(name in text for name in names):
            yield from ((path, node) for node in ast.walk(ast.parse(text)))


def _starts_threads(node: ast.AST) -> bool:
    made = [node.func] if isinstance(node, ast.Call) else node.bases if isinstance(node, ast.ClassDef) else []
    return any(getattr(each, "attr", getattr(each, "id", None)) in STARTERS for each in made)


def test_every_place_that_starts_threads_is_tried() -> None:
    places = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for path, node in _nodes_near(["start_thread", "in_thread"])
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("start_thread", "in_thread")
    }
    assert places == {case.module for case in CASES.values()} | OTHERS
