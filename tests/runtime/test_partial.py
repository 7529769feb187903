"""Runs that go on without what has failed."""

from __future__ import annotations

import asyncio
import gc
import threading

import numpy as np
import pytest

import actorflow as af
from tests.support.waiting import HELD_S, held_limits, settle

VECTOR = af.TensorSpec.of([3])


def fail(_: object) -> object:
    raise ValueError("this one fails")


async def fail_later(_: object) -> object:
    raise ValueError("this one fails")


def two_ways(fn: object = fail, **options: object) -> tuple[af.Graph, af.Blob, af.Blob, af.Blob, af.Blob]:
    """A graph whose left half fails: source, and results of the left half, of the right one, and of both."""
    graph = af.Graph("halves", **options)
    x = graph.blob("x", [3])
    left = af.ops.exp(graph.function("bad", fn, VECTOR)(af.ops.square(x)), name="left")
    right = af.ops.exp(x + 1, name="right")
    return graph, x, left, right, af.ops.add(left, right, name="both")


@pytest.mark.parametrize("fn", [fail, fail_later])
@pytest.mark.parametrize("options", [{}, {"sequential": True}, {"memory_budget": 10_000}])
async def test_a_result_has_what_does_not_depend_on_the_failure(fn: object, options: dict[str, object]) -> None:
    graph, x, left, right, both = two_ways(fn, **options)
    async with graph:
        for number in range(3):  # inline, too
            result = await graph.run({x: [0, 0, 0]}, fetch=[left, both, x, right], partial=True)
            assert [*result] == ["x", "right/out"]
            assert len(result) == 2
            assert right in result
            assert left not in result
            assert result.get(both) is None
            np.testing.assert_allclose(result[right], np.full(3, np.e), rtol=1e-6)
            assert [*result.errors] == ["left/out", "both/out"]
            error = result.errors["both/out"]
            assert error is result.errors["left/out"]
            assert error.op_name == "bad"
            assert error.frame == number
            assert "left/out: OpError" in repr(result)
            with pytest.raises(af.OpError, match=r"'bad'.*this one fails"):
                result[both]
        assert graph.statistics().frames.finished == 3
        assert len(graph.engine.errors) == 3
        with pytest.raises(af.OpError, match="'bad'"):
            await graph.run({x: [0, 0, 0]})


def test_a_model_has_its_own_names() -> None:
    graph, x, left, right, _ = two_ways()
    model = af.Model(graph, {"values": x}, {"one": left, "two": right})

    async def run() -> af.Result:
        async with graph:
            return await model.run({"values": [0, 0, 0]}, partial=True)

    for found in (asyncio.run(run()), model.run_sync({"values": [0, 0, 0]}, partial=True)):
        assert ([*found], [*found.errors]) == (["two"], ["one"])
        np.testing.assert_allclose(found["two"], np.full(3, np.e), rtol=1e-6)
        for key in ("one", left):
            with pytest.raises(af.OpError, match="'bad'"):
                found[key]
    named = model.run_sync({"values": [0, 0, 0]}, fetch=[right, "left/out", "two"], partial=True)
    assert ([*named], [*named.errors]) == (["right/out", "two"], ["left/out"])
    update = af.Model(graph, {"values": x}, {"two": right}).run_sync({"values": [0, 0, 0]}, partial=True)
    assert ([*update], {*update.errors}) == (["two"], set())


async def test_all_goes_well_and_all_fails() -> None:
    graph, x, left, right, both = two_ways(lambda values: values)
    bad = af.Graph("bad")
    y = graph.function("also", fail, VECTOR)(both)
    z = bad.function("bad", fail, VECTOR)(bad.blob("x", [3]))
    async with graph, bad:
        result = await graph.run({x: [0, 0, 0]}, fetch=[left, right], partial=True)
        assert not result.errors
        assert len(result) == 2
        assert [*(await graph.run({x: [0, 0, 0]}, partial=True)).errors] == [y.name]
        lost = await bad.run({"x": [0, 0, 0]}, partial=True)
        assert not len(lost)
        assert [*lost.errors] == [z.name]


async def test_several_failures_each_have_their_results() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", [3])
    first, second = graph.function("first", fail, VECTOR)(x), graph.function("second", fail, VECTOR)(x)
    joined = first + second
    async with graph:
        result = await graph.run({x: [0, 0, 0]}, fetch=[first, second, joined], partial=True)
        assert result.errors[first.name].op_name == "first"
        assert result.errors[second.name].op_name == "second"
        assert result.errors[joined.name].op_name in {"first", "second"}


async def test_variables_that_depend_on_it_keep_their_values() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", [3])
    old, new = graph.variable("old", [3], init=1), graph.variable("new", [3], init=1)
    old.assign(graph.function("bad", fail, VECTOR)(x))
    new.assign(x * 2)
    async with graph:
        for number in (1, 2):  # the second one waits for the turns of the first
            result = await graph.run({x: [number] * 3}, partial=True)
            assert not len(result)
            assert [*result.errors] == ["bad"]
        assert (old.value == 1).all()
        assert (new.value == 4).all()


async def test_functions_behind_it_keep_the_order_of_frames() -> None:
    seen: list[float] = []

    def odd(values: np.ndarray) -> np.ndarray:
        if values[0] % 2 == 0:
            raise ValueError("even")
        return values

    def note(values: np.ndarray) -> np.ndarray:
        seen.append(float(values[0]))
        return values

    graph = af.Graph("g")
    x = graph.blob("x", [3])
    y = graph.function("note", note, VECTOR)(graph.function("odd", odd, VECTOR)(x))
    async with graph:
        feeds = ({x: [number] * 3} for number in range(6))
        results = [result async for result in graph.stream(feeds, in_flight=3, partial=True)]
        assert [y in result for result in results] == [False, True] * 3
        assert seen == [1, 3, 5]


async def test_an_op_that_takes_too_long_or_is_repeated() -> None:
    begun, released, calls = threading.Event(), threading.Event(), []

    def slow(values: np.ndarray) -> np.ndarray:
        begun.set()
        released.wait(60)
        return values

    def again(values: np.ndarray) -> np.ndarray:
        calls.append(1)
        raise ValueError("again")

    graph = af.Graph("g")
    x = graph.blob("x", [3])
    late = graph.function("slow", slow, VECTOR, timeout=HELD_S)(x)
    wrong = graph.function("again", again, VECTOR, retries=2, lane="other")(x)
    quick = x + 1
    async with graph:
        with held_limits() as end_limits:
            run = asyncio.create_task(graph.run({x: [0, 0, 0]}, partial=True))
            await asyncio.to_thread(begun.wait)
            await settle()
            end_limits()
            released.set()
            result = await run
    assert [*result] == [quick.name]
    assert len(calls) == 3
    assert isinstance(result.errors[late.name], af.OpTimeoutError)
    assert not isinstance(result.errors[wrong.name], af.OpTimeoutError)


async def test_results_on_devices() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", [3])
    with graph.at("sim:0"):
        good = x * 2
        bad = graph.function("bad", fail, VECTOR)(x) + 1
        both = good + bad
    async with graph:
        for _ in range(2):
            result = await graph.run({x: [1, 1, 1]}, fetch=[good, bad, both], partial=True)
            assert [*result] == [good.name]
            assert (af.to_numpy(result[good]) == 2).all()
            assert [*result.errors] == [bad.name, both.name]


async def test_branches_and_calls_fail_as_wholes() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", [3])
    chosen = af.cond(af.ops.sum(x) > 0, lambda values: graph.function("bad", fail, VECTOR)(values), af.ops.square, x)
    other = x * 2
    async with graph:
        result = await graph.run({x: [1, 1, 1]}, partial=True)
        assert [*result] == [other.name]
        assert result.errors[chosen.name]
        assert not (await graph.run({x: [-1, -1, -1]}, partial=True)).errors


async def test_memory_does_not_grow() -> None:
    graph, x, left, right, both = two_ways()

    async def run(count: int) -> int:
        for _ in range(count):
            await graph.run({x: [0, 0, 0]}, fetch=[left, right, both], partial=True)
        (memory,) = graph.statistics().memory.values()
        return memory.held_bytes

    gc.collect()
    gc.disable()
    try:
        async with graph:
            assert await run(3) == await run(20)
    finally:
        gc.enable()


async def test_what_it_cannot_be() -> None:
    graph, x, *_ = two_ways()
    with pytest.raises(af.GraphError, match="atomic"):
        await graph.run({x: [0, 0, 0]}, partial=True, atomic=True)
    with pytest.raises(TypeError, match="partial"):
        graph.stream([], partial=1)
    y = af.Graph("y")
    source = y.blob("x", [3])

    @y.function(inputs=source, outputs=af.TensorSpec.of([]), emits=True)
    def numbers(values: np.ndarray):
        yield from values

    async with y:
        with pytest.raises(af.GraphError, match=r"partial=True.*af\.collect"):
            async for _ in y.stream([{source: [0, 0, 0]}], partial=True):
                pass


def test_scripts_may_ask_for_it() -> None:
    graph, x, _, right, both = two_ways()
    result = graph.run_sync({x: [0, 0, 0]}, fetch=[right, both], partial=True)
    assert right in result
    assert both.name in result.errors
