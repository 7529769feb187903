"""Injected failures and delays, at kernels, plain and async functions."""

from __future__ import annotations

import asyncio
import contextvars

import numpy as np
import pytest

import actorflow as af
from actorflow.runtime.program import Program
from actorflow.testing import inject, interleave, replace
from tests.support.waiting import frames_begun

KINDS = ["kernel", "plain", "async"]


class PlantedError(Exception):
    pass


def build(kind: str, **options: object) -> tuple[af.Graph, af.Blob, af.Blob]:
    """A chain of three ops, the middle one of a kind: ``y = 2 * x + x``."""
    graph = af.Graph("faults")
    x = graph.blob("x", (4,), "float64")
    y = af.ops.scale(x, 2.0)

    async def double(a: np.ndarray) -> np.ndarray:
        return a * 2.0

    if kind == "kernel":
        y = graph.op("middle", af.ops.Scale(2.0), **options)(x)
    else:
        y = graph.function("middle", double if kind == "async" else lambda a: a * 2.0, x.spec, **options)(x)
    return graph, x, af.ops.add(y, x)


@pytest.mark.parametrize("kind", KINDS)
class TestErrors:
    async def test_the_op_fails_and_then_works(self, kind: str) -> None:
        graph, x, y = build(kind)
        async with graph:
            with inject(graph, "middle", error=PlantedError("planted")) as injection:
                for _ in range(4):  # on the lane, then on the loop
                    with pytest.raises(af.OpError, match=r"op 'middle' .* failed with PlantedError: planted") as caught:
                        await graph.run({x: np.ones(4)})
                    assert isinstance(caught.value.__cause__, PlantedError)
            assert injection.struck == 4
            np.testing.assert_array_equal((await graph.run({x: np.ones(4)}))[y], np.full(4, 3.0))
        assert (graph.engine.frames.failed, graph.engine.frames.finished) == (4, 1)

    async def test_only_some_frames(self, kind: str) -> None:
        graph, x, y = build(kind)
        inject(graph, graph["middle"], error=PlantedError, frames=range(1, 6, 2))
        async with graph:
            runs = [graph.run({x: np.full(4, float(i))}) for i in range(6)]
            results = await asyncio.gather(*runs, return_exceptions=True)
        for i, result in enumerate(results):
            if i % 2:
                assert isinstance(result, af.OpError)
            else:
                np.testing.assert_array_equal(result[y], np.full(4, 3.0 * i))

    async def test_only_some_calls_so_that_retries_succeed(self, kind: str) -> None:
        graph, x, y = build(kind, retries=2)
        async with graph:
            with inject(graph, "middle", error=PlantedError, times=2) as injection:
                np.testing.assert_array_equal((await graph.run({x: np.ones(4)}))[y], np.full(4, 3.0))
            assert injection.struck == 2
            with inject(graph, "middle", error=PlantedError, times=3), pytest.raises(af.OpError):
                await graph.run({x: np.ones(4)})

    async def test_what_makes_the_error_is_called_each_time(self, kind: str) -> None:
        graph, x, _ = build(kind, retries=3)
        made: list[PlantedError] = []

        def make() -> PlantedError:
            made.append(PlantedError(len(made)))
            return made[-1]

        async with graph:
            with inject(graph, "middle", error=make), pytest.raises(af.OpError) as caught:
                await graph.run({x: np.ones(4)})
            assert len(made) == 4
            assert caught.value.__cause__ is made[-1]
            # What failed was not the op itself.
            replayed = caught.value.replay()
            (value,) = replayed if kind == "kernel" else [await replayed if kind == "async" else replayed]
            np.testing.assert_array_equal(value, np.full(4, 2.0))


@pytest.mark.parametrize("kind", KINDS)
class TestDelays:
    async def test_results_stay(self, kind: str) -> None:
        graph, x, y = build(kind)
        interleave(graph, 0)
        async with graph:
            with inject(graph, "middle", delay_s=0, frames={0, 2}) as injection:
                results = await asyncio.gather(*(graph.run({x: np.full(4, float(i))}) for i in range(4)))
        assert injection.struck == 2
        for i, result in enumerate(results):
            np.testing.assert_array_equal(result[y], np.full(4, 3.0 * i))

    async def test_a_delay_then_an_error(self, kind: str) -> None:
        graph, x, _ = build(kind)
        async with graph:
            with (
                inject(graph, "middle", delay_s=1e-4) as delay,
                inject(graph, "middle", error=PlantedError) as error,
                pytest.raises(af.OpError),
            ):
                await graph.run({x: np.ones(4)})
        assert (delay.struck, error.struck) == (1, 1)

    async def test_a_sequential_graph_waits_on_the_loop(self, kind: str) -> None:
        graph = af.Graph("sequential", sequential=True)
        x = graph.blob("x", (4,), "float64")
        y = graph.op("middle", af.ops.Scale(2.0))(x)
        async with graph:
            with inject(graph, "middle", delay_s=1e-4) as injection:
                np.testing.assert_array_equal((await graph.run({x: np.ones(4)}))[y], np.full(4, 2.0))
        assert injection.struck == 1

    async def test_cancellation_in_the_delay(self, kind: str) -> None:
        graph, x, y = build(kind)
        async with graph:
            injection = inject(graph, "middle", delay_s=0.001)
            task = asyncio.create_task(graph.run({x: np.ones(4)}))
            while not injection.struck:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            injection.remove()
            np.testing.assert_array_equal((await graph.run({x: np.ones(4)}))[y], np.full(4, 3.0))


async def test_async_functions_keep_their_context() -> None:
    name = contextvars.ContextVar("name", default="nobody")

    async def look() -> object:
        await asyncio.sleep(0)
        return name.get()

    graph = af.Graph("context")
    y = graph.function("look", look, af.TensorSpec.of((), object))()
    name.set("somebody")
    async with graph:
        with inject(graph, "look", delay_s=0):
            assert (await graph.run())[y] == "somebody"


async def test_a_removed_injection_leaves_the_programs_as_they_were() -> None:
    graph, x, _ = build("kernel")
    first, second = inject(graph, "middle", delay_s=0), inject(graph, "middle", error=PlantedError)
    async with graph:
        first.remove()
        with pytest.raises(af.OpError):
            await graph.run({x: np.ones(4)})
        second.remove()
        second.remove()
        await graph.run({x: np.ones(4)})
        assert type(graph.engine.program(None, {})) is Program
    assert first.struck == 0


async def test_a_frame_in_flight_is_not_struck() -> None:
    go = asyncio.Event()

    async def wait(a: np.ndarray) -> np.ndarray:
        await go.wait()
        return a

    graph = af.Graph("late")
    x = graph.blob("x", (), "int64")
    y = graph.function("after", lambda a: a, x.spec)(graph.function("wait", wait, x.spec)(x))
    async with graph:
        task = asyncio.create_task(graph.run({x: 3}))
        await frames_begun(graph)
        with inject(graph, "after", error=PlantedError):
            go.set()
            assert (await task)[y] == 3


def test_wrong_arguments() -> None:
    graph, _, _ = build("plain")
    with pytest.raises(af.GraphError, match="no blob, op or sub-graph named 'nothing'"):
        inject(graph, "nothing", delay_s=1)
    with pytest.raises(af.GraphError, match="faults are for ops, got <Blob 'x'"):
        inject(graph, "x", delay_s=1)
    with pytest.raises(ValueError, match="op 'middle': neither an error nor a delay"):
        inject(graph, "middle")
    with pytest.raises(ValueError, match="op 'middle': delay_s must not be negative, got -1"):
        inject(graph, "middle", delay_s=-1)


class TestReplace:
    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_function_and_a_value_and_what_was_there(self, kind: str) -> None:
        graph, x, y = build(kind, retries=1)
        seen = []

        async def later(a: np.ndarray) -> np.ndarray:
            await asyncio.sleep(0)
            seen.append(a.flags.writeable)
            return a * 10

        async with graph:
            for by, value in ((lambda a: a * 100, 101), (later, 11), ([7] * 4, 8)):
                with replace(graph, "middle", by), inject(graph, "middle", error=PlantedError, times=1) as injection:
                    assert (await graph.run({x: np.ones(4)}))[y].tolist() == [value] * 4
                assert injection.struck == 1
            assert (await graph.run({x: np.ones(4)}))[y].tolist() == [3.0] * 4
        assert seen == [False]

    async def test_calls_of_other_graphs_and_ops_in_branches(self) -> None:
        inner, graph = af.Graph("inner"), af.Graph("outer")
        a = inner.blob("a", [])
        inner.function("fails", lambda a: 1 / 0, a.spec)(a)
        x = graph.blob("x", [])
        y = graph.call(inner, {a: x}, name="ask")
        z = af.cond(x > 0, lambda: af.ops.exp(x, name="inside"), lambda: x)
        async with inner, graph:
            with (
                replace(graph, "ask", 5),
                replace(graph, next(op for op in graph.ops if op.name.endswith("inside")), 6),
            ):
                result = await graph.run({x: 1})
        assert (result[y], result[z]) == (5, 6)

    @pytest.mark.together(
        ("wrong", "text"),
        [
            ("midle", r"has no blob, op or sub-graph named 'midle'; did you mean 'middle'"),
            ("x", "faults are for ops, got <Blob 'x'"),
            ("each", "op 'each' is Emitting, which computes parts of the graph"),
        ],
    )
    def test_what_cannot_be_replaced(self, wrong: str, text: str) -> None:
        graph, x, _ = build("kernel")

        @graph.function(outputs=af.TensorSpec.of([]), emits=True)
        def each(values):
            yield from values

        each(x)
        with pytest.raises(af.GraphError, match=text):
            replace(graph, wrong, 1)

    def test_results_are_checked(self) -> None:
        graph, x, _ = build("kernel")
        with replace(graph, "middle", [1, 2]), pytest.raises(af.OpError, match=r"expected shape \(4,\), got \(2,\)"):
            graph.run_sync({x: np.ones(4)})
