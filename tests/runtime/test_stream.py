"""Streams: order, overlap, backpressure, and clean ends."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

import actorflow as af
from tests.support.waiting import frames_begun

Feed = dict[str, Any]


def counting_graph() -> tuple[af.Graph, af.Blob]:
    graph = af.Graph("stream")
    x, total = graph.blob("x", (), "int64"), graph.variable("total", (), "int64")

    async def add(value: np.ndarray, term: np.ndarray) -> tuple[int, int]:
        for _ in range(int(term) % 3):
            await asyncio.sleep(0)
        return int(value) + int(term), int(value) + int(term)

    y = graph.blob("y", (), "int64")
    [total, x] >> graph.function("add", add) >> [total, y]
    return graph, y


class Source:
    """Feeds that know how far they were asked for, and whether they were closed."""

    def __init__(self, count: int, fail_at: int | None = None) -> None:
        self.count = count
        self.fail_at = fail_at
        self.given = 0
        self.closed = False

    def sync(self) -> Iterator[Feed]:
        try:
            for i in range(self.count):
                if i == self.fail_at:
                    raise LookupError("the source broke")
                self.given += 1
                yield {"x": i}
        finally:
            self.closed = True

    async def asynchronous(self) -> AsyncIterator[Feed]:
        try:
            for feed in self.sync():
                await asyncio.sleep(0)
                yield feed
        finally:
            self.closed = True


def feeds_of(source: Source, kind: str) -> Any:
    return source.sync() if kind == "sync" else source.asynchronous()


@pytest.mark.together("in_flight", [1, 2, 5, 100])
@pytest.mark.together("kind", ["sync", "async"])
async def test_results_in_order(kind: str, in_flight: int) -> None:
    graph, y = counting_graph()
    source = Source(20)
    async with graph:
        got = [int(r[y]) async for r in graph.stream(feeds_of(source, kind), in_flight=in_flight)]
    assert got == list(np.cumsum(range(20)))
    assert source.closed
    assert graph.engine.frames.finished == 20


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_frames_start_while_the_consumer_is_busy(kind: str) -> None:
    graph, _ = counting_graph()
    source = Source(20)
    taken = 0
    async with graph, asyncio.timeout(60):
        async for _ in graph.stream(feeds_of(source, kind), in_flight=4):
            taken += 1
            while graph.engine.frames.finished < min(taken + 4, 20):
                await asyncio.sleep(0)
            assert source.given == graph.engine.frames.finished
    assert taken == 20


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_leaving_early_closes_source_and_frames(kind: str) -> None:
    graph, y = counting_graph()
    source = Source(50)
    async with graph:
        async with aclosing(graph.stream(feeds_of(source, kind), in_flight=4)) as results:
            async for result in results:
                if result[y] >= 3:
                    break
        assert source.closed
        assert graph.engine.frames.in_flight == 0
        assert int((await graph.run({"x": 0}))[y]) >= 3


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_source_that_fails(kind: str) -> None:
    graph, y = counting_graph()
    source = Source(10, fail_at=4)
    got = []
    async with graph:
        with pytest.raises(LookupError, match="the source broke"):
            async for result in graph.stream(feeds_of(source, kind), in_flight=2):
                got.append(int(result[y]))
        assert got == list(np.cumsum(range(4)))
        assert graph.engine.frames.in_flight == 0


async def test_a_frame_that_fails_ends_the_stream_at_its_place() -> None:
    graph = af.Graph("fail")
    x = graph.blob("x", (), "int64")

    def check(a: np.ndarray) -> np.ndarray:
        if a == 3:
            raise ValueError("three")
        return a

    y = graph.function("check", check, af.TensorSpec.of((), "int64"))(x)
    source = Source(10)
    got = []
    async with graph:
        with pytest.raises(af.OpError, match="three"):
            async for result in graph.stream(source.sync(), in_flight=4):
                got.append(int(result[y]))
        assert got == [0, 1, 2]
        assert source.closed
    assert graph.engine.frames.in_flight == 0  # a call that was slow, and went to a thread, ends after the stream


async def test_wrong_arguments() -> None:
    graph, _ = counting_graph()
    with pytest.raises(ValueError, match="in_flight must be at least 1, got 0"):
        graph.stream([], in_flight=0)
    with pytest.raises(TypeError, match="feeds must be an iterable or an async iterable of mappings, got dict"):
        graph.stream({"x": 1})
    with pytest.raises(TypeError, match="got int"):
        graph.stream(3)


class SlowToClose:
    """Feeds whose source takes turns of the loop to close, and counts the cancellations that it sees meanwhile."""

    def __init__(self, graph: af.Graph) -> None:
        self.graph = graph
        self.closing = asyncio.Event()
        self.closed = False

    async def feeds(self) -> AsyncIterator[Feed]:
        try:
            for i in range(3):
                yield {"x": i}
            await asyncio.Event().wait()
        finally:
            self.closing.set()
            try:
                for _ in range(5):
                    await asyncio.sleep(0)
            finally:
                self.closed = True


@pytest.mark.together("cancellations", [1, 2, 3, 5])
@pytest.mark.together("how", ["aclosing", "plain"])
async def test_a_stream_that_is_cancelled_again_while_it_closes_leaves_nothing(how: str, cancellations: int) -> None:
    graph = af.Graph("slow to close")
    x = graph.blob("x", (), "int64")
    ended = 0

    async def hold(value: np.ndarray) -> np.ndarray:
        nonlocal ended
        try:
            if value < 3:
                await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended += 1
        return value

    y = graph.function("hold", hold, af.TensorSpec.of((), "int64"))(x)
    source = SlowToClose(graph)

    async def consume() -> None:
        stream = graph.stream(source.feeds(), in_flight=4)
        if how == "plain":
            async for _ in stream:
                pass
        else:
            async with aclosing(stream) as results:
                async for _ in results:
                    pass

    async with graph:
        task = asyncio.create_task(consume())
        await frames_begun(graph, 3)
        for _ in range(cancellations):
            task.cancel()
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await asyncio.wait([task])
        assert task.cancelled()
        assert graph.engine.frames.in_flight == 0
        assert source.closed
        assert graph.streams == []
        assert asyncio.all_tasks() == {asyncio.current_task()}
        async with asyncio.timeout(60):
            assert (await graph.run({"x": 3}))[y] == 3


@pytest.mark.parametrize("cancellations", [1, 2, 4])
async def test_a_run_that_is_cancelled_again_leaves_no_task(cancellations: int) -> None:
    graph = af.Graph("again")
    cleaned = []

    async def hold() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            cleaned.append(1)
        return 1

    graph.function("hold", hold, af.TensorSpec.of((), "int64"))()
    async with graph:
        task = asyncio.create_task(graph.run())
        await frames_begun(graph)
        await asyncio.sleep(0)
        for _ in range(cancellations):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([task])
        assert task.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert (graph.engine.frames.cancelled, graph.engine.frames.in_flight) == (1, 0)
    assert cleaned == [1]  # the others do not cut off what the first one has begun
