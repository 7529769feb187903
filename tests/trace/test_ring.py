"""The ring of calls that have ended, alone and as the engine fills it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import count, pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.trace.counters import NodeState
from actorflow.trace.ring import Trace, in_brief
from tests.support.waiting import HELD_S, held_limits

SQUARE = af.TensorSpec.of((4, 4))
_NS = st.integers(0, 2**62)
_EVENTS = st.lists(
    st.tuples(
        _NS, st.integers(0, 2**61), st.integers(0, 2**40 - 1), st.integers(0, 5), _NS, st.none() | st.text(max_size=3)
    ),
    max_size=40,
)


@given(events=_EVENTS, power=st.integers(0, 4), reads=st.lists(st.integers(0, 40), max_size=4))
def test_the_newest_calls_are_kept(events, power, reads) -> None:
    trace, position, seen, lost = Trace(1 << power), 0, [], 0
    tracks = [f"lane {number}" for number in range(6)]
    for at, (end, elapsed, node, track, frame, error) in enumerate(events):
        if at in reads:
            calls = trace.since(position)
            position, lost = trace.total, lost + calls.lost
            seen += rows(trace, calls)
        call = end, elapsed, trace.key(node, tracks[track]), frame
        if error is None:
            trace.add(*call)
        else:
            trace.add_failed(*call, error)
    calls = trace.since(position)
    seen += rows(trace, calls)
    expected = [
        (end - elapsed, end, tracks[track], node, frame, error) for end, elapsed, node, track, frame, error in events
    ]
    assert trace.total == len(events)
    assert len(seen) + lost + calls.lost == len(events)
    assert rows(trace, trace.since(0)) == expected[-(1 << power) :]
    assert not len(trace.since(trace.total).node)
    remaining = iter(expected)
    assert all(row in remaining for row in seen), "each at most once, and in order"


def rows(trace: Trace, calls) -> list[tuple]:
    columns = (calls.start_ns, calls.end_ns, calls.track, calls.node, calls.frame, calls.failed)
    assert all(calls.errors.get(row) is not None for row in np.flatnonzero(calls.failed).tolist())
    return [
        (start, end, trace.tracks[track], node, frame, calls.errors[row] if failed else None)
        for row, (start, end, track, node, frame, failed) in enumerate(
            zip(*[column.tolist() for column in columns], strict=True)
        )
    ]


def test_a_read_is_a_copy() -> None:
    trace = Trace(2)
    trace.add(10, 1, 5, 0)
    before = trace.since(0)
    for frame in range(5):
        trace.add(20, 1, 6, frame)
    assert (before.node.tolist(), before.end_ns.tolist()) == ([5], [10])


@pytest.mark.parametrize("capacity", [0, -2, 3, 100])
def test_the_capacity_is_a_power_of_two(capacity) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Trace(capacity)


async def test_every_call_is_traced_where_it_ran() -> None:
    graph = af.Graph("traced")
    x = graph.blob("x", (4, 4))
    quick = graph.function("quick", lambda x: x, SQUARE)(x)
    other = graph.function("other", lambda x: x, SQUARE, lane="own")(quick)

    async def wait(x):
        await asyncio.sleep(0)
        return x

    graph.function("wait", wait, SQUARE)(other)
    trace = graph.engine.trace
    async with graph:
        for _ in range(5):
            await graph.run({x: np.ones((4, 4), "float32")})
    calls = trace.since(0)
    names = {node.id: node.name for node in graph.nodes}
    seen = rows(trace, calls)
    assert trace.total == len(seen) == 15
    assert [(names[node], frame) for *_, node, frame, _ in seen] == [
        (name, frame) for frame in range(5) for name in ("quick", "other", "wait")
    ]
    assert all(start <= end for start, end, *_ in seen)
    # A first call's time is not known, so that it goes to the lane; the others are short.
    assert next(track for _, _, track, node, *_ in seen if names[node] == "other") == "cpu own"
    assert {track for _, _, track, node, *_ in seen if names[node] == "wait"} == {"async functions"}
    assert not calls.errors
    for op in graph.ops:
        profile = graph.engine.profile[op.id]
        elapsed = (calls.end_ns - calls.start_ns)[calls.node == op.id]
        assert (profile.calls, profile.total_ns, profile.last_ns) == (5, elapsed.sum(), elapsed[-1])


def test_what_only_the_newest_failed_calls_have_raised_is_kept() -> None:
    trace = Trace(4096)
    for frame in range(2000):
        trace.add_failed(0, 0, trace.key(1), frame, f"the {frame}th")
    calls = trace.since(0)
    assert calls.failed.all()
    assert [calls.errors[row] for row in (975, 976, 1999)] == [
        "failed; with what is not kept any more",
        "the 976th",
        "the 1999th",
    ]


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I cannot even say what went wrong")


@pytest.mark.together(
    ("error", "text"),
    [
        (ValueError("no good"), "ValueError: no good"),
        (ValueError("first\nsecond"), "ValueError: first"),
        (ValueError(), "ValueError"),
        (KeyError("x" * 1000), f"KeyError: '{'x' * 186}..."),
        (UnspeakableError(), "UnspeakableError: <UnspeakableError that cannot be shown: RuntimeError>"),
    ],
)
def test_what_a_call_has_raised_in_brief(error: Exception, text: str) -> None:
    assert in_brief(error) == text
    assert len(text) <= 200


class Failing:
    """A function that fails when it is told to, as a plain one or an async one."""

    def __init__(self) -> None:
        self.left = 0

    def __call__(self, x: Any) -> Any:
        if self.left:
            self.left -= 1
            raise ValueError(f"{self.left} left")
        return x

    async def later(self, x: Any) -> Any:
        await asyncio.sleep(0)
        return self(x)


def failing_graph(kind: str, fail: Failing) -> tuple[af.Graph, str]:
    """A graph whose op "fail" fails as it is told to; and where its calls run."""
    graph = af.Graph("failing")
    x = graph.blob("x", (4, 4))
    function: Callable[..., Any] = fail.later if kind == "async" else fail
    options: dict[str, Any] = {"timeout": 3600, "lane": "own"} if kind == "lane" else {}
    retries = 3 if kind in ("async", "lane") else 0
    graph.function("fail", function, SQUARE, retries=retries, backoff=0, **options)(x)
    return graph, {"async": "async functions", "lane": "cpu own", "inline": "loop"}[kind]


@pytest.mark.usefixtures("calls_count_as_short")
@pytest.mark.parametrize("kind", ["inline", "lane", "async"])
async def test_a_failed_call_is_traced_as_such(kind: str) -> None:
    fail = Failing()
    graph, track = failing_graph(kind, fail)
    feed = {"x": np.ones((4, 4), "float32")}
    async with graph:
        for _ in range(3):  # from then on it runs inline where it can
            await graph.run(feed)
        if kind != "inline":
            fail.left = 2
            await graph.run(feed)
        fail.left = 4
        with pytest.raises(af.OpError):
            await graph.run(feed)
    trace, profile = graph.engine.trace, graph.engine.profile[graph["fail"].id]
    seen = rows(trace, trace.since(0))[3:]
    frames = [3] if kind == "inline" else [3, 3, 3, 4, 4, 4, 4]
    errors = ["3 left"] if kind == "inline" else ["1 left", "0 left", None, "3 left", "2 left", "1 left", "0 left"]
    assert [row[4] for row in seen] == frames
    assert [row[5] for row in seen] == [error and f"ValueError: {error}" for error in errors]
    assert {row[2] for row in seen} == {track}
    assert all(start < end for start, end, *_ in seen)
    assert all(first[1] <= second[0] for first, second in pairwise(seen)), "one after the other"
    assert profile.calls == 3 + (kind != "inline"), "those that have ended well"
    assert profile.failed == sum(error is not None for error in errors), "repeated or not"


class Flaky(NamedTuple):
    """An op: which blob it reads, how it is called, how often it is repeated, and which of its calls fail."""

    reads: int
    kind: str
    retries: int
    failing: frozenset[int]


_FLAKY = st.builds(
    Flaky,
    st.integers(0, 5),
    st.sampled_from(("main", "own", "async")),
    st.integers(0, 2),
    st.frozensets(st.integers(0, 8), max_size=5),
)


class PlantedError(Exception):
    pass


def add_flaky(graph: af.Graph, op: Flaky, name: str, source: af.Blob, raised: Counter[str]) -> af.Blob:
    calls = count()

    def function(x: Any) -> Any:
        if next(calls) in op.failing:
            raised[name] += 1
            raise PlantedError
        return x

    async def later(x: Any) -> Any:
        await asyncio.sleep(0)
        return function(x)

    lane = op.kind if op.kind == "own" else "main"
    call: Callable[..., Any] = later if op.kind == "async" else function
    return graph.function(name, call, SQUARE, lane=lane, retries=op.retries, backoff=0)(source)


@given(recipe=st.lists(_FLAKY, min_size=1, max_size=6), in_flight=st.integers(1, 4))
async def test_every_failed_call_is_counted_once(recipe: list[Flaky], in_flight: int) -> None:
    graph, raised = af.Graph("flaky"), Counter[str]()
    blobs = [graph.blob("x", (4, 4))]
    for number, op in enumerate(recipe):
        blobs.append(add_flaky(graph, op, f"op{number}", blobs[op.reads % len(blobs)], raised))
    feed = {"x": np.ones((4, 4), "float32")}
    async with graph:
        for _ in range(3):
            ends = await asyncio.gather(*[graph.run(feed) for _ in range(in_flight)], return_exceptions=True)
            assert all(isinstance(end.__cause__, PlantedError) for end in ends if isinstance(end, BaseException))
    calls, profile = graph.engine.trace.since(0), graph.engine.profile
    assert sum(one.failed for one in profile.values()) == calls.failed.sum() == raised.total()
    for op in graph.ops:
        failed = calls.failed[calls.node == op.id]
        assert (profile[op.id].calls, profile[op.id].failed) == ((~failed).sum(), failed.sum())
        assert profile[op.id].failed == raised[op.name]


def counts(graph: af.Graph) -> dict[str, tuple[int, int]]:
    """Calls of each op that have ended well, and failed ones."""
    profile = graph.engine.profile
    return {op.name: (profile[op.id].calls, profile[op.id].failed) for op in graph.ops}


#: How what is said of a call begins, and how it ends.
TIMED_OUT = ("OpTimeoutError: op 'stay'", f"timed out after {HELD_S:g} s")


async def test_a_call_that_took_too_long_is_traced_to_its_real_end() -> None:
    """The run has failed long before: the thread cannot be stopped."""
    graph, entered, release = af.Graph("slow"), threading.Event(), threading.Event()
    moments_ns = []

    def stay(x: Any) -> Any:
        moments_ns.append(time.perf_counter_ns())
        entered.set()
        release.wait()
        moments_ns.append(time.perf_counter_ns())
        return x

    graph.function("stay", stay, SQUARE, timeout=HELD_S)(graph.blob("x", (4, 4)))
    async with graph:
        with held_limits() as end_limits:
            run = asyncio.create_task(graph.run({"x": np.ones((4, 4), "float32")}))
            await asyncio.to_thread(entered.wait)
            end_limits()
        with pytest.raises(af.OpTimeoutError):
            await run
        assert graph.engine.trace.total == 0
        release.set()
    ((start, end, _, _, frame, error),) = rows(graph.engine.trace, graph.engine.trace.since(0))
    assert frame == 0
    assert (error.partition(" (")[0], error.rpartition(") ")[2]) == TIMED_OUT
    assert start <= moments_ns[0] <= moments_ns[1] <= end
    assert counts(graph) == {"stay": (0, 1)}


async def test_an_async_call_that_took_too_long_is_traced() -> None:
    graph = af.Graph("slow")

    async def stay(x: Any) -> Any:
        await asyncio.Event().wait()

    graph.function("stay", stay, SQUARE, timeout=HELD_S, retries=1, backoff=0)(graph.blob("x", (4, 4)))
    async with graph:
        with held_limits() as end_limits:
            run = asyncio.create_task(graph.run({"x": np.ones((4, 4), "float32")}))
            while not run.done():
                end_limits()
                await asyncio.sleep(0)
        with pytest.raises(af.OpTimeoutError):
            await run
    errors = [row[5] for row in rows(graph.engine.trace, graph.engine.trace.since(0))]
    assert [(error.partition(" (")[0], error.rpartition(") ")[2]) for error in errors] == [TIMED_OUT] * 2
    assert counts(graph) == {"stay": (0, 2)}


@pytest.mark.usefixtures("calls_count_as_short")
async def test_a_call_counts_whose_frame_has_ended_before_the_loop_is_told_of_it() -> None:
    """What follows it on the loop sees itself that the thread is done."""
    graph = af.Graph("late")
    x = graph.blob("x", (4, 4))
    seen = []

    def hold(x: Any) -> Any:
        for actor, fence in graph.engine.running[0].outstanding.copy().items():
            while actor.node.name == "away" and not fence.done:
                pass
            seen.append(actor.node.name)
        return x

    away = graph.function("away", lambda x: x, SQUARE, lane="own")(x)
    held = graph.function("hold", hold, SQUARE)(x)
    graph.function("join", lambda away, held: away, SQUARE)(away, held)
    feed = {"x": np.ones((4, 4), "float32")}
    async with graph:
        run = asyncio.create_task(graph.run(feed))  # from then on all are known to be short
        while not graph.engine.running:
            await asyncio.sleep(0)
        actors = {actor.node.name: actor for actor in graph.engine.running[0].ops}
        await run
        actors["away"].inline_ns = -1
        graph.engine.resources.dispatcher.slice_ns = 1 << 60
        seen.clear()
        await graph.run(feed)
    assert seen == ["away"]
    assert counts(graph) == dict.fromkeys(["away", "hold", "join"], (2, 0))
    assert graph.engine.trace.total == 6


async def test_cancelled_calls_have_not_failed() -> None:
    graph = af.Graph("two")
    x = graph.blob("x", (4, 4))

    async def stay(x: Any) -> Any:
        await asyncio.Event().wait()

    graph.function("stay", stay, SQUARE)(x)
    async with graph:
        run = asyncio.create_task(graph.run({"x": np.ones((4, 4), "float32")}))
        while not graph.engine.running:
            await asyncio.sleep(0)
        run.cancel()
        await asyncio.wait([run])
    assert graph.engine.trace.total == 0
    assert counts(graph) == {"stay": (0, 0)}


async def test_two_fail_at_once_and_both_are_traced() -> None:
    """One of them fails the frame; the other, which was told to stop, raises something else."""
    graph, both = af.Graph("two"), asyncio.Barrier(2)
    x = graph.blob("x", (4, 4))

    async def first(x: Any) -> Any:
        await both.wait()
        raise ValueError("first")

    async def second(x: Any) -> Any:
        await both.wait()
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("second")

    graph.function("first", first, SQUARE)(x)
    graph.function("second", second, SQUARE)(x)
    async with graph:
        with pytest.raises(af.OpError, match="ValueError: first"):
            await graph.run({"x": np.ones((4, 4), "float32")})
    errors = [row[5] for row in rows(graph.engine.trace, graph.engine.trace.since(0))]
    assert errors == ["ValueError: first", "LookupError: second"]
    assert counts(graph) == {"first": (0, 1), "second": (0, 1)}


@pytest.mark.parametrize("lanes", [("main", "main"), ("side", "side"), ("main", "side"), (None, None)])
async def test_what_succeeded_before_a_failure_is_counted_and_shown_done(lanes: tuple[str | None, str | None]) -> None:
    """Both are on their way before the first has ended: the second fails before the loop has seen the first's end."""
    failed = threading.Event()

    def parse(x: Any) -> Any:
        return x * 2

    def normalise(x: Any) -> Any:
        failed.set()
        raise ZeroDivisionError

    graph = af.Graph("two")
    x = graph.blob("x", (4, 4))
    normalised = graph.function("normalise", normalise, SQUARE, lane=lanes[1])
    normalised(graph.function("parse", parse, SQUARE, lane=lanes[0])(x))
    graph.function("never", lambda x: x, SQUARE, lane=lanes[1])(normalised.outputs[0])
    async with graph:
        monitor = graph.engine.resources.watch()
        for number in range(1, 6):
            with pytest.raises(af.OpError, match="normalise"):
                await graph.run({x: np.ones((4, 4), "float32")})
            found = counts(graph)
            assert (found["parse"], found["normalise"]) == ((number, 0), (0, number))
            assert found.get("never", (0, 0)) == (0, 0)
            states = {name: NodeState(monitor.states[graph[name].id]).name for name in ("parse", "normalise", "never")}
            assert states == {"parse": "DONE", "normalise": "FAILED", "never": "CANCELLED"}
        graph.engine.resources.unwatch()
    assert graph.engine.trace.total == 10
