"""Calls that are under way: what runs, what is queued behind it, and what waits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np

import actorflow as af
from actorflow.actors.under_way import UnderWay
from actorflow.trace.counters import NodeState
from tests.support.waiting import frames_begun

VECTOR = af.TensorSpec.of(4)
FEED = {"x": np.ones(4, np.float32)}


class Held:
    """A function that a test holds in its thread, and that knows when it has begun."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.released = threading.Event()

    def __call__(self, x: Any) -> Any:
        self.begun.release()
        assert self.released.wait(60)
        return x


def states(graph: af.Graph) -> dict[str, str]:
    """States as a page would show them."""
    monitor = graph.engine.monitor
    assert monitor is not None
    shown = UnderWay.of(graph.engine.running).over(np.frombuffer(monitor.states, np.uint8))
    return {op.name: NodeState(shown[op.id]).name.lower() for op in graph.ops}


async def begun(held: Held) -> None:
    await asyncio.get_running_loop().run_in_executor(None, held.begun.acquire)


async def test_one_runs_on_a_lane_and_the_others_are_queued() -> None:
    graph, held = af.Graph("lane"), Held()
    x = graph.blob("x", 4)
    first = graph.function("first", held, VECTOR, lane="own")(x)
    for name in ("second", "third"):
        graph.function(name, held, VECTOR, lane="own")(x)
    graph.function("behind", lambda a: a, VECTOR, lane="own")(first)
    async with graph:
        graph.engine.resources.watch()
        runs = [asyncio.ensure_future(graph.run(FEED)) for _ in range(2)]
        await begun(held)
        await frames_begun(graph, 2)
        found = UnderWay.of(graph.engine.running)
        assert [(name, len(load.running), load.queued) for name, load in found.tracks.items()] == [("cpu own", 1, 5)]
        assert sorted(states(graph).values()) == ["queued", "queued", "running", "waiting"], (
            "what is ready is on the lane"
        )
        held.released.set()
        await asyncio.gather(*runs)
        assert set(states(graph).values()) == {"done"}
        assert UnderWay.of(graph.engine.running) == ({}, {})
        graph.engine.resources.unwatch()


def test_what_ends_while_others_are_looked_at_does_not_run_beside_the_next_one() -> None:
    """A lane's thread goes on meanwhile."""

    class First:
        runs, begun, done, argument = True, True, False, None

    class Next:
        begun, done, argument = True, False, None

        @property
        def runs(self) -> bool:
            First.done = True
            return True

    class Actor:
        def __init__(self, node_id: int) -> None:
            self.node_id, self.key, self.parts = node_id, 7, ()

    trace = SimpleNamespace(track_of={7: "cpu own"}.get)
    frame: Any = SimpleNamespace(resting=(), at_work=[(Actor(1), First()), (Actor(2), Next())], trace=trace)
    found = UnderWay.of([frame])
    assert found.states == {1: NodeState.DONE, 2: NodeState.RUNNING}
    assert found.tracks["cpu own"].running == [2]


async def test_a_frame_that_begins_hides_no_running_call() -> None:
    graph, release, entered = af.Graph("several"), asyncio.Event(), asyncio.Semaphore(0)

    async def hold(x: Any) -> Any:
        entered.release()
        await release.wait()
        return x

    y = graph.function("hold", hold, VECTOR, concurrency=2)(graph.blob("x", 4))
    graph.function("last", lambda a: a, VECTOR)(y)
    async with graph:
        graph.engine.resources.watch()
        runs = []
        for _ in range(3):
            runs.append(asyncio.ensure_future(graph.run(FEED)))
            await frames_begun(graph, len(runs))
            if len(runs) < 3:
                await entered.acquire()
            assert states(graph) == {"hold": "running", "last": "waiting"}
        found = UnderWay.of(graph.engine.running)
        assert found.tracks["async functions"].running == [graph["hold"].id] * 2
        release.set()
        await asyncio.gather(*runs)
        graph.engine.resources.unwatch()


async def test_nothing_waits_when_no_frame_is_in_flight() -> None:
    graph, entered = af.Graph("cancelled"), asyncio.Event()

    async def hold(x: Any) -> Any:
        entered.set()
        await asyncio.Event().wait()
        return x

    y = graph.function("hold", hold, VECTOR)(graph.function("first", lambda a: a, VECTOR)(graph.blob("x", 4)))
    graph.function("last", lambda a: a, VECTOR)(y)
    async with graph:
        graph.engine.resources.watch()
        run = asyncio.ensure_future(graph.run(FEED))
        await entered.wait()
        assert states(graph) == {"first": "done", "hold": "running", "last": "waiting"}
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run
        while graph.engine.frames.in_flight:  # the loop may have yet to be told of the end on the lane
            await asyncio.sleep(0)
        assert states(graph) == {"first": "done", "hold": "cancelled", "last": "cancelled"}
        graph.engine.resources.unwatch()
