"""What is under way when its loop is closed is left behind: what comes next, on another loop, is right."""

import asyncio
import gc
import signal
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import array as xp
from actorflow import loop as loops
from tests.support.loops import loop_factories

ROWS = np.arange(3.0, dtype="float32")
BEGINNINGS = ["run", "runs", "atomic", "limited", "retried", "stream", "batcher", "tap"]
ENDS = ["timeout", "cancel", "graph cancel", "failure", "ctrl-c", "closed"]


class Held:
    """A graph whose functions, in two threads and as a task, wait while it is held."""

    def __init__(self, beginning: str) -> None:
        self.beginning = beginning
        self.gate = threading.Event()
        self.begun: list[str] = []
        self.is_held, self.is_failing = True, False
        self.graph = af.Graph("left", memory_budget=1 << 20 if beginning == "limited" else None)
        self.x = x = self.graph.blob("x", ("batch",))
        options = {"retries": 1, "timeout": 3600.0} if beginning == "retried" else {}
        first = self.graph.function("first", self.in_thread, x.spec, **options)(x)
        with self.graph.at(lane="second"):
            second = self.graph.function("second", self.in_thread, x.spec, **options)(x)
        third = self.graph.function("third", self.as_task, x.spec, **options)(x)
        self.total = self.graph.variable("total", ())
        [self.total, first] >> self.graph.function("count", lambda total, _: total + 1) >> [self.total]
        both = self.graph.function("both", np.add, x.spec)(first, second)  # waits for two threads, and for no task
        self.y = both * 2.0 + third
        self.tap: af.Tap | None = None
        self.left: list[asyncio.Task[Any]] = []

    def in_thread(self, value: np.ndarray) -> np.ndarray:
        if self.is_held:
            self.begun.append("thread")
            assert self.gate.wait(60)
        return value + 1

    async def as_task(self, value: np.ndarray) -> np.ndarray:
        self.begun.append("task")
        if self.is_failing:
            while len(self.begun) < 3:
                await asyncio.sleep(0)
            raise OSError
        if self.is_held:
            await asyncio.Event().wait()
        return value

    def release(self) -> None:
        self.is_held = False
        self.gate.set()

    async def begin(self) -> None:
        """Have something under way, until it ends."""
        graph, feeds = self.graph, {self.x: ROWS}
        match self.beginning:
            case "runs":
                await asyncio.gather(*(graph.run(feeds) for _ in range(3)))
            case "atomic":
                await graph.run(feeds, atomic=True)
            case "stream":
                async for _ in graph.stream([feeds] * 3, in_flight=2):
                    pass
            case "batcher":
                async with graph.batched(fetch=self.y) as batcher:
                    await batcher.run(feeds)
            case "tap":
                self.tap = graph.tap(self.y)
                await asyncio.gather(anext(self.tap), graph.run(feeds))
            case _:
                await graph.run(feeds)

    async def end(self, how: str) -> None:
        """End it, when its functions have begun."""
        self.is_failing = how == "failure"
        task = asyncio.create_task(self.begin())
        while len(self.begun) < 3:
            await asyncio.sleep(0)
        match how:
            case "cancel":
                task.cancel()
            case "graph cancel":
                self.graph.cancel()
            case "timeout":
                async with asyncio.timeout(0):
                    await task
            case "ctrl-c":
                signal.raise_signal(signal.SIGINT)
            case "closed":
                for _ in range(5):  # a stream begins a second frame: all that is called has begun then
                    await asyncio.sleep(0)
                self.left = [*asyncio.all_tasks() - {asyncio.current_task()}]
                return
        if how == "failure" or (self.beginning == "tap" and how == "graph cancel"):
            for _ in range(5):
                await asyncio.sleep(0)
            task.cancel()  # the failed one waits for its threads, and a tap for a better one
        await task

    async def check(self) -> None:
        """All goes on as if nothing had been."""
        graph, feeds = self.graph, {self.x: ROWS}
        right = (ROWS + 1) * 4 + ROWS
        run = asyncio.create_task(graph.run(feeds))
        await asyncio.sleep(0)
        self.release()
        result = await asyncio.wait_for(run, 60)
        assert np.array_equal(result[self.y], right)
        before = int(self.total.value)
        results = await asyncio.gather(*(graph.run(feeds) for _ in range(3)))
        results += [result async for result in graph.stream([feeds] * 3, in_flight=2)]
        assert all(np.array_equal(result[self.y], right) for result in results)
        assert int(self.total.value) == before + 6
        async with graph.batched(fetch=self.y) as batcher:
            assert np.array_equal((await batcher.run(feeds))[self.y], right)
        for tap in [graph.tap(self.y), *([self.tap] if self.tap is not None else [])]:
            async with tap:
                await graph.run(feeds)
                assert np.array_equal((await asyncio.wait_for(anext(tap), 60))[self.y], right)


@pytest.mark.parametrize("kind_of_loop", sorted(loop_factories()))
@pytest.mark.together("released", ["before", "meanwhile"])
@pytest.mark.together("how", ENDS)
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_the_next_loop_finds_a_graph_that_is_right(
    beginning: str,
    how: str,
    released: str,
    kind_of_loop: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(loops, "_loop_factory", lambda: loop_factories()[kind_of_loop])
    caplog.clear()
    held = Held(beginning)
    if how == "closed":
        loop = loop_factories()[kind_of_loop]()
        loop.run_until_complete(held.end(how))
        loop.close()
    else:
        with pytest.raises((af.ActorflowError, TimeoutError, asyncio.CancelledError, KeyboardInterrupt)):
            af.run(held.end(how))
    if released == "before":
        held.release()
    held.is_failing = False
    af.run(held.check())
    af.run(held.graph.aclose())
    assert held.graph.engine.frames.in_flight == 0
    assert "fault of actorflow" not in caplog.text
    for task in held.left:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # they never can end
    held.left.clear()
    gc.collect()


@pytest.mark.parametrize("kind_of_loop", sorted(loop_factories()))
@pytest.mark.parametrize("action", ["close", "aclose", "abort"])
def test_who_waits_on_a_closed_loop_is_not_told(kind_of_loop: str, action: str) -> None:
    held = Held("run")
    held.release()
    loop = loop_factories()[kind_of_loop]()
    batcher, tap, stream = (
        held.graph.batched(fetch=held.y),
        held.graph.tap(held.y),
        held.graph.stream([{"x": ROWS}] * 3),
    )

    async def begin() -> list[asyncio.Task[Any]]:
        held.graph.pause()
        await batcher.__aenter__()
        waiting: list[Any] = [held.graph.run({"x": ROWS}), batcher.run({"x": ROWS}), anext(tap), anext(stream)]
        tasks = [asyncio.ensure_future(each) for each in (*waiting, batcher.__aexit__(None, None, None))]
        for _ in range(5):
            await asyncio.sleep(0)
        return tasks

    tasks = loop.run_until_complete(begin())
    left = asyncio.all_tasks(loop)
    loop.close()
    tap.close()

    async def end() -> None:
        if action == "aclose":
            await batcher.aclose()
        if action == "abort":
            await held.graph.aclose()
        held.graph.resume()
        async with held.graph:
            assert np.array_equal((await held.graph.run({"x": ROWS}))[held.y], (ROWS + 1) * 4 + ROWS)
        with pytest.raises(af.BatcherClosedError if action != "close" else af.ActorflowError):
            await batcher.run({"x": ROWS})

    af.run(end())
    assert not any(task.done() for task in tasks)
    for task in left:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # they never can end


@pytest.mark.parametrize("kind_of_loop", sorted(loop_factories()))
def test_an_iteration_of_a_closed_loop_is_left_behind_by_its_batcher(kind_of_loop: str) -> None:
    held = Held("batcher")
    held.release()
    batcher = held.graph.batched(fetch=held.y, max_wait=0, max_rows=1, in_flight=1)
    loop = loop_factories()[kind_of_loop]()

    async def begin() -> list[Any]:
        await batcher.__aenter__()
        sessions = [batcher.session() for _ in range(2)]
        for session in sessions:
            await session.__aenter__()
        steps = [session.iterate({held.x: ROWS[:1]}, feedback={}) for session in sessions]
        await asyncio.gather(*map(anext, steps))
        while batcher.statistics()[::2][:2] != (1, 1):  # rows that wait, frames in flight
            await asyncio.sleep(0)
        return steps

    steps = loop.run_until_complete(begin())
    left = asyncio.all_tasks(loop)
    loop.close()

    async def end() -> None:
        async with held.graph, batcher:
            run = asyncio.ensure_future(batcher.run({held.x: ROWS[:1]}))
            await asyncio.sleep(0)
            for each in steps:
                await each.aclose()
            assert batcher.statistics().waiting_rows == 1
            assert (await run)[held.y] == (ROWS[0] + 1) * 4 + ROWS[0]

    af.run(end())
    for task in left:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # they never can end


@pytest.mark.parametrize("kind_of_loop", sorted(loop_factories()))
@pytest.mark.parametrize("how", ["cancel", "closed"])
def test_an_array_that_was_awaited_on_a_closed_loop_is_right_on_the_next(how: str, kind_of_loop: str) -> None:
    x = xp.asarray(ROWS) * 2.0 + 1.0
    loop = loop_factories()[kind_of_loop]()

    async def value() -> Any:
        return await x

    task = loop.create_task(value())
    loop.run_until_complete(asyncio.sleep(0))
    if how == "cancel" and not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
    loop.close()
    assert np.array_equal(af.run(value()), ROWS * 2 + 1)
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it never can end
