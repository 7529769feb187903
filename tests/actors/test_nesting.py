"""Runs of a graph that its own async functions await."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import actorflow as af
from actorflow import ops
from actorflow.actors.frame import Frame
from actorflow.actors.nesting import MOST_NESTED
from tests.support.waiting import HELD_S, come_to_rest, frames_begun, held_limits

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


def endless(graph: af.Graph, other: af.Graph | None = None, runs: int = 1) -> None:
    """An op whose function awaits runs of its own graph, or of another one, whatever it is given."""

    async def ask(value: Any) -> Any:
        inner = graph if other is None else other
        results = await asyncio.gather(*[inner.run({"x": value + 1.0}) for _ in range(runs)])
        return results[0]["ask/out"]

    graph.function("ask", ask, VALUE)(graph.blob("x", (), "float64"))


def innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


async def test_a_function_that_runs_its_own_graph_without_end_is_refused() -> None:
    graph = af.Graph("nested")
    endless(graph)
    async with graph, asyncio.timeout(LIMIT_S):
        with pytest.raises(af.OpError) as caught:
            await graph.run({"x": 0.0})
        refusal = innermost(caught.value)
        assert isinstance(refusal, af.GraphError)
        assert "op 'ask' of frame 49 runs graph 'nested' inside 50 runs" in str(refusal)
        assert "50 is the most: does a function await its own graph without end?" in str(refusal)
        assert str(refusal) in str(caught.value)
        assert (graph.engine.frames.started, graph.engine.frames.in_flight) == (50, 0)


async def test_graphs_that_run_each_other_without_end_are_refused() -> None:
    one, two = af.Graph("one"), af.Graph("two")
    endless(one, two)
    endless(two, one)
    async with one, two, asyncio.timeout(LIMIT_S):
        with pytest.raises(af.OpError) as caught:
            await one.run({"x": 0.0})
        assert "inside 50 runs" in str(innermost(caught.value))
        assert one.engine.frames.in_flight == two.engine.frames.in_flight == 0


async def test_runs_within_the_limit() -> None:
    graph = af.Graph("nested")

    async def deeper(value: Any) -> Any:
        if value == 0.0:
            return value
        return (await graph.run({"x": value - 1.0}))["deeper/out"] + 1.0

    y = graph.function("deeper", deeper, VALUE)(graph.blob("x", (), "float64"))
    async with graph, asyncio.timeout(LIMIT_S):
        assert (await graph.run({"x": MOST_NESTED - 1.0}))[y] == MOST_NESTED - 1.0


async def grown(graph: af.Graph) -> None:
    """Wait until very many runs have started, each by another one."""
    await frames_begun(graph, 300)


@pytest.mark.parametrize("how", ["timeout", "cancel", "Graph.cancel", "aclose"])
async def test_runs_that_multiply_without_end_can_be_stopped(how: str) -> None:
    """No limit of depth ends these: two runs in each run are 2**50 at the deepest."""
    graph = af.Graph("nested")
    endless(graph, runs=2)
    async with graph, asyncio.timeout(LIMIT_S):
        with held_limits() as end_limits:
            run = asyncio.create_task(graph.run({"x": 0.0}, timeout=HELD_S if how == "timeout" else None))
            await grown(graph)
            match how:
                case "timeout":
                    end_limits()
                case "cancel":
                    run.cancel()
                case "Graph.cancel":
                    graph.cancel()
                case "aclose":
                    await graph.aclose()
            await asyncio.wait([run])
        assert run.cancelled() or isinstance(run.exception(), af.RunTimeoutError | af.RunCancelledError)
        await come_to_rest(graph)
        assert graph.engine.frames.in_flight == 0


@ways
async def test_no_run_starts_inside_of_one_that_has_stopped(ask: Ask) -> None:
    """The cancellation goes through ten calls to one that starts runs until it comes."""
    graph, reached, calls = af.Graph("nested"), asyncio.Event(), 0

    async def deeper(value: Any) -> Any:
        nonlocal calls
        calls += 1
        number = calls
        if number == 11:
            reached.set()
        while number <= 11:
            await ask(graph, ["deeper/out"])
        return value

    graph.function("deeper", deeper, VALUE)(graph.blob("x", (), "float64"))
    async with graph, asyncio.timeout(LIMIT_S):
        run = asyncio.create_task(graph.run({"x": 1.0}))
        await reached.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        min(graph.engine.running, key=lambda frame: frame.number).cancel()
        before = graph.engine.frames.started
        await asyncio.wait([run])
        await come_to_rest(graph)
        assert (run.cancelled(), graph.engine.frames.started) == (True, before)
        assert before > 11


def test_ctrl_c_stops_runs_that_multiply_without_end() -> None:
    graph = af.Graph("nested")
    endless(graph, runs=2)

    async def main() -> None:
        async def press() -> None:
            await grown(graph)
            signal.raise_signal(signal.SIGINT)

        async with graph, asyncio.timeout(LIMIT_S):
            pressing = asyncio.create_task(press())
            await graph.run({"x": 0.0})
            await pressing

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert graph.engine.frames.in_flight == 0


@pytest.mark.parametrize("goes_on", [False, True])
async def test_runs_that_start_each_other_one_after_the_other_are_not_nested(goes_on: bool) -> None:
    """Each call leaves the next run behind, at its end or a little before: no frame keeps those before it alive."""
    graph, tasks = af.Graph("nested"), set[asyncio.Task[Any]]()
    alive: list[int] = []

    async def start_next(value: Any) -> Any:
        if value:
            task = asyncio.create_task(graph.run({"x": value - 1.0}))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if goes_on:
            for _ in range(20):
                await asyncio.sleep(0)
        alive.append(sum(type(each) is Frame for each in gc.get_objects()))
        return value

    graph.function("start_next", start_next, VALUE)(graph.blob("x", (), "float64"))
    gc.collect()
    async with graph, asyncio.timeout(LIMIT_S):
        await graph.run({"x": 150.0})
        while tasks:
            await asyncio.wait(tasks)
        assert graph.engine.frames.finished == 151
    assert max(alive[100:]) <= max(alive[:50])
