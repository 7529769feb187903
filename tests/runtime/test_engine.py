"""Running graphs: feeds, fetches, results, variables, failure, cancellation, loops, and what is left behind."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import math
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.actors.dispatcher import Dispatcher
from actorflow.core import FrameState
from actorflow.runtime import portal
from actorflow.trace.counters import NodeState

SPEC = af.TensorSpec.of((3,))


def one_op(fn: Callable[..., Any], shape: tuple[int, ...] = (3,)) -> tuple[af.Graph, af.Blob, af.Blob]:
    graph = af.Graph("one")
    x = graph.blob("x", shape)
    y = graph.function("f", fn, af.TensorSpec.of(shape))(x)
    return graph, x, y


def _in_threads(*works: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def ones(factor: float = 1.0) -> np.ndarray:
    return np.full(3, factor, np.float32)


class TestFeedsAndFetches:
    async def test_by_blob_and_by_name(self) -> None:
        graph, x, y = one_op(lambda a: a + 1)
        async with graph:
            by_blob = await graph.run({x: ones()})
            by_name = await graph.run({"x": ones()})
        assert list(by_blob) == ["f/out"]
        np.testing.assert_array_equal(by_blob[y], ones(2))
        np.testing.assert_array_equal(by_name["f/out"], ones(2))
        for unfetched in (x, "x"):
            with pytest.raises(KeyError, match=r"'x' was not fetched: ask for it, fetch=\['x', ...\]; fetched: f/out"):
                by_name[unfetched]
        with pytest.raises(KeyError, match=r"graph 'one' has no blob 'f/otu'; fetched: f/out; did you mean 'f/out'\?"):
            by_name["f/otu"]
        with pytest.raises(
            KeyError, match=r"<Op 'f' .*> is not a blob, so it has no value; its outputs: f/out; fetched"
        ):
            by_name["f"]

    async def test_whether_something_was_fetched_costs_no_message(self, monkeypatch: pytest.MonkeyPatch) -> None:
        graph, x, y = one_op(lambda a: a + 1)
        async with graph:
            result = await graph.run({x: ones()})

        def unwanted(*_: object) -> str:
            raise AssertionError("it looks through the names of the whole graph")

        monkeypatch.setattr("actorflow.runtime.program.did_you_mean", unwanted)
        assert y in result
        assert "f/out" in result
        assert x not in result
        assert "f/otu" not in result
        assert result.get("f/otu") is None
        assert result.get(x, 5) == 5
        np.testing.assert_array_equal(result.get(y), ones(2))

    async def test_nothing_was_fetched(self) -> None:
        graph, x, _ = one_op(lambda a: a)
        async with graph:
            nothing = await graph.run({x: ones()}, fetch=["f"])
        with pytest.raises(KeyError, match=r"'x' was not fetched: ask for it, fetch=\['x', ...\]; fetched: nothing"):
            nothing["x"]

    async def test_numbers_and_lists_take_the_blobs_dtype(self) -> None:
        graph, x, y = one_op(lambda a: a * 2)
        async with graph:
            result = await graph.run({x: [1, 2.5, 3]})
        assert result[y].dtype == np.float32
        np.testing.assert_array_equal(result[y], [2, 5, 6])

    @pytest.mark.together(
        ("feeds", "error", "message"),
        [
            ({}, af.FeedError, r"needs values for 'x' float32\[3\]; fed: nothing"),
            ({"x": np.ones(4, "f")}, af.ShapeError, r"'x': expected shape \(3,\), got \(4,\)"),
            ({"x": np.ones(3)}, af.DTypeError, r"'x': expected dtype float32, got float64; convert it"),
            ({"x": [1j, 0, 0]}, af.DTypeError, r"'x': expected dtype float32, got complex128"),
            ({"x": None}, af.ShapeError, r"'x': expected shape \(3,\), got None"),
            (np.ones(3, "f"), TypeError, r"feeds must be a mapping of blobs, or their names, to arrays, got ndarray"),
            (
                {"nope": 1},
                af.FeedError,
                r"cannot feed 'nope', sources are 'x': .* no blob, op or sub-graph named 'nope'",
            ),
            ({"x": np.ones(3, "f"), "f/out": 1}, af.FeedError, r"'f/out': op 'f' writes it"),
            ({"x": np.ones(3, "f"), "f": 1}, af.FeedError, r"<Op 'f' .*: it is not a blob"),
        ],
    )
    async def test_wrong_feeds(self, feeds: Any, error: type[Exception], message: str) -> None:
        graph, _, _ = one_op(lambda a: a)
        with pytest.raises(error, match=message):
            await graph.run(feeds)

    async def test_fed_twice_and_variables(self) -> None:
        graph, x, _ = one_op(lambda a: a)
        graph.variable("w", (1,))
        with pytest.raises(af.FeedError, match="'x' is fed twice"):
            await graph.run({x: ones(), "x": ones()})
        with pytest.raises(af.FeedError, match=r"variable 'w': assign its \.value"):
            await graph.run({x: ones(), "w": [1]})

    async def test_fetch_runs_only_what_is_needed(self) -> None:
        calls: list[str] = []
        graph = af.Graph("two")
        x, unused = graph.blob("x", (3,)), graph.blob("unused", (3,))
        y = graph.function("f", lambda a: calls.append("f") or a, SPEC)(x)
        graph.function("g", lambda a: calls.append("g") or a, SPEC)(unused)
        async with graph:
            result = await graph.run({x: ones(), unused: ones()}, fetch=[y, x])
            assert (calls, list(result)) == (["f"], ["f/out", "x"])
            with pytest.raises(af.FeedError, match="'unused'"):
                await graph.run({x: ones()})

    async def test_fetched_op_and_subgraph_run_without_a_result(self) -> None:
        calls: list[int] = []
        graph = af.Graph("effects")
        graph.function("hello", lambda: calls.append(1))
        sub = graph.subgraph("sub")
        sub.function("hello", lambda: calls.append(2))
        async with graph:
            assert len(await graph.run(fetch=["hello"])) == 0
            assert len(await graph.run(fetch=[sub])) == 0
            assert len(await graph.run()) == 0
        assert sorted(calls) == [1, 1, 2, 2]

    async def test_nothing_to_run(self) -> None:
        with pytest.raises(af.GraphError, match="has no ops to run"):
            await af.Graph("empty").run()

    async def test_a_changed_graph_is_planned_again(self) -> None:
        graph, x, y = one_op(lambda a: a + 1)
        async with graph:
            assert list(await graph.run({x: ones()})) == ["f/out"]
            z = af.ops.scale(y, 10.0)
            result = await graph.run({x: ones()})
        assert list(result) == [z.name]
        np.testing.assert_array_equal(result[z], ones(20))


class TestFunctions:
    async def test_frames_overlap_in_an_async_function(self) -> None:
        """Sixteen frames that each wait for all the others to have come to the function, which they do in order."""
        barrier = asyncio.Barrier(16)
        came: list[int] = []
        graph = af.Graph("frames")
        x = graph.blob("x", (), "int64")

        async def meet(number: np.ndarray) -> np.ndarray:
            came.append(int(number))
            await barrier.wait()
            return number

        y = graph.function("meet", meet, x.spec)(x)
        async with graph, asyncio.timeout(60):
            results = await asyncio.gather(*(graph.run({x: i}) for i in range(16)))
        assert [int(result[y]) for result in results] == came == list(range(16))

    async def test_tasks_are_named_after_their_op_and_see_the_callers_context(self) -> None:
        request: contextvars.ContextVar[str] = contextvars.ContextVar("request")
        seen: list[tuple[str, str]] = []

        async def task() -> None:
            current = asyncio.current_task()
            assert current is not None
            seen.append((current.get_name(), request.get()))

        graph = af.Graph("contexts")
        graph.function("task", task)
        graph.function("plain", lambda: seen.append(("plain", request.get())))

        async def client(name: str) -> None:
            request.set(name)
            for _ in range(3):
                await graph.run()

        async with graph:
            await asyncio.gather(client("a"), client("b"))
        assert sorted(seen) == sorted([(n, r) for n in ("task", "plain") for r in ("a", "b")] * 3)

    @pytest.mark.usefixtures("calls_count_as_short")
    async def test_short_functions_run_on_the_loop_once_known(self) -> None:
        threads: list[threading.Thread] = []
        graph, x, _ = one_op(lambda a: threads.append(threading.current_thread()) or a)
        async with graph:
            for _ in range(20):
                await graph.run({x: ones()})
        assert threads[0] is not threading.main_thread()
        assert threads[-1] is threading.main_thread()

    async def test_long_functions_stay_on_their_lane(self) -> None:
        names: list[str] = []
        released = threading.Event()
        loop = asyncio.get_running_loop()

        def wait_for_the_loop() -> None:
            names.append(threading.current_thread().name)
            # The loop can do this only if the function does not block it.
            loop.call_soon_threadsafe(loop.call_later, 0.002, released.set)
            assert released.wait(60)
            released.clear()

        graph = af.Graph("long")
        graph.function("slow", wait_for_the_loop, lane="side")
        async with graph:
            for _ in range(5):
                await graph.run()
        assert names == ["actorflow-side"] * 5


class TestVariables:
    async def test_frames_take_turns(self) -> None:
        """Each frame reads what the frame started before it wrote, whatever the overlap."""
        graph = af.Graph("count")
        n = graph.variable("n", (), "int64", init=0)

        async def slow_increment(value: np.ndarray) -> int:
            for _ in range(int(value) % 3):
                await asyncio.sleep(0)
            return int(value) + 1

        [n] >> graph.function("increment", slow_increment) >> [n]
        async with graph:
            results = await asyncio.gather(*(graph.run(fetch=[n, graph]) for _ in range(50)))
        assert [int(result[n]) for result in results] == list(range(50))
        assert n.value == 50

    async def test_writer_that_does_not_read(self) -> None:
        graph = af.Graph("last")
        x, last = graph.blob("x", (), "int64"), graph.variable("last", (), "int64")
        [x] >> graph.function("keep", lambda a: a) >> [last]
        async with graph:
            await asyncio.gather(*(graph.run({x: i}) for i in range(20)))
        assert last.value == 19

    async def test_a_failed_frame_leaves_the_value_and_the_next_goes_on(self) -> None:
        graph = af.Graph("fragile")
        x, n = graph.blob("x", (), "int64"), graph.variable("n", (), "int64")

        def add(value: np.ndarray, term: np.ndarray) -> int:
            if term < 0:
                raise ValueError("negative")
            return int(value) + int(term)

        [n, x] >> graph.function("add", add) >> [n]
        async with graph:
            terms = [1, -1, 2, -1, -1, 4]
            results = await asyncio.gather(*(graph.run({x: t}) for t in terms), return_exceptions=True)
        assert [isinstance(result, af.OpError) for result in results] == [t < 0 for t in terms]
        assert n.value == 7

    async def test_cancelled_waiting_frames_pass_their_turn_on(self) -> None:
        gate = asyncio.Event()
        graph = af.Graph("queue")
        n = graph.variable("n", (), "int64")

        async def add(value: np.ndarray) -> int:
            await gate.wait()
            return int(value) + 1

        [n] >> graph.function("add", add) >> [n]
        async with graph:
            tasks = [asyncio.create_task(graph.run()) for _ in range(1000)]
            await asyncio.sleep(0)
            for task in tasks[1:-1]:
                task.cancel()
            gate.set()
            done = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(result, asyncio.CancelledError) for result in done) == 998
        assert n.value == 2

    async def test_assignment_between_runs_is_seen(self) -> None:
        graph = af.Graph("assign")
        w = graph.variable("w", (2,), init=1.0)
        y = af.ops.scale(w, 3.0)
        async with graph:
            np.testing.assert_array_equal((await graph.run())[y], [3, 3])
            w.value = np.array([1, 2], np.float32)
            np.testing.assert_array_equal((await graph.run())[y], [3, 6])


class TestFailure:
    async def test_the_error_names_op_inputs_and_line(self) -> None:
        def divide(a: np.ndarray) -> None:
            raise ZeroDivisionError("by nothing")

        graph, x, _ = one_op(divide)
        async with graph:
            with pytest.raises(af.OpError) as caught:
                await graph.run({x: ones()})
        error = caught.value
        assert error.op is graph["f"]
        assert isinstance(error.__cause__, ZeroDivisionError)
        message = str(error)
        assert "op 'f' (" in message
        assert "failed with ZeroDivisionError: by nothing" in message
        assert "inputs: x float32[3] on cpu" in message
        assert f"{Path(__file__).name}:" in message
        assert " in one_op" in message

    async def test_the_graph_is_usable_afterwards_and_siblings_are_cancelled(self) -> None:
        cancelled = asyncio.Event()
        broken = True

        async def forever() -> None:
            if not broken:
                return
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        async def fail() -> None:
            await asyncio.sleep(0)
            if broken:
                raise RuntimeError("planted")

        graph = af.Graph("siblings")
        graph.function("forever", forever)
        graph.function("fail", fail)
        async with graph:
            with pytest.raises(af.OpError, match="planted"):
                await graph.run()
            assert cancelled.is_set()
            broken = False
            await graph.run()
            counts = graph.engine.frames
            assert (counts.started, counts.finished, counts.failed, counts.in_flight) == (2, 1, 1, 0)
            assert [record.op_id for record in graph.engine.errors] == [graph["fail"].id]


class TestCancellation:
    async def test_a_busy_thread_does_not_hold_up_the_caller_and_the_next_run_is_right(self) -> None:
        started, release = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()
        n_values: list[int] = []

        def work(n: np.ndarray) -> int:
            if not started.is_set():
                loop.call_soon_threadsafe(started.set)
                assert release.wait(60)
            n_values.append(int(n))
            return int(n) + 1

        graph = af.Graph("cancel")
        n = graph.variable("n", (), "int64")
        [n] >> graph.function("work", work) >> [n]
        async with graph:
            task = asyncio.create_task(graph.run())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not release.is_set()
            following = asyncio.create_task(graph.run())
            release.set()
            await following
        assert n_values == [0, 0]
        assert n.value == 1  # what the cancelled frame computed was dropped

    async def test_aclose_cancels_and_is_repeatable(self) -> None:
        started = asyncio.Event()

        async def work() -> None:
            started.set()
            await asyncio.Event().wait()

        graph = af.Graph("close")
        graph.function("work", work)
        task = asyncio.create_task(graph.run())
        await started.wait()
        await graph.aclose()
        await graph.aclose()
        with pytest.raises(asyncio.CancelledError):
            await task
        started.clear()
        async with graph:  # a later run starts anew
            task = asyncio.create_task(graph.run())
            await started.wait()
            task.cancel()
            await asyncio.wait([task])


class TestEnds:
    """A frame ends by itself where nobody has to be told; all who are to know of it do."""

    async def test_who_asks_for_it_is_told(self) -> None:
        graph, x, y = one_op(lambda a: a + 1)
        async with graph:
            await graph.run({x: ones()})
            program = graph.engine.program(None, {x: ones()})
            frame = graph.engine.start(program, {x: ones()})
            assert frame.ends_quietly
            told = frame.ended
            frame.wake()
            await asyncio.wait_for(told, 60)
            np.testing.assert_array_equal(program.result(frame)[y], ones(2))

    async def test_who_waits_until_none_is_in_flight_is_told(self) -> None:
        graph, x, _ = one_op(lambda a: a)
        async with graph:
            await graph.run({x: ones()})
            frames = [graph.engine.start(graph.engine.program(None, {x: ones()}), {x: ones()}) for _ in range(2)]
            rest = asyncio.create_task(graph.engine.observer.rest())
            await asyncio.sleep(0)
            frames[0].wake()
            await asyncio.wait_for(rest, 60)
            assert [frame.state for frame in frames] == [FrameState.FINISHED] * 2
            assert all(frame.ends_quietly for frame in frames)
            assert (graph.engine.frames.finished, graph.engine.frames.in_flight) == (3, 0)

    async def test_its_limit_of_time_ends_with_it(self) -> None:
        graph = af.Graph("limited", stall_limit=3600)
        x = graph.blob("x", (3,))
        y = graph.function("f", lambda a: a + 1, SPEC)(x)
        async with graph:
            for _ in range(3):
                np.testing.assert_array_equal((await graph.run({x: ones()}))[y], ones(2))
                assert not graph.engine.observer.limits.timers


class TestLoops:
    def test_run_sync(self) -> None:
        graph, x, y = one_op(lambda a: a + 1)
        for i in range(3):
            np.testing.assert_array_equal(graph.run_sync({x: ones(i)})[y], ones(i + 1))
        af.run(graph.aclose())

    async def test_run_sync_inside_a_loop(self) -> None:
        graph, x, _ = one_op(lambda a: a)
        with pytest.raises(RuntimeError, match=r"use await graph\.run"):
            graph.run_sync({x: ones()})

    async def test_a_claim_that_a_move_comes_between_is_made_again(self) -> None:
        graph, x, y = one_op(lambda a: a + 1)
        await graph.run({x: ones()})
        resources, other = graph.engine.resources, asyncio.new_event_loop()

        class Between(Dispatcher):
            def __setattr__(self, name: str, value: Any) -> None:
                if name == "claims" and value:  # another thread has looked at the count before this one writes it
                    resources._move_to(other)
                super().__setattr__(name, value)

        resources.home = between = Between(asyncio.get_running_loop())
        claim = resources.claim()
        assert (claim.claims, between.claims) == (1, 0)
        assert claim is resources.home
        assert claim.loop is asyncio.get_running_loop()
        claim.release()
        np.testing.assert_array_equal((await graph.run({x: ones()}))[y], ones(2))
        await graph.aclose()
        other.close()

    def test_a_loop_closed_while_a_call_rests_before_it_is_repeated(self) -> None:
        calls = 0

        async def work() -> int:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise OSError
            return calls

        graph = af.Graph("closed")
        y = graph.function("work", work, af.TensorSpec.of((), "int64"), retries=1, backoff=3600)()
        loop = asyncio.new_event_loop()
        run = loop.create_task(graph.run())
        while not calls or graph.engine.resources.dispatcher.ready:
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        assert graph.run_sync()[y] == 2
        af.run(graph.aclose())
        assert graph.engine.frames.in_flight == 0
        assert graph.engine.frames.cancelled == 1
        run._log_destroy_pending = False  # type: ignore[attr-defined]  # it never can end
        del run
        gc.collect()

    def test_several_threads_at_once(self) -> None:
        graph = af.Graph("threads")
        x = graph.blob("x", (10,), "int64")
        y = graph.function("root", lambda value: [math.isqrt(each) for each in value], x.spec)(x)
        start = threading.Barrier(4)
        seen: list[int] = []

        def work(first: int) -> None:
            start.wait()
            for i in range(first, first + 50):
                assert graph.run_sync({x: np.full(10, i * i)})[y].tolist() == [i] * 10
                if i % 10 == 0:
                    with pytest.raises(af.OpError, match="nonnegative"):
                        graph.run_sync({x: np.full(10, -1)})
                seen.append(i)

        _in_threads(*[partial(work, 1000 * k) for k in range(4)])
        assert len(seen) == 200
        assert portal._portal._service is None
        asyncio.run(graph.aclose())

    def test_threads_share_a_loop(self) -> None:
        graph = af.Graph("threads")
        inside, begun = 0, threading.Event()
        both: asyncio.Event | None = None

        async def meet() -> int:
            nonlocal inside, both
            inside, both = inside + 1, both or asyncio.Event()
            begun.set()
            if inside == 2:
                both.set()
            await both.wait()
            return inside

        y, one = graph.function("meet", meet, af.TensorSpec.of((), "int64"), timeout=60)(), graph.constant(1)
        found: list[int] = []
        graph.run_sync(fetch=one)
        other = threading.Thread(target=lambda: found.append(int(graph.run_sync(fetch=y)[y])))
        other.start()
        assert begun.wait(60)
        assert [graph.run_sync(fetch=one)[one] for _ in range(3)] == [1, 1, 1]  # the other one holds the graph
        found.append(int(graph.run_sync(fetch=y)[y]))
        other.join(60)
        assert found == [2, 2]
        asyncio.run(graph.aclose())

    def test_an_op_does_not_wait_for_its_own_graph(self) -> None:
        graph = af.Graph("threads")
        y = graph.function("again", lambda: graph.run_sync(), af.TensorSpec.of(()), timeout=60)()
        refused: list[bool] = []

        def work() -> None:
            with pytest.raises(af.OpError, match="'threads' is in use on another event loop"):
                graph.run_sync(fetch=y)
            refused.append(True)

        work()
        _in_threads(work)
        assert refused == [True, True]
        asyncio.run(graph.aclose())

    def test_another_thread_between_the_start_and_the_result(self) -> None:
        graph = af.Graph("threads")
        inside, go_on = threading.Event(), threading.Event()

        def hold() -> int:
            inside.set()
            go_on.wait(60)
            return 1

        y = graph.function("hold", hold, af.TensorSpec.of((), "int64"))()
        results: list[int] = []
        thread = threading.Thread(target=lambda: results.append(int(graph.run_sync()[y])))
        thread.start()
        assert inside.wait(60)
        for use in (graph.run, graph.aclose, lambda: graph.stream([{}]).__anext__()):
            with pytest.raises(af.GraphError, match="in use on another event loop: it runs on one loop, of one thread"):
                asyncio.run(use())
        go_on.set()
        thread.join(60)
        assert results == [1]
        asyncio.run(graph.aclose())

    def test_a_dropped_graph_stops_its_threads(self) -> None:
        graph, x, _ = one_op(lambda a: a)
        before = set(threading.enumerate())
        graph.run_sync({x: ones()})
        threads = set(threading.enumerate()) - before
        assert {thread.name for thread in threads} == {"actorflow-main"}
        gone = weakref.ref(graph)
        del graph, x, _
        gc.collect()
        assert gone() is None
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    def test_a_dropped_graph_whose_loop_was_closed_within_a_frame_is_let_go(self) -> None:
        async def wait(a: np.ndarray) -> np.ndarray:
            await asyncio.get_running_loop().create_future()
            return a

        graph, x, y = one_op(wait)
        loop = asyncio.new_event_loop()
        run = loop.create_task(graph.run({x: ones()}))
        while not graph.engine.resources.running:
            loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(asyncio.sleep(0))
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # which is what is done here
        loop.close()
        gone = weakref.ref(graph.engine.resources)
        del graph, x, y, run, task
        gc.collect()
        assert gone() is None


class TestWatching:
    async def test_it_begins_and_ends_between_frames(self) -> None:
        graph, x, _ = one_op(lambda a: a)
        resources, f = graph.engine.resources, graph["f"]
        async with graph:
            await graph.run({x: ones()})
            first = resources.watch()
            await graph.run({x: ones()})
            resources.unwatch()
            await graph.run({x: ones()})
            second = resources.watch()
            assert [monitor.states[f.id] for monitor in (first, second)] == [NodeState.DONE, NodeState.IDLE]
            await graph.run({x: ones()})
            assert second.states[f.id] == NodeState.DONE

    async def test_states_and_profile(self) -> None:
        def maybe(a: np.ndarray) -> np.ndarray:
            if a[0] < 0:
                raise ValueError("negative")
            return a

        graph, x, y = one_op(maybe)
        z = af.ops.scale(y, 1.0)
        f, scale = graph["f"], z.producers[0]
        monitor = graph.engine.resources.watch()
        changes, others = monitor.changes(), monitor.changes()
        async with graph:
            await graph.run({x: ones()})
            assert set(changes.take()) == {f.id, scale.id}
            assert changes.take().size == 0
            assert [monitor.states[op.id] for op in (f, scale)] == [NodeState.DONE] * 2
            with pytest.raises(af.OpError):
                await graph.run({x: ones(-1)})
            assert [monitor.states[op.id] for op in (f, scale)] == [NodeState.FAILED, NodeState.CANCELLED]
            assert set(others.take()) == {f.id, scale.id}
            graph.engine.resources.unwatch()
            assert graph.engine.monitor is None
            assert graph.engine.profile[f.id].calls == 1
            assert graph.engine.profile[scale.id].total_ns > 0

    async def test_what_another_frame_waits_for_is_not_given_up(self) -> None:
        gates = {1: asyncio.Event(), 2: asyncio.Event()}

        async def gate(number: Any) -> Any:
            await gates[int(number)].wait()
            return number

        graph = af.Graph("shared")
        x = graph.blob("x", (), "int64")
        shared = graph.function("shared", lambda number: number, x.spec)(graph.function("gate", gate, x.spec)(x))
        one, other = (graph.function(name, lambda number: number, x.spec)(shared) for name in ("one", "other"))
        ops = [graph[name] for name in ("gate", "shared", "one", "other")]
        monitor = graph.engine.resources.watch()
        async with graph:
            first, second = (
                asyncio.create_task(graph.run({x: number}, fetch=fetch)) for number, fetch in ((1, one), (2, other))
            )
            while graph.engine.observer.counts.in_flight < 2:
                await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            waiting = [monitor.states[op.id] for op in ops]
            assert waiting == [NodeState.RUNNING, NodeState.WAITING, NodeState.CANCELLED, NodeState.WAITING]
            gates[2].set()
            await second
            assert [monitor.states[op.id] for op in ops[3:]] == [NodeState.DONE]
        graph.engine.resources.unwatch()


async def test_a_lane_calls_what_was_ready_before_what_follows_on_it() -> None:
    graph, order = af.Graph("g"), []
    x = graph.blob("x", (), "int64")

    def note(name: str) -> Any:
        return lambda value: order.append(name) or value

    y, *_ = [graph.function(name, note(name), x.spec, lane="main")(x) for name in ("a", "b", "c")]
    graph.function("behind a", note("behind a"), x.spec, lane="main")(y)
    async with graph:
        await graph.run({x: 1})
    assert order == ["a", "b", "c", "behind a"]
