"""Analysis of where the time of a trace went: each figure beside one that was found in another, slower way."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.trace.analysis import PathCall, analyse
from actorflow.trace.recording import Recording

NAMES = ["a", "b", "c", "d"]
TRACKS = ["loop", "lane"]


Call = tuple[int, int, str, str, int]


def recording(calls: list[Call], follows: dict[str, str] | None = None, failed: list[Call] | None = None) -> Recording:
    """Calls as begin, end, track, op, frame; which of them have failed."""
    calls = sorted(calls, key=lambda call: call[1])
    errors = {row: "ValueError" for row, call in enumerate(calls) if call in (failed or ())}
    start, end, track, node, frame = zip(*calls, strict=True)
    befores = None if follows is None else [tuple(map(NAMES.index, follows.get(name, ""))) for name in NAMES]
    columns = (start, end, [TRACKS.index(name) for name in track], [NAMES.index(name) for name in node], frame)
    arrays = [np.array(column, np.int64) for column in columns]
    return Recording(*arrays, errors=errors, graph="g", names=NAMES, tracks=TRACKS, follows=befores)


TWO_FRAMES = [
    (0, 10, "loop", "a", 0),
    (20, 60, "lane", "b", 0),
    (10, 30, "loop", "c", 0),
    (60, 70, "loop", "d", 0),
    (100, 110, "loop", "a", 1),
    (110, 150, "lane", "b", 1),
    (112, 118, "loop", "c", 1),
    (165, 170, "loop", "d", 1),
]
DIAMOND = {"b": "a", "c": "a", "d": "bc"}


def test_two_frames() -> None:
    found = analyse(recording(TWO_FRAMES, DIAMOND))
    assert (found.span_ns, found.calls, found.idle_ns) == (170, 8, 30 + 15)
    assert [(lane.name, lane.calls, lane.busy_ns, lane.longest_idle_ns) for lane in found.lanes] == [
        ("lane", 2, 80, 50),
        ("loop", 6, 61, 47),
    ]
    assert [(op.name, op.calls, op.total_ns, op.mean_ns, op.p50_ns) for op in found.ops] == [
        ("b", 2, 80, 40, 40),
        ("c", 2, 26, 13, 13),
        ("a", 2, 20, 10, 10),
        ("d", 2, 15, 7.5, 7.5),
    ]
    assert sum(op.share for op in found.ops) == pytest.approx(1)
    assert [(gap.start_ns, gap.length_ns, gap.before, gap.after) for gap in found.gaps] == [
        (70, 30, ("d", 0), ("a", 1)),
        (150, 15, ("b", 1), ("d", 1)),
    ]
    frames = found.frames
    assert frames is not None
    assert (frames.total, frames.p50_ns, frames.overlap, frames.most) == (2, 70, 1, 1)
    assert found.path_frame == frames.median == 0
    assert found.path == [
        PathCall("a", "loop", 0, 0, 10),
        PathCall("b", "lane", 10, 0, 40),
        PathCall("d", "loop", 0, 0, 10),
    ]


def test_a_frame_of_choice() -> None:
    assert analyse(recording(TWO_FRAMES, DIAMOND), frame=1).path == [
        PathCall("a", "loop", 0, 0, 10),
        PathCall("b", "lane", 0, 0, 40),
        PathCall("d", "loop", 15, 0, 5),
    ]
    with pytest.raises(af.GraphError, match="no call of frame 2; it has frames 0 to 1"):
        analyse(recording(TWO_FRAMES, DIAMOND), frame=2)


def test_what_stood_in_the_way() -> None:
    """A wait while the lane works for others is told apart from one for nothing."""
    calls = [(0, 10, "loop", "a", 1), (5, 30, "lane", "b", 0), (32, 35, "lane", "c", 0), (40, 50, "lane", "b", 1)]
    assert analyse(recording(calls, DIAMOND), frame=1).path[1] == PathCall("b", "lane", 30, 23, 10)


def test_an_update_is_not_what_its_frame_has_waited_for() -> None:
    """Op b reads the variable that c writes: its call follows that of the frame before, which is not on its path."""
    calls = [(0, 5, "loop", "a", 0), (6, 10, "loop", "b", 0), (11, 20, "loop", "c", 0)]
    assert [step.name for step in analyse(recording(calls, {"b": "ac", "c": "b"})).path] == ["a", "b", "c"]


def test_without_knowledge_of_the_graph_a_call_follows_the_last_one_before_it() -> None:
    path = analyse(recording(TWO_FRAMES), frame=0).path
    assert [step.name for step in path] == ["a", "b", "d"]
    none = analyse(recording([(0, 1, "loop", "a", -1)]))
    assert (none.frames, none.path_frame, none.path) == (None, None, [])
    with pytest.raises(af.GraphError, match="no call of frame 3; it has none"):
        analyse(recording([(0, 1, "loop", "a", -1)]), frame=3)


def test_failed_calls_are_counted_and_a_repeated_one_has_waited_for_them() -> None:
    calls = [
        (0, 10, "loop", "a", 0),
        (12, 20, "lane", "b", 0),
        (21, 30, "lane", "b", 0),
        (45, 60, "lane", "b", 0),
        (60, 65, "loop", "d", 0),
        (70, 75, "loop", "a", 1),
        (75, 80, "lane", "b", 1),
    ]
    found = analyse(recording(calls, DIAMOND, failed=[*calls[1:3], calls[-1]]), frame=0)
    assert (found.calls, found.failed) == (7, 3)
    assert {op.name: (op.calls, op.failed, op.total_ns) for op in found.ops} == {
        "a": (2, 0, 15),
        "b": (4, 3, 37),
        "d": (1, 0, 5),
    }
    assert found.path == [
        PathCall("a", "loop", 0, 0, 10),
        PathCall("b", "lane", 2, 0, 8, failed=True),
        PathCall("b", "lane", 1, 0, 9, failed=True),
        PathCall("b", "lane", 15, 0, 15),
        PathCall("d", "loop", 0, 0, 5),
    ]
    assert analyse(recording(calls, DIAMOND, failed=calls[-1:]), frame=1).path[-1].failed


def test_calls_without_a_length() -> None:
    path = analyse(recording([(5, 5, "loop", name, 0) for name in "abcd"])).path
    assert sorted(step.name for step in path) == NAMES


def test_nothing_to_analyse() -> None:
    empty = np.zeros(0, np.int64)
    with pytest.raises(af.GraphError, match="'g' has no calls"):
        analyse(Recording(empty, empty, empty, empty, empty, graph="g", names=[], tracks=[], follows=None))


_CALLS = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.integers(0, 20),
        st.sampled_from(TRACKS),
        st.sampled_from(NAMES),
        st.integers(-1, 3),
    ).map(lambda call: (call[0], call[0] + call[1], *call[2:])),
    min_size=1,
    max_size=25,
)
_FOLLOWS = st.none() | st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["", "a", "ab", "bcd", "abcd"]))


def busy(calls: Any) -> set[int]:
    """The moments in which something ran, one by one."""
    return {moment for start, end, *_ in calls for moment in range(start, end)}


@given(_CALLS, _FOLLOWS, st.data())
def test_any_trace(calls: list[Call], follows: dict[str, str] | None, data: st.DataObject) -> None:
    failed = data.draw(st.lists(st.sampled_from(calls)))
    found = analyse(recording(calls, follows, failed), gaps=100)
    first, last = min(call[0] for call in calls), max(call[1] for call in calls)
    assert found.span_ns == last - first
    idle = set(range(first, last)) - busy(calls)
    assert found.idle_ns == sum(gap.length_ns for gap in found.gaps) == len(idle)
    for gap in found.gaps:
        assert idle >= set(range(gap.start_ns, gap.start_ns + gap.length_ns))
        assert any((call[1], *call[3:]) == (gap.start_ns, *gap.before) for call in calls)
        assert any((call[0], *call[3:]) == (gap.start_ns + gap.length_ns, *gap.after) for call in calls)
    assert {lane.name: (lane.calls, lane.busy_ns) for lane in found.lanes} == {
        track: (len(own), len(busy(own))) for track in TRACKS if (own := [call for call in calls if call[2] == track])
    }
    assert {op.name: (op.calls, op.failed, op.total_ns) for op in found.ops} == {
        name: (len(own), sum(call in failed for call in own), sum(call[1] - call[0] for call in own))
        for name in NAMES
        if (own := [call for call in calls if call[3] == name])
    }
    assert found.failed == sum(op.failed for op in found.ops)
    frames = {
        number: (min(call[0] for call in own), max(call[1] for call in own))
        for number in range(4)
        if (own := [call for call in calls if call[4] == number])
    }
    assert (found.frames is None) == (not frames)
    if found.frames is not None:
        spans = [(start, end) for start, end in frames.values()]
        assert found.frames.total == len(frames)
        in_flight = [sum(start <= moment < end for start, end in spans) for moment in range(first, last)]
        assert found.frames.most == max([1, *in_flight])
        latencies = {number: end - start for number, (start, end) in frames.items()}
        assert latencies[found.frames.slowest] == max(latencies.values())
        assert found.frames.p50_ns == np.median([*latencies.values()])
        start, end = frames[found.path_frame]
        own = [call for call in calls if call[4] == found.path_frame]
        for step in found.path:
            assert 0 <= step.behind_ns <= step.waited_ns
            assert any(call[2:4] == (step.track, step.name) for call in own)
        longest = sum(step.waited_ns + step.elapsed_ns for step in found.path)
        assert longest >= end - start, "nothing of the frame's time is left out"
        if follows is None:
            assert longest == end - start


async def test_a_real_run() -> None:
    """The graph decides: of two ways, the one that is known to be longer is on the path, whatever the clock says."""
    graph, square = af.Graph("real"), af.TensorSpec.of((2, 2))
    released: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def late(x: Any) -> Any:
        await released
        return x

    async def releasing(x: Any) -> Any:
        released.set_result(None)
        return x

    x = graph.blob("x", (2, 2))
    first = graph.function("first", lambda x: x, square)(x)
    short = graph.function("short", releasing, square)(graph.function("aside", lambda x: x, square, lane="side")(first))
    long = graph.function("long", late, square)(first)
    graph.function("last", lambda *xs: sum(xs), square)(short, long)
    async with graph:
        await graph.run({x: np.ones((2, 2), "float32")})
        found = analyse(graph.recording())
    assert [step.name for step in found.path] == ["first", "long", "last"]
    assert {op.name: op.calls for op in found.ops} == dict.fromkeys(["first", "aside", "short", "long", "last"], 1)
