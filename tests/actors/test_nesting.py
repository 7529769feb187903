"""Runs of a graph that its own async functions await."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import actorflow as af
from actorflow import ops

LIMIT_S = 60.0
VALUE = af.TensorSpec.of((), "float64")

Ask = Callable[[af.Graph, Any], Awaitable[Any]]


async def directly(graph: af.Graph, fetch: Any) -> Any:
    return await graph.run({"x": 1.0}, fetch=fetch)


async def by_a_task(graph: af.Graph, fetch: Any) -> Any:
    return await asyncio.wait_for(graph.run({"x": 1.0}, fetch=fetch), LIMIT_S)


async def by_a_group(graph: af.Graph, fetch: Any) -> Any:
    return (await asyncio.gather(graph.run({"x": 1.0}, fetch=fetch)))[0]


async def by_a_stream(graph: af.Graph, fetch: Any) -> Any:
    results = [result async for result in graph.stream([{"x": 1.0}], fetch=fetch)]
    return results[0]


ways = pytest.mark.parametrize("ask", [directly, by_a_task, by_a_group, by_a_stream])


def asking(graph: af.Graph, ask: Ask, fetch: str, **options: Any) -> af.Blob:
    """An op whose function runs its own graph, unless the value is 1: a run that it has asked for."""

    async def function(value: Any) -> Any:
        if value == 1.0:
            return value
        result = await ask(graph, [fetch])
        return value + float(result[fetch])

    return graph.function("ask", function, VALUE, **options)(graph.blob("x", (), "float64"))


async def refused(graph: af.Graph, *words: str) -> None:
    async with graph, asyncio.timeout(LIMIT_S):
        with pytest.raises(af.OpError) as caught:
            await graph.run({"x": 2.0})
        cause = caught.value.__cause__
        assert isinstance(cause, af.GraphError)
        for word in ("op 'ask' of frame 0 runs its own graph 'nested'", *words):
            assert word in str(cause)
        assert graph.engine.frames.in_flight == 0
        await graph.run({"x": 1.0})  # which asks for nothing


@ways
async def test_the_op_itself_takes_one_frame_at_a_time(ask: Ask) -> None:
    graph = af.Graph("nested")
    asking(graph, ask, "ask/out", concurrency=1)
    await refused(graph, "could never call op 'ask'", "has yet to leave it")


@ways
async def test_the_op_itself_takes_any_number(ask: Ask) -> None:
    graph = af.Graph("nested")
    y = asking(graph, ask, "ask/out")
    async with graph, asyncio.timeout(LIMIT_S):
        assert (await graph.run({"x": 2.0}))[y] == 3.0


@ways
async def test_places_are_counted(ask: Ask) -> None:
    graph = af.Graph("nested")

    async def deeper(value: Any) -> Any:
        if value == 0.0:
            return value
        return (await graph.run({"x": value - 1.0}))["deeper/out"] + 1.0

    y = graph.function("deeper", deeper, VALUE, concurrency=3)(graph.blob("x", (), "float64"))
    async with graph, asyncio.timeout(LIMIT_S):
        assert (await graph.run({"x": 2.0}))[y] == 2.0
        with pytest.raises(af.OpError):
            await graph.run({"x": 3.0})
        assert (await graph.run({"x": 2.0}))[y] == 2.0


@ways
async def test_a_function_behind_it(ask: Ask) -> None:
    graph = af.Graph("nested")
    y = asking(graph, ask, "behind/out")
    graph.function("behind", lambda value: value, VALUE)(ops.scale(y, 1.0))
    await refused(graph, "could never call op 'behind'", "go there when 'ask' has ended")


@ways
async def test_a_function_beside_it(ask: Ask) -> None:
    graph = af.Graph("nested")
    y = asking(graph, ask, "beside/out")
    beside = graph.function("beside", lambda value: value * 10.0, VALUE)(graph["x"])
    async with graph, asyncio.timeout(LIMIT_S):
        result = await graph.run({"x": 2.0})
        assert (result[y], result[beside]) == (12.0, 20.0)


@ways
@pytest.mark.parametrize("atomic", [False, True])
async def test_a_variable_that_it_leads_to(ask: Ask, atomic: bool) -> None:
    graph = af.Graph("nested")
    y = asking(graph, ask, "read/out")
    total = graph.variable("total", (), "float64")
    graph.op("read", ops.Scale(1.0))(total)
    [total, y] >> graph.op("update", ops.Sum()) >> [total]
    async with graph, asyncio.timeout(LIMIT_S):
        with pytest.raises(af.OpError) as caught:
            await graph.run({"x": 2.0}, atomic=atomic)
        assert "could never read variable 'total'" in str(caught.value.__cause__)
        await graph.run({"x": 1.0})
        assert float(total.value) == 1.0


async def test_a_variable_that_another_op_updates() -> None:
    graph = af.Graph("nested")
    asking(graph, directly, "read/out")
    total = graph.variable("total", (), "float64")
    graph.op("read", ops.Scale(1.0))(total)
    [total, graph["x"]] >> graph.op("update", ops.Sum()) >> [total]
    async with graph, asyncio.timeout(LIMIT_S):
        assert (await graph.run({"x": 2.0}))["ask/out"] == 4.0  # the run inside reads what this frame has made of it
        with pytest.raises(af.OpError):
            await graph.run({"x": 2.0}, atomic=True)  # all updates wait for the op


async def test_an_op_cannot_close_its_graph() -> None:
    graph = af.Graph("nested")

    async def close(value: Any) -> Any:
        await graph.aclose()
        return value

    graph.function("close", close, VALUE)(graph.blob("x", (), "float64"))
    async with graph, asyncio.timeout(LIMIT_S):
        with pytest.raises(af.OpError) as caught:
            await graph.run({"x": 2.0})
        assert "op 'close' of graph 'nested' cannot close the graph that runs it" in str(caught.value.__cause__)


async def test_runs_that_an_op_leaves_behind_go_on() -> None:
    """With a context of its own, a run is not a part of the op, and waits for the frame like any other."""
    graph = af.Graph("nested")
    tasks: list[asyncio.Task[Any]] = []

    async def start(value: Any) -> Any:
        if value == 2.0:
            coroutine = graph.run({"x": 1.0})
            tasks.append(asyncio.get_running_loop().create_task(coroutine, context=contextvars.Context()))
        return value

    y = graph.function("start", start, VALUE, concurrency=1)(graph.blob("x", (), "float64"))
    async with graph, asyncio.timeout(LIMIT_S):
        assert (await graph.run({"x": 2.0}))[y] == 2.0
        assert (await tasks[0])[y] == 1.0


async def test_calls_that_have_taken_all_places_cannot_all_wait_for_another() -> None:
    graph, together = af.Graph("nested"), asyncio.Barrier(3)

    async def ask(value: Any) -> Any:
        if value == 1.0:
            return value
        await together.wait()  # now each place is taken
        return value + float((await graph.run({"x": 1.0}, fetch=["ask/out"]))["ask/out"])

    graph.function("ask", ask, VALUE, concurrency=3)(graph.blob("x", (), "float64"))
    async with graph, asyncio.timeout(LIMIT_S):
        for _ in range(2):
            outcomes = await asyncio.gather(*[graph.run({"x": 2.0}) for _ in range(3)], return_exceptions=True)
            failed = [outcome for outcome in outcomes if isinstance(outcome, af.OpError)]
            assert [type(error.__cause__) for error in failed] == [af.GraphError]
            assert "could never call op 'ask'" in str(failed[0].__cause__)
            assert [float(each["ask/out"]) for each in outcomes if not isinstance(each, BaseException)] == [3.0, 3.0]
        assert graph.engine.frames.in_flight == 0


async def test_calls_of_several_ops_cannot_wait_for_each_other() -> None:
    graph, together = af.Graph("nested"), asyncio.Barrier(3)
    names = ["a", "b", "c"]

    def asking_for(other: str) -> Callable[[Any], Awaitable[Any]]:
        async def ask(value: Any) -> Any:
            if value == 1.0:
                return value
            await together.wait()
            return value + float((await graph.run({f"to {other}": 1.0}, fetch=[f"{other}/out"]))[f"{other}/out"])

        return ask

    for name, other in zip(names, ["b", "c", "a"], strict=True):
        graph.function(name, asking_for(other), VALUE, concurrency=1)(graph.blob(f"to {name}", (), "float64"))
    async with graph, asyncio.timeout(LIMIT_S):
        for _ in range(2):
            runs = [graph.run({f"to {name}": 2.0}, fetch=[f"{name}/out"]) for name in names]
            outcomes = await asyncio.gather(*runs, return_exceptions=True)
            failed = [outcome for outcome in outcomes if isinstance(outcome, af.OpError)]
            assert [type(error.__cause__) for error in failed] == [af.GraphError]
            assert "each call there waits for one that cannot begin" in str(failed[0].__cause__)
        assert graph.engine.frames.in_flight == 0


async def test_a_run_that_a_call_has_left_behind_is_not_awaited_by_it() -> None:
    graph, left = af.Graph("nested"), []

    async def leave(value: Any) -> Any:
        if value == 2.0:
            left.append(asyncio.ensure_future(graph.run({"x": 1.0})))
        return value

    left_behind = graph.function("leave", leave, VALUE, concurrency=1)(graph.blob("x", (), "float64"))
    graph.function("plain", lambda value: value + 1.0, VALUE)(left_behind)
    async with graph, asyncio.timeout(LIMIT_S):
        assert float((await graph.run({"x": 2.0}))["plain/out"]) == 3.0
        (run,) = left
        assert float((await run)["plain/out"]) == 2.0
