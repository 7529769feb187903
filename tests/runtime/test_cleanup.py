"""Async code of the user's that is told to end tidies up to its end, whoever tells it, and however often."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import numpy as np
import pytest

import actorflow as af
from actorflow.pipeline import source
from tests.support.loops import loop_factories

HOWS = ["cancel", "cancel twice", "scope", "failure", "failure and cancel", "loop ends"]
WHAT = [
    "run",
    "timed",
    "retried",
    "stream",
    "feeds",
    "feeds at rest",
    "batcher",
    "source",
    "map",
    "timed map",
    "flat_map",
]


class Tidier:
    """Something async of a graph or a pipeline, whose code waits until it is told to end, and tidies up then."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.began = 0
        self.outcomes: list[str] = []
        self.failing = asyncio.Event()

    async def wait(self) -> None:
        self.began += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await self.tidy()
            raise

    async def tidy(self) -> None:
        number = len(self.outcomes)
        self.outcomes.append("cut off")
        for _ in range(40):  # the connection is given back
            await asyncio.sleep(0)
        self.outcomes[number] = "tidied"

    async def feeds(self) -> AsyncIterator[dict[str, Any]]:
        try:
            yield {"x": np.ones(1, "f")}
            if self.what == "feeds":
                self.began += 1
                await asyncio.Event().wait()
            yield {"x": np.ones(1, "f")}
        finally:
            await self.tidy()

    async def fail(self, value: Any) -> Any:
        await self.failing.wait()
        raise OSError

    async def use(self) -> None:
        """Run it; where it fails, with something beside it that does."""
        if self.what in ("source", "map", "timed map", "flat_map"):
            await self.use_pipeline()
            return
        graph = af.Graph("tidy")
        x = graph.blob("x", ("batch",))
        is_source = self.what.startswith("feeds")
        options = {"timed": {"timeout": 3600.0}, "retried": {"retries": 2}}.get(self.what, {})

        async def work(x: np.ndarray) -> np.ndarray:
            if not is_source:
                await self.wait()
            if self.what == "feeds at rest":
                self.began += 1
                await asyncio.Event().wait()
            return x

        y = graph.function("work", work, x.spec, **options)(x)
        z = y if is_source and self.what == "feeds" else y + graph.function("fail", self.fail, x.spec)(x)
        feeds = {x: np.ones(1, "f")}
        async with graph:
            if self.what == "batcher":
                async with graph.batched(fetch=z) as batcher:
                    await batcher.run(feeds)
            elif self.what == "stream":
                async with aclosing(graph.stream([feeds] * 3, fetch=[z])) as results:
                    async for _ in results:
                        pass
            elif is_source:
                async with aclosing(graph.stream(self.feeds(), fetch=[z])) as results:
                    async for _ in results:
                        await self.fail(None)
            else:
                await graph.run(feeds, fetch=[z])

    async def use_pipeline(self) -> None:
        async def items(epoch: int = 0) -> AsyncIterator[int]:
            yield 0
            yield 1
            if self.what == "source":
                await self.wait()

        async def call(number: int) -> int:
            if number and self.what.endswith("map"):
                await self.wait()
            return number

        async def several(number: int) -> AsyncIterator[int]:
            yield number
            if self.what == "flat_map":
                await self.wait()

        loader = source(lambda epoch: items(epoch))
        if self.what == "flat_map":
            loader = loader.flat_map(several, concurrency=2, ordered=False)
        elif self.what != "source":
            timeout = 3600.0 if self.what == "timed map" else None
            loader = loader.map(call, concurrency=2, ordered=False, timeout=timeout)
        async with loader.prefetch(4).map(self.fail) as iterated:
            async for _ in iterated:
                pass


@pytest.mark.parametrize("kind_of_loop", sorted(loop_factories()))
@pytest.mark.together("how", HOWS)
@pytest.mark.together("what", WHAT)
def test_clean_up_is_never_cut_off(what: str, how: str, kind_of_loop: str) -> None:
    async def main() -> None:
        nonlocal tidier
        tidier = Tidier(what)
        scope = anyio.CancelScope()

        async def use() -> None:
            with scope:
                await tidier.use()

        task = asyncio.create_task(use())
        while not (tidier.began or task.done()):
            await asyncio.sleep(0)
        if how == "scope":
            scope.cancel()
        elif how == "loop ends":
            return
        elif how.startswith("failure"):
            tidier.failing.set()
            while not tidier.outcomes:
                await asyncio.sleep(0)
        if how not in ("failure", "scope"):
            task.cancel()
        if how == "cancel twice":
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task])
        while "cut off" in tidier.outcomes and len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)  # a batched run returns at once
        if not task.cancelled():
            task.exception()

    tidier: Any = None
    with asyncio.Runner(loop_factory=loop_factories()[kind_of_loop]) as runner:
        runner.run(main())
    assert set(tidier.outcomes) == {"tidied"}
