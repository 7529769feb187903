"""Plans are made in slices of the loop's time: what else the loop has to do goes on, and frames keep their order."""

import asyncio

import numpy as np
import pytest

import actorflow as af


def long_graph(ops: int = 400) -> tuple[af.Graph, af.Blob, af.Blob, af.Variable]:
    """A graph that takes many slices to plan, and whose frames append to a variable what they were fed."""
    graph = af.Graph("long")
    x = graph.blob("x", ("batch",), "float64")
    y: af.Blob = x
    for _ in range(ops):
        y = y + 1.0
    total = graph.variable("total", (), "float64")
    [total, af.ops.sum(x)] >> graph.op("add", af.ops.Sum()) >> [total]
    return graph, x, y, total


async def turns_until(task: asyncio.Task[af.Result]) -> int:
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    return turns


async def test_other_tasks_go_on_while_a_plan_is_made() -> None:
    graph, x, y, _ = long_graph()
    async with graph:
        run = asyncio.create_task(graph.run({x: np.zeros(3)}, fetch=[y]))
        while not graph.engine.running:
            assert not run.done()
            await asyncio.sleep(0)
        assert (await run)[y].tolist() == [400.0] * 3
        first = asyncio.create_task(graph.run({x: np.zeros(4)}, fetch=[y]))
        assert await turns_until(first) > 30
        graph.compile([y], axes={"batch": 5})
        ahead = asyncio.create_task(graph.run({x: np.zeros(5)}, fetch=[y]))
        assert await turns_until(ahead) > 3
        assert (await ahead)[y].shape == (5,)


async def test_a_graph_that_keeps_growing_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    graph = af.Graph("growing")
    x = graph.blob("x", (2,))
    async with graph:
        for number in range(250):
            y = x + float(number)  # as in the handler of a request
            await graph.run({x: np.zeros(2, np.float32)}, fetch=[y])
    (record,) = caplog.records
    assert "graph 'growing' got new ops between its runs 100 times" in record.getMessage()
    assert f"{__file__}:" in record.getMessage()


async def test_a_graph_that_was_built_in_steps_is_not_growing(caplog: pytest.LogCaptureFixture) -> None:
    graph = af.Graph("grown")
    y: af.Blob = graph.blob("x", (2,))
    async with graph:
        for _ in range(90):
            y = y + 1.0
            await graph.run({"x": np.zeros(2, np.float32)}, fetch=[y])
        for _ in range(20):
            result = await graph.run({"x": np.zeros(2, np.float32)}, fetch=[y])
    assert result[y].tolist() == [90.0, 90.0]
    assert not caplog.records


async def test_frames_start_in_the_order_of_the_calls() -> None:
    """A run whose plan is there waits for one before it whose plan is made: both update a variable."""
    graph, x, y, total = long_graph()
    seen = []

    async def run(rows: int) -> None:
        result = await graph.run({x: np.full(rows, 1.0)}, fetch=[y, graph, total])
        seen.append((rows, float(result[total])))

    async with graph:
        await run(1)
        async with asyncio.TaskGroup() as group:
            for rows in (10, 1, 100, 1, 10):
                group.create_task(run(rows))
    assert sorted(seen) == sorted([(1, 0.0), (10, 1.0), (1, 11.0), (100, 12.0), (1, 112.0), (10, 113.0)])
    assert float(total.value) == 123.0


async def test_streams_keep_the_order_of_their_feeds() -> None:
    graph, x, y, _ = long_graph(100)
    lengths = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    async with graph:
        feeds = ({x: np.full(n, float(i))} for i, n in enumerate(lengths))
        results = [result[y] async for result in graph.stream(feeds, fetch=[y], in_flight=4)]
    assert [(len(value), value[0]) for value in results] == [(n, 100.0 + i) for i, n in enumerate(lengths)]


async def test_a_cancelled_run_leaves_those_behind_it() -> None:
    graph, x, y, _ = long_graph()
    async with graph:
        first = asyncio.create_task(graph.run({x: np.zeros(3)}, fetch=[y]))
        await asyncio.sleep(0)
        second = asyncio.create_task(graph.run({x: np.zeros(3)}, fetch=[y]))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second)[y].shape == (3,)
        with pytest.raises(asyncio.CancelledError):
            await first
        assert graph.engine.frames.started == 1


async def test_a_graph_that_changes_meanwhile_is_planned_anew() -> None:
    graph, x, y, _ = long_graph()
    async with graph:
        run = asyncio.create_task(graph.run({x: np.zeros(3)}, fetch=[y.name]))
        await asyncio.sleep(0)
        graph.function("more", lambda a: a, inputs=y, outputs=y.spec)
        assert not run.done()
        assert (await run)[y].shape == (3,)


async def test_closing_ends_a_run_that_has_no_frame_yet() -> None:
    graph, x, y, _ = long_graph()
    run = asyncio.create_task(graph.run({x: np.zeros(3)}, fetch=[y]))
    await asyncio.sleep(0)
    assert not run.done()
    await graph.aclose()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not graph.engine.resources.devices
    async with graph:
        assert (await graph.run({x: np.zeros(3)}, fetch=[y]))[y].shape == (3,)


async def test_a_run_may_time_out_meanwhile() -> None:
    graph, x, y, _ = long_graph()
    async with graph:
        with pytest.raises(af.RunTimeoutError, match="before its frame started; graph 'long' is not paused: its plan"):
            await graph.run({x: np.zeros(3)}, fetch=[y], timeout=1e-4)
        assert (await graph.run({x: np.zeros(3)}, fetch=[y]))[y].shape == (3,)


async def test_an_error_of_the_plan_is_raised_and_the_next_run_goes_on() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("batch",), "float64")
    y: af.Blob = x
    for _ in range(100):
        y = y + 1.0
    pairs = af.ops.reshape(y, (-1, 2))
    async with graph:
        runs = [asyncio.create_task(graph.run({x: np.zeros(n)}, fetch=[pairs])) for n in (3, 4)]
        with pytest.raises(af.ShapeError, match=r"with batch = 3: .*cannot have shape"):
            await runs[0]
        assert (await runs[1])[pairs].shape == (2, 2)
