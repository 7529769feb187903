"""Ops that emit: what follows an item, how items are joined and streamed, how they fail, and what they leave behind."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.core.plain import BURST
from actorflow.runtime.limits import limit_time
from actorflow.trace.counters import NodeState

KINDS = ("plain", "async")


class Numbers:
    """Generators of the numbers below the one that they are given, which say what becomes of them.

    Args:
        kind: "plain" or "async".
        fails_at: The number in whose place an error is raised.

    Attributes:
        asked: How many numbers were asked for.
        closed: How many generators have ended, in whatever way.
    """

    def __init__(self, kind: str, fails_at: int = -1) -> None:
        self.asked = self.closed = 0
        self._fails_at = fails_at
        self.fn: Callable[[Any], Any] = self._plain if kind == "plain" else self._awaited

    def _next(self, i: int) -> Any:
        self.asked += 1
        if i == self._fails_at:
            raise ValueError(f"no {i}")
        return np.float32(i)

    def _plain(self, n: Any) -> Iterator[Any]:
        try:
            for i in range(int(n)):
                yield self._next(i)
        finally:
            self.closed += 1

    async def _awaited(self, n: Any) -> AsyncIterator[Any]:
        try:
            for i in range(int(n)):
                await asyncio.sleep(0)
                yield self._next(i)
        finally:
            await asyncio.sleep(0)  # a clean-up that takes its time
            self.closed += 1


def numbers(graph: af.Graph, source: Numbers, in_flight: int = 1) -> tuple[af.Blob, af.Blob]:
    """How many there are to be, and each of them."""
    n = graph.blob("n", [], "int64")
    op = graph.function("numbers", source.fn, outputs=af.TensorSpec.of([]), emits=True, in_flight=in_flight)
    return n, op(n)


class TestJoining:
    @pytest.mark.together("kind, in_flight", [(kind, k) for kind in KINDS for k in (1, 3)])
    async def test_items_are_joined_in_their_order(self, kind: str, in_flight: int) -> None:
        async with af.Graph("g") as graph:
            n, x = numbers(graph, Numbers(kind), in_flight)
            w = graph.variable("w", [], init=10.0)
            offset = af.ops.cast(n, "float32") * 100
            y = x * w + offset

            async def later(value: Any) -> Any:
                if value % 2:  # of two that are computed at once the second one ends first
                    await asyncio.sleep(0)
                return value

            y = graph.function("later", later, y.spec)(y)
            stacked, listed, exact = af.collect(y), af.collect(x, "list"), af.collect(y, length=5)
            total = af.collect(y, lambda values: np.sum(values), outputs=y.spec)
            twice = exact * 2
            result = await graph.run({n: 5}, fetch=[stacked, listed, exact, total, twice])
            expected = [500, 510, 520, 530, 540]
            assert result[stacked].tolist() == expected
            assert [float(value) for value in result[listed]] == [0, 1, 2, 3, 4]
            assert result[twice].tolist() == [1000, 1020, 1040, 1060, 1080]
            assert result[total] == sum(expected)
            assert (await graph.run({n: 0}, fetch=[stacked]))[stacked].shape == (0,)
            for wrong in (4, 6):
                with pytest.raises(af.OpError, match=r"joins 5 items, and there are (4|more)"):
                    await graph.run({n: wrong}, fetch=[exact])
            assert [each.calls for each in (graph.statistics().ops["later"],)] == [5 + 4 + 6 - 0 - 0]

    async def test_items_of_several_outputs_and_of_python_objects(self) -> None:
        async with af.Graph("g") as graph:
            x = graph.blob("x", ["n"])

            def pairs(values: Any) -> Iterator[Any]:
                for i, value in enumerate(values):
                    yield [value], {"at": i}

            types = [af.TensorSpec.of([1]), af.TensorSpec.of([], object)]
            value, note = graph.function("pairs", pairs, outputs=types, emits=True)(x)
            at = graph.function("at", lambda note: note["at"], af.TensorSpec.of([], "int64"))(note)
            y = af.collect(value * af.ops.cast(at, "float32"))
            notes = af.collect(note, "list")
            result = await graph.run({x: [5, 6]}, fetch=[y, notes])
            assert result[y].tolist() == [[0], [6]]
            assert result[notes] == [{"at": 0}, {"at": 1}]

    @pytest.mark.together("how", ["list", "stack"])
    async def test_what_a_generator_writes_into_afterwards_is_not_changed(self, how: str) -> None:
        async with af.Graph("g") as graph:
            n = graph.blob("n", [], "int64")

            def same(n: Any) -> Iterator[Any]:
                buffer = np.zeros(2, np.float32)
                for i in range(int(n)):
                    buffer[:] = i
                    yield buffer

            x = graph.function("same", same, outputs=af.TensorSpec.of([2]), emits=True)(n)
            y = af.collect(x, how)
            assert np.array((await graph.run({n: 3}))[y]).tolist() == [[0, 0], [1, 1], [2, 2]]
            taken = [result[x] async for result in graph.stream([{n: 3}], fetch=[x])]
            assert np.array(taken).tolist() == [[0, 0], [1, 1], [2, 2]]

    @pytest.mark.together("kind", KINDS)
    async def test_items_of_items(self, kind: str) -> None:
        async with af.Graph("g") as graph:
            n, x = numbers(graph, Numbers(kind))
            inner = graph.function("inner", Numbers(kind).fn, outputs=x.spec, emits=True, in_flight=2)
            y = inner(af.ops.cast(x, "int64")) + x * 10
            rows = af.collect(af.collect(y, sum, outputs=y.spec) + 0.5)
            assert (await graph.run({n: 4}, fetch=[rows]))[rows].tolist() == [0.5, 10.5, 41.5, 93.5]
            taken = [float(result[y]) async for result in graph.stream([{n: 4}], fetch=[y])]
            assert taken == [10, 20, 21, 30, 31, 32]

    async def test_inside_of_a_loop_and_around_a_branch(self) -> None:
        async with af.Graph("g") as graph:
            start = graph.blob("start", [])

            def body(c: af.Blob, _: None) -> Any:
                def counted(value: Any) -> Iterator[Any]:
                    for i in range(3):
                        yield value + i

                x = graph.function("counted", counted, outputs=c.spec, emits=True)(c)
                y = af.cond(x > 2, lambda: x * c, lambda: x)
                return af.collect(y, sum, outputs=c.spec), None

            y, _ = af.scan(body, start, length=2)
            expected = 1.0
            for _ in range(2):
                expected = sum(x * expected if x > 2 else x for x in (expected, expected + 1, expected + 2))
            assert (await graph.run({start: 1}))[y] == expected

    async def test_gradients_of_an_item_are_collected_and_train_a_variable(self) -> None:
        async with af.Graph("g") as graph:
            n, x = numbers(graph, Numbers("plain"))
            w = graph.variable("w", [], init=2.0)
            loss = af.ops.square(w * x)
            slope = af.collect(af.gradient(loss, w), sum, outputs=w.spec)
            step = graph.op("step", af.ops.Sum())
            [w, slope * -0.01] >> step >> [w]
            result = await graph.run({n: 4}, fetch=[slope, step])
            assert result[slope] == 2 * 2.0 * (1 + 4 + 9)
            assert w.value == pytest.approx(2.0 - 0.01 * 56)
            with pytest.raises(af.GraphError, match="no gradient through that"):
                af.gradient(af.ops.sum(af.collect(loss, length=4)), w)

    async def test_random_numbers_differ_from_item_to_item_and_repeat_with_the_frame(self) -> None:
        seen = []
        for _ in range(2):
            async with af.Graph("g") as graph:
                n, x = numbers(graph, Numbers("plain"))
                y = x * 0 + af.ops.dropout(x * 0 + 1, 0.5, seed=1)
                joined = af.collect(y)
                runs = [(await graph.run({n: 64}, fetch=[joined]))[joined].tolist() for _ in range(2)]
                results = [result async for result in graph.stream([{n: 64}], fetch=[y])]
                assert {result.frames for result in results} == {(2,)}
                assert runs[0] != runs[1]
                assert len(set(runs[0])) == 2
                seen.append([*runs, [float(result[y]) for result in results]])
        assert seen[0] == seen[1]

    async def test_whatever_the_options_of_the_graph_are(self) -> None:
        for options in ({"sequential": True}, {"memory_budget": 1 << 16}, {"fuse": False}, {"check_finite": True}):
            async with af.Graph("g", **options) as graph:  # type: ignore[arg-type]
                n, x = numbers(graph, Numbers("plain"), 2)
                y = af.collect(af.ops.tanh(x) * 2, length=5)
                results = await asyncio.gather(*[graph.run({n: 5}) for _ in range(3)])
                for result in results:
                    np.testing.assert_allclose(result[y], np.tanh(np.arange(5, dtype=np.float32)) * 2, rtol=1e-6)

    async def test_what_is_computed_on_a_device(self) -> None:
        async with af.Graph("g") as graph:
            n, x = numbers(graph, Numbers("plain"))
            w = graph.variable("w", [], init=3.0, place="sim:0")
            with graph.at("sim:0"):
                y = af.ops.exp(-x) * w
            joined = af.collect(y)
            expected = np.exp(-np.arange(4)) * 3
            np.testing.assert_allclose((await graph.run({n: 4}))[joined], expected, rtol=1e-5)
            streamed = [result[y] async for result in graph.stream([{n: 4}], fetch=[y])]
            np.testing.assert_allclose(streamed, expected, rtol=1e-5)

    async def test_long_pulls_go_to_a_lane(self) -> None:
        threads = set()
        async with af.Graph("g") as graph:
            n = graph.blob("n", [], "int64")

            def work(n: Any) -> Iterator[Any]:
                for i in range(int(n)):
                    threads.add(threading.get_ident())
                    sum(range(20_000))
                    yield i

            y = af.collect(graph.function("work", work, outputs=af.TensorSpec.of([]), emits=True)(n))
            assert (await graph.run({n: 20}))[y].tolist() == [*range(20)]
        assert threads - {threading.get_ident()}

    async def test_a_saved_graph_computes_the_same(self, tmp_path: Any) -> None:
        async with af.Graph("g") as graph:
            x = graph.blob("x", ["n"])
            w = graph.variable("w", [], init=2.0)
            y = graph.function("windows", windows, outputs=af.TensorSpec.of([2]), emits=True, in_flight=2)(x) * w
            stacked, largest = af.collect(y), af.collect(af.ops.sum(y), largest_of, outputs=af.TensorSpec.of([]))
            expected = await graph.run({x: [1, 2, 3, 4]}, fetch=[stacked, largest])
            await graph.save(tmp_path / "all.af")
            await graph.save(tmp_path / "part.af", fetch=[largest])
        allowed = [f"{__name__}:windows", f"{__name__}:largest_of"]
        async with await af.load(tmp_path / "all.af", functions=allowed) as loaded:
            result = await loaded.run({"x": [1, 2, 3, 4]}, fetch=[stacked.name, largest.name])
            np.testing.assert_array_equal(result[stacked.name], expected[stacked])
            assert result[largest.name] == expected[largest] == 14
            assert loaded["windows"].operation.in_flight == 2
        async with await af.load(tmp_path / "part.af", functions=allowed) as part:
            assert (await part.run({"x": [1, 2, 3, 4]}))[largest.name] == 14


def windows(values: Any) -> Iterator[Any]:
    """Pairs of neighbours."""
    for i in range(len(values) - 1):
        yield values[i : i + 2]


def largest_of(values: list[Any]) -> Any:
    """The largest one."""
    return max(values)


class TestStreams:
    @pytest.mark.together("kind, in_flight", [(kind, k) for kind in KINDS for k in (1, 4)])
    async def test_a_result_per_item_in_order_over_several_frames(self, kind: str, in_flight: int) -> None:
        source = Numbers(kind)
        async with af.Graph("g") as graph:
            n, x = numbers(graph, source, in_flight)
            y = x * 2
            feeds = [{n: 3}, {n: 0}, {n: 2}]
            found = [(float(r[y]), r.frames) async for r in graph.stream(feeds, fetch=[y], in_flight=2)]
            assert found == [(0, (0,)), (2, (0,)), (4, (0,)), (0, (2,)), (2, (2,))]
            assert source.closed == 3

    @pytest.mark.together("kind, in_flight", [(kind, k) for kind in KINDS for k in (1, 4)])
    async def test_a_generator_goes_on_as_far_as_there_is_room(self, kind: str, in_flight: int) -> None:
        source = Numbers(kind)
        async with af.Graph("g") as graph:
            n, x = numbers(graph, source, in_flight)
            taken = 0
            async for _ in graph.stream([{n: 30}], fetch=[x + 1]):
                taken += 1
                for _ in range(60):
                    await asyncio.sleep(0)  # time enough to run ahead
                assert min(30, taken + in_flight) <= source.asked <= taken + BURST
            assert taken == 30

    @pytest.mark.together("kind, in_flight", [(kind, k) for kind in KINDS for k in (1, 4)])
    async def test_no_more_items_are_computed_at_once_than_was_said(self, kind: str, in_flight: int) -> None:
        source, running, most = Numbers(kind), 0, 0
        async with af.Graph("g") as graph:
            n, x = numbers(graph, source, in_flight)

            async def counted(value: Any) -> Any:
                nonlocal running, most
                running += 1
                most = max(most, running)
                for _ in range(10):
                    await asyncio.sleep(0)
                running -= 1
                return value

            y = graph.function("counted", counted, x.spec)(x)
            joined = af.collect(y)
            assert (await graph.run({n: 9}, fetch=[joined]))[joined].tolist() == [*range(9)]
            assert most == in_flight
            assert [float(result[y]) async for result in graph.stream([{n: 9}], fetch=[y])] == [*range(9)]
            assert most == in_flight

    @pytest.mark.together("ops", [0, 1])
    async def test_a_result_is_there_before_the_generator_goes_on(self, ops: int) -> None:
        taken = [asyncio.Event() for _ in range(3)]
        async with af.Graph("g") as graph:
            n = graph.blob("n", [], "int64")

            async def answers(n: Any) -> AsyncIterator[Any]:
                for i, event in enumerate(taken):
                    yield i
                    await event.wait()

            x = graph.function("answers", answers, outputs=af.TensorSpec.of([]), emits=True, in_flight=2)(n)
            y = x + 1 if ops else x
            async for result in graph.stream([{n: 3}], fetch=[y]):
                taken[int(result[y]) - ops].set()
            assert all(event.is_set() for event in taken)

    @pytest.mark.together("kind, in_flight", [(kind, k) for kind in KINDS for k in (1, 4)])
    async def test_leaving_early_closes_the_generator(self, kind: str, in_flight: int) -> None:
        source = Numbers(kind)
        async with af.Graph("g") as graph:
            n, x = numbers(graph, source, in_flight)
            stream = graph.stream([{n: 1000}], fetch=[x + 1])
            async for result in stream:
                if result.get("sum/out") == 3:
                    break
            await stream.aclose()
            assert source.closed == 1
            assert source.asked < 20
            await graph.engine.observer.rest()
            assert not graph.engine.running

    @pytest.mark.together("kind", KINDS)
    async def test_results_before_a_failure_come_first(self, kind: str) -> None:
        source = Numbers(kind, fails_at=3)
        async with af.Graph("g") as graph:
            n, x = numbers(graph, source, 2)
            y, seen = x + 1, []
            with pytest.raises(af.OpError, match="no 3"):
                async for result in graph.stream([{n: 10}], fetch=[y]):
                    seen.append(float(result[y]))
            assert seen == [1, 2, 3]
            assert source.closed == 1

    @pytest.mark.together("kind, joins", [(kind, joins) for kind in ("plain", "ready") for joins in (False, True)])
    async def test_what_never_waits_lets_others_have_their_turn(self, kind: str, joins: bool) -> None:
        turns, done = 0, False

        def plain(n: Any) -> Iterator[Any]:
            for i in range(int(n)):
                if turns == 20:
                    return
                yield i

        async def ready(n: Any) -> AsyncIterator[Any]:
            for i in plain(n):
                yield i

        async def ticks() -> None:
            nonlocal turns
            while turns < 20 and not done:
                await asyncio.sleep(0)
                turns += 1

        async with af.Graph("g") as graph:
            source = Numbers("plain")
            source.fn = plain if kind == "plain" else ready
            n, x = numbers(graph, source)
            ticking = asyncio.ensure_future(ticks())
            if joins:
                await graph.run({n: 1_000_000}, fetch=[af.collect(x)])
            else:
                async for _ in graph.stream([{n: 1_000_000}], fetch=[x]):
                    pass
            done = True
            await ticking
            assert turns == 20

    @pytest.mark.together("kind", KINDS)
    async def test_memory_does_not_grow_with_the_items(self, kind: str) -> None:
        async with af.Graph("g", trace_capacity=64) as graph:
            n, x = numbers(graph, Numbers(kind), 2)
            y = x * 2
            held = []
            tracemalloc.start()
            try:
                taken = 0
                async for _ in graph.stream([{n: 1200}], fetch=[y]):
                    taken += 1
                    if taken in (200, 1200):
                        held.append(tracemalloc.get_traced_memory()[0])
            finally:
                tracemalloc.stop()
            assert held[1] - held[0] < 20_000  # less than 20 bytes an item

    async def test_what_is_per_item_cannot_be_run(self) -> None:
        async with af.Graph("g") as graph:
            n, x = numbers(graph, Numbers("plain"))
            y, whole = x + 1, af.ops.cast(n, "float32")
            for _ in range(2):
                with pytest.raises(af.GraphError, match="'sum/out' for each item of an op that emits"):
                    await graph.run({n: 2}, fetch=[y])
            with pytest.raises(af.GraphError, match="fetch either, or join"):
                await graph.run({n: 2}, fetch=[y, whole])
            with pytest.raises(af.GraphError, match="fetch either, or join"):
                async for _ in graph.stream([{n: 2}], fetch=[y, whole]):
                    pass
            assert graph.engine.frames.started == 0
            assert "per item: sum/out float32[]" in graph.compile([y]).summary()


class TestFailures:
    @pytest.mark.together("kind, in_flight", [(kind, k) for kind in KINDS for k in (1, 3)])
    async def test_an_error_names_the_op_the_item_and_both_lines(self, kind: str, in_flight: int) -> None:
        source = Numbers(kind)
        async with af.Graph("g") as graph:
            n, x = numbers(graph, source, in_flight)

            def fails(value: Any) -> Any:
                if value == 5:
                    raise ValueError("five")
                return value

            y = af.collect(graph.function("fails", fails, x.spec)(x))
            with pytest.raises(af.OpError, match=r"op 'fails' .*failed with ValueError: five") as caught:
                await graph.run({n: 10})
            told = "\n".join(caught.value.__notes__)
            assert "for item 5 of op 'numbers', created at" in told
            assert __file__ in told
            assert __file__ in str(caught.value)
            assert source.closed == 1
            assert (await graph.run({n: 3}))[y].tolist() == [0, 1, 2]

    @pytest.mark.together("kind", KINDS)
    async def test_a_generator_that_fails(self, kind: str) -> None:
        source = Numbers(kind, fails_at=4)
        async with af.Graph("g") as graph:
            n, x = numbers(graph, source)
            af.collect(x * 2)
            with pytest.raises(af.OpError, match=r"op 'numbers' .*failed with ValueError: no 4") as caught:
                await graph.run({n: 10})
            assert "after 4 items" in caught.value.__notes__
            assert caught.value.op is graph["numbers"]
            assert source.closed == 1

    @pytest.mark.together(
        "given, outputs, message",
        [
            (np.zeros(2), 1, "shape"),
            ("text", 1, "dtype"),
            (object(), 1, "object"),
            (range(2), 1, "shape"),
            ((_ for _ in ()), 1, "generator"),
            ((1, 2, 3), 2, "must yield 2 values in a tuple or list, got 3 values"),
            (1, 2, "must yield 2 values in a tuple or list, got 'int'"),
        ],
    )
    async def test_an_item_that_does_not_fit(self, given: Any, outputs: int, message: str) -> None:
        async with af.Graph("g") as graph:
            n = graph.blob("n", [])

            def wrong(n: Any) -> Iterator[Any]:
                yield given

            found = graph.function("wrong", wrong, outputs=[af.TensorSpec.of([])] * outputs, emits=True)(n)
            for each in [found] if outputs == 1 else found:
                af.collect(each)
            with pytest.raises(af.OpError, match=message):
                await graph.run({n: 1})
            assert not graph.engine.running

    async def test_what_is_watched_shows_an_op_that_emits(self) -> None:
        async with af.Graph("g") as graph:
            n, x = numbers(graph, Numbers("plain"))
            y = af.collect(x)
            monitor = graph.engine.resources.watch()
            await graph.run({n: 5})
            states = [monitor.states[graph[name].id] for name in ("numbers", y.producers[0].name)]
            assert states == [NodeState.DONE] * 2
            graph.engine.resources.unwatch()

    @pytest.mark.together("kind, in_flight", [(kind, k) for kind in KINDS for k in (1, 3)])
    async def test_a_cancelled_run_has_closed_its_generator(self, kind: str, in_flight: int) -> None:
        source = Numbers(kind)
        async with af.Graph("g") as graph:
            n, x = numbers(graph, source, in_flight)
            reached = asyncio.Event()

            async def waits(value: Any) -> Any:
                if value == 3:
                    reached.set()
                    await asyncio.Event().wait()
                return value

            y = af.collect(graph.function("waits", waits, x.spec)(x))
            run = asyncio.ensure_future(graph.run({n: 100}))
            await reached.wait()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert source.closed == 1
            assert source.asked <= 4 + in_flight
            assert not graph.engine.running
            assert (await graph.run({n: 3}))[y].tolist() == [0, 1, 2]

    @pytest.mark.together("kind", KINDS)
    async def test_time_limits(self, kind: str) -> None:
        source = Numbers(kind)
        async with af.Graph("g") as graph:
            n, x = numbers(graph, source)
            af.collect(x * 2)
            run = asyncio.ensure_future(graph.run({n: 10**9}))
            while source.asked < 5:
                await asyncio.sleep(0)
            (frame,) = graph.engine.running
            limit_time(frame, 1.0, 0.0)  # which is over
            with pytest.raises(af.RunTimeoutError):
                await run
            await graph.engine.observer.rest()
            assert source.closed == 1

    @pytest.mark.together("kind, streams", [(kind, streams) for kind in KINDS for streams in (False, True)])
    async def test_an_item_may_take_so_long_and_no_longer(self, kind: str, streams: bool) -> None:
        free, waits, closed = threading.Event(), asyncio.Event(), []

        def plain(n: Any) -> Iterator[Any]:
            try:
                yield from (0.0, 1.0)
                free.wait()
                yield 2.0
            finally:
                closed.append(True)

        async def awaited(n: Any) -> AsyncIterator[Any]:
            try:
                yield 0.0
                yield 1.0
                await waits.wait()
            finally:
                closed.append(True)

        fn: Any = plain if kind == "plain" else awaited
        async with af.Graph("g") as graph:
            n, seen = graph.blob("n", [], "int64"), []
            x = graph.function("slow", fn, outputs=af.TensorSpec.of([]), emits=True, timeout=0.02)(n)
            y, joined = x + 1, af.collect(x)
            for _ in range(2):
                with pytest.raises(af.OpTimeoutError, match=r"op 'slow' .*timed out after 0\.02 s"):
                    if streams:
                        async for result in graph.stream([{n: 1}], fetch=[y]):
                            seen.append(float(result[y]))
                    else:
                        await graph.run({n: 1}, fetch=[joined])
                free.set()
                await graph.engine.observer.rest()
                free.clear()
            assert closed == [True, True]
            assert seen == ([1, 2, 1, 2] if streams else [])
            free.set()
            waits.set()
            assert (await graph.run({n: 1}, fetch=[joined]))[joined].tolist() == [0, 1, 2][: 2 + (kind == "plain")]

    async def test_another_op_that_fails_closes_the_generator(self) -> None:
        source = Numbers("async")
        async with af.Graph("g") as graph:
            n, x = numbers(graph, source)
            af.collect(x * 2)

            async def fails(n: Any) -> Any:
                await asyncio.sleep(0)
                raise ValueError("beside")

            graph.function("fails", fails, n.spec)(n)
            with pytest.raises(af.OpError, match="beside"):
                await graph.run({n: 10**6})
            assert source.closed == 1

    async def test_a_generator_whose_close_fails(self) -> None:
        async with af.Graph("g") as graph:
            n = graph.blob("n", [], "int64")

            def bad(n: Any) -> Iterator[Any]:
                try:
                    while True:
                        yield 1
                finally:
                    raise ValueError("at the end")

            x = graph.function("bad", bad, outputs=af.TensorSpec.of([]), emits=True)(n)
            af.collect(graph.function("fails", lambda x: 1 / 0, x.spec)(x))
            with pytest.raises(af.OpError, match="ZeroDivisionError"):
                await graph.run({n: 1})
            assert not graph.engine.running

    async def test_a_frame_that_emits_does_not_stall(self) -> None:
        places = []
        async with af.Graph("g", stall_limit=3600) as graph:
            n, x = numbers(graph, Numbers("plain"))

            async def noted(value: Any) -> Any:
                (frame,) = graph.engine.running
                places.append(frame.position)
                return value

            af.collect(graph.function("noted", noted, x.spec)(x))
            await graph.run({n: 5})
        assert len({str(place) for place in places}) == 5


class TestBuilding:
    @pytest.mark.together(
        "make, message",
        [
            (lambda g, x: g.function("f", lambda x: x, x.spec, emits=True), "does not yield"),
            (lambda g, x: g.function("f", windows, x.spec), "emits=True"),
            (lambda g, x: g.function("f", windows, x.spec, emits=True, retries=1), "no retries="),
            (lambda g, x: g.function("f", windows, x.spec, emits=True, concurrency=2), "no concurrency="),
            (lambda g, x: g.function("f", lambda x: x, x.spec, in_flight=2), "is for an op that emits"),
            (lambda g, x: g.function("f", windows, x.spec, emits=True, in_flight=0), "in_flight"),
            (lambda g, x: af.collect(x), "does not follow from an op that emits"),
            (lambda g, x: af.collect(g["item"], "sum"), "how must be"),
            (lambda g, x: af.collect(g["item"], "list", length=3), "length= is for"),
            (lambda g, x: af.collect(g["item"], outputs=x.spec), "outputs= is for a function"),
            (lambda g, x: af.collect(af.collect(g["item"])), "does not follow"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, make: Any, message: str) -> None:
        graph = af.Graph("g")
        x = graph.blob("x", ["n"])
        item = graph.blob("item", [2])
        [x] >> graph.function("windows", windows, emits=True) >> [item]
        with pytest.raises(af.GraphError, match=message):
            make(graph, x)

    @pytest.mark.together(
        "make, message",
        [
            (lambda g, a, b, w: a + b, "reads items of 'a' and 'b'"),
            (lambda g, a, b, w: a + af.collect(a, sum, outputs=a.spec), "joined of all items"),
            (lambda g, a, b, w: [w, a] >> g.op("add", af.ops.Sum()) >> [w], "updates a variable, 'w', for each item"),
        ],
    )
    def test_what_cannot_be_is_told_when_it_is_planned(self, make: Any, message: str) -> None:
        graph = af.Graph("g")
        x = graph.blob("x", [4])
        w = graph.variable("w", [2])
        a, b = (graph.function(name, windows, outputs=w.spec, emits=True)(x) for name in "ab")
        made = make(graph, a, b, w)
        with pytest.raises(af.GraphError, match=message):
            graph.compile([graph.ops[-1]] if isinstance(made, list) else [made])

    def test_a_body_cannot_give_what_is_per_item(self) -> None:
        graph = af.Graph("g")
        x = graph.blob("x", ["n"])
        op = graph.function
        y = af.cond(
            af.ops.sum(x) > 0,
            lambda: op("windows", windows, outputs=af.TensorSpec.of([2]), emits=True)(x),
            lambda: graph.constant([0.0, 0.0]),
        )
        with pytest.raises(af.GraphError, match=r"join them there by af\.collect"):
            graph.run_sync({x: [1, 2, 3]}, fetch=[y])
