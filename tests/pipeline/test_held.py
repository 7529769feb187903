"""However an iteration of a pipeline ends: nothing of its items is alive when the application is done with it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Any

import pytest

import actorflow as af
from actorflow.devices.sim import SimOptions
from actorflow.pipeline import Pipeline, concat, source, zip_
from tests.support.held import Arrays, nothing_held
from tests.support.waiting import settle

LENGTH = 100
ITEMS = 6

Items = Callable[[int], Iterator[Any]]


class BrokenError(Exception):
    """Raised by functions of these tests."""


def give(item: Any) -> Any:
    return item


async def give_later(item: Any) -> Any:
    await asyncio.sleep(0)
    return item


def fail_from_the_third_on(item: Any) -> Any:
    if item[0] >= 2:
        raise BrokenError
    return item


async def fail_later(item: Any) -> Any:
    await asyncio.sleep(0)
    return fail_from_the_third_on(item)


async def hang(item: Any) -> Any:
    await asyncio.Event().wait()


def twice(item: Any) -> Iterator[Any]:
    yield item
    yield fail_from_the_third_on(item)


async def twice_later(item: Any) -> AsyncIterator[Any]:
    yield item
    yield await fail_later(item)


def failing_source(items: Items) -> Items:
    def give_some(epoch: int) -> Iterator[Any]:
        for item in items(epoch):
            yield fail_from_the_third_on(item)

    return give_some


def is_even(item: Any) -> bool:
    return bool(item[0] % 2 == 0)


def stopped(item: Any) -> Any:
    raise StopIteration


PIPELINES: dict[str, Callable[[Items], Pipeline[Any]]] = {
    "ends well": lambda items: source(items).map(give),
    "async, ends well": lambda items: source(items).map(give_later, concurrency=2).map(give_later),
    "map": lambda items: source(items).map(fail_from_the_third_on),
    "map on the loop": lambda items: source(items).map(fail_from_the_third_on, executor="loop"),
    "map in threads": lambda items: source(items).map(fail_from_the_third_on, executor="thread", concurrency=2),
    "async map": lambda items: source(items).map(fail_later),
    "async map, several at once": lambda items: source(items).map(fail_later, concurrency=3),
    "any order": lambda items: source(items).map(fail_later, concurrency=3, ordered=False),
    "stages behind it": lambda items: source(items).map(fail_later).map(give_later).batch(2, collate=list).prefetch(2),
    "StopIteration": lambda items: source(items).map(stopped),
    "filter": lambda items: source(items).filter(fail_from_the_third_on),
    "flat_map": lambda items: source(items).flat_map(twice),
    "async flat_map": lambda items: source(items).flat_map(twice_later),
    "collate": lambda items: source(items).batch(2, collate=stopped),
    "skip": lambda items: source(items).map(fail_from_the_third_on, on_error="skip"),
    "async skip": lambda items: source(items).map(fail_later, concurrency=2, on_error="skip"),
    "retries": lambda items: source(items).map(fail_later, retries=2),
    "timeout": lambda items: source(items).map(hang, timeout=0.001),
    "source": lambda items: source(failing_source(items)).map(give),
    "shuffle": lambda items: source(items).shuffle(3).map(fail_from_the_third_on),
    "batch": lambda items: source(items).map(fail_from_the_third_on).batch(4, collate=list),
    "prefetch": lambda items: source(items).prefetch(3).map(fail_later),
    "cache": lambda items: source(items).map(fail_from_the_third_on).cache(),
    "repeat": lambda items: source(items).map(fail_from_the_third_on).repeat(2),
    "zip": lambda items: zip_(source(items).map(fail_later), source(items)),
    "concat": lambda items: concat(source(items), source(items).map(fail_later)),
    "branch": lambda items: source(items).branch(
        is_even, {True: lambda some: some.map(fail_later), False: lambda some: some.map(give)}
    ),
    "to": lambda items: source(items).map(fail_later).to("sim:0"),
}


def items_of(arrays: Arrays) -> Items:
    def items(epoch: int) -> Iterator[Any]:
        for number in range(ITEMS):
            array = arrays(LENGTH)
            array *= number
            yield array

    return items


async def whole(pipeline: Pipeline[Any]) -> None:
    with suppress(af.StageError):
        async for _ in pipeline:
            pass


async def left(pipeline: Pipeline[Any]) -> None:
    with suppress(af.StageError):
        async with aclosing(aiter(pipeline)) as items:
            async for _ in items:
                break


async def dropped(pipeline: Pipeline[Any]) -> None:
    with suppress(af.StageError):
        async for _ in pipeline:
            break


async def cancelled(pipeline: Pipeline[Any]) -> None:
    has_some = asyncio.Event()

    async def take() -> None:
        async for _ in pipeline:
            has_some.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(take())
    while not (has_some.is_set() or task.done()):
        await settle()
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


async def without_a_loop(pipeline: Pipeline[Any]) -> None:
    def take() -> None:
        with suppress(af.StageError):
            for _ in pipeline.iter_sync():
                pass

    await asyncio.to_thread(take)


async def left_without_a_loop(pipeline: Pipeline[Any]) -> None:
    def take() -> None:
        with suppress(af.StageError):
            for _ in pipeline.iter_sync():
                break

    await asyncio.to_thread(take)


@pytest.mark.together("end", [whole, left, dropped, cancelled, without_a_loop, left_without_a_loop])
@pytest.mark.parametrize("name", PIPELINES)
async def test_pipeline(name: str, end: Callable[[Pipeline[Any]], Awaitable[None]]) -> None:
    await end(PIPELINES[name](items_of(Arrays())))
    async with nothing_held(is_open=False) as arrays:
        for _ in range(2):
            pipeline = PIPELINES[name](items_of(arrays))
            await end(pipeline)
            await pipeline.aclose()


async def test_copies_to_a_device_that_nobody_waits_for() -> None:
    """They end when the loop of `iter_sync` has been closed."""
    slow = af.Graph("slow", devices={"sim:0": SimOptions(latency_s=0.05)})
    async with nothing_held(is_open=False) as arrays:
        for _ in range(2):
            pipeline = source(items_of(arrays)).to("sim:0", graph=slow, in_flight=3)
            await left_without_a_loop(pipeline)
            await pipeline.aclose()


async def test_feeds_of_a_graph() -> None:
    graph = af.Graph("held")
    graph.function("f", fail_later, outputs=af.TensorSpec.of((LENGTH,), "float64"))(
        graph.blob("x", (LENGTH,), "float64")
    )

    async def feed(pipeline: Pipeline[Any]) -> None:
        with suppress(af.OpError):
            async for _ in graph.stream(pipeline.feed("x"), in_flight=2):
                pass

    async with graph:
        async with nothing_held(is_open=False) as arrays:
            for _ in range(2):
                pipeline = source(items_of(arrays)).map(give_later)
                await feed(pipeline)
                await pipeline.aclose()


async def test_a_thread_that_is_left_behind_holds_its_item_until_it_ends() -> None:
    release = threading.Event()

    def block(item: Any) -> Any:
        release.wait(60)
        return item

    async with nothing_held(is_open=False) as arrays:
        pipeline = source(items_of(arrays)).map(block, executor="thread", timeout=0.001)
        with pytest.raises(af.StageError) as caught:
            async for _ in pipeline:
                pass
        assert isinstance(caught.value, TimeoutError)
        del caught
        release.set()
        await pipeline.aclose()
