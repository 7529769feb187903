"""Branches and loops: what they compute, how they fail, and that nothing of them is left behind."""

from __future__ import annotations

import asyncio
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow.actors.under_way import UnderWay
from actorflow.trace.counters import NodeState


def newton(x: af.Blob, **options: Any) -> af.Blob:
    """The square root of a number."""
    root: af.Blob = af.while_loop(
        lambda y, error: error > 1e-6, lambda y, _: (z := (y + x / y) / 2, af.ops.absolute(z - y)), (x, x), **options
    )[0]
    return root


class TestValues:
    @pytest.mark.together("value, expected", [(9, 3), (-2, 2)])
    async def test_only_the_branch_that_is_taken_is_computed(self, value: float, expected: float) -> None:
        called = []
        async with af.Graph("g") as graph:
            x = graph.blob("x", [])

            def noted(x: Any) -> Any:
                called.append(float(x))
                return -x

            y = af.cond(x > 0, lambda: af.ops.sqrt(x), lambda: graph.function("noted", noted, x.spec)(x))
            assert (await graph.run({x: value}))[y] == expected
        assert called == ([value] if value < 0 else [])

    async def test_structures_come_back_as_they_are(self) -> None:
        async with af.Graph("g") as graph:
            x, on = graph.blob("x", [2]), graph.blob("on", [], "bool")
            y = af.cond(
                on,
                lambda d: {"a": d["x"], "b": (d["x"] * 2, None)},
                lambda d: {"a": -d["x"], "b": (d["x"], None)},
                {"x": x},
            )
            assert y["b"][1] is None
            result = await graph.run({x: [1, 2], on: True})
            np.testing.assert_array_equal(result[y["a"]], [1, 2])
            np.testing.assert_array_equal(result[y["b"][0]], [2, 4])

    async def test_weights_of_layers_in_a_body_are_variables_of_the_graph(self) -> None:
        async with af.Graph("g") as graph:
            x = graph.blob("x", ["n", 3])
            layer = af.nn.InnerProduct(3)
            y, _ = af.scan(lambda c, _: (af.ops.tanh(layer(c)), None), x, length=4)
            loss = af.ops.sum(y * y)
            train = af.nn.SGD(0.1).minimize(loss)
            assert len(layer.variables) == 2
            assert set(layer.variables) <= set(graph.variables)
            assert graph.sources == (x,)
            before = float((await graph.run({x: np.ones((2, 3), np.float32)}, fetch=[loss]))[loss])
            for _ in range(5):
                await graph.run({x: np.ones((2, 3), np.float32)}, fetch=[train])
            assert float((await graph.run({x: np.ones((2, 3), np.float32)}, fetch=[loss]))[loss]) < before

    async def test_the_length_of_a_scan_may_be_open(self) -> None:
        async with af.Graph("g") as graph:
            x = graph.blob("x", ["n", 2])
            last, sums = af.scan(lambda total, x: (total + x, total * 2), np.zeros(2, np.float32), x)
            for n in (0, 1, 5):
                fed = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
                result = await graph.run({x: fed}, fetch=[last, sums])
                np.testing.assert_array_equal(result[last], fed.sum(axis=0))
                before = np.cumsum(fed, axis=0) - fed
                np.testing.assert_array_equal(result[sums], before * 2)

    async def test_scans_from_the_end(self) -> None:
        async with af.Graph("g") as graph:
            x = graph.blob("x", [3])
            last, taken = af.scan(lambda c, x: (c * 10 + x, c), 0.0, x, reverse=True)
            result = await graph.run({x: [1, 2, 3]}, fetch=[last, taken])
            assert result[last] == 321
            assert result[taken].tolist() == [32, 3, 0]

    async def test_a_limit_ends_a_loop(self) -> None:
        async with af.Graph("g") as graph:
            x = graph.blob("x", [])
            y = af.while_loop(lambda x: x > 0, lambda x: x + 1, x, limit=7)
            assert (await graph.run({x: 1}))[y] == 8
            assert (await graph.run({x: -1}))[y] == -1

    async def test_random_numbers_differ_from_time_to_time_and_repeat_with_the_frame(self) -> None:
        drawn = []
        for _ in range(2):
            async with af.Graph("g") as graph:
                x = graph.blob("x", [])

                def body(c: Any, _: None, graph: af.Graph = graph) -> Any:
                    drawn = af.ops.uniform(graph, [], seed=3)
                    return c + drawn, drawn

                _, taken = af.scan(body, x, length=50)
                drawn.append([(await graph.run({x: 0}, fetch=[taken]))[taken].tolist() for _ in range(2)])
        assert drawn[0] == drawn[1]
        assert len({number for frame in drawn[0] for number in frame}) == 100

    @pytest.mark.together(
        "options", [{}, {"sequential": True}, {"memory_budget": 1 << 20}, {"fuse": False}, {"check_finite": True}]
    )
    async def test_whatever_the_options_of_the_graph_are(self, options: dict[str, Any]) -> None:
        async with af.Graph("g", **options) as graph:
            x = graph.blob("x", [100])
            w = graph.variable("w", [100, 100], init=af.nn.init.gaussian(std=0.1, seed=1))
            y, _ = af.scan(lambda c, _: (af.ops.tanh(af.ops.matmul(c, w)), None), x, length=20)
            expected, value = np.ones(100, np.float32), w.value
            for _ in range(20):
                expected = np.tanh(expected @ value)
            for result in await asyncio.gather(*[graph.run({x: np.ones(100, np.float32)}) for _ in range(4)]):
                np.testing.assert_allclose(result[y], expected, rtol=1e-4, atol=1e-6)

    async def test_what_is_computed_on_a_device(self) -> None:
        async with af.Graph("g") as graph:
            x = graph.blob("x", [2])

            def body(c: af.Blob, _: None) -> Any:
                with graph.at("sim:0"):
                    return af.ops.exp(-c) + c, None

            y, _ = af.scan(body, x, length=3)
            expected = np.ones(2, np.float32)
            for _ in range(3):
                expected = np.exp(-expected) + expected
            np.testing.assert_allclose(
                af.to_numpy((await graph.run({x: np.ones(2, np.float32)}))[y]), expected, rtol=1e-5
            )

    async def test_long_calls_go_to_lanes_and_the_loop_goes_on(self) -> None:
        threads = set()
        async with af.Graph("g") as graph:
            x = graph.blob("x", [])

            def work(c: Any) -> Any:
                import threading

                threads.add(threading.get_ident())
                total = 0
                for i in range(20_000):
                    total += i
                return c + 1

            y, _ = af.scan(lambda c, _: (graph.function("work", work, c.spec)(c), None), x, length=30)
            assert (await graph.run({x: 0}))[y] == 30
        assert len(threads) >= 1

    async def test_async_functions_are_awaited_and_keep_the_order_of_frames(self) -> None:
        seen = []
        async with af.Graph("g") as graph:
            x = graph.blob("x", [])

            async def noted(c: Any) -> Any:
                seen.append(float(c))
                await asyncio.sleep(0)
                return c + 1

            y, _ = af.scan(lambda c, _: (graph.function("noted", noted, c.spec)(c), None), x, length=3)
            results = await asyncio.gather(*[graph.run({x: 10 * i}) for i in range(3)])
            assert [float(result[y]) for result in results] == [3, 13, 23]
        assert seen == [0, 1, 2, 10, 11, 12, 20, 21, 22]

    async def test_a_saved_graph_computes_the_same(self, tmp_path: Path) -> None:
        async with af.Graph("g") as graph:
            x = graph.blob("x", [])
            w = graph.variable("w", [], init=2.0)
            y = af.cond(
                x > 0, lambda: af.scan(lambda c, _: (c * w, c), newton(x), length=3)[1], lambda: af.ops.stack([x] * 3)
            )
            loss = af.ops.sum(y)
            dw = af.gradient(loss, w)
            expected = await graph.run({x: 4}, fetch=[y, dw])
            await graph.save(tmp_path / "all.af")
            await graph.save(tmp_path / "part.af", fetch=[y])
        loaded = await af.load(tmp_path / "all.af")
        async with loaded:
            result = await loaded.run({"x": 4}, fetch=[y.name, dw.name])
            np.testing.assert_array_equal(result[y.name], expected[y])
            np.testing.assert_array_equal(result[dw.name], expected[dw])
            await loaded.save(tmp_path / "again.af")
        part = await af.load(tmp_path / "part.af")
        async with part:
            np.testing.assert_array_equal((await part.run({"x": 4}))[y.name], expected[y])
            assert len(part.ops) < len(loaded.ops)
        assert (tmp_path / "again.af").stat().st_size == (tmp_path / "all.af").stat().st_size

    async def test_pruning_keeps_what_bodies_need(self) -> None:
        async with af.Graph("g") as graph:
            x = graph.blob("x", [])
            y, _ = newton(x), newton(x, name="other")
            graph.prune([y])
            assert "other/body" not in [op.graph.name for op in graph.ops]
            assert (await graph.run({x: 9}))[y] == pytest.approx(3)

    async def test_a_body_without_ops_lets_others_have_their_turn(self) -> None:
        async with af.Graph("g") as graph:
            x = graph.blob("x", [])
            y, _ = af.scan(lambda c, _: (c, None), x, length=1 << 40)  # hours, so it is cancelled
            run = asyncio.ensure_future(graph.run({x: 5}, fetch=[y]))
            for _ in range(30):
                await asyncio.sleep(0)
            assert not run.done()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            y, _ = af.scan(lambda c, _: (c, None), x, length=1_000)
            assert (await graph.run({x: 5}, fetch=[y]))[y] == 5

    @pytest.mark.slow
    async def test_a_million_times_take_no_more_memory_than_one(self) -> None:
        async with af.Graph("g") as graph:
            x = graph.blob("x", [64])
            count = graph.blob("count", [], "int64")
            i, y = af.while_loop(lambda i, y: i < count, lambda i, y: (i + 1, y * np.float32(1)), (np.int64(0), x))
            fed = {x: np.ones(64, np.float32), count: 1_000}
            await graph.run(fed, fetch=[i, y])
            before = sys.getallocatedblocks()
            for _ in range(2):  # what is cancelled leaves nothing either
                run = asyncio.ensure_future(graph.run({**fed, count: 1 << 62}, fetch=[i, y]))
                for _ in range(5):
                    await asyncio.sleep(0)
                run.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await run
                await asyncio.sleep(0)
            result = await graph.run({**fed, count: 1_000_000}, fetch=[i, y])
            assert result[i] == 1_000_000
            assert result[y].tolist() == [1] * 64
            assert sys.getallocatedblocks() - before < 1_000

    def test_no_entries_of_arrays_give_arrays_without_any(self) -> None:
        rows = xp.zeros((0, 3))
        last, (sums, more) = af.scan(lambda c, row: (c + row, (c * 2, {"sum": xp.sum(row)})), xp.ones(3), rows)
        assert np.asarray(last).tolist() == [1] * 3
        assert (sums.shape, more["sum"].shape) == ((0, 3), (0,))
        last, none = af.scan(lambda c, _: (c * 2, None), last, length=0)
        assert (np.asarray(last).tolist(), none) == ([1] * 3, None)

    async def test_open_axes_of_a_loop_that_turn_out_to_differ(self) -> None:
        graph = af.Graph("g")
        x, w, more = graph.blob("x", ["n"]), graph.blob("w", ["m"]), graph.blob("more", [], "bool")
        repeated = af.while_loop(lambda _: more, lambda _: w * 1, x)
        _, both = af.scan(lambda _, row: (row[0], row[1]), np.float32(0), (x, w))
        async with graph:
            for blob, why in (
                (repeated, "begins with 'x', float32.1., and carries on float32.2"),
                (both, "entries, got 2"),
            ):
                with pytest.raises(af.ShapeError, match=why):
                    await graph.run({x: [1], w: [2, 3], more: False}, fetch=blob)
                assert (await graph.run({x: [1], w: [2], more: False}, fetch=blob))[blob].shape == (1,)

    async def test_no_entries_of_an_open_axis(self) -> None:
        async with af.Graph("g") as graph:
            x, rows = graph.blob("x", [2]), graph.blob("rows", ["n", 2])
            w = graph.variable("w", [2], init=[2.0, 3.0])
            y = [*af.scan(lambda c, row: (c * w + row, c * row), x, rows)]
            y += af.scan(lambda c, row: (c * w + row, c * row), x, rows, reverse=True)
            y += af.scan(lambda c, _: (c * w, c), x, length=0)
            y.append(af.while_loop(lambda c: af.ops.sum(c) < 100, lambda c: c * w, x, limit=0))
            grads = af.gradient(sum(map(af.ops.sum, y)), [x, rows, w])
            second = af.gradient(af.ops.sum(grads[0] * grads[0]), [x, w])
            result = await graph.run({x: [1, 2], rows: np.ones((0, 2), np.float32)}, fetch=[*y, *grads, *second])
            none: list[Any] = []
            given = [result[blob].tolist() for blob in y]
            assert given == [[1, 2], none, [1, 2], none, [1, 2], none, [1, 2]]
            assert all(result[y[i]].shape == (0, 2) for i in (1, 3, 5))
            assert [result[blob].tolist() for blob in grads] == [[4, 4], none, [0, 0]]
            assert [result[blob].tolist() for blob in second] == [[0, 0], [0, 0]]


class TestLooking:
    async def test_what_goes_on_inside_is_seen(self) -> None:
        free = asyncio.Event()
        async with af.Graph("g") as graph:
            x = graph.blob("x", [])

            async def waits(c: Any) -> Any:
                await free.wait()
                return c + 1

            y, _ = af.scan(lambda c, _: (graph.function("waits", waits, c.spec)(c), None), x, length=3)
            graph.engine.resources.watch()
            run = asyncio.ensure_future(graph.run({x: 0}))
            while not any(task.get_name().endswith("waits") for task in asyncio.all_tasks()):
                await asyncio.sleep(0)
            (frame,) = graph.engine.running
            seen = UnderWay.of([frame])
            assert seen.states[graph["scan/loop"].id] is NodeState.RUNNING
            assert seen.states[graph["scan/body/waits"].id] is NodeState.RUNNING
            assert {*seen.tracks} == {"branches and loops", "async functions"}
            before = frame.position
            free.set()
            while frame.position == before:
                await asyncio.sleep(0)
            assert (await run)[y] == 3
            calls = graph.statistics().ops
            assert (calls["scan/body/waits"].calls, calls["scan/loop"].calls) == (3, 1)

    async def test_a_loop_that_goes_on_does_not_stall(self) -> None:
        """Between two looks of the limit, it has come elsewhere each time."""
        places = []
        async with af.Graph("g", stall_limit=3600) as graph:
            x = graph.blob("x", [])

            async def noted(c: Any) -> Any:
                (frame,) = graph.engine.running
                places.append(frame.position)
                return c

            y, _ = af.scan(lambda c, _: (graph.function("noted", noted, c.spec)(c), None), x, length=10)
            assert (await graph.run({x: 1}))[y] == 1
        assert all(one != other for one, other in pairwise(places))
        assert len(places) == 10


class TestFailures:
    async def test_an_error_names_the_op_inside_the_time_and_both_lines(self) -> None:
        async with af.Graph("g") as graph:
            x = graph.blob("x", [])

            def fails(c: Any) -> Any:
                if c == 3:
                    raise ValueError("three")
                return c + 1

            y, _ = af.scan(lambda c, _: (graph.function("fails", fails, c.spec)(c), None), x, length=10)
            monitor = graph.engine.resources.watch()
            with pytest.raises(af.OpError, match=r"op 'scan/body/fails' .*failed with ValueError: three") as caught:
                await graph.run({x: 0})
            assert monitor.states[graph["scan/loop"].id] == NodeState.FAILED
            graph.engine.resources.unwatch()
            told = "\n".join(caught.value.__notes__)
            assert "in iteration 3 of op 'scan/loop', created at" in told
            assert __file__ in str(caught.value)
            assert __file__ in told
            assert isinstance(caught.value.__cause__, ValueError)
            assert (await graph.run({x: 4}))[y] == 14
            assert graph.engine.frames.failed == 1

    async def test_the_number_of_a_branch_must_be_one(self) -> None:
        async with af.Graph("g") as graph:
            x = graph.blob("x", [], "int64")
            af.switch(x, [lambda: af.ops.negative(x), lambda: x])
            with pytest.raises(af.OpError, match="the index is 2, and there are 2 branches") as caught:
                await graph.run({x: 2})
            for alone in caught.value.replay, caught.value.to_graph:
                with pytest.raises(af.GraphError, match="computes parts of the graph"):
                    alone()

    async def test_what_is_not_finite_is_found_inside(self) -> None:
        async with af.Graph("g", check_finite=True) as graph:
            x = graph.blob("x", [])
            af.scan(lambda c, _: (c * c, None), x, length=10)
            with pytest.raises(af.NotFiniteError, match="scan/body/multiply"):
                await graph.run({x: 1e30})

    async def test_cancelling_a_loop_without_end(self) -> None:
        async with af.Graph("g") as graph:
            x = graph.blob("x", [])
            y = af.while_loop(lambda x: x > 0, lambda x: x * 1.0, x)
            for _ in range(3):
                run = asyncio.ensure_future(graph.run({x: 1}))
                for _ in range(20):
                    await asyncio.sleep(0)
                assert not run.done()
                run.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await run
            assert (await graph.run({x: -1}))[y] == -1
            await graph.engine.observer.rest()  # calls that were on lanes end there
            assert not graph.engine.running

    async def test_a_loop_without_end_times_out(self) -> None:
        async with af.Graph("g") as graph:
            x = graph.blob("x", [])
            af.while_loop(lambda x: x > 0, lambda x: x * 1.0, x)
            with pytest.raises(af.RunTimeoutError):
                await graph.run({x: 1}, timeout=0.02)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(graph.run({x: 1}), 0.02)

    async def test_cancelling_while_an_async_function_is_awaited_inside(self) -> None:
        ended = []
        async with af.Graph("g") as graph:
            x = graph.blob("x", [])

            async def waits(c: Any) -> Any:
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append(True)

            af.cond(x > 0, lambda: graph.function("waits", waits, x.spec)(x), lambda: x)
            run = asyncio.ensure_future(graph.run({x: 1}))
            while not any(task.get_name().endswith("waits") for task in asyncio.all_tasks()):
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert ended == [True]
            assert await graph.run({x: -1})


class TestBuilding:
    def test_what_is_inside_cannot_be_read_outside(self) -> None:
        graph = af.Graph("g")
        x = graph.blob("x", [])
        kept: list[af.Blob] = []

        def body(c: af.Blob, _: None) -> Any:
            kept.append(c * 2)
            return c, None

        af.scan(body, x, length=2)
        with pytest.raises(af.GraphError, match=r"part of 'scan/body'"):
            _ = kept[0] + x

    @pytest.mark.together(
        "make, error, message",
        [
            (lambda x: af.cond(x, lambda: x, lambda: x), af.DTypeError, "truth value"),
            (lambda x: af.cond(x > 0, lambda: x, lambda: (x, x)), af.GraphError, "same structure"),
            (lambda x: af.cond(x > 0, lambda: x, lambda: af.ops.stack([x, x])), af.ShapeError, "same types"),
            (lambda x: af.switch(x, [lambda: x]), af.DTypeError, "whole number"),
            (lambda x: af.switch(x > 0, []), af.GraphError, "at least one branch"),
            (lambda x: af.while_loop(lambda x: x, lambda x: x, x), af.DTypeError, "truth value"),
            (lambda x: af.while_loop(lambda x: x > 0, lambda x: (x, x), x), af.GraphError, "must give blob"),
            (lambda x: af.scan(lambda c, _: (c > 0, None), x, length=2), af.DTypeError, "as it began"),
            (lambda x: af.scan(lambda c, _: c, x, length=2), af.GraphError, "two things"),
            (lambda x: af.scan(lambda c, _: (c, None), x), af.GraphError, "give xs or length"),
            (lambda x: af.scan(lambda c, x: (c, x), x, x), af.ShapeError, "at least one axis"),
            (lambda x: af.scan(lambda c, _: (c, None), 1.0, length=2), af.GraphError, "at least one blob"),
        ],
    )
    def test_what_does_not_fit_is_refused_and_leaves_nothing(self, make: Any, error: Any, message: str) -> None:
        graph = af.Graph("g")
        x = graph.blob("x", [])
        with pytest.raises(error, match=message):
            make(x)
        assert [op.name for op in graph.ops if op.graph.body is not None] == []

    def test_the_gradient_of_a_loop_needs_a_limit(self) -> None:
        graph = af.Graph("g")
        x = graph.blob("x", [])
        with pytest.raises(af.GraphError, match=r"while_loop\(\.\.\., limit=n\)"):
            af.gradient(newton(x), x)
        slope = af.gradient(newton(x, limit=50), x)
        assert graph.run_sync({x: 2}, fetch=[slope])[slope] == pytest.approx(0.5 / 2**0.5, rel=1e-4)
