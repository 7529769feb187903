"""map, filter and flat_map: order, concurrency, executors, timeouts, retries, what becomes of failures."""

import asyncio
import logging
import threading
from typing import Any

import pytest

import actorflow as af
from actorflow.pipeline import Limiter, source
from tests.pipeline.recipes import collect
from tests.support.waiting import HELD_S, held_limits


class Gate:
    """Counts the calls that are inside; lets them out one by one, the last one in first."""

    def __init__(self) -> None:
        self.inside = self.most = 0

    async def __call__(self, x: int) -> int:
        self.inside += 1
        self.most = max(self.most, self.inside)
        for _ in range(10 - x % 5):
            await asyncio.sleep(0)
        self.inside -= 1
        return x


@pytest.mark.parametrize("concurrency", [1, 3, 16])
async def test_async_calls_overlap_up_to_their_number_and_keep_order(concurrency: int) -> None:
    gate = Gate()
    assert await collect(source(range(50)).map(gate, concurrency=concurrency)) == list(range(50))
    assert gate.most == concurrency


async def test_results_go_out_as_they_come_where_order_does_not_matter() -> None:
    first = asyncio.Event()

    async def wait(x: int) -> int:
        if x == 0:
            await first.wait()
        return x

    items = []
    async for x in source(range(8)).map(wait, concurrency=2, ordered=False):
        items.append(x)
        if len(items) == 7:
            first.set()
    assert items == [1, 2, 3, 4, 5, 6, 7, 0]


async def test_threads_run_as_many_calls_at_once_as_asked_for() -> None:
    barrier = threading.Barrier(3, timeout=60)

    def meet(x: int) -> tuple[int, str]:
        barrier.wait()
        return x, threading.current_thread().name

    loader = source(range(12)).map(meet, concurrency=3, executor="thread")
    async with loader:
        items = await collect(loader)
    assert [x for x, _ in items] == list(range(12))
    assert {name for _, name in items} == {f"actorflow-meet-{i}" for i in range(3)}


@pytest.mark.usefixtures("calls_count_as_short")
async def test_short_functions_run_on_the_loop() -> None:
    async with source(range(200)).map(lambda x: threading.get_ident()) as loader:
        threads = await collect(loader)
    assert threads.count(threading.get_ident()) > 150


async def test_long_functions_do_not_run_on_the_loop() -> None:
    here = threading.get_ident()
    release = threading.Event()

    def long(x: int) -> int:
        assert release.wait(60)
        return threading.get_ident()

    async with source([0]).map(long) as loader:
        task = asyncio.ensure_future(collect(loader))
        await asyncio.sleep(0)  # the loop is free meanwhile
        release.set()
        assert here not in await task


def test_function_that_cannot_be_sent_to_a_process_is_refused() -> None:
    with pytest.raises(af.PipelineError, match="pickle"):
        source([1]).map(lambda x: x, executor="process")


async def test_failure_drops_the_batch_that_it_belongs_to() -> None:
    loader = source(range(20)).map(lambda x: 1 // (x - 5) and x).batch(2, collate=list)
    items = []
    with pytest.raises(af.StageError, match=r"item 5: 5\n  created at") as raised:
        async for item in loader:
            items.append(item)
    assert len(items) == 2
    assert (raised.value.number, raised.value.item) == (5, 5)


async def test_skips_are_counted_reported_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    loader = source(range(10)).map(lambda x: 1 // (x % 3), on_error="skip", name="divide")
    assert await collect(loader) == [1, 0] * 3
    assert loader.stats()["divide"].skipped == 4
    assert [(skip.stage, skip.number, skip.item) for skip in loader.skips] == [
        ("divide", number, str(number)) for number in (0, 3, 6, 9)
    ]
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(messages) == 1
    assert messages[0].startswith("stage 'divide' leaves out item 0 (0): ZeroDivisionError")


@pytest.mark.parametrize(("on_error", "given"), [(0, 0), (2, 18), (0.04, 36), (0.2, 198)])
async def test_limits_of_failures(on_error: Any, given: int) -> None:
    """Each tenth item fails, the first one, too."""
    loader = source(range(220)).map(lambda x: 1 // (x % 10) * 0 + x, on_error=on_error, concurrency=3)
    items, number = [], None
    try:
        async for item in loader:
            items.append(item)
    except af.StageError as error:
        number = error.number
    assert items == [x for x in range(220) if x % 10][:given]
    assert number == {0: 0, 18: 20, 36: 40, 198: None}[given]
    await loader.aclose()


async def test_retries_with_and_without_rest() -> None:
    calls: dict[int, int] = {}

    async def flaky(x: int) -> int:
        calls[x] = calls.get(x, 0) + 1
        if calls[x] <= x % 3:
            raise OSError("not yet")
        return x

    for backoff in (0.0, 0.001):
        calls.clear()
        loader = source(range(12)).map(flaky, concurrency=3, retries=2, backoff=backoff)
        assert await collect(loader) == list(range(12))
        assert loader.stats()["flaky"].retried == 12
    loader = source([2]).map(flaky, retries=1)
    calls.clear()
    with pytest.raises(af.StageError, match="not yet"):
        await collect(loader)
    assert calls == {2: 2}


async def test_expansion_that_fails_is_repeated_without_what_went_out() -> None:
    failures = iter([True, True, False])

    def three(x: int) -> Any:
        yield x, 0
        yield x, 1
        if next(failures, False):
            raise OSError("not yet")
        yield x, 2

    loader = source([1, 2]).flat_map(three, retries=2)
    assert await collect(loader) == [(x, i) for x in (1, 2) for i in range(3)]


async def test_timeout_of_a_task_and_of_a_thread() -> None:
    entered, release = threading.Event(), threading.Event()
    cancelled = []

    async def hang(x: int) -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(x)
            raise
        return x

    def block(x: int) -> int:
        if x == 0:
            entered.set()
            assert release.wait(60)
        return x

    async with source([4]).map(hang, timeout=0.01) as loader:
        with pytest.raises(af.StageTimeoutError, match=r"timed out after 0.01 s\n  item 0: 4") as raised:
            await collect(loader)
    assert isinstance(raised.value, TimeoutError)
    assert cancelled == [4]
    loader = source(range(4)).map(block, executor="thread", timeout=HELD_S, on_error="skip")
    async with loader:
        with held_limits() as end_limits:
            items = asyncio.ensure_future(collect(loader))
            await asyncio.to_thread(entered.wait)
            end_limits()
            assert await items == [1, 2, 3]  # another thread took the place of the first
        assert loader.stats()["block"].timed_out == 1
        release.set()


async def test_limiter_bounds_stages_together() -> None:
    gate = Gate()
    limiter = Limiter(3, "disk")
    loader = source(range(30)).map(gate, concurrency=8, limiter=limiter).map(gate, concurrency=8, limiter=limiter)
    other = source(range(30)).map(gate, concurrency=8, limiter=limiter)
    assert await asyncio.gather(collect(loader), collect(other)) == [list(range(30))] * 2
    assert gate.most == 3
    assert limiter.running == 0
    async for _ in source(range(30)).map(gate, concurrency=8, limiter=limiter):
        break
    while limiter.running:
        await asyncio.sleep(0)


async def test_flat_map_takes_no_more_than_there_is_room_for() -> None:
    given = 0

    def endless(x: int) -> Any:
        nonlocal given
        while True:
            given += 1
            yield given

    loader = source([0]).flat_map(endless)
    assert await collect(loader, 100) == list(range(1, 101))
    assert given < 200
    await loader.aclose()


@pytest.mark.together(
    ("options", "message"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1, got 0"),
        ({"buffer": -1}, "buffer must be at least 0"),
        ({"executor": "gpu"}, "executor must be one of auto, loop, thread, process, got 'gpu'"),
        ({"timeout": 0}, "timeout must be positive"),
        ({"retries": -1}, "retries must be at least 0"),
        ({"on_error": "ignore"}, "on_error must be"),
        ({"on_error": 1.5}, "on_error must be"),
        ({"executor": "loop", "concurrency": 2}, "calls on the loop run one at a time"),
        ({"limiter": 3}, "limiter must be"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(af.PipelineError, match=message):
        source([1]).map(lambda x: x, **options)


def test_async_function_has_no_executor() -> None:
    async def call(x: int) -> int:
        return x

    with pytest.raises(af.PipelineError, match="an async function runs on the loop"):
        source([1]).map(call, executor="thread")
    with pytest.raises(af.PipelineError, match="expected a function, got 3"):
        source([1]).map(3)  # type: ignore[arg-type]


class Unspeakable(Exception):  # noqa: N818  it is an item, too
    """Cannot be shown."""

    @property
    def shape(self) -> tuple[int, ...]:
        raise RuntimeError("no shape")

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __str__ = __repr__


@pytest.mark.parametrize("on_error", ["raise", "skip"])
async def test_what_cannot_be_shown_does_not_hide_the_failure(on_error: str) -> None:
    def fail(item: Unspeakable) -> None:
        raise item

    loader = source([Unspeakable()]).map(fail, on_error=on_error, name="fail")
    if on_error == "skip":
        assert await collect(loader) == []
        (skip,) = loader.skips
        assert skip.item == "<Unspeakable that cannot be shown: RuntimeError>"
        assert skip.error == "Unspeakable: <Unspeakable that cannot be shown: RuntimeError>"
    else:
        with pytest.raises(
            af.StageError, match=r"stage 'fail' \(map\) failed with Unspeakable: <Unspeakable that cannot be shown"
        ):
            await collect(loader)
