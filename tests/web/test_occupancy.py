"""Fullness of all that is bounded, as the page gets it."""

import asyncio
from typing import Any

import numpy as np

import actorflow as af
from actorflow.web import vitals as vitals_module
from actorflow.web.vitals import Occupancy, Vitals, functions, pipelines, streams
from tests.ranks.conftest import Ranks

VECTOR = af.TensorSpec.of(4)
ONES = np.ones(4, "float32")


def named(graph: af.Graph, pairs: list[list[Any]]) -> dict[str, Any]:
    """Messages on nodes, by their names."""
    names = {node.id: node.name for node in graph.nodes}
    assert len({node_id for node_id, *_ in pairs}) == len(pairs)
    return {names[node_id]: rest[0] if len(rest) == 1 else rest for node_id, *rest in pairs}


class Waiting:
    """An async function whose calls run until they are let go; `entered` counts them."""

    def __init__(self) -> None:
        self.entered = asyncio.Semaphore(0)
        self.released = asyncio.Event()

    async def __call__(self, x: Any) -> Any:
        self.entered.release()
        await self.released.wait()
        return x


async def test_frames_hold_blobs_and_wait_for_functions() -> None:
    graph, hold = af.Graph("held"), Waiting()
    x = graph.blob("x", 4)
    y = graph.function("first", lambda x: x + 1, VECTOR)(x)
    z = graph.function("hold", hold, VECTOR, concurrency=2)(y)
    graph.function("last", lambda z: z, VECTOR)(z)
    async with graph:
        occupancy = Occupancy(graph.engine)
        nothing = {"frames": 0, "blobs": [], "channels": []}
        assert occupancy.report() == nothing
        stream = graph.stream(({"x": ONES} for _ in range(5)), in_flight=3)
        first = asyncio.ensure_future(anext(stream))
        for _ in range(2):
            await hold.entered.acquire()
        while not graph.engine.running or graph.engine.frames.started < 3:
            await asyncio.sleep(0)
        while named(graph, functions(graph.engine)) != {"hold": [2, 2, 1]}:
            await asyncio.sleep(0)
        report = occupancy.report()
        assert report["frames"] == 3
        assert streams(graph.engine) == [{"number": 0, "held": 3, "in_flight": 3}]
        assert named(graph, report["blobs"]) == {"first/out": 3}
        hold.released.set()
        await first
        async for _ in stream:
            pass
        assert occupancy.report() == nothing
        assert functions(graph.engine) == streams(graph.engine) == []


def around(hold: Waiting, size: int = 3) -> Any:
    """Builds a graph whose values go from rank to rank; the function is on rank 1."""

    def build(graph: af.Graph) -> None:
        y = graph.blob("x", 4)
        for rank in (0, 1, 2, 0):
            with graph.at(f"{rank}/cpu"):
                y = graph.function("hold", hold, VECTOR)(y) if rank == 1 else af.ops.scale(y, 2.0, name=f"on {rank}")

    return build


async def test_rank_0_knows_both_ends_of_all_channels() -> None:
    hold = Waiting()
    ranks = Ranks(around(hold), size=3)
    first, second, third = ranks.graphs
    monitor, occupancy = first.engine.resources.watch(), Occupancy(first.engine)
    running = asyncio.ensure_future(ranks.all(lambda graph, _: graph.run({"x": ONES}, fetch=["on 0_1/out"])))
    await hold.entered.acquire()
    # Rank 0 awaits what rank 2 has not got to send yet, since that awaits what rank 1 still computes.
    async with asyncio.timeout(60):
        while named(first, occupancy.report()["channels"]) != {"hold/out": [1, 2, 0, 1], "on 2/out": [2, 0, 0, 1]}:
            await asyncio.sleep(0)
    assert named(third, Occupancy(third.engine).report()["channels"]) == {"hold/out": [1, 2, 0, 1]}, "its own alone"
    assert Occupancy(second.engine).report()["channels"] == []
    hold.released.set()
    await running
    async with asyncio.timeout(60):
        while occupancy.report()["channels"]:
            await asyncio.sleep(0)
    assert all(messages == [] for messages in monitor.messages.values())
    first.engine.resources.unwatch()
    await ranks.aclose()


async def test_what_a_rank_does_not_take_is_known_elsewhere() -> None:
    hold = Waiting()
    hold.released.set()
    ranks = Ranks(around(hold), size=3)
    first, _, third = ranks.graphs
    first.engine.resources.watch()
    occupancy = Occupancy(first.engine)
    await ranks.all(lambda graph, _: graph.run({"x": ONES}, fetch=["on 0_1/out"]))
    third.pause("it is slow")
    running = asyncio.ensure_future(ranks.all(lambda graph, _: graph.run({"x": ONES}, fetch=["on 0_1/out"])))
    async with asyncio.timeout(60):
        while named(first, occupancy.report()["channels"]) != {"hold/out": [1, 2, 1, 0], "on 2/out": [2, 0, 0, 1]}:
            await asyncio.sleep(0)
    # A graph that has grown is watched anew: what is stuck is told again, not only what changes.
    first.blob("new", 4)
    first.engine.monitor.messages.clear()
    async with asyncio.timeout(60):
        while first.engine.monitor.messages.get(1) is None:
            await asyncio.sleep(0)
    assert first.engine.monitor.messages[1] == [(first["hold/out"].id, 2, True, 1)]
    third.resume()
    await running
    first.engine.resources.unwatch()
    assert occupancy.report()["channels"] == []
    await ranks.aclose()


async def test_a_queue_in_front_of_a_stage_fills_up() -> None:
    graph, hold = af.Graph("fed"), Waiting()
    x = graph.blob("x", 4)
    graph.function("last", lambda x: x, VECTOR)(x)
    async with af.pipeline.source([ONES] * 50, name="ones").map(hold, concurrency=2).prefetch(3) as loader:
        feeds = loader.feed(x)
        first = asyncio.ensure_future(anext(aiter(feeds)))
        for _ in range(2):
            await hold.entered.acquire()
        described: dict[str, Any] = {}
        while described.get("queued") != described.get("room", 0):
            await asyncio.sleep(0)
            (pipeline,) = [one for one in pipelines(graph) if one["stages"][0]["name"] == "ones"]
            described = pipeline["stages"][1]
        assert described["running"] == 2
        source, _, prefetch = pipeline["stages"]
        assert (source["queued"], source["room"]) == (0, 0), "nothing waits for a source"
        assert prefetch["queued"] == 0
        assert prefetch["room"] == 4, "its buffer, and one that waits for room in it"
        assert pipeline["feeds"] == [x.id]
        assert pipelines(af.Graph("another"))[0]["feeds"] == []
        hold.released.set()
        await first


async def test_what_is_quiet_for_long_has_stalled(gated, monkeypatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(vitals_module, "monotonic", lambda: now_s)
    vitals = Vitals(gated.graph.engine)
    now_s += 60
    assert vitals.report()["stalled_s"] is None, "nothing runs"
    run = gated.start()
    await gated.entered.wait()
    assert vitals.report()["stalled_s"] is None
    now_s += 4.9
    assert vitals.report()["stalled_s"] is None
    now_s += 0.2
    assert vitals.report()["stalled_s"] == 5.1
    gated.graph.pause("to look at it")
    assert vitals.report()["stalled_s"] is None, "somebody holds it"
    gated.graph.resume()
    now_s += 7
    assert vitals.report()["stalled_s"] == 7.0
    gated.release.set()
    await run
    assert vitals.report()["stalled_s"] is None
