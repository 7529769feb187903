"""What does an item of an op that emits cost, above what is computed for it?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np

import actorflow as af
from benchmarks.harness import Budget, Case, Harness, Relation, Table, per

__all__ = ["measure"]

_US = 1e-6
_ITEM = np.ones(4, dtype=np.float32)

LOOP, SCAN = "plain loop over the generator", "af.scan of the same op"
MOST_US = 3.0


def emitted(count: Any) -> Iterator[Any]:
    """An array again and again."""
    for _ in range(int(count)):
        yield _ITEM


async def emitted_async(count: Any) -> AsyncIterator[Any]:
    """The same of an async generator."""
    for _ in range(int(count)):
        yield _ITEM


async def measure(harness: Harness) -> list[Table]:
    """One op of four elements per item: collected and streamed, of a plain and of an async generator."""
    count = harness.pick(100_000, 500)
    cases: dict[str, Case] = {LOOP: per(count, _US, lambda: _loop(count))}
    graphs, budgets = [], []
    for kind, fn in (("plain", emitted), ("async", emitted_async)):
        for in_flight in (1, 16):
            graph = af.Graph("emitting")
            n = graph.blob("n", [], "int64")
            item = graph.function(kind, fn, af.TensorSpec.of([4]), emits=True, in_flight=in_flight)(n)
            y = af.ops.negative(item)
            joined = af.collect(y)
            graphs.append(graph)
            for how, work in (("collected", _run), ("streamed", _stream)):
                name = f"{kind} generator, {how}, {in_flight} in flight"
                cases[name] = per(count, _US, work(graph, {n: count}, joined if how == "collected" else y))
                budgets.append(
                    Budget(f"{name}: at most {MOST_US} us more than the loop", name, Relation.MORE, MOST_US, LOOP)
                )
    scan, feeds = _scan(count)
    graphs.append(scan)
    cases[SCAN] = per(count, _US, lambda: scan.run(feeds))
    try:
        title = f"{count:,} items, one op of four elements each"
        return [await harness.compare(title, "us per item", cases, reference=LOOP, budgets=budgets)]
    finally:
        for graph in graphs:
            await graph.aclose()


def _loop(count: int) -> None:
    for item in emitted(count):
        np.negative(item)


def _run(graph: af.Graph, feeds: dict[Any, Any], fetch: af.Blob) -> Callable[[], Any]:
    return lambda: graph.run(feeds, fetch=fetch)


def _stream(graph: af.Graph, feeds: dict[Any, Any], fetch: af.Blob) -> Callable[[], Any]:
    async def stream() -> None:
        async for _ in graph.stream([feeds], fetch=fetch):
            pass

    return stream


def _scan(count: int) -> tuple[af.Graph, dict[Any, Any]]:
    graph = af.Graph("scan")
    x = graph.blob("x", [4])
    af.scan(lambda carry, _: (af.ops.negative(carry), None), x, length=count)
    return graph, {x: _ITEM}
