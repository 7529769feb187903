"""Buffers at run time: used again where nobody sees it, and never where somebody would."""

from typing import Any

import numpy as np

import actorflow as af

FRAMES = 6


def pool_of(graph: af.Graph) -> Any:
    return graph.engine.resources.device(af.Place()).memory


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
