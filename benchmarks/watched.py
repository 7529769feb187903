"""What do a browser that watches, downloads of the trace, taps and checks cost the graph; how fast is the page?

That its memory stays flat however long it watches is a test: tests/web/test_bounded_memory.py.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter
from typing import Any

import numpy as np

import actorflow as af
from benchmarks import looking, pages
from benchmarks.dispatch import trivial
from benchmarks.harness import Budget, Case, Harness, Relation, Table
from benchmarks.workloads import Tasks, build_graph, layered

__all__ = ["measure"]

_VALUE = np.ones(1, dtype=np.float32)

UNWATCHED, MONITOR = "nobody watches", "states kept, nobody connected"
BROWSER, FIVE = "a browser connected", "five browsers connected"
DOWNLOADS = "eight download the trace, on and on"
_CLIENTS = {BROWSER: 1, FIVE: 5}
_DOWNLOADS = 8


async def measure(harness: Harness) -> list[Table]:
    """Per op and its blob of a graph that runs on and on: alone, with states kept, with a client of its live page."""
    tasks = layered(harness.pick(5_000, 300))
    seconds = harness.pick(1_000, 50) / 1000
    graphs = {
        name: build_graph(tasks, trivial, name="watched") for name in (UNWATCHED, MONITOR, BROWSER, FIVE, DOWNLOADS)
    }
    for graph, source in graphs.values():
        for _ in range(4):
            await graph.run({source: _VALUE})
    graphs[MONITOR][0].engine.resources.watch()
    budgets = [
        Budget("at most 1.2x of unwatched", BROWSER, Relation.TIMES, 1.2, UNWATCHED),
        Budget("at most 1.3x of unwatched with five", FIVE, Relation.TIMES, 1.3, UNWATCHED),
        Budget("at most 1.5x while eight download", DOWNLOADS, Relation.TIMES, 1.5, UNWATCHED),
    ]
    cases = {name: _case(tasks, *graphs[name], seconds) for name in graphs}
    try:
        async with AsyncExitStack() as stack:
            for name, clients in _CLIENTS.items():
                view = await stack.enter_async_context(af.web.serve(graphs[name][0], port=0))
                for _ in range(clients):
                    await stack.enter_async_context(_client(f"ws://{view.host}:{view.port}/stream"))
            view = await stack.enter_async_context(af.web.serve(graphs[DOWNLOADS][0], port=0))
            cases[DOWNLOADS] = _while_downloaded(cases[DOWNLOADS], f"http://{view.host}:{view.port}/trace.json")
            table = await harness.compare(
                f"{len(tasks):,} trivial tasks, layers of 100, fan-in 3",
                "us per op + blob",
                cases,
                reference=UNWATCHED,
                budgets=budgets,
            )
    finally:
        graphs[MONITOR][0].engine.resources.unwatch()
        for graph, _ in graphs.values():
            await graph.aclose()
    tables = [table, await looking.measure(harness), await pages.measure(harness)]
    return [each for each in tables if each is not None]


def _case(tasks: Tasks, graph: af.Graph, source: af.Blob, seconds: float) -> Case:
    """Runs long enough that the live page sends many times."""

    async def case() -> float:
        runs = 0
        start = perf_counter()
        while perf_counter() - start < seconds:
            await graph.run({source: _VALUE})
            runs += 1
        return (perf_counter() - start) / runs / len(tasks) * 1e6

    return case


def _while_downloaded(case: Case, url: str) -> Case:
    async def downloaded() -> float:
        async with _client(url):
            return await case()

    return downloaded


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[None]:
    """A process that reads the live page's stream, as a browser does, or downloads from it, once something has come.

    Raises:
        RuntimeError: if it ended before its time, or got nothing after that.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.watched", url, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        if not await process.stdout.readline():
            raise RuntimeError(f"the client of {url} got nothing")
        yield
        process.stdin.close()
        received = json.loads(await process.stdout.readline() or "0")
        if not received:
            raise RuntimeError(f"the client of {url} was sent no changes")
    finally:
        if process.returncode is None:
            process.stdin.close()
            await process.wait()


async def _consume(url: str) -> None:
    """Read until standard input ends; then say how many messages, or parts of downloads, came after the first."""
    import aiohttp

    counted = itertools.count()
    async with aiohttp.ClientSession() as session:
        stopped = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        if url.startswith("ws"):
            tasks = [asyncio.create_task(_watch(session, url, counted))]
        else:
            tasks = [asyncio.create_task(_download(session, url, counted)) for _ in range(_DOWNLOADS)]
        await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    print(json.dumps(max(next(counted) - 1, 0)), flush=True)


async def _watch(session: Any, url: str, counted: Iterator[int]) -> None:
    async with session.ws_connect(url, max_msg_size=0) as socket:
        async for message in socket:
            # Whatever form it has, a page would look at every byte.
            sum(message.data[::64].encode() if isinstance(message.data, str) else message.data[::64])
            _count(counted)


async def _download(session: Any, url: str, counted: Iterator[int]) -> None:
    while True:
        async with session.get(url) as response:
            async for _ in response.content.iter_any():
                _count(counted)


def _count(counted: Iterator[int]) -> None:
    if next(counted) == 0:
        print("something has come", flush=True)


if __name__ == "__main__":
    asyncio.run(_consume(sys.argv[1]))
