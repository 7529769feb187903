"""Functions that fail, runs that are cancelled or time out, at random moments inside of random programs."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import actorflow as af
from tests.support.effort import FULL, slow
from tests.support.flow_programs import ALL_BODIES, SHAPE, Eager, Graphs, Program

COUNT = 1000 if FULL else 40


class OwnError(Exception):
    """What a function raises."""


class Calling(Graphs):
    """A graph in which each hyperbolic tangent is a function of Python, every other one async.

    Attributes:
        calls: Calls so far.
        fails_at: The call that raises, counted from 1; 0 for none.
        called: Graphs that ops call.
    """

    def __init__(self) -> None:
        self.calls = self.fails_at = self._made = 0
        self.called: list[af.Graph] = []

    def call(self, fn: Any, *values: Any) -> Any:  # type: ignore[override]
        """An op that calls a graph, which is closed by the test."""
        made = Graphs.call(fn, *values)
        self.called.append(made.producers[0].operation.fn.graph)
        return made

    def tanh(self, x: Any) -> Any:  # type: ignore[override]
        """An op that calls a function."""
        self._made += 1
        name, is_async = f"call{self._made}", self._made % 2

        def plain(x: Any) -> Any:
            self.calls += 1
            if self.calls == self.fails_at:
                raise OwnError(name)
            return np.tanh(x)

        async def awaited(x: Any) -> Any:
            await asyncio.sleep(0)
            return plain(x)

        return x.graph.root.function(name, awaited if is_async else plain, x.spec)(x)


@pytest.mark.together("seed", slow(range(COUNT), but=range(COUNT // 2)), at_once=10)
async def test_nothing_is_left_and_the_next_run_is_right(seed: int) -> None:
    rng = random.Random(seed)
    program = Program(seed, rng.randint(1, 2), ALL_BODIES)
    given = np.random.default_rng(seed).uniform(-1, 1, (2, *SHAPE))
    expected = program(Eager, *given)
    async with af.Graph("random", sequential=rng.random() < 0.2) as graph:
        x, w = (graph.blob(name, SHAPE, "float64") for name in "xw")
        calling = Calling()
        y = calling.tanh(program(calling, x, w))
        feeds = {x: given[0], w: given[1]}

        async def is_right() -> None:
            calling.fails_at = 0
            np.testing.assert_allclose(
                (await graph.run(feeds, fetch=[y]))[y], np.tanh(expected), rtol=1e-12, atol=1e-12
            )

        await is_right()
        total = calling.calls
        for _ in range(3):
            calling.calls, calling.fails_at = 0, rng.randint(1, total)
            with pytest.raises(af.OpError) as failed:
                await graph.run(feeds, fetch=[y])
            error = failed.value
            while isinstance(error.__cause__, af.OpError):  # of a graph that was called
                assert str(error.__cause__) in str(error)
                error = error.__cause__
            assert isinstance(error.__cause__, OwnError)
            assert error.op.name.endswith(str(error.__cause__))
            inside = error.op.graph.body is not None
            notes = [note for note in error.__notes__ if "created at" in note]
            assert bool(notes) >= inside  # what follows an item is in no body
            await is_right()
        for _ in range(3):
            run = asyncio.ensure_future(graph.run(feeds, fetch=[y]))
            for _ in range(rng.randint(0, 3 * total)):
                await asyncio.sleep(0)
            run.cancel()
            await asyncio.wait([run])
            others = [asyncio.ensure_future(graph.run(feeds, fetch=[y])) for _ in range(3)]
            others[1].cancel()
            await asyncio.wait(others)
            assert [other.cancelled() for other in others] == [False, True, False]
            await is_right()
        with suppress(af.RunTimeoutError):  # of a run that has not ended by the loop's next turn
            result = await graph.run(feeds, fetch=[y], timeout=0.0)
            np.testing.assert_allclose(result[y], np.tanh(expected), rtol=1e-12, atol=1e-12)
        await is_right()
        for each in (graph, *calling.called):
            engine = each.engine
            await engine.observer.rest()
            assert not engine.running
            assert engine.resources.home is None or not engine.resources.home.ready
            if each is not graph:
                await each.aclose()
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
