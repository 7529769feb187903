"""Statistics of graphs."""

from __future__ import annotations

import dataclasses
from contextlib import suppress

import numpy as np
import pytest

import actorflow as af
from actorflow.trace.ring import Trace


async def test_figures_of_a_graph() -> None:
    graph = af.Graph("g", memory_budget=1 << 20)
    x = graph.blob("x", (4,))
    y = af.ops.scale(x, 2.0)
    graph.function("invert", lambda y: 1 / int(y[0]), inputs=y)
    nothing = graph.statistics()
    assert (nothing.frames, nothing.calls, nothing.ops, nothing.memory) == ((0, 0, 0, 0, 0), 0, {}, {})
    async with graph:
        for first in (1, 0, 2):
            with suppress(af.OpError):
                await graph.run({x: np.full(4, first, "float32")})
        now = graph.subgraph("scope").statistics()
    assert now.frames._asdict() == {"started": 3, "in_flight": 0, "finished": 2, "failed": 1, "cancelled": 0}
    assert {name: (op.calls, op.failed) for name, op in now.ops.items()} == {"scale": (3, 0), "invert": (2, 1)}
    assert now.ops["scale"].total_ns >= now.ops["scale"].last_ns > 0
    assert now.calls == 6 == len(graph.recording())
    memory = now.memory[af.Place()]
    assert memory.peak_bytes >= memory.held_bytes >= memory.used_bytes >= 0
    assert memory.allocations > 0
    assert (now.shared_bytes, now.segments) == (0, ())
    assert graph.statistics().frames == now.frames
    assert isinstance(now, af.GraphStatistics)
    with pytest.raises(dataclasses.FrozenInstanceError):
        now.calls = 0  # type: ignore[misc]


async def test_nodes_that_were_deleted_are_left_out() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ())
    with graph.subgraph("part"):
        af.ops.scale(x, 2.0)
    y = af.ops.scale(x, 3.0)
    async with graph:
        await graph.run({x: 1.0})
        graph.delete_subgraph("part")
        assert graph.statistics().ops.keys() == {y.producers[0].name}


async def test_free_buffers_are_given_back() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (1000,))
    y = af.ops.relu(af.ops.scale(x, 2.0))
    async with graph:
        for _ in range(3):
            await graph.run({x: np.ones(1000, "float32")}, fetch=[y.producers[0]])
        assert graph.statistics().memory[af.Place()].held_bytes > 0
        graph.trim()
        assert graph.statistics().memory[af.Place()].held_bytes == 0


@pytest.mark.parametrize(("asked", "kept"), [(1, 1), (5, 8), (8, 8)])
async def test_as_many_calls_are_kept_as_asked_for(asked: int, kept: int) -> None:
    graph = af.Graph("g", trace_capacity=asked)
    x = graph.blob("x", ())
    af.ops.scale(x, 2.0)
    async with graph:
        for _ in range(10):
            await graph.run({x: 1.0})
    assert (len(graph.recording()), graph.recording().lost) == (kept, 10 - kept)
    assert graph.statistics().calls == 10


def test_a_graph_keeps_a_call_at_least() -> None:
    with pytest.raises(af.GraphError, match="trace_capacity must be from 1 to 4294967296, got 0"):
        af.Graph("g", trace_capacity=0)


def test_a_trace_that_no_memory_has_room_for_is_refused_as_such() -> None:
    with pytest.raises(MemoryError, match="a trace of 36,028,797,018,963,968 bytes"):
        Trace(1 << 50)
