"""Batched runs: who shares a frame with whom and when, who gets which error, and clean ends."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.runtime.batched import AGE_S
from actorflow.testing import virtual_time_loop
from tests.support.waiting import settle


class Service:
    """A graph that doubles its rows by an async function, which tests hold up; `frames` has the rows of each call."""

    def __init__(self, shape: tuple[Any, ...] = ("batch", 1), meanwhile: Callable[[], Awaitable[Any]] | None = None):
        self.frames: list[list[int]] = []
        self.times: list[float] = []
        self.entered = asyncio.Semaphore(0)
        self.gate = asyncio.Event()
        self.gate.set()
        self.graph = af.Graph("service")
        self.x = self.graph.blob("x", shape)
        self.y = self.graph.blob("y", shape)
        self.meanwhile = meanwhile
        [self.x] >> self.graph.function("double", self.double) >> [self.y]

    async def double(self, x: Any) -> Any:
        self.frames.append(x.reshape(len(x), -1)[:, 0].astype(int).tolist())
        self.times.append(asyncio.get_running_loop().time())
        self.entered.release()
        if self.meanwhile is not None:
            await self.meanwhile()
        await self.gate.wait()
        if (x < 0).any():
            raise ValueError("negative")
        return x * 2

    def ask(self, batcher: Any, *values: float, **options: Any) -> asyncio.Task[list[float]]:
        async def run() -> list[float]:
            rows = np.array(values, np.float32).reshape(-1, 1)
            result = await batcher.run({self.x: rows}, **options)
            return result[self.y][:, 0].tolist()

        return asyncio.ensure_future(run())


def on_virtual_time(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    with asyncio.Runner(loop_factory=virtual_time_loop) as runner:
        return runner.run(main())


# -- who shares a frame, and when --------------------------------------------------------------------------------------


async def test_requests_of_one_turn_share_a_frame() -> None:
    service = Service()
    async with service.graph, service.graph.batched(max_rows=8) as batcher:
        results = await asyncio.gather(*[service.ask(batcher, n, n + 0.5) for n in range(4)])
    assert results == [[2 * n, 2 * n + 1] for n in range(4)]
    assert len(service.frames) == 1


async def test_more_rows_than_a_frame_has_are_put_together_again() -> None:
    service = Service()
    async with service.graph, service.graph.batched(max_rows=4) as batcher:
        result = await batcher.run({"x": np.arange(10, dtype=np.float32)[:, None]})
        assert result.frames == (0, 1, 2)
        alone = await batcher.run({"x": [[1], [2]]})  # lists are taken as `Graph.run` takes them
    np.testing.assert_array_equal(result["y"][:, 0], 2 * np.arange(10))
    assert [len(rows) for rows in service.frames] == [4, 4, 2, 2]
    assert alone.frames == (3,)
    assert alone["y"].tolist() == [[2], [4]]


def test_a_request_that_is_alone_goes_at_once_and_others_wait_for_company() -> None:
    async def main() -> None:
        service = Service(meanwhile=lambda: asyncio.sleep(0.1))
        async with service.graph, service.graph.batched(max_rows=3, max_wait=0.02, in_flight=2) as batcher:
            asks = []
            for at_s, value in [(0.0, 1), (0.01, 2), (0.02, 3), (0.2, 4), (0.21, 5), (0.22, 6), (0.225, 7)]:
                await asyncio.sleep(at_s - asyncio.get_running_loop().time())
                asks.append(service.ask(batcher, value))
            await asyncio.gather(*asks)
        assert service.frames == [[1], [2, 3], [4], [5, 6, 7]]
        # The second frame when its oldest request had waited for 20 ms, the last one when it was full.
        assert service.times == pytest.approx([0.0, 0.03, 0.2, 0.225])

    on_virtual_time(main)


def test_a_request_that_has_left_is_no_company() -> None:
    async def main() -> None:
        service = Service(meanwhile=lambda: asyncio.sleep(0.1))
        async with service.graph, service.graph.batched(max_rows=3, max_wait=0.02) as batcher:
            asks = [service.ask(batcher, 1)]
            await asyncio.sleep(0.01)
            asks += [service.ask(batcher, 2), service.ask(batcher, 3)]
            await asyncio.sleep(0.01)
            asks.pop(1).cancel()
            await asyncio.sleep(0)
            asks.append(service.ask(batcher, 4))
            await asyncio.gather(*asks)
        assert service.frames == [[1], [3, 4]]
        assert service.times == pytest.approx([0.0, 0.03])

    on_virtual_time(main)


def test_what_waits_at_the_end_waits_for_no_company() -> None:
    async def main() -> None:
        service = Service(meanwhile=lambda: asyncio.sleep(0.1))
        async with service.graph:
            async with service.graph.batched(max_wait=0.05) as batcher:
                asks = [service.ask(batcher, 1)]
                await asyncio.sleep(0.01)
                asks.append(service.ask(batcher, 2))
                await asyncio.sleep(0)
            assert await asyncio.gather(*asks) == [[2], [4]]
        assert service.times == pytest.approx([0.0, 0.01])

    on_virtual_time(main)


def test_full_frames_follow_each_other_without_a_gap() -> None:
    async def main() -> None:
        service = Service(meanwhile=lambda: asyncio.sleep(0.01))
        async with service.graph, service.graph.batched(max_rows=4, max_wait=1.0, in_flight=1) as batcher:

            async def caller(value: int) -> None:
                for _ in range(5):
                    assert await service.ask(batcher, value) == [2 * value]

            await asyncio.gather(*[caller(value) for value in range(8)])
            assert asyncio.get_running_loop().time() == pytest.approx(0.1)  # the fewest frames, one after the other
        assert {len(rows) for rows in service.frames} == {4}

    on_virtual_time(main)


def test_what_waits_goes_when_nothing_runs() -> None:
    """Two frames of which the second ends first: what has waited meanwhile need not wait for company then."""

    async def main() -> None:
        service = Service(meanwhile=lambda: asyncio.sleep(0.01))
        async with service.graph, service.graph.batched(max_rows=4, max_wait=5.0, in_flight=1) as batcher:
            first = service.ask(batcher, 1)
            await asyncio.sleep(0.005)
            await asyncio.gather(first, service.ask(batcher, 2))
        assert service.times == pytest.approx([0.0, 0.01])

    on_virtual_time(main)


async def test_higher_priorities_go_first_and_equal_ones_in_their_order() -> None:
    service = Service()
    service.gate.clear()
    async with service.graph, service.graph.batched(max_rows=2, in_flight=1) as batcher:
        asks = [service.ask(batcher, 0)]
        await service.entered.acquire()
        for value, priority in [(1, 0), (2, 1), (3, 0), (4, 2), (5, 1), (6, -1)]:
            asks.append(service.ask(batcher, value, priority=priority))
        await settle()
        service.gate.set()
        await asyncio.gather(*asks)
    assert service.frames == [[0], [4, 2], [5, 1], [3, 6]]


def test_nobody_starves() -> None:
    """Requests of higher priority come without end; one of the lowest is overtaken by those of its first seconds."""

    async def main() -> None:
        service = Service(meanwhile=lambda: asyncio.sleep(0.1))
        async with service.graph, service.graph.batched(max_rows=1, in_flight=1) as batcher:
            asks = [service.ask(batcher, 1000, priority=3)]
            await asyncio.sleep(0)
            low = service.ask(batcher, 7, priority=0)
            for number in range(100):
                asks.append(service.ask(batcher, 1000 + number, priority=3))
                await asyncio.sleep(0.1)
                if low.done():
                    break
            assert low.done()
            await asyncio.gather(*asks)
        assert service.times[service.frames.index([7])] == pytest.approx(3 * AGE_S, abs=0.2)

    on_virtual_time(main)


async def test_pad_makes_requests_alike() -> None:
    service = Service(("batch", "time"))
    x = service.x
    calls: list[int] = []

    def pad(requests: list[dict[Any, Any]]) -> list[dict[Any, Any]]:
        calls.append(len(requests))
        longest = max(feeds[x].shape[1] for feeds in requests)
        return [{x: np.pad(feeds[x], ((0, 0), (0, longest - feeds[x].shape[1])))} for feeds in requests]

    async with service.graph:
        async with service.graph.batched(pad=pad) as batcher:
            feeds = [np.full((1, n), n, np.float32) for n in (2, 3, 1)]
            results = await asyncio.gather(*[batcher.run({x: feed}) for feed in feeds])
        assert [result["y"].tolist() for result in results] == [[[4, 4, 0]], [[6, 6, 6]], [[2, 0, 0]]]
        assert calls == [3]
        for wrong in (lambda requests: requests, lambda requests: requests[:1], lambda requests: 1 / 0):
            async with service.graph.batched(pad=wrong, isolate=False) as batcher:
                asks = [batcher.run({x: feed}) for feed in feeds]
                for outcome in await asyncio.gather(*asks, return_exceptions=True):
                    assert isinstance(outcome, af.FeedError)
                    assert "pad of batched runs" in str(outcome)


async def test_with_a_bucket_results_do_not_depend_on_the_company() -> None:
    """To the bit, for a row at one place of its frame; elsewhere, and without buckets, BLAS may round otherwise."""
    graph = af.Graph("net")
    x = graph.blob("x", ("batch", 8, 8, 1))
    scores = af.nn.NIN(10, (16, 32))(x, training=False)
    images = np.random.default_rng(0).random((200, 8, 8, 1), dtype=np.float32)

    async def answers(batcher: Any, order: list[int]) -> list[Any]:
        asks = [batcher.run({x: images[n : n + 1]}) for n in order]
        return [result[scores][0] for result in await asyncio.gather(*asks)]

    async with graph:
        async with graph.batched(fetch=scores, max_rows=16, buckets=[16]) as batcher:
            first = (await answers(batcher, [7]))[0]
            for count in range(16):
                company = np.random.default_rng(count).integers(0, 200, count)
                np.testing.assert_array_equal((await answers(batcher, [7, *company]))[0], first)
            everywhere = await answers(batcher, [7] * 16)
        async with graph.batched(fetch=scores, max_rows=16) as batcher:
            everywhere += (await answers(batcher, [1, 2, 7]))[2:] + await answers(batcher, [7])
    np.testing.assert_allclose(everywhere, [first] * len(everywhere), rtol=1e-5, atol=1e-6)


async def test_buckets_have_the_lengths_that_were_given() -> None:
    service = Service()
    async with service.graph, service.graph.batched(max_rows=8, buckets=(2, 8)) as batcher:
        for count in (1, 2, 3, 8):
            assert await service.ask(batcher, *range(count)) == [2 * n for n in range(count)]
        assert batcher.statistics().padded_rows == 1 + 0 + 5 + 0
    assert [len(rows) for rows in service.frames] == [2, 2, 8, 8]
    assert service.frames[2] == [0, 1, 2, 2, 2, 2, 2, 2]


# -- what cannot be batched --------------------------------------------------------------------------------------------


def test_graphs_without_rows_are_refused() -> None:
    graph = af.Graph("closed")
    x = graph.blob("x", (32, 10))
    af.ops.scale(x, 2.0)
    with pytest.raises(af.GraphError, match=r"'x' float32\[32, 10\].* name the axis, shape=\('batch', 10\)"):
        graph.batched()
    graph = af.Graph("numbers")
    af.ops.scale(graph.blob("x", ()), 2.0)
    with pytest.raises(af.GraphError, match="does not begin with an open axis; every source must"):
        graph.batched()
    with pytest.raises(af.GraphError, match="fed nothing"):
        af.Graph("empty").batched()


def test_results_that_mix_rows_are_refused() -> None:
    graph = af.Graph("mean")
    x = graph.blob("x", ("batch", 10))
    average = af.ops.mean(x, axis=0, name="average")
    centred = af.ops.scale(x - average, 1.0, name="centred")
    scaled = af.ops.scale(x, 2.0, name="scaled")
    product = af.ops.matmul(x, x.T, name="product")
    with pytest.raises(af.GraphError, match=r"'average/out' float32\[10\] cannot be fetched .* one row for each row"):
        graph.batched(fetch=average)
    with pytest.raises(af.GraphError, match=r"'average/out'.* made of all rows of a batch"):
        graph.batched(fetch=centred)
    with pytest.raises(af.GraphError, match=r"'product/out' float32\[batch, batch\] cannot be fetched"):
        graph.batched(fetch=product)
    graph.batched(fetch=scaled)
    with pytest.raises(af.GraphError, match=r"'x'.* does not begin with an open axis 'time'; every source must"):
        graph.batched(fetch=scaled, axis="time")


def test_wrong_options() -> None:
    graph = Service().graph
    for options, said in [
        ({"max_rows": 0}, "max_rows must be at least 1, got 0"),
        ({"in_flight": 0}, "in_flight must be at least 1, got 0"),
        ({"queue_rows": 0}, "queue_rows must be at least 1, got 0"),
        ({"max_wait": -1}, "max_wait must not be negative, got -1"),
        ({"max_wait": float("nan")}, "max_wait must be a time"),
        ({"buckets": (8, 1)}, "buckets must be positive and ascending"),
        ({"buckets": (1, 8)}, "the last bucket must take max_rows=32 rows"),
        ({"buckets": 8}, "buckets must be a list, got 8"),
        ({"key": 8}, "key must be a function, got 8"),
    ]:
        with pytest.raises((ValueError, TypeError), match=said):
            graph.batched(**options)
    with pytest.raises(af.GraphError, match="sub-graph"):
        graph.subgraph("part").batched()
    dry = af.Graph("dry", dry_run=True)
    af.ops.exp(dry.blob("x", ["batch"]))
    with pytest.raises(af.GraphError, match=r"'dry' computes nothing \(dry_run=True\): there are no rows"):
        dry.batched()


async def test_wrong_feeds_are_refused_before_they_join_others() -> None:
    service = Service()
    async with service.graph, service.graph.batched(queue_rows=4) as batcher:
        good = service.ask(batcher, 1)
        for feeds, kind, said in [
            ({}, af.FeedError, "needs values for 'x' float32"),
            ({"z": 1}, af.FeedError, "cannot feed 'z'"),
            ({"x": np.zeros((2, 3), "f")}, af.ShapeError, "expected shape"),
            ({"x": np.zeros(3, "f")}, af.ShapeError, "expected shape"),
            ({"x": np.zeros((0, 1), "f")}, af.ShapeError, "at least 1 row"),
            ({"x": np.zeros((1, 1), "complex64")}, af.DTypeError, "expected dtype float32"),
            ({"x": np.zeros((1, 1), "f"), service.x: np.zeros((1, 1), "f")}, af.FeedError, "fed twice"),
            ({"x": "rows"}, af.ShapeError, "expected shape"),
            ([], TypeError, "feeds must be a mapping"),
        ]:
            with pytest.raises(kind, match=said):
                await batcher.run(feeds)
        assert await good == [2]
        assert batcher.statistics().failed == 9


async def test_feeds_of_one_request_have_as_many_rows() -> None:
    graph = af.Graph("two")
    a, b = graph.blob("a", ("batch", 2)), graph.blob("b", ("batch", 2))
    total = a + b
    async with graph, graph.batched(fetch=total) as batcher:
        with pytest.raises(af.ShapeError, match="'b': axis 'batch' is 3, and 2 in another feed"):
            await batcher.run({a: np.zeros((2, 2), "f"), b: np.zeros((3, 2), "f")})
        result = await batcher.run({a: [[1, 2]], b: [[3, 4]]})
        assert result[total].tolist() == [[4, 6]]


async def test_a_full_queue_refuses_at_once() -> None:
    service = Service()
    service.gate.clear()
    async with service.graph, service.graph.batched(max_rows=2, in_flight=1, queue_rows=3) as batcher:
        first = service.ask(batcher, 0)
        await service.entered.acquire()
        waiting = [service.ask(batcher, 1, 2), service.ask(batcher, 3)]
        await settle()
        with pytest.raises(af.QueueFullError, match="3 rows wait, 1 more would be more than queue_rows=3") as caught:
            await batcher.run({"x": [[4]]})
        assert (caught.value.waiting_rows, caught.value.queue_rows) == (3, 3)
        service.gate.set()
        assert await asyncio.gather(first, *waiting) == [[0], [2, 4], [6]]
        assert await service.ask(batcher, 5) == [10]
        assert batcher.statistics().refused == 1


# -- each request for itself -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guilty", [{3}, {0, 7}, set(range(8)), {2, 3, 4}])
async def test_only_guilty_requests_get_the_error_of_an_op(guilty: set[int]) -> None:
    service = Service()
    async with service.graph, service.graph.batched(max_rows=8) as batcher:
        asks = [service.ask(batcher, *([-1.0] if n in guilty else [n])) for n in range(8)]
        outcomes = await asyncio.gather(*asks, return_exceptions=True)
    for n, outcome in enumerate(outcomes):
        if n in guilty:
            assert isinstance(outcome, af.OpError)
            assert isinstance(outcome.__cause__, ValueError)
        else:
            assert outcome == [2 * n]
    assert len(service.frames) <= 1 + 2 * 3 * len(guilty)
    assert len({id(outcome) for n, outcome in enumerate(outcomes) if n in guilty}) == len(guilty)


async def test_without_isolation_all_of_a_frame_get_the_error() -> None:
    service = Service()
    async with service.graph, service.graph.batched(isolate=False) as batcher:
        outcomes = await asyncio.gather(*[service.ask(batcher, n) for n in (1, -2, 3)], return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [af.OpError] * 3
    assert len(service.frames) == 1


async def test_a_frame_that_updates_variables_is_not_repeated() -> None:
    graph = af.Graph("counting")
    x, count = graph.blob("x", ("batch",)), graph.variable("count", ())
    y = graph.blob("y", ("batch",))

    def add(x: Any, count: Any) -> Any:
        if (x < 0).any():
            raise ValueError("negative")
        return x, count + len(x)

    [x, count] >> graph.function("add", add) >> [y, count]
    async with graph, graph.batched(fetch=y) as batcher:
        asks = [batcher.run({x: [value]}) for value in (1, -1, 2)]
        outcomes = await asyncio.gather(*asks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [af.OpError] * 3
        await batcher.run({x: [1, 2]})
        assert count.value == 2


async def test_a_frame_that_nobody_waits_for_is_cancelled() -> None:
    ends: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    service = Service(meanwhile=forever)
    async with service.graph, service.graph.batched() as batcher:
        asks = [service.ask(batcher, n) for n in (1, 2)]
        await service.entered.acquire()
        asks[0].cancel()
        await settle()
        assert ends == []
        asks[1].cancel()
        await asyncio.wait(asks)
        await settle()
        assert ends == ["cancelled"]
        assert batcher.statistics().in_flight == 0
        assert batcher.statistics().cancelled == 2


def test_a_deadline_ends_its_own_request_alone() -> None:
    """The report ray-project/ray 66140, in what we take it to mean: items of a batch that time out, and its others."""

    async def main() -> None:
        service = Service(meanwhile=lambda: asyncio.sleep(0.1))
        loop = asyncio.get_running_loop()
        async with service.graph, service.graph.batched(in_flight=1, max_rows=4) as batcher:

            async def expire(value: int, timeout_s: float) -> float:
                with pytest.raises(af.RunTimeoutError, match=f"timed out after {timeout_s:g} s"):
                    await service.ask(batcher, value, timeout=timeout_s)
                return loop.time()

            early = asyncio.ensure_future(expire(2, 0.05))
            await asyncio.sleep(0)  # whose request is a task of its own
            first = service.ask(batcher, 1)
            await settle()
            waiting, late = asyncio.ensure_future(expire(3, 0.02)), service.ask(batcher, 4, timeout=1.0)
            assert await early == pytest.approx(0.05)
            assert await waiting == pytest.approx(0.02)
            assert batcher.statistics().waiting_rows == 1
            assert await first == [2]
            assert loop.time() == pytest.approx(0.1)
            assert await late == [8]
            assert loop.time() == pytest.approx(0.2)
            assert batcher.statistics().expired == 2
            outcomes = await asyncio.gather(expire(5, 0.01), expire(6, 0.01))
            assert outcomes == pytest.approx([0.21, 0.21])
            assert await service.ask(batcher, 7) == [14]
            assert loop.time() == pytest.approx(0.31), "the frame that timed out as a whole was cancelled"
        assert service.frames == [[2, 1], [4], [5, 6], [7]]

    on_virtual_time(main)


async def test_what_has_ended_is_not_kept() -> None:
    """Nor left to the garbage collector."""
    service = Service()
    async with service.graph, service.graph.batched(max_rows=2) as batcher:
        gc.collect()
        gc.disable()
        try:
            rows = [np.full((count, 1), 5, np.float32) for count in (1, 1, 3)]
            kept = [weakref.ref(each) for each in rows]
            results = await asyncio.gather(*[batcher.run({"x": each}) for each in rows])
            kept += [weakref.ref(each["y"] if each["y"].base is None else each["y"].base) for each in results]
            del rows, results
            await settle()
            assert [each() for each in kept] == [None] * len(kept)
        finally:
            gc.enable()


async def test_frames_do_not_run_in_the_context_of_a_request() -> None:
    who = contextvars.ContextVar("who", default="nobody")
    seen: list[str] = []

    async def look() -> None:
        seen.append(who.get())

    service = Service(meanwhile=look)
    async with service.graph:
        who.set("the service")
        async with service.graph.batched() as batcher:
            who.set("a request")
            for _ in range(2):
                await service.ask(batcher, 1)
    assert seen == ["the service"] * 2


async def test_an_op_cannot_await_a_batched_run_of_its_own_graph() -> None:
    batchers: list[Any] = []

    async def again() -> None:
        await batchers[0].run({"x": [[1]]})

    service = Service(meanwhile=again)
    async with service.graph, service.graph.batched() as batcher:
        batchers.append(batcher)
        with pytest.raises(af.OpError, match="cannot await a batched run of its own graph"):
            await service.ask(batcher, 1)


# -- ends --------------------------------------------------------------------------------------------------------------


async def test_leaving_the_block_finishes_what_waits() -> None:
    service = Service()
    service.gate.clear()
    async with service.graph:
        batcher = service.graph.batched(max_rows=2, in_flight=1, max_wait=1e6)
        with pytest.raises(af.BatcherClosedError, match="was not entered yet"):
            await batcher.run({"x": [[1]]})
        async with batcher:
            asks = [service.ask(batcher, n) for n in range(5)]
            await service.entered.acquire()
            refused = asyncio.ensure_future(later(service, batcher))
        assert [await ask for ask in asks] == [[2 * n] for n in range(5)]
        await refused
    assert repr(batcher) == "<Batcher of graph 'service', closed: 0 rows wait, 0 frames in flight>"


async def later(service: Service, batcher: Any) -> None:
    await settle()
    with pytest.raises(af.BatcherClosedError, match="is closing"):
        await service.ask(batcher, 9)
    service.gate.set()


async def test_it_may_be_entered_again_after_its_end_alone() -> None:
    service = Service()
    service.gate.clear()
    async with service.graph:
        batcher = service.graph.batched(max_rows=1, in_flight=1)
        for ends_well in (True, False, True):
            asks: list[Any] = []
            with contextlib.nullcontext() if ends_well else pytest.raises(LookupError):
                async with batcher:
                    with pytest.raises(af.GraphError, match="is entered already: its block has not ended"):
                        await batcher.__aenter__()
                    asks += [service.ask(batcher, n) for n in range(3)]
                    await service.entered.acquire()
                    if not ends_well:
                        raise LookupError
                    service.gate.set()
            outcomes = await asyncio.gather(*asks, return_exceptions=True)
            assert [type(each) for each in outcomes] == [list if ends_well else af.BatcherClosedError] * 3
            service.gate.clear()
            service.entered = asyncio.Semaphore(0)
        figures = batcher.statistics()
        assert (figures.finished, figures.failed, figures.waiting_rows, figures.in_flight) == (6, 3, 0, 0)


async def test_parts_of_a_request_are_padded_to_one_length() -> None:
    """As rows of several frames are put together, parts go into frames without others, which may be longer."""
    graph = af.Graph("g")
    x = graph.blob("x", ("batch", "time"))
    y = x * 2
    frames: list[list[Any]] = []

    def pad(requests: list[dict[Any, Any]]) -> list[dict[Any, Any]]:
        frames.append([each[x].shape for each in requests])
        longest = max(each[x].shape[1] for each in requests)
        return [{x: np.pad(each[x], ((0, 0), (0, longest - each[x].shape[1])))} for each in requests]

    async with graph, graph.batched(pad=pad, max_rows=4, max_wait=1e6, key=lambda _: "one for all") as batcher:
        shapes = [(7, 2), (1, 5), (1, 3), (6, 6)]
        asks = [batcher.run({x: np.ones(shape, np.float32)}) for shape in shapes]
        results = [result[y] for result in await asyncio.gather(*asks)]
    assert [result.shape for result in results] == [(7, 2), (1, 5), (1, 5), (6, 6)]
    assert [result.sum() for result in results] == [28, 10, 6, 72]
    assert sorted(frames) == [[(1, 5), (1, 3)], [(2, 6)], [(3, 2)], [(4, 2)], [(4, 6)]]


async def test_parts_of_a_request_that_are_padded_differently() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("batch", "time"))
    y = graph.blob("y", ("batch", "time"))
    [x] >> graph.op("double", af.ops.Scale(2.0)) >> [y]
    rows: list[int] = []

    def pad(requests: list[dict[Any, Any]]) -> list[dict[Any, Any]]:
        rows.append(len(requests[0][x]))
        return [{x: np.zeros((rows[-1], rows[-1]), np.float32)} for _ in requests]

    async with graph, graph.batched(pad=pad, max_rows=4) as batcher:
        with pytest.raises(af.ShapeError, match=r"rows of 'y' cannot be put together: .* \[\(3,\), \(4,\)\]"):
            await batcher.run({x: np.ones((7, 2), np.float32)})
        assert (await batcher.run({x: np.ones((3, 2), np.float32)}))[y].shape == (3, 3)


async def test_a_cancellation_while_the_block_ends_gives_up_what_waits() -> None:
    service = Service()
    service.gate.clear()

    async def serve() -> None:
        async with service.graph.batched() as batcher:
            asks.append(service.ask(batcher, 1))
            await service.entered.acquire()

    asks: list[Any] = []
    async with service.graph:
        task = asyncio.ensure_future(serve())
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(af.BatcherClosedError):
            await asks[0]


async def test_closing_the_graph_tells_all_who_wait() -> None:
    service = Service()
    service.gate.clear()
    async with service.graph.batched(max_rows=1, in_flight=1) as batcher:
        asks = [service.ask(batcher, n) for n in range(3)]
        await service.entered.acquire()
        await service.graph.aclose()
        for ask in asks:
            with pytest.raises(af.BatcherClosedError, match="its batcher ends with its graph, which was closed"):
                await ask
        with pytest.raises(af.BatcherClosedError, match="the batcher of graph 'service' ends with its graph"):
            await service.ask(batcher, 4)
    await service.graph.aclose()


async def test_cancelling_frames_tells_their_callers_alone() -> None:
    service = Service()
    service.gate.clear()
    async with service.graph, service.graph.batched(max_rows=2, in_flight=1) as batcher:
        asks = [service.ask(batcher, n) for n in range(3)]
        await service.entered.acquire()
        service.graph.cancel(reason="by the test")
        service.gate.set()
        outcomes = await asyncio.gather(*asks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [af.RunCancelledError] * 2 + [list]


async def test_a_batcher_stays_on_its_loop() -> None:
    service = Service()
    async with service.graph, service.graph.batched() as batcher:

        async def elsewhere() -> None:
            with pytest.raises(af.GraphError, match="another event loop"):
                await batcher.run({"x": [[1]]})

        await asyncio.to_thread(asyncio.run, elsewhere())
        assert await service.ask(batcher, 1) == [2]


# -- looks -------------------------------------------------------------------------------------------------------------


async def test_statistics() -> None:
    service = Service()
    service.gate.clear()
    async with service.graph, service.graph.batched(max_rows=4, in_flight=1, queue_rows=10) as batcher:
        asks = [service.ask(batcher, n) for n in range(6)]
        await service.entered.acquire()
        figures = batcher.statistics()
        assert (figures.waiting_rows, figures.queue_rows, figures.in_flight, figures.frames) == (2, 10, 1, 1)
        assert dict(service.graph.engine.batchers) == {0: batcher}
        asks[5].cancel()
        with contextlib.suppress(af.QueueFullError):
            await batcher.run({"x": np.zeros((11, 1), "f")})
        service.gate.set()
        await asyncio.wait(asks)
        figures = batcher.statistics()
        ends = (figures.finished, figures.failed, figures.cancelled, figures.expired, figures.refused)
        assert ends == (5, 0, 1, 0, 1)
        assert figures.rows.limits == (1, 2, 4)
        assert figures.rows.counts == (1, 0, 1, 0)
        assert (figures.rows.total, figures.rows.mean) == (5, 2.5)
        assert sum(figures.wait_s.counts) == sum(figures.latency_s.counts) == 5
        assert 0 < figures.wait_s.total < figures.latency_s.total
    assert not service.graph.engine.batchers
