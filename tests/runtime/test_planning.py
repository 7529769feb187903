"""Plans are made in slices of the loop's time: what else the loop has to do goes on, and frames keep their order."""

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import actorflow as af
from actorflow.runtime import engine


def long_graph(ops: int = 400) -> tuple[af.Graph, af.Blob, af.Blob, af.Variable]:
    """A graph that takes many slices to plan, and whose frames append to a variable what they were fed."""
    graph = af.Graph("long")
    x = graph.blob("x", ("batch",), "float64")
    y: af.Blob = x
    for _ in range(ops):
        y = y + 1.0
    total = graph.variable("total", (), "float64")
    [total, af.ops.sum(x)] >> graph.op("add", af.ops.Sum()) >> [total]
    return graph, x, y, total


async def turns_until(task: asyncio.Task[af.Result]) -> int:
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    return turns


async def test_other_tasks_go_on_while_a_plan_is_made() -> None:
    graph, x, y, _ = long_graph()
    async with graph:
        run = asyncio.create_task(graph.run({x: np.zeros(3)}, fetch=[y]))
        while not graph.engine.running:
            assert not run.done()
            await asyncio.sleep(0)
        assert (await run)[y].tolist() == [400.0] * 3
        first = asyncio.create_task(graph.run({x: np.zeros(4)}, fetch=[y]))
        assert await turns_until(first) > 30
        graph.compile([y], axes={"batch": 5})
        ahead = asyncio.create_task(graph.run({x: np.zeros(5)}, fetch=[y]))
        assert await turns_until(ahead) > 3
        assert (await ahead)[y].shape == (5,)


async def test_a_graph_that_keeps_growing_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    graph = af.Graph("growing")
    x = graph.blob("x", (2,))
    async with graph:
        for number in range(250):
            y = x + float(number)  # as in the handler of a request
            await graph.run({x: np.zeros(2, np.float32)}, fetch=[y])
    (record,) = caplog.records
    assert "graph 'growing' got new ops between its runs 100 times" in record.getMessage()
    assert f"{__file__}:" in record.getMessage()


async def test_a_graph_that_was_built_in_steps_is_not_growing(caplog: pytest.LogCaptureFixture) -> None:
    graph = af.Graph("grown")
    y: af.Blob = graph.blob("x", (2,))
    async with graph:
        for _ in range(90):
            y = y + 1.0
            await graph.run({"x": np.zeros(2, np.float32)}, fetch=[y])
        for _ in range(20):
            result = await graph.run({"x": np.zeros(2, np.float32)}, fetch=[y])
    assert result[y].tolist() == [90.0, 90.0]
    assert not caplog.records


async def test_frames_start_in_the_order_of_the_calls() -> None:
    """A run whose plan is there waits for one before it whose plan is made: both update a variable."""
    graph, x, y, total = long_graph()
    seen = []

    async def run(rows: int) -> None:
        result = await graph.run({x: np.full(rows, 1.0)}, fetch=[y, graph, total])
        seen.append((rows, float(result[total])))

    async with graph:
        await run(1)
        async with asyncio.TaskGroup() as group:
            for rows in (10, 1, 100, 1, 10):
                group.create_task(run(rows))
    assert sorted(seen) == sorted([(1, 0.0), (10, 1.0), (1, 11.0), (100, 12.0), (1, 112.0), (10, 113.0)])
    assert float(total.value) == 123.0


async def test_streams_keep_the_order_of_their_feeds() -> None:
    graph, x, y, _ = long_graph(100)
    lengths = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    async with graph:
        feeds = ({x: np.full(n, float(i))} for i, n in enumerate(lengths))
        results = [result[y] async for result in graph.stream(feeds, fetch=[y], in_flight=4)]
    assert [(len(value), value[0]) for value in results] == [(n, 100.0 + i) for i, n in enumerate(lengths)]


async def test_a_cancelled_run_leaves_those_behind_it() -> None:
    graph, x, y, _ = long_graph()
    async with graph:
        first = asyncio.create_task(graph.run({x: np.zeros(3)}, fetch=[y]))
        await asyncio.sleep(0)
        second = asyncio.create_task(graph.run({x: np.zeros(3)}, fetch=[y]))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second)[y].shape == (3,)
        with pytest.raises(asyncio.CancelledError):
            await first
        assert graph.engine.frames.started == 1


async def test_a_graph_that_changes_meanwhile_is_planned_anew() -> None:
    graph, x, y, _ = long_graph()
    async with graph:
        run = asyncio.create_task(graph.run({x: np.zeros(3)}, fetch=[y.name]))
        await asyncio.sleep(0)
        graph.function("more", lambda a: a, inputs=y, outputs=y.spec)
        assert not run.done()
        assert (await run)[y].shape == (3,)


async def test_closing_ends_a_run_that_has_no_frame_yet() -> None:
    graph, x, y, _ = long_graph()
    run = asyncio.create_task(graph.run({x: np.zeros(3)}, fetch=[y]))
    await asyncio.sleep(0)
    assert not run.done()
    await graph.aclose()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not graph.engine.resources.devices
    async with graph:
        assert (await graph.run({x: np.zeros(3)}, fetch=[y]))[y].shape == (3,)


async def test_a_run_may_time_out_meanwhile() -> None:
    graph, x, y, _ = long_graph()
    async with graph:
        with pytest.raises(af.RunTimeoutError, match="before its frame started; graph 'long' is not paused: its plan"):
            await graph.run({x: np.zeros(3)}, fetch=[y], timeout=1e-4)
        assert (await graph.run({x: np.zeros(3)}, fetch=[y]))[y].shape == (3,)


async def test_an_error_of_the_plan_is_raised_and_the_next_run_goes_on() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("batch",), "float64")
    y: af.Blob = x
    for _ in range(100):
        y = y + 1.0
    pairs = af.ops.reshape(y, (-1, 2))
    async with graph:
        runs = [asyncio.create_task(graph.run({x: np.zeros(n)}, fetch=[pairs])) for n in (3, 4)]
        with pytest.raises(af.ShapeError, match=r"with batch = 3: .*cannot have shape"):
            await runs[0]
        assert (await runs[1])[pairs].shape == (2, 2)


# -- the first run of a process ------------------------------------------------------------------------------------


class Loading:
    """A process that has loaded no kernels; what loads them waits at a gate, in a thread, and may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate, self.errors, self.calls, self.forks_wait = threading.Event(), list[Exception](), 0, False
        self._began = threading.Semaphore(0)
        self._patch = monkeypatch
        self._is_loaded = False
        self._patch.setattr(engine, "are_loaded", lambda *_: self._is_loaded)
        self._patch.setattr(engine.team, "prepare", self._prepare)

    def _prepare(self) -> None:
        self.calls += 1
        self.forks_wait = engine._preparing.locked()
        self._began.release()
        assert self.gate.wait(60)
        if self.errors:
            raise self.errors.pop()
        self._is_loaded = True

    async def begun(self) -> None:
        """Wait until a thread is at the gate, while the loop goes on."""
        assert await asyncio.to_thread(self._began.acquire, timeout=60)


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loading]:
    found = Loading(monkeypatch)
    yield found
    found.gate.set()  # whatever has failed


@pytest.mark.parametrize("how", ["cancel", "close", "time out"])
async def test_a_run_ends_though_kernels_are_still_loaded(how: str, loading: Loading) -> None:
    graph, x, y, _ = long_graph(3)
    run = asyncio.create_task(graph.run({x: np.zeros(3)}, fetch=[y], timeout=0.01 if how == "time out" else None))
    await loading.begun()
    assert loading.forks_wait
    if how == "cancel":
        run.cancel()
    elif how == "close":
        await graph.aclose()
    with pytest.raises(af.RunTimeoutError if how == "time out" else asyncio.CancelledError):
        await run
    assert not loading.gate.is_set()
    loading.gate.set()
    async with graph:
        assert (await graph.run({x: np.zeros(3)}, fetch=[y]))[y].tolist() == [3.0] * 3


async def test_kernels_are_loaded_again_where_that_has_failed(loading: Loading) -> None:
    graph, x, y, _ = long_graph(3)
    loading.gate.set()
    loading.errors += [OSError("no file"), ImportError("no module"), ImportError("no module")]
    async with graph:  # which tries first, and leaves it to runs to say so
        for error in (ImportError, OSError):
            with pytest.raises(error, match="no "):
                await graph.run({x: np.zeros(3)}, fetch=[y])
        assert (await graph.run({x: np.zeros(3)}, fetch=[y]))[y].tolist() == [3.0] * 3
        await graph.run({x: np.zeros(3)}, fetch=[y])
    assert loading.calls == 4


def test_two_loops_load_kernels_one_after_the_other(loading: Loading) -> None:
    async def run() -> list[float]:
        graph, x, y, _ = long_graph(3)
        async with graph:
            found: list[float] = (await graph.run({x: np.zeros(3)}, fetch=[y]))[y].tolist()
            return found

    async def first() -> list[float]:
        task = asyncio.create_task(run())
        await loading.begun()
        other = asyncio.create_task(asyncio.to_thread(asyncio.run, run()))
        loading.gate.set()
        assert await other == [3.0] * 3
        return await task

    assert asyncio.run(first()) == [3.0] * 3
    assert loading.calls <= 2


async def test_large_first_values_are_computed_in_a_thread() -> None:
    threads: list[int] = []

    def init(spec: af.TensorSpec, name: str) -> np.ndarray:
        threads.append(threading.get_ident())
        if len(threads) == 1:
            assigned.value = [7.0] * spec.shape[0]  # what is assigned meanwhile stays
        elif len(threads) < 4:
            raise OSError("no file")
        return np.ones(spec.shape, spec.dtype)

    graph = af.Graph("large")
    x = graph.blob("x", ())
    assigned = graph.variable("assigned", (1 << 17,), init=init)
    y = x + af.ops.max(assigned)
    z = x + af.ops.max(graph.variable("other", (1 << 17,), init=init))
    async with graph:
        assert (await graph.run({x: 1}, fetch=[y]))[y] == 8
        with pytest.raises(af.GraphError, match="init of variable 'other' failed with OSError: no file"):
            await graph.run({x: 1}, fetch=[z])
        assert (await graph.run({x: 1}, fetch=[z]))[z] == 2
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [False, False, True, True]


def test_a_large_first_value_is_that_of_another_graph() -> None:
    inner, outer = af.Graph("inner"), af.Graph("outer")
    w = inner.variable("w", (1 << 17,), init=lambda spec, _: np.full(spec.shape, 2, spec.dtype))
    twice = 2 * w
    y = 1 + outer.variable("v", (1 << 17,), init=lambda *_: inner.run_sync()[twice])
    assert outer.run_sync()[y].tolist() == [5.0] * (1 << 17)


async def test_a_run_waits_for_the_first_values_that_another_had_computed() -> None:
    loop, begun, may_end = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    threads: list[int] = []

    def init(spec: af.TensorSpec, name: str) -> np.ndarray:
        threads.append(threading.get_ident())
        loop.call_soon_threadsafe(begun.set)
        may_end.wait(60)
        return np.ones(spec.shape, spec.dtype)

    graph = af.Graph("large")
    x = graph.blob("x", ())
    y = x + af.ops.max(graph.variable("v", (1 << 17,), init=init))
    z = x - af.ops.max(graph.variable("w", (1 << 17,), init=init))
    async with graph:
        first = asyncio.create_task(graph.run({x: 1}, fetch=[y]))
        await begun.wait()
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(graph.run({x: 1}, fetch=[y]))
        loop.call_later(0, may_end.set)
        assert (await second)[y] == 2
        graph.pause()
        paused = asyncio.create_task(graph.run({x: 1}, fetch=[z]))
        await asyncio.sleep(0)
        graph.step()
        assert (await paused)[z] == 0
    assert first.cancelled()
    assert len(threads) == 2
    assert threading.get_ident() not in threads
