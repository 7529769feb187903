"""Functions that fail, runs that are cancelled or time out, at random moments inside of random branches and loops."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import actorflow as af
from tests.support.flow_programs import SHAPE, Eager, Graphs, Program

COUNT = 1000 if os.environ.get("ACTORFLOW_FULL_TESTS") else 40


class OwnError(Exception):
    """What a function raises."""


class Calling(Graphs):
    """A graph in which each hyperbolic tangent is a function of Python, every other one async.

    Attributes:
        calls: Calls so far.
        fails_at: The call that raises, counted from 1; 0 for none.
    """

    def __init__(self, graph: af.Graph) -> None:
        self.calls = self.fails_at = self._made = 0
        self._graph = graph

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

        return self._graph.function(name, awaited if is_async else plain, x.spec)(x)


@pytest.mark.together("seed", range(COUNT), at_once=20)
async def test_nothing_is_left_and_the_next_run_is_right(seed: int) -> None:
    rng = random.Random(seed)
    program = Program(seed, depth=rng.randint(1, 2))
    given = np.random.default_rng(seed).uniform(-1, 1, (2, *SHAPE))
    expected = program(Eager, *given)
    async with af.Graph("random", sequential=rng.random() < 0.2) as graph:
        x, w = (graph.blob(name, SHAPE, "float64") for name in "xw")
        calling = Calling(graph)
        y = calling.tanh(program(calling, x, w))
        feeds = {x: given[0], w: given[1]}

        async def is_right() -> None:
            calling.fails_at = 0
            np.testing.assert_allclose((await graph.run(feeds))[y], np.tanh(expected), rtol=1e-12, atol=1e-12)

        await is_right()
        total = calling.calls
        for _ in range(3):
            calling.calls, calling.fails_at = 0, rng.randint(1, total)
            with pytest.raises(af.OpError) as failed:
                await graph.run(feeds)
            assert isinstance(failed.value.__cause__, OwnError)
            assert failed.value.op.name.endswith(str(failed.value.__cause__))
            inside = failed.value.op.graph.body is not None
            assert any("created at" in note for note in failed.value.__notes__) == inside
            await is_right()
        for _ in range(3):
            run = asyncio.ensure_future(graph.run(feeds))
            for _ in range(rng.randint(0, 3 * total)):
                await asyncio.sleep(0)
            run.cancel()
            await asyncio.wait([run])
            others = [asyncio.ensure_future(graph.run(feeds)) for _ in range(3)]
            others[1].cancel()
            await asyncio.wait(others)
            assert [other.cancelled() for other in others] == [False, True, False]
            await is_right()
        with suppress(af.RunTimeoutError):  # of a run that has not ended by the loop's next turn
            result = await graph.run(feeds, timeout=0.0)
            np.testing.assert_allclose(result[y], np.tanh(expected), rtol=1e-12, atol=1e-12)
        await is_right()
        engine = graph.engine
        await engine.observer.rest()
        assert not engine.running
        assert not engine.resources.dispatcher.ready
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
