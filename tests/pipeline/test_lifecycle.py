"""However an iteration ends, nothing of it is left: no task, thread, process, open file or called function."""

import asyncio
import contextvars
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, suppress
from typing import Any

import pytest

from actorflow.pipeline import Limiter, Pipeline, live_loaders, source
from tests.pipeline.recipes import collect
from tests.support.waiting import HELD_S, held_limits


class Opened:
    """Resource that a source holds open while it is iterated."""

    def __init__(self) -> None:
        self.opened = self.closed = 0

    def items(self, epoch: int) -> Iterator[int]:
        self.opened += 1
        try:
            yield from range(1_000)
        finally:
            self.closed += 1

    async def items_async(self) -> AsyncIterator[int]:
        self.opened += 1
        try:
            for i in range(1_000):
                await asyncio.sleep(0)
                yield i
        finally:
            self.closed += 1


class AsyncItems:
    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    def __aiter__(self) -> AsyncIterator[int]:
        return self._opened.items_async()


async def slowly(x: int) -> int:
    await asyncio.sleep(0)
    return x


def make(opened: Opened, kind: str) -> Pipeline:
    if kind == "async":
        return source(AsyncItems(opened)).map(slowly, concurrency=4).batch(2, collate=list)
    if kind == "thread":
        loader = source(opened.items, executor="thread")
        return loader.map(lambda x: x, concurrency=3, executor="thread").shuffle(5).prefetch(3)
    loader = source(opened.items).flat_map(lambda x: iter([x, x])).map(slowly, concurrency=2, ordered=False)
    return loader.branch(lambda x: x % 2, {0: lambda p: p.map(slowly, concurrency=2), 1: lambda p: p})


KINDS = pytest.mark.parametrize("kind", ["async", "thread", "mixed"])


async def nothing_left(opened: Opened) -> None:
    while opened.closed < opened.opened or len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0)
    assert opened.opened >= 1
    assert not live_loaders()


@KINDS
@pytest.mark.parametrize("taken", [0, 1, 7])
async def test_break_without_closing(kind: str, taken: int) -> None:
    opened = Opened()
    loader = make(opened, kind)
    seen = 0
    async for _ in loader:
        seen += 1
        if seen > taken:
            break
    await nothing_left(opened)
    del loader
    gc.collect()


@KINDS
async def test_with_block_waits_for_the_end(kind: str) -> None:
    opened = Opened()
    async with make(opened, kind) as loader:
        async for _ in loader:
            assert live_loaders() == [loader]
            break
    assert opened.closed == opened.opened
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("actorflow-")]


@KINDS
async def test_cancellation_of_the_consumer(kind: str) -> None:
    opened = Opened()
    loader = make(opened, kind)
    begun = asyncio.Event()

    async def consume() -> None:
        async with loader:
            async for _ in loader:
                begun.set()
                await asyncio.sleep(0)

    task = asyncio.create_task(consume())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await nothing_left(opened)


@KINDS
async def test_dropped_while_it_waits(kind: str) -> None:
    opened = Opened()
    loader = make(opened, kind)
    iteration = aiter(loader)
    await anext(iteration)
    known = weakref.ref(iteration)
    del iteration
    assert known() is None
    await nothing_left(opened)
    assert len(await collect(loader, 5)) == 5
    await loader.aclose()


async def test_closing_one_iteration_waits_for_a_call_in_a_thread() -> None:
    inside, release = threading.Event(), threading.Event()

    def block(x: int) -> int:
        inside.set()
        assert release.wait(60)
        return x

    loader = source(range(5)).map(block, executor="thread")
    iteration = aiter(loader)
    first = asyncio.ensure_future(anext(iteration))
    while not inside.is_set():
        await asyncio.sleep(0)
    closing = asyncio.ensure_future(iteration.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    release.set()
    await closing
    with pytest.raises(StopAsyncIteration):
        await first
    assert await collect(loader) == [0, 1, 2, 3, 4]
    await loader.aclose()


async def test_the_end_waits_for_threads_of_iterations_that_have_ended() -> None:
    """However many wait for it."""
    entered, release = threading.Event(), threading.Event()

    def block(x: int) -> int:
        if x == 0:
            entered.set()
            assert release.wait(60)
        return x

    loader = source(range(4)).map(block, executor="thread", timeout=HELD_S, on_error="skip")
    with held_limits() as end_limits:
        items = asyncio.ensure_future(collect(loader))
        await asyncio.to_thread(entered.wait)
        end_limits()
        assert await items == [1, 2, 3]
    closing = [asyncio.ensure_future(loader.aclose()) for _ in range(3)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(task.done() for task in closing)
    closing[0].cancel()
    release.set()
    await asyncio.gather(*closing[1:])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("actorflow-block")]


async def test_threads_of_many_epochs_are_forgotten_when_they_have_ended() -> None:
    async with source(range(4)).map(lambda x: x, executor="thread") as loader:
        for _ in range(20):
            assert await collect(loader) == [0, 1, 2, 3]
            for thread in threading.enumerate():
                if thread.name.startswith("actorflow-<lambda>"):
                    thread.join(60)
        assert len(loader._ended) <= 1


async def test_thread_that_does_not_end_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actorflow.pipeline import run

    monkeypatch.setattr(run, "_GRACE_S", 0.0)
    inside, release = threading.Event(), threading.Event()

    def block(x: int) -> int:
        inside.set()
        assert release.wait(60)
        return x

    loader = source([1]).map(block, executor="thread")
    task = asyncio.ensure_future(collect(loader))
    while not inside.is_set():
        await asyncio.sleep(0)
    task.cancel()
    closing = asyncio.ensure_future(loader.aclose())
    while not caplog.records:
        await asyncio.sleep(0)
    assert "stage 'block': a call still runs in a thread" in caplog.text
    release.set()
    await closing
    with suppress(asyncio.CancelledError):
        await task


async def test_variables_of_the_consumer_reach_every_kind_of_stage() -> None:
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")

    def here(x: Any) -> str:
        return request.get()

    async def here_async(x: Any) -> str:
        await asyncio.sleep(0)
        return request.get()

    def each(x: Any) -> Iterator[str]:
        yield request.get()

    def check(x: Any) -> bool:
        assert request.get() == "mine"
        return True

    request.set("mine")
    loader = source(lambda _: (request.get() for _ in range(40)))
    for stage in (here, here_async):
        loader = loader.map(stage).filter(check)
    loader = loader.map(here, executor="thread", concurrency=2).flat_map(each)
    async with loader:
        assert await collect(loader) == ["mine"] * 40


async def test_waiting_for_an_item_can_be_given_up() -> None:
    release = asyncio.Event()

    async def wait(x: int) -> int:
        await release.wait()
        return x

    loader = source(range(3)).map(wait)
    async with aclosing(aiter(loader)) as items:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(items), 0.001)
        release.set()
        assert [x async for x in items] == [0, 1, 2]


async def test_empty_and_ended_iterations_stay_ended() -> None:
    loader = source([]).map(slowly).batch(2)
    items = aiter(loader)
    for _ in range(3):
        with pytest.raises(StopAsyncIteration):
            await anext(items)
    assert loader.epoch == 1


async def test_the_loop_gets_its_turns() -> None:
    """The application takes items without ever waiting for anything else."""
    turns = 0
    done = False

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not done:
            asyncio.get_running_loop().call_soon(turn)

    turn()
    async for _ in source(range(1_000_000)).map(lambda x: x).filter(lambda x: x):
        if turns > 5:
            break
    done = True
    assert turns > 5


@pytest.mark.parametrize("kind", ["task", "tasks", "timeout", "thread"])
def test_a_loop_was_closed_in_the_middle(kind: str) -> None:
    release = threading.Event()
    limiter = Limiter(2)
    calls: list[int] = []
    tasks: list[asyncio.Task[Any]] = []

    async def asynchronous(x: int) -> int:
        calls.append(x)
        if len(calls) == 3:
            await asyncio.Event().wait()
        return x

    def plain(x: int) -> int:
        calls.append(x)
        if len(calls) == 3:
            assert release.wait(60)
        return x

    options: dict[str, Any] = {"tasks": {"concurrency": 2}, "timeout": {"timeout": 3600}}.get(kind, {})
    if kind == "thread":
        loader = source(range(6)).map(plain, executor="thread", limiter=limiter)
    else:
        loader = source(range(6)).map(asynchronous, limiter=None if kind == "task" else limiter, **options)
    first: list[int] = []

    async def take() -> None:
        async for x in loader:
            first.append(x)

    async def others() -> None:
        while len(first) < 2 or len(calls) < 3:
            await asyncio.sleep(0)
        tasks.extend(asyncio.all_tasks() - {asyncio.current_task()})

    loop = asyncio.new_event_loop()
    taking = loop.create_task(take())
    loop.run_until_complete(others())
    loop.close()
    release.set()

    async def rest() -> list[int]:
        async with loader:
            return await collect(loader)

    assert asyncio.run(asyncio.wait_for(rest(), 60)) == [2, 3, 4, 5]
    assert first == [0, 1]
    assert limiter.running == 0
    assert not taking.done()
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # they never can end
