"""How close does a batcher with many callers of one row come to a hand-written loop, and what do new weights cost?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter, process_time
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

import actorflow as af
from benchmarks.harness import Budget, Case, Harness, Relation, Row, Table

__all__ = ["measure"]

_CALLERS, _BATCH = 64, 32
_US = 1e-6
_Rows = npt.NDArray[np.float32]

LOOP, BATCHED = "hand-written loop", "graph.batched"
STILL, SWAPS = "the same weights", "a swap for each hundred requests"
FUNCTION, RAY = "graph.batched, a function", "ray.serve.batch, the same function"


async def measure(harness: Harness) -> list[Table]:
    """A network for handwritten digits, and a function of NumPy alone beside that of a peer."""
    requests = harness.pick(100, 4) * _BATCH
    images = np.random.default_rng(0).random((requests, 8, 8, 1), dtype=np.float32)
    rows = images.reshape(requests, 64)
    return [*await _of_digits(harness, images), await _of_a_function(harness, rows), await _of_swaps(harness)]


async def _of_digits(harness: Harness, images: _Rows) -> list[Table]:
    graph = af.Graph("digits", deterministic=True)
    x = graph.blob("x", ("batch", 8, 8, 1))
    scores = af.nn.NIN(10)(x, training=False)
    processor_us: dict[str, list[float]] = {LOOP: [], BATCHED: []}

    async def loop() -> None:
        for start in range(0, len(images), _BATCH):
            await graph.run({x: images[start : start + _BATCH]}, fetch=scores)

    async with graph, graph.batched(fetch=scores, max_rows=_BATCH) as batcher:
        cases = {
            LOOP: _timed(len(images), loop, processor_us[LOOP]),
            BATCHED: _timed(
                len(images), lambda: _callers(images, lambda row: batcher.run({x: row})), processor_us[BATCHED]
            ),
        }
        title = f"{_CALLERS} callers of one image each, a network for digits"
        budget = Budget("at least 0.9 of the throughput of the loop", BATCHED, Relation.BELOW, 0.9, LOOP)
        table = await harness.compare(title, "us per request", cases, reference=LOOP, budgets=[budget])
    rows = {name: Row(name, found[-harness.rounds :]) for name, found in processor_us.items()}
    most = Budget("at most 50 us per request above the loop", BATCHED, Relation.MORE, 50.0, LOOP)
    return [table, Table(f"{title}: processor", "us per request, all threads", rows, LOOP, [most])]


async def _of_a_function(harness: Harness, rows: _Rows) -> Table:
    random = np.random.default_rng(1)
    first, second = (random.standard_normal(shape, dtype=np.float32) for shape in ((64, 128), (128, 10)))

    def network(x: Any) -> Any:
        return np.maximum(x @ first, 0) @ second

    graph = af.Graph("function", deterministic=True)
    x, y = graph.blob("x", ("batch", 64)), graph.blob("y", ("batch", 10))
    [x] >> graph.function("network", network) >> [y]
    async with graph, graph.batched(fetch=y, max_rows=_BATCH) as batcher:
        cases = {FUNCTION: _timed(len(rows), lambda: _callers(rows, lambda row: batcher.run({x: row})))}
        serve = harness.peer("ray.serve")
        if serve is not None:
            # It asks how many requests its replica takes; in a process of its own there is none.
            replica = SimpleNamespace(_deployment_config=SimpleNamespace(max_ongoing_requests=2 * _CALLERS))
            serve.get_replica_context = lambda: replica

            @serve.batch(max_batch_size=_BATCH, batch_wait_timeout_s=0.002)  # type: ignore[untyped-decorator]
            async def answer(batch: list[_Rows]) -> list[_Rows]:
                found = network(np.concatenate(batch))
                return [found[n : n + 1] for n in range(len(batch))]

            cases[RAY] = _timed(len(rows), lambda: _callers(rows, answer))
        harness.leave_out("BentoML and LitServe: they batch behind HTTP servers of their own alone; see `service`")
        return await harness.compare(
            f"{_CALLERS} callers of one row each, a function of NumPy", "us per request", cases, reference=FUNCTION
        )


async def _of_swaps(harness: Harness) -> Table:
    """What a swap of all weights for each hundred requests does to the slowest answers; each must be of one version."""
    graph, width = af.Graph("swaps", deterministic=True), 64
    x = graph.blob("x", ("batch", width))
    first, second = (graph.variable(name, (width, width), init=1) for name in ("first", "second"))
    y = af.ops.inner(af.ops.inner(x, first), second)
    model, row = af.Model.of(graph), np.ones((1, width), np.float32)
    whole = {version: float((width * version) ** 2) for version in (1, 2)}
    states = {v: {each.name: np.full((width, width), v, np.float32) for each in (first, second)} for v in whole}
    requests = harness.pick(100_000, 400)

    async with graph, model.batched(max_rows=_BATCH) as batcher:

        async def latency(swaps: int) -> float:
            latencies, due, swapped = list[float](), asyncio.Event(), 0

            async def ask(_: _Rows) -> None:
                since = perf_counter()
                found = (await batcher.run({x: row}))[y]
                latencies.append(perf_counter() - since)
                assert found.min() == found.max()
                assert float(found[0, 0]) in whole.values()
                if len(latencies) * swaps >= (swapped + 1) * requests:
                    due.set()

            async def swap() -> None:
                nonlocal swapped
                while swapped < swaps:
                    while len(latencies) * swaps < (swapped + 1) * requests:
                        due.clear()
                        await due.wait()
                    swapped += 1
                    await model.swap(states[1 + swapped % 2])

            await asyncio.gather(swap(), _callers(np.empty(requests), ask))
            assert len(latencies) == requests
            return float(np.quantile(latencies, 0.99)) / _US

        cases = {STILL: lambda: latency(0), SWAPS: lambda: latency(requests // 100)}
        title = f"{_CALLERS} callers, {requests:,} requests, all weights swapped for each hundred of them: p99"
        budget = Budget("at most 1.5 times the p99 without", SWAPS, Relation.TIMES, 1.5, STILL)
        return await harness.compare(title, "us", cases, reference=STILL, budgets=[budget])


def _timed(count: int, work: Callable[[], Awaitable[Any]], processor_us: list[float] | None = None) -> Case:
    """The time per request; that of the processor is kept beside."""

    async def case() -> float:
        before, start = process_time(), perf_counter()
        await work()
        elapsed = perf_counter() - start
        if processor_us is not None:
            processor_us.append((process_time() - before) / count / _US)
        return elapsed / count / _US

    return case


async def _callers(rows: _Rows, ask: Callable[[_Rows], Awaitable[Any]]) -> None:
    """Each caller asks again as soon as it has its answer, until all rows were asked for."""

    async def caller(first: int) -> None:
        for n in range(first, len(rows), _CALLERS):
            await ask(rows[n : n + 1])

    await asyncio.gather(*[caller(first) for first in range(_CALLERS)])
