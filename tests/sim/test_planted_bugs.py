"""Bugs planted in the engine, one at a time: the race detector, or the comparison with the CPU, finds each.

Time stands still on the device while the frames are launched, so what is found does not depend on how fast anything is:
nothing has ended when the next work comes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.runtime.build
from actorflow import ops
from actorflow.actors.blob import deliver
from actorflow.actors.frame import Frame
from actorflow.actors.op import OpActor
from actorflow.actors.stream import StreamViewActor, TransferActor, _OnStream
from actorflow.devices.cpu import CPU
from actorflow.devices.sim import RaceError
from actorflow.devices.stream import StreamBucket, StreamLane, StreamPool, _CommonBucket
from actorflow.runtime.build import Builder
from tests.sim.conftest import Standstill

SHAPE = (4, 4)
FRAMES = 3
Patch = pytest.MonkeyPatch


def feeds(count: int) -> list[dict[str, np.ndarray]]:
    return [{"x": np.random.default_rng(i).standard_normal(SHAPE).astype("f")} for i in range(count)]


def turned(x: af.Blob, lane: str, name: str) -> af.Blob:
    """An op that cannot work in place."""
    with x.graph.root.at(x.place, lane):
        return ops.transpose(x, name=name)


# -- graphs: each makes its nodes on a place and returns what is fetched -------------------------------------------


def two_lanes(graph: af.Graph, place: str) -> list[af.Blob]:
    """From one lane to another."""
    with graph.at(place):
        x = graph.blob("x", SHAPE)
    return [turned(turned(x, "left", "a"), "right", "b")]


def crossing(graph: af.Graph, place: str) -> list[af.Blob]:
    """Buffers of one type come and go on two lanes."""
    with graph.at(place):
        x = graph.blob("x", SHAPE)
    left = right = x
    for i in range(4):
        left, right = turned(left, "left", f"left{i}"), turned(right, "right", f"right{i}")
    return [left, right]


def views(graph: af.Graph, place: str) -> list[af.Blob]:
    """A view of a buffer is read on another lane, and the buffer itself is given back last."""
    with graph.at(place):
        x = graph.blob("x", SHAPE)
    a = turned(x, "left", "a")
    with graph.at(place, "left"):
        shown = ops.reshape(a, (2, 8), name="shown")
    away = turned(turned(shown, "right", "b"), "right", "c")
    late = turned(turned(turned(x, "left", "d"), "left", "e"), "left", "f")
    with graph.at(place, "left"):
        return [away, ops.add(late, a, name="g")]


def views_on_one_lane(graph: af.Graph, place: str) -> list[af.Blob]:
    """A buffer is read after a view of it was given back."""
    with graph.at(place):
        x = graph.blob("x", SHAPE)
    a = turned(x, "left", "a")
    with graph.at(place, "left"):
        shown = ops.reshape(a, SHAPE, name="shown")
        twice = ops.scale(turned(shown, "left", "b"), 2.0, name="twice")
        return [ops.add(turned(turned(twice, "left", "c"), "left", "d"), a, name="e")]


def two_readers(graph: af.Graph, place: str) -> list[af.Blob]:
    """Two lanes read a value, and one of them could write in its place."""
    with graph.at(place):
        x = graph.blob("x", SHAPE)
    a = turned(x, "left", "a")
    with graph.at(place, "left"):
        b = ops.scale(a, 2.0, name="b")
    return [b, turned(a, "right", "c")]


def home(graph: af.Graph, place: str) -> list[af.Blob]:
    """Graph whose values go from a device to the CPU, and back."""
    with graph.at(place):
        x = graph.blob("x", SHAPE)
        a = turned(x, "left", "a")
    with graph.at("cpu"):
        b = ops.transpose(a, name="b")
    with graph.at(place, "left"):
        return [ops.transpose(b, name="c")]


def abroad(graph: af.Graph, place: str) -> list[af.Blob]:
    """The CPU's values are copied to the device."""
    with graph.at("cpu"):
        x = graph.blob("x", SHAPE)
        a = ops.transpose(x, name="a")
    with graph.at(place):
        return [ops.transpose(a, name="b")]


def peers(graph: af.Graph, place: str) -> list[af.Blob]:
    """From one device to another."""
    with graph.at(place):
        x = graph.blob("x", SHAPE)
        a = turned(x, "left", "a")
    with graph.at("cpu" if place == "cpu" else "sim:1"):
        return [ops.transpose(a, name="b")]


def counting(graph: af.Graph, place: str) -> list[af.Blob]:
    """A variable is updated on one lane, and read on another that is busy with other things before."""
    with graph.at(place):
        x = graph.blob("x", SHAPE)
        w = graph.variable("w", SHAPE, init=1.0)
    [turned(w, "left", "turn")] >> graph.op("update", ops.Scale(2.0), place, "left") >> [w]
    busy = x
    for i in range(5):
        busy = turned(busy, "right", f"busy{i}")
    with graph.at(place, "right"):
        return [ops.add(busy, w, name="read")]


Make = Callable[[af.Graph, str], list[af.Blob]]


async def on_cpu(make: Make) -> list[list[np.ndarray]]:
    """The right results: made before a bug is planted, which may well harm the CPU's lanes, too."""
    graph = af.Graph("cpu")
    fetch = make(graph, "cpu")
    async with graph:
        results = [await graph.run(feed, fetch=[*fetch, graph]) for feed in feeds(FRAMES)]
    return [[result[blob] for blob in fetch] for result in results]


async def compared(still: Standstill, make: Make, apart_s: float, expected: list[list[np.ndarray]]) -> None:
    """Run frames that overlap on the device, and compare them with the CPU's."""
    graph = still.make()
    fetch = make(graph, "sim:0")
    async with graph:
        results = await still.run(feeds(FRAMES), [*fetch, graph], apart_s)
        for result, values in zip(results, expected, strict=True):
            for blob, value in zip(fetch, values, strict=True):
                np.testing.assert_array_equal(af.to_numpy(result[blob]), value)


# -- bugs ----------------------------------------------------------------------------------------------------------


def no_waiting(patch: Patch) -> None:
    patch.setattr(StreamLane, "wait", lambda self, fence: True)


def no_waiting_on_the_device(patch: Patch) -> None:
    patch.setattr(StreamLane, "wait_until", lambda self, other, number: None)


def marks_from_before_the_work(patch: Patch) -> None:
    made, mark = StreamLane.__init__, StreamLane.mark

    def make(self: Any, *args: Any) -> None:
        made(self, *args)
        self.first = self.stream.record()

    def early(self: Any, number: int) -> Any:
        mark(self, number)
        return self.first

    patch.setattr(StreamLane, "__init__", make)
    patch.setattr(StreamLane, "mark", early)


def buffers_taken_whoever_uses_them(patch: Patch) -> None:
    def take(self: Any, spec: Any, lane: Any) -> Any:
        free = self.shelf(spec).free
        return free.popleft()[0] if free else self.new(spec)

    patch.setattr(StreamPool, "take", take)


def buffers_given_back_without_uses(patch: Patch) -> None:
    give_back = StreamPool.give_back
    patch.setattr(StreamPool, "give_back", lambda self, spec, buffer, users: give_back(self, spec, buffer, ()))


def uses_of_the_writer_alone(patch: Patch) -> None:
    def give_back(self: Any, buffer: Any) -> None:
        self.pool.give_back(self.spec, buffer, (self.lane,))

    patch.setattr(StreamBucket, "give_back", give_back)


def inputs_from_elsewhere_given_back_at_once(patch: Patch) -> None:
    made = _OnStream.__init__
    patch.setattr(
        _OnStream,
        "__init__",
        lambda self, wiring, *, early, **others: made(self, wiring, early=wiring.inputs, **others),
    )


def host_buffers_used_again_at_once(patch: Patch) -> None:
    launch = TransferActor.launch

    def early(self: Any, frame: Any) -> None:
        launch(self, frame)
        for blob in self.late:
            if blob.bucket is not None:
                blob.bucket.give_back(frame.values[blob.slot])

    patch.setattr(TransferActor, "launch", early)


def views_with_their_own_lanes(patch: Patch) -> None:
    def users(plan: Any, resources: Any) -> dict[int, tuple[StreamLane, ...]]:
        lanes: dict[int, dict[StreamLane, None]] = {slot.index: {} for slot in plan.slots}
        for op in plan.ops:
            if resources.device(op.place).is_stream:
                for slot in (*op.inputs, *op.outputs):
                    lanes[slot][resources.device(op.place).lane(op.lane)] = None
        return {slot: tuple(names) for slot, names in lanes.items()}

    patch.setattr(actorflow.runtime.build, "_users", users)


def viewed_buffers_given_back_with_the_view(patch: Patch) -> None:
    def drop(self: Any, frame: Any) -> None:
        value, frame.values[self.slot] = frame.values[self.slot], None
        self.bucket.give_back(value if value.base is None else value.base)

    patch.setattr(StreamViewActor, "drop", drop)


def variables_used_on_one_lane(patch: Patch) -> None:
    def give_back(self: Any, buffer: Any) -> None:
        self._stream_pool.give_back(self.spec, buffer, [self._stream_pool.lanes()[0]])

    patch.setattr(_CommonBucket, "give_back", give_back)


def updates_at_once(patch: Patch) -> None:
    patch.setattr("actorflow.actors.op.deliver", lambda updates, frame, fence: deliver(updates, frame, None))


def copies_that_do_not_wait(patch: Patch) -> None:
    patch.setattr(TransferActor, "_follows", lambda self, fence: True)


def no_waiting_for_other_devices(patch: Patch) -> None:
    wait = StreamLane.wait

    def wait_here(self: Any, fence: Any) -> bool:
        return wait(self, fence) or isinstance(fence.lane, StreamLane)

    patch.setattr(StreamLane, "wait", wait_here)


def fences_told_early(patch: Patch) -> None:
    def poll(self: Any) -> bool:
        told = bool(self._marks)
        while self._marks:
            self._tell(*self._marks.popleft(), None)
        return told

    patch.setattr(StreamLane, "poll", poll)


def the_cpu_does_not_wait(patch: Patch) -> None:
    waits_for = OpActor._waits_for
    patch.setattr(
        OpActor,
        "_waits_for",
        lambda self, frame, fences: waits_for(
            self,
            frame,
            fences if isinstance(self, _OnStream) else [f for f in fences if not isinstance(f.lane, StreamLane)],
        ),
    )


def in_place_whoever_reads(patch: Patch) -> None:
    patch.setattr(Builder, "_reuses_input", lambda self, op, buckets: op.kernel is not None and op.kernel.inplace)


def tokens_without_fences(patch: Patch) -> None:
    announce = Frame.announce
    patch.setattr(Frame, "announce", lambda self, followers, fence: announce(self, followers, None))


#: A bug, a graph where it matters, seconds between the frames, and whether it is a race; else the numbers are wrong.
BUGS: list[tuple[Callable[[Patch], None], Make, float, bool]] = [
    (no_waiting, two_lanes, 0.0, True),
    (no_waiting_on_the_device, two_lanes, 0.0, True),
    (marks_from_before_the_work, two_lanes, 0.0, True),
    (tokens_without_fences, two_lanes, 0.0, True),
    (buffers_taken_whoever_uses_them, crossing, 0.0, True),
    (buffers_given_back_without_uses, crossing, 0.0, True),
    (uses_of_the_writer_alone, two_lanes, 0.0, True),
    (views_with_their_own_lanes, views, 0.0, True),
    (viewed_buffers_given_back_with_the_view, views_on_one_lane, 0.0, False),
    (in_place_whoever_reads, two_readers, 0.0, True),
    (variables_used_on_one_lane, counting, 2.5, True),
    (updates_at_once, counting, 0.0, True),
    (copies_that_do_not_wait, home, 0.0, True),
    (copies_that_do_not_wait, peers, 0.0, True),
    (no_waiting_for_other_devices, peers, 0.0, True),
    (fences_told_early, two_lanes, 0.0, True),
    (the_cpu_does_not_wait, home, 0.0, False),
    (host_buffers_used_again_at_once, abroad, 0.0, True),
    (inputs_from_elsewhere_given_back_at_once, peers, 2.5, True),
]
CASES = list(dict.fromkeys((make, apart_s) for _, make, apart_s, _ in BUGS))


@pytest.fixture(autouse=True)
def spoiled_memory(monkeypatch: Patch) -> None:
    """New memory of the host holds no numbers that might be right."""
    monkeypatch.setattr(CPU, "allocate", lambda self, spec: np.full(spec.shape, np.nan, spec.dtype))


def named(case: Any) -> str | None:
    return getattr(case, "__name__", None)


@pytest.mark.parametrize(("make", "apart_s"), CASES, ids=named)
async def test_without_a_bug_nothing_is_found(still: Standstill, make: Make, apart_s: float) -> None:
    await compared(still, make, apart_s, await on_cpu(make))


@pytest.mark.parametrize(("bug", "make", "apart_s", "races"), BUGS, ids=named)
async def test_bug(
    still: Standstill, monkeypatch: Patch, bug: Callable[[Patch], None], make: Make, apart_s: float, races: bool
) -> None:
    expected = await on_cpu(make)
    bug(monkeypatch)
    with pytest.raises((af.OpError, RaceError) if races else AssertionError) as caught:
        await compared(still, make, apart_s, expected)
    if races:
        error: BaseException | None = caught.value
        while error is not None and not isinstance(error, RaceError):
            error = error.__cause__
        assert re.search(r"op '.*' on lane", str(error))
