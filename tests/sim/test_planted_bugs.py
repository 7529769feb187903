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
from actorflow.actors.stream import TransferActor, _OnStream
from actorflow.devices.cpu import CPU
from actorflow.devices.sim import RaceError
from actorflow.devices.stream import StreamLane, StreamPool
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


async def compared(still: Standstill, make: Make, expected: list[list[np.ndarray]]) -> None:
    """Run frames that overlap on the device, and compare them with the CPU's."""
    graph = still.make()
    fetch = make(graph, "sim:0")
    async with graph:
        results = await still.run(feeds(FRAMES), [*fetch, graph], 0.0)
        for result, values in zip(results, expected, strict=True):
            for blob, value in zip(fetch, values, strict=True):
                np.testing.assert_array_equal(af.to_numpy(result[blob]), value)


# -- bugs ----------------------------------------------------------------------------------------------------------


def no_waiting_on_the_device(patch: Patch) -> None:
    patch.setattr(StreamLane, "wait_until", lambda self, other, number: None)


def buffers_taken_whoever_uses_them(patch: Patch) -> None:
    def take(self: Any, spec: Any, lane: Any) -> Any:
        free = self.shelf(spec).free
        return free.popleft()[0] if free else self.new(spec)

    patch.setattr(StreamPool, "take", take)


def updates_at_once(patch: Patch) -> None:
    patch.setattr("actorflow.actors.op.deliver", lambda updates, frame, fence: deliver(updates, frame, None))


def copies_that_do_not_wait(patch: Patch) -> None:
    patch.setattr(TransferActor, "_follows", lambda self, fence: True)


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


#: A bug, a graph where it matters, and whether it is a race; else the numbers are wrong.
BUGS: list[tuple[Callable[[Patch], None], Make, bool]] = [
    (no_waiting_on_the_device, two_lanes, True),
    (tokens_without_fences, two_lanes, True),
    (buffers_taken_whoever_uses_them, crossing, True),
    (in_place_whoever_reads, two_readers, True),
    (updates_at_once, counting, True),
    (copies_that_do_not_wait, home, True),
    (the_cpu_does_not_wait, home, False),
]
MAKES = list(dict.fromkeys(make for _, make, _ in BUGS))


@pytest.fixture(autouse=True)
def spoiled_memory(monkeypatch: Patch) -> None:
    """New memory of the host holds no numbers that might be right."""
    monkeypatch.setattr(CPU, "allocate", lambda self, spec: np.full(spec.shape, np.nan, spec.dtype))


def named(case: Any) -> str | None:
    return getattr(case, "__name__", None)


@pytest.mark.parametrize("make", MAKES, ids=named)
async def test_without_a_bug_nothing_is_found(still: Standstill, make: Make) -> None:
    await compared(still, make, await on_cpu(make))


@pytest.mark.parametrize(("bug", "make", "races"), BUGS, ids=named)
async def test_bug(
    still: Standstill, monkeypatch: Patch, bug: Callable[[Patch], None], make: Make, races: bool
) -> None:
    expected = await on_cpu(make)
    bug(monkeypatch)
    with pytest.raises((af.OpError, RaceError) if races else AssertionError) as caught:
        await compared(still, make, expected)
    if races:
        error: BaseException | None = caught.value
        while error is not None and not isinstance(error, RaceError):
            error = error.__cause__
        assert re.search(r"op '.*' on lane", str(error))
