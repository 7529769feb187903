"""Buffers at run time: used again where nobody sees it, and never where somebody would."""

import asyncio
from typing import Any

import numpy as np
import pytest

import actorflow as af

FRAMES = 6


def chain(x: af.Blob, length: int = 4) -> af.Blob:
    """Ops whose buffers are wanted soon after they were given back."""
    for _ in range(length):
        x = af.ops.scale(x, 2.0)
    return x


def pool_of(graph: af.Graph) -> Any:
    return graph.engine.resources.device(af.Place()).memory


async def test_buffers_are_used_again() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (4, 8))
    chain(x, 10)
    async with graph:
        for _ in range(3):
            await graph.run({x: np.ones((4, 8), "f")})
        allocations = pool_of(graph).allocations
        for _ in range(FRAMES):
            await graph.run({x: np.ones((4, 8), "f")})
        assert pool_of(graph).allocations - allocations <= FRAMES  # what was fetched, at most


async def test_viewed_buffers_are_used_again() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (4, 8))
    y = af.ops.scale(x, 1.0)
    for shape in ((8, 4), (32,), (2, 16)):
        y = af.ops.scale(af.ops.reshape(y, shape), 1.0)
    total = graph.function("total", lambda y: y.sum(), outputs=af.TensorSpec.of(()))(y)
    async with graph:
        for frame in range(3):
            assert (await graph.run({x: np.full((4, 8), frame, "f")}))[total] == 32 * frame
        allocations = pool_of(graph).allocations
        for frame in range(FRAMES):
            assert (await graph.run({x: np.full((4, 8), frame, "f")}))[total] == 32 * frame
        assert pool_of(graph).allocations == allocations


async def test_a_view_of_a_feed_leaves_the_feed_alone() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2, 3))
    y = chain(af.ops.reshape(x, 6))
    fed = np.arange(6, dtype="f").reshape(2, 3)
    async with graph:
        for _ in range(FRAMES):
            result = await graph.run({x: fed})
            assert result[y].tolist() == [0, 16, 32, 48, 64, 80]
    assert fed.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("look", [lambda w: w.reshape(6), lambda w: w.T.reshape(6)[:], lambda w: w.ravel()[::-1]])
async def test_a_view_of_a_variable_leaves_the_variable_alone(look: Any) -> None:
    graph = af.Graph("g")
    w = graph.variable("w", (2, 3), init=1)
    view = graph.function("look", look, outputs=af.TensorSpec.of(6))(w)
    y = chain(view)
    async with graph:
        for _ in range(FRAMES):
            assert (await graph.run())[y].tolist() == [16] * 6
    assert w.value.tolist() == [[1, 1, 1], [1, 1, 1]]


async def test_an_array_that_a_function_returns_again_and_again() -> None:
    graph = af.Graph("g")
    constant = np.ones(6, "f")
    y = chain(graph.function("constant", lambda: constant, outputs=af.TensorSpec.of(6))())
    async with graph:
        for _ in range(FRAMES):
            assert (await graph.run())[y].tolist() == [16] * 6
    assert constant.tolist() == [1] * 6


async def test_results_of_functions_do_not_pile_up() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", 1000)
    w = graph.variable("w", 1000)
    y = graph.function("f", lambda x: x + 1, outputs=af.TensorSpec.of(1000))(x)
    [y, w] >> graph.function("update", lambda y, w: y + w) >> [w]
    async with graph:
        for _ in range(20):
            await graph.run({x: np.zeros(1000, "f")})
        assert pool_of(graph).held_bytes <= 4 * w.spec.size_bytes
    assert w.value.tolist() == [20] * 1000


async def test_fetched_arrays_belong_to_the_application() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", 6)
    y = af.ops.scale(x, 1.0)
    z = chain(y)
    async with graph:
        results = [await graph.run({x: np.full(6, i, "f")}, fetch=[y, z]) for i in range(FRAMES)]
        again = await asyncio.gather(*[graph.run({x: np.full(6, 9, "f")}, fetch=[y, z]) for _ in range(FRAMES)])
    assert [result[y].tolist() for result in results] == [[i] * 6 for i in range(FRAMES)]
    assert [result[z].tolist() for result in results] == [[16 * i] * 6 for i in range(FRAMES)]
    assert all(result[z].tolist() == [144] * 6 for result in again)


async def test_old_values_of_a_variable_stay_as_they_were() -> None:
    graph = af.Graph("g")
    w = graph.variable("w", 4, init=1)
    double = graph.op("double", af.ops.Scale(2.0))
    [w] >> double >> [w]
    async with graph:
        values = [w.value]
        for _ in range(FRAMES):
            await graph.run()
            values.append(w.value)
        rows = [w.value[:2]]
        await graph.run(fetch=[double])
        await graph.run(fetch=[double])
    assert [value.tolist() for value in values] == [[2**i] * 4 for i in range(FRAMES + 1)]
    assert rows[0].tolist() == [64, 64]


async def test_objects_are_not_kept_alive() -> None:
    import gc
    import weakref

    class Thing:
        pass

    graph = af.Graph("g")
    make = graph.function("make", Thing, outputs=af.TensorSpec.of((), object))()
    things: list[weakref.ref[Thing]] = []
    graph.function("see", lambda thing: things.append(weakref.ref(thing)), outputs=())(make)
    async with graph:
        await graph.run()
        gc.collect()
        assert [thing() for thing in things] == [None]
