"""However a run, a stream or a batched run ends: what it was fed is free as soon as its caller is done with it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.actors.frame import Frame
from tests.support.held import Arrays, nothing_held
from tests.support.waiting import HELD_S, come_to_rest, held_limits, settle

LENGTH = 100
TIMES = 3
SPEC = af.TensorSpec.of((LENGTH,), "float64")

Function = Callable[[Any], Any]
Drive = Callable[[af.Graph, Arrays], Awaitable[None]]


class BrokenError(Exception):
    """Raised by functions and sources of these tests."""


def give(value: Any) -> Any:
    return value


async def give_later(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


def fail(value: Any) -> Any:
    raise BrokenError


async def fail_at_once(value: Any) -> Any:
    raise BrokenError


async def fail_later(value: Any) -> Any:
    await asyncio.sleep(0)
    raise BrokenError


async def fail_by_cause(value: Any) -> Any:
    try:
        await fail_later(value)
    except BrokenError as error:
        raise RuntimeError("behind another one") from error


async def fail_as_cancelled(value: Any) -> Any:
    raise asyncio.CancelledError


async def hang(value: Any) -> Any:
    await asyncio.Event().wait()


async def fail_at_the_end(value: Any) -> Any:
    try:
        await asyncio.Event().wait()
    finally:
        raise BrokenError


def divide(value: Any) -> Any:
    with np.errstate(all="ignore"):
        return value / 0


def wrong_shape(value: Any) -> Any:
    return value[1:]


def graph_of(function: Function, options: dict[str, Any] | None = None, **settings: Any) -> af.Graph:
    graph = af.Graph("held", **settings)
    graph.function("f", function, SPEC, **(options or {}))(graph.blob("x", (LENGTH,), "float64"))
    return graph


def frames_of(graph: af.Graph) -> int:
    """Number of its frames that are alive."""
    observer = graph.engine.observer
    return sum(type(each) is Frame and each.start.observer is observer for each in gc.get_objects())


def ended(task: asyncio.Task[Any]) -> None:
    """Take the error of a task; one that was cancelled is just dropped."""
    if not task.cancelled():
        task.exception()


# -- runs --------------------------------------------------------------------------------------------------------------


async def awaited(graph: af.Graph, arrays: Arrays) -> None:
    with suppress(af.ActorflowError, TimeoutError):
        await graph.run({"x": arrays(LENGTH)})


async def in_the_middle(
    graph: af.Graph, arrays: Arrays, end: Callable[[asyncio.Task[Any]], Any], timeout: float | None = None
) -> None:
    """Start a run, and end it in some way when it waits."""
    task = asyncio.create_task(graph.run({"x": arrays(LENGTH)}, timeout=timeout))
    await settle()
    end(task)
    await asyncio.wait([task])
    ended(task)


async def past_a_limit(graph: af.Graph, arrays: Arrays) -> None:
    with held_limits() as end_limits:
        await in_the_middle(graph, arrays, lambda _: end_limits())


async def past_its_timeout(graph: af.Graph, arrays: Arrays) -> None:
    with held_limits() as end_limits:
        await in_the_middle(graph, arrays, lambda _: end_limits(), HELD_S)


async def past_a_timeout_of_asyncio(graph: af.Graph, arrays: Arrays) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(None) as limit:
            asyncio.get_running_loop().call_soon(limit.reschedule, 0.0)
            await graph.run({"x": arrays(LENGTH)})

    with suppress(TimeoutError):
        await in_time()


async def cancelled(graph: af.Graph, arrays: Arrays) -> None:
    await in_the_middle(graph, arrays, lambda task: task.cancel())


async def cancelled_at_once(graph: af.Graph, arrays: Arrays) -> None:
    task = asyncio.create_task(graph.run({"x": arrays(LENGTH)}))
    task.cancel()
    await asyncio.wait([task])


async def cancelled_by_the_graph(graph: af.Graph, arrays: Arrays) -> None:
    await in_the_middle(graph, arrays, lambda _: graph.cancel())


async def closed(graph: af.Graph, arrays: Arrays) -> None:
    task = asyncio.create_task(graph.run({"x": arrays(LENGTH)}))
    await settle()
    await graph.aclose()
    await asyncio.wait([task])


async def fed_wrongly(graph: af.Graph, arrays: Arrays) -> None:
    with suppress(af.ShapeError):
        await graph.run({"x": arrays(LENGTH + 1)})


async def several_at_once(graph: af.Graph, arrays: Arrays) -> None:
    runs = [graph.run({"x": arrays(LENGTH)}) for _ in range(3)]
    await asyncio.gather(*runs, return_exceptions=True)


async def while_paused(graph: af.Graph, arrays: Arrays) -> None:
    graph.pause()
    await in_the_middle(graph, arrays, lambda task: task.cancel())
    graph.resume()


async def sampled(graph: af.Graph, arrays: Arrays) -> None:
    async with graph.tap("x"):
        await awaited(graph, arrays)


RUNS: dict[str, tuple[Callable[[], af.Graph], Drive]] = {
    "ends well": (lambda: graph_of(give), awaited),
    "async, ends well": (lambda: graph_of(give_later), awaited),
    "plain function": (lambda: graph_of(fail), awaited),
    "async function": (lambda: graph_of(fail_at_once), awaited),
    "async function, later": (lambda: graph_of(fail_later), awaited),
    "chained errors": (lambda: graph_of(fail_by_cause), awaited),
    "a cancellation of its own": (lambda: graph_of(fail_as_cancelled), awaited),
    "StopIteration": (lambda: graph_of(lambda x: next(iter(()))), awaited),
    "wrong result": (lambda: graph_of(wrong_shape), awaited),
    "retries": (lambda: graph_of(fail, {"retries": 2, "backoff": 0}), awaited),
    "retries of an async one": (lambda: graph_of(fail_later, {"retries": 2, "backoff": 0}), awaited),
    "atomic": (lambda: graph_of(fail_later), lambda g, a: _atomic(g, a)),
    "check_finite": (lambda: graph_of(divide, check_finite=True), lambda g, a: _not_finite(g, a)),
    "memory budget": (lambda: graph_of(fail_later, memory_budget=1 << 20), several_at_once),
    "simulated device": (lambda: _on_a_device(), awaited),
    "kernel": (lambda: _kernel(), lambda g, a: _taken(g, a)),
    "spans": (lambda: _instrumented(), awaited),
    "tap": (lambda: graph_of(fail), sampled),
    "timeout of an op": (lambda: graph_of(hang, {"timeout": HELD_S}), past_a_limit),
    "timeout of a run": (lambda: graph_of(hang), past_its_timeout),
    "timeout of asyncio": (lambda: graph_of(hang), past_a_timeout_of_asyncio),
    "stall_limit": (lambda: graph_of(hang, stall_limit=HELD_S), lambda g, a: _stalled(g, a)),
    "cancelled": (lambda: graph_of(hang), cancelled),
    "cancelled, fails as it ends": (lambda: graph_of(fail_at_the_end), cancelled),
    "cancelled at once": (lambda: graph_of(hang), cancelled_at_once),
    "Graph.cancel": (lambda: graph_of(hang), cancelled_by_the_graph),
    "aclose": (lambda: graph_of(hang), closed),
    "wrong feed": (lambda: graph_of(give), fed_wrongly),
    "several": (lambda: graph_of(fail_later), several_at_once),
    "paused": (lambda: graph_of(give), while_paused),
    "in a function": (lambda: _nested(), awaited),
    "waits for a variable": (lambda: _with_a_variable(), lambda g, a: _behind_another(g, a)),
}


async def _atomic(graph: af.Graph, arrays: Arrays) -> None:
    with suppress(af.OpError):
        await graph.run({"x": arrays(LENGTH)}, atomic=True)


async def _stalled(graph: af.Graph, arrays: Arrays) -> None:
    with held_limits() as end_limits:
        task = asyncio.create_task(graph.run({"x": arrays(LENGTH)}))
        while not task.done():
            await settle()
            end_limits()
        assert isinstance(task.exception(), af.StallError)


async def _not_finite(graph: af.Graph, arrays: Arrays) -> None:
    await awaited(graph, arrays)
    assert arrays.alive == 1
    graph.engine.resources.kept_call = None  # one call is kept for the live page


async def _taken(graph: af.Graph, arrays: Arrays) -> None:
    with suppress(af.OpError):
        await graph.run({"x": arrays(LENGTH), "i": LENGTH})


async def _behind_another(graph: af.Graph, arrays: Arrays) -> None:
    first = asyncio.create_task(graph.run({"x": np.ones(LENGTH)}))
    await settle()
    await past_its_timeout(graph, arrays)
    await settle()
    assert not arrays.alive  # while the first one has yet to end
    assert frames_of(graph) == 1
    first.cancel()
    await asyncio.wait([first])


def _on_a_device() -> af.Graph:
    graph = af.Graph("held")
    graph.function("f", fail, SPEC, place="sim:0")(graph.blob("x", (LENGTH,), "float64", place="sim:0"))
    return graph


def _kernel() -> af.Graph:
    graph = af.Graph("held")
    ops.take(graph.blob("x", (LENGTH,), "float64"), graph.blob("i", (), "int64"))
    return graph


def _instrumented() -> af.Graph:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    graph = graph_of(fail_later)
    graph.instrument(tracer_provider=trace.TracerProvider())
    return graph


def _nested() -> af.Graph:
    inner = graph_of(fail_later)

    async def outer(value: Any) -> Any:
        async with inner:
            return (await inner.run({"x": value}))["f/out"]

    return graph_of(outer)


def _with_a_variable() -> af.Graph:
    graph = af.Graph("held")
    w = graph.variable("w", (LENGTH,), "float64")

    async def wait(value: Any, w: Any) -> Any:
        await asyncio.Event().wait()

    (
        graph.function("wait", wait, SPEC)(graph.blob("x", (LENGTH,), "float64"), w)
        >> graph.function("update", give)
        >> [w]
    )
    return graph


@pytest.mark.together("name", RUNS)
async def test_run(name: str) -> None:
    make, drive = RUNS[name]
    graph = make()
    async with graph:
        await drive(graph, Arrays())  # makes the program, and what all frames share
        async with nothing_held() as arrays:
            for _ in range(TIMES):
                await drive(graph, arrays)
            await come_to_rest(graph)


async def test_warm_run() -> None:
    """Short functions that fire as one, on the loop, below the caller's own call."""
    graph = af.Graph("held")
    y = graph.function("a", lambda x: x + 1, SPEC)(graph.blob("x", (LENGTH,), "float64"))
    y = graph.function("b", lambda x: fail(x) if x[0] == 2 else x, SPEC)(y)
    graph.function("c", give, SPEC)(y)
    async with graph:
        for _ in range(100):
            await graph.run({"x": np.zeros(LENGTH)})
        async with nothing_held() as arrays:
            for _ in range(TIMES):
                await awaited(graph, arrays)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_thread_that_is_left_behind_holds_its_arrays_until_it_ends(fails: bool) -> None:
    begun, release = threading.Event(), threading.Event()

    def block(value: Any) -> Any:
        begun.set()
        release.wait(60)
        return fail(value) if fails else value

    graph = graph_of(block, {"timeout": HELD_S})
    async with graph:
        async with nothing_held() as arrays:
            with held_limits() as end_limits:
                task = asyncio.create_task(graph.run({"x": arrays(LENGTH)}))
                await asyncio.to_thread(begun.wait)
                end_limits()
                await asyncio.wait([task])
            assert isinstance(task.exception(), af.OpTimeoutError)
            del task
            release.set()
            await come_to_rest(graph)


def test_without_a_loop() -> None:
    graph, arrays = graph_of(fail), Arrays()
    gc.collect()
    gc.disable()
    try:
        for _ in range(TIMES):
            with suppress(af.OpError):
                graph.run_sync({"x": arrays(LENGTH)})
        assert not arrays.alive
    finally:
        gc.enable()


async def test_an_error_keeps_what_it_repeats_the_call_with() -> None:
    graph = graph_of(fail_later)
    async with graph:
        async with nothing_held() as arrays:
            with pytest.raises(af.OpError) as caught:
                await graph.run({"x": arrays(LENGTH)})
            assert caught.value.to_graph().variables[0].value.shape == (LENGTH,)
            with pytest.raises(BrokenError):
                await caught.value.replay()
            del caught


# -- limits of time ----------------------------------------------------------------------------------------------------


async def in_time(graph: af.Graph, arrays: Arrays) -> None:
    with suppress(af.ActorflowError):
        await graph.run({"x": arrays(LENGTH)}, timeout=HELD_S)


async def streamed(graph: af.Graph, arrays: Arrays) -> None:
    await whole(graph, arrays)
    await left(graph, arrays)


async def batched(graph: af.Graph, arrays: Arrays) -> None:
    async with graph.batched() as batcher:
        await asyncio.gather(*[request(batcher, arrays, timeout=HELD_S) for _ in range(3)])


LIMITED: dict[str, tuple[Function, dict[str, Any], Drive]] = {
    "ends well": (give, {}, in_time),
    "async, ends well": (give_later, {}, in_time),
    "fails": (fail, {}, in_time),
    "fails later": (fail_later, {}, in_time),
    "retries": (fail, {"retries": 1, "backoff": 0}, in_time),
    "rests": (fail, {"retries": 1, "backoff": HELD_S}, lambda g, a: in_the_middle(g, a, asyncio.Task.cancel, HELD_S)),
    "async, rests": (fail_later, {"retries": 1, "backoff": HELD_S}, past_its_timeout),
    "past a limit": (hang, {}, past_a_limit),
    "past its timeout": (hang, {}, past_its_timeout),
    "cancelled": (hang, {}, lambda g, a: in_the_middle(g, a, asyncio.Task.cancel, HELD_S)),
    "Graph.cancel": (hang, {}, lambda g, a: in_the_middle(g, a, lambda _: g.cancel(), HELD_S)),
    "stream": (give, {}, streamed),
    "async stream": (give_later, {}, streamed),
    "stream fails": (fail_later, {}, streamed),
    "batched": (give_later, {}, batched),
    "batched, fails": (fail, {}, batched),
}


@pytest.mark.parametrize("name", LIMITED)
async def test_limits_of_time_end_with_what_they_are_about(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every limit there is: no timer is left, and no frame, while graph and loop go on."""
    function, options, drive = LIMITED[name]
    loop, begun = asyncio.get_running_loop(), []
    call_later = loop.call_later

    def begin(delay: float, *arguments: Any, **context: Any) -> asyncio.TimerHandle:
        timer = call_later(delay, *arguments, **context)
        if delay > HELD_S / 2:
            begun.append(timer)
        return timer

    graph = af.Graph("held", stall_limit=HELD_S, block_limit=HELD_S)
    shape = ("batch", LENGTH) if "batched" in name else (LENGTH,)
    blobs = [graph.blob(each, shape, "float64") for each in "xy"]
    blobs[:1] >> graph.function("f", function, timeout=HELD_S, **options) >> blobs[1:]
    monkeypatch.setattr(loop, "call_later", begin)
    async with graph:
        async with nothing_held() as arrays:
            for _ in range(TIMES):
                await drive(graph, arrays)
            await come_to_rest(graph)
            await settle()
            assert begun
            assert all(timer.cancelled() for timer in begun)
            assert not frames_of(graph)


async def test_a_call_that_was_to_be_repeated_is_forgotten_with_its_frame() -> None:
    """It has failed, and waits in its lane's queue to be repeated, when its frame is cancelled."""
    fails, begun, release = threading.Event(), threading.Event(), threading.Event()

    def fail_once_told(value: Any) -> Any:
        fails.wait(60)
        fail(value)

    def block() -> int:
        begun.set()
        return release.wait(60)

    graph = af.Graph("held")
    x = graph.blob("x", (LENGTH,), "float64")
    graph.function("f", fail_once_told, SPEC, retries=1, backoff=0, lane="own")(x)
    graph.function("block", block, af.TensorSpec.of((), "bool"), lane="own")()
    async with graph:
        async with nothing_held() as arrays:
            run = asyncio.create_task(graph.run({"x": arrays(LENGTH)}, fetch="f"))
            await settle()
            blocked = asyncio.create_task(graph.run(fetch="block"))
            await settle()
            fails.set()
            await asyncio.to_thread(begun.wait)
            failed = graph.engine.profile[graph["f"].id]
            while not failed.failed or graph.engine.running[0].resting:
                await asyncio.sleep(0)
            run.cancel()
            await asyncio.wait([run])
            del run
            release.set()
            await blocked
            await come_to_rest(graph)
            assert failed.failed == 1
            assert not frames_of(graph)


# -- streams -----------------------------------------------------------------------------------------------------------


async def whole(graph: af.Graph, arrays: Arrays) -> None:
    with suppress(af.ActorflowError):
        async for _ in graph.stream({"x": arrays(LENGTH)} for _ in range(4)):
            pass


async def left(graph: af.Graph, arrays: Arrays) -> None:
    with suppress(af.OpError):
        async with aclosing(graph.stream(({"x": arrays(LENGTH)} for _ in range(9)), in_flight=4)) as stream:
            async for _ in stream:
                await settle()
                break


async def dropped(graph: af.Graph, arrays: Arrays) -> None:
    with suppress(af.OpError):
        async for _ in graph.stream(({"x": arrays(LENGTH)} for _ in range(9)), in_flight=4):
            break
    await settle()


async def consumer_cancelled(graph: af.Graph, arrays: Arrays) -> None:
    task = asyncio.create_task(whole(graph, arrays))
    await settle()
    task.cancel()
    await asyncio.wait([task])


async def stream_cancelled_by_the_graph(graph: af.Graph, arrays: Arrays) -> None:
    task = asyncio.create_task(whole(graph, arrays))
    await settle()
    graph.cancel()
    await asyncio.wait([task])


async def source_fails(graph: af.Graph, arrays: Arrays) -> None:
    def feeds() -> Iterator[Any]:
        yield {"x": arrays(LENGTH)}
        made = arrays(LENGTH)
        fail(made)

    with suppress(BrokenError):
        async for _ in graph.stream(feeds()):
            pass


async def source_fails_as_it_is_closed(graph: af.Graph, arrays: Arrays) -> None:
    async def feeds() -> AsyncIterator[Any]:
        try:
            while True:
                yield {"x": arrays(LENGTH)}
        finally:
            raise asyncio.CancelledError

    with suppress(af.FeedError):
        async with aclosing(graph.stream(feeds())) as stream:
            async for _ in stream:
                break


async def feed_is_wrong(graph: af.Graph, arrays: Arrays) -> None:
    with suppress(af.ShapeError):
        async for _ in graph.stream({"x": arrays(LENGTH + number)} for number in range(2)):
            pass


def fail_unless_zero(value: Any) -> Any:
    return fail(value) if value[0] else value


async def left_behind_the_first(graph: af.Graph, arrays: Arrays) -> None:
    """The frames behind the one that was taken have failed by then."""

    def feeds() -> Iterator[Any]:
        for number in range(4):
            array = arrays(LENGTH)
            array *= number
            yield {"x": array}

    async with aclosing(graph.stream(feeds(), in_flight=4)) as stream:
        async for _ in stream:
            await come_to_rest(graph)
            break


STREAMS: dict[str, tuple[Function, Drive]] = {
    "ends well": (give, whole),
    "async, ends well": (give_later, whole),
    "fails": (fail, whole),
    "fails later": (fail_later, whole),
    "left": (give, left),
    "async, left": (give_later, left),
    "dropped": (give_later, dropped),
    "consumer cancelled": (hang, consumer_cancelled),
    "Graph.cancel": (hang, stream_cancelled_by_the_graph),
    "source fails": (give_later, source_fails),
    "source fails as it is closed": (give_later, source_fails_as_it_is_closed),
    "wrong feed": (give_later, feed_is_wrong),
    "left with frames that have failed": (fail_unless_zero, left_behind_the_first),
}


@pytest.mark.together("name", STREAMS)
async def test_stream(name: str) -> None:
    function, drive = STREAMS[name]
    graph = graph_of(function)
    async with graph:
        await drive(graph, Arrays())
        async with nothing_held() as arrays:
            for _ in range(TIMES):
                await drive(graph, arrays)


# -- batched runs ------------------------------------------------------------------------------------------------------


async def request(batcher: Any, arrays: Arrays, rows: int = 1, **options: Any) -> None:
    with suppress(af.ActorflowError):
        await batcher.run({"x": arrays(rows, LENGTH)}, **options)


async def both_at_once(batcher: Any, arrays: Arrays) -> None:
    await asyncio.gather(*[request(batcher, arrays) for _ in range(3)])


async def many_rows(batcher: Any, arrays: Arrays) -> None:
    await request(batcher, arrays, rows=9)


async def request_times_out(batcher: Any, arrays: Arrays) -> None:
    with held_limits() as end_limits:
        task = asyncio.create_task(request(batcher, arrays, timeout=HELD_S))
        await settle()
        end_limits()
        await task


async def requests_cancelled(batcher: Any, arrays: Arrays) -> None:
    tasks = [asyncio.create_task(request(batcher, arrays)) for _ in range(2)]
    await settle()
    for task in tasks:
        task.cancel()
        await asyncio.wait([task])


async def batcher_closed(batcher: Any, arrays: Arrays) -> None:
    tasks = [asyncio.create_task(request(batcher, arrays)) for _ in range(2)]
    await settle()
    await batcher.aclose()
    await asyncio.wait(tasks)


async def batch_cancelled_by_the_graph(batcher: Any, arrays: Arrays) -> None:
    tasks = [asyncio.create_task(request(batcher, arrays)) for _ in range(2)]
    await settle()
    batcher._rows._engine.cancel_frames(None, "by a test")
    await asyncio.wait(tasks)


async def request_is_wrong(batcher: Any, arrays: Arrays) -> None:
    with suppress(af.ShapeError):
        await batcher.run({"x": arrays(1, LENGTH + 1)})


BATCHED: dict[str, tuple[Function, Callable[[Any, Arrays], Awaitable[None]], dict[str, Any]]] = {
    "ends well": (give, both_at_once, {}),
    "async, ends well": (give_later, both_at_once, {}),
    "fails": (fail, request, {}),
    "fails later": (fail_later, request, {}),
    "some together fail": (fail_later, both_at_once, {}),
    "all together fail": (fail_later, both_at_once, {"isolate": False}),
    "more rows than a frame has": (fail_later, many_rows, {"max_rows": 2}),
    "timeout": (hang, request_times_out, {}),
    "cancelled": (hang, requests_cancelled, {}),
    "closed": (hang, batcher_closed, {}),
    "Graph.cancel": (hang, batch_cancelled_by_the_graph, {}),
    "wrong feed": (give, request_is_wrong, {}),
    "pad fails": (give, both_at_once, {"pad": fail}),
    "queue full": (give_later, both_at_once, {"queue_rows": 1, "in_flight": 1}),
}


@pytest.mark.together("name", BATCHED)
async def test_batched_run(name: str) -> None:
    function, drive, options = BATCHED[name]
    graph = af.Graph("held")
    blobs = [graph.blob(each, ("batch", LENGTH), "float64") for each in "xy"]
    blobs[:1] >> graph.function("f", function) >> blobs[1:]
    async with graph:
        async with graph.batched(**options) as batcher:
            await drive(batcher, Arrays())
        async with nothing_held() as arrays:
            for _ in range(TIMES):
                async with graph.batched(**options) as batcher:
                    await drive(batcher, arrays)
                    await settle()
                    assert not arrays.alive  # while the batcher is open
