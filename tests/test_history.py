"""The ring of finished calls, alone and as the engine fills it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.history import Trace

SQUARE = af.TensorSpec.of((4, 4))
_NS = st.integers(0, 2**62)
_EVENTS = st.lists(
    st.tuples(_NS, st.integers(0, 2**61), st.integers(0, 2**40 - 1), st.integers(0, 5), _NS),
    max_size=40,
)


@given(events=_EVENTS, power=st.integers(0, 4), reads=st.lists(st.integers(0, 40), max_size=4))
def test_the_newest_calls_are_kept(events, power, reads) -> None:
    trace, position, seen, lost = Trace(1 << power), 0, [], 0
    tracks = [f"lane {number}" for number in range(6)]
    for at, (end, elapsed, node, track, frame) in enumerate(events):
        if at in reads:
            calls = trace.since(position)
            position, lost = trace.total, lost + calls.lost
            seen += rows(trace, calls)
        trace.add(end, elapsed, trace.key(node, tracks[track]), frame)
    calls = trace.since(position)
    seen += rows(trace, calls)
    expected = [(end - elapsed, end, tracks[track], node, frame) for end, elapsed, node, track, frame in events]
    assert trace.total == len(events)
    assert len(seen) + lost + calls.lost == len(events)
    assert rows(trace, trace.since(0)) == expected[-(1 << power) :]
    assert not len(trace.since(trace.total).node)
    remaining = iter(expected)
    assert all(row in remaining for row in seen), "each at most once, and in order"


def rows(trace: Trace, calls) -> list[tuple]:
    columns = (calls.start_ns, calls.end_ns, calls.track, calls.node, calls.frame)
    return [
        (start, end, trace.tracks[track], node, frame)
        for start, end, track, node, frame in zip(*[column.tolist() for column in columns], strict=True)
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
    assert [(names[node], frame) for *_, node, frame in seen] == [
        (name, frame) for frame in range(5) for name in ("quick", "other", "wait")
    ]
    assert all(start <= end for start, end, *_ in seen)
    # A first call's time is not known, so that it goes to the lane; the others are short.
    assert next(track for *_, track, node, _ in seen if names[node] == "other") == "cpu own"
    assert {track for *_, track, node, _ in seen if names[node] == "wait"} == {"async functions"}
    for op in graph.ops:
        profile = graph.engine.profile[op.id]
        elapsed = (calls.end_ns - calls.start_ns)[calls.node == op.id]
        assert (profile.calls, profile.total_ns, profile.last_ns) == (5, elapsed.sum(), elapsed[-1])


async def test_failed_calls_are_not_traced() -> None:
    graph = af.Graph("failing")
    x = graph.blob("x", ())

    def fail(x):
        raise ValueError

    graph.function("fail", fail, af.TensorSpec.of(()))(x)
    async with graph:
        with pytest.raises(af.OpError):
            await graph.run({x: np.float32(0)})
    assert graph.engine.trace.total == 0
