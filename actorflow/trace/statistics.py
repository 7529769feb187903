"""Figures of a graph at one moment, by name, for programs that log or export them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from actorflow.graph.graph import Graph
from actorflow.place import Place


class FrameStatistics(NamedTuple):
    """Frames since the graph was made.

    Attributes:
        started: All of them.
        in_flight: Frames that run now, or that still have a thread.
        finished: Frames that ended well.
        failed: Frames that ended with an error.
        cancelled: Frames that were cancelled.
    """

    started: int
    in_flight: int
    finished: int
    failed: int
    cancelled: int


class OpStatistics(NamedTuple):
    """Calls of one op, or of a copy, conversion or sum of one blob.

    Attributes:
        calls: Calls that ended well.
        failed: Calls that failed, repeated or not.
        total_ns: Wall time of the calls that ended well, in nanoseconds.
        last_ns: Wall time of the latest of them.
    """

    calls: int
    failed: int
    total_ns: int
    last_ns: int


class SegmentStatistics(NamedTuple):
    """Calls of ops that are launched as one; see `Graph`, ``capture``.

    Attributes:
        ops: Names of the ops.
        calls: All calls; calls that are neither captures nor replays were launched op by op.
        captures: Calls that were captured, and replayed at once.
        replays: Calls that launched the capture of an earlier one.
        refusal: Why the device cannot capture the segment; None if it can, as far as is known.
    """

    ops: tuple[str, ...]
    calls: int
    captures: int
    replays: int
    refusal: str | None


class MemoryStatistics(NamedTuple):
    """Buffers of one device.

    Attributes:
        used_bytes: Buffers in use, by frames or by the application.
        held_bytes: The same and the free ones.
        peak_bytes: Highest value of ``held_bytes`` so far.
        allocations: Buffers allocated so far.
    """

    used_bytes: int
    held_bytes: int
    peak_bytes: int
    allocations: int


@dataclass(frozen=True, slots=True)
class GraphStatistics:
    """Figures of a graph at one moment; see `Graph.statistics`.

    Attributes:
        frames: Numbers of frames.
        calls: Number of calls that have ended, well or not; `Graph.recording` has the newest.
        ops: Calls and times by name of the op; copies, conversions and sums have the name of
            their blob.
        segments: Calls of ops that are launched as one.
        memory: Buffers by place, of the devices that the graph has opened.
        shared_bytes: Bytes that frames have taken from a memory budget beyond the share kept for the oldest of them.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [2])
        >>> y = af.ops.exp(x)
        >>> _ = graph.run_sync({x: [1, 2]})
        >>> statistics = graph.statistics()
        >>> statistics.frames.finished, statistics.calls, list(statistics.ops)
        (1, 1, ['exp'])
    """

    frames: FrameStatistics
    calls: int
    ops: Mapping[str, OpStatistics]
    segments: tuple[SegmentStatistics, ...]
    memory: Mapping[Place, MemoryStatistics]
    shared_bytes: int


def statistics_of(graph: Graph) -> GraphStatistics:
    """Statistics of a root graph."""
    engine = graph.engine
    frames, profiles = engine.frames, engine.profile
    names = {node.id: node.name for node in graph.nodes if node.id in profiles}
    memory = {place: device.memory for place, device in engine.resources.devices.items()}
    return GraphStatistics(
        FrameStatistics(frames.started, frames.in_flight, frames.finished, frames.failed, frames.cancelled),
        engine.trace.total,
        {
            name: OpStatistics(profile.calls, profile.failed, profile.total_ns, profile.last_ns)
            for node_id, name in names.items()
            if (profile := profiles[node_id]).calls or profile.failed
        },
        tuple(
            SegmentStatistics(segment.ops, segment.calls, segment.captures, segment.replays, segment.refusal)
            for segment in engine.segments.values()
        ),
        {
            place: MemoryStatistics(pool.used_bytes, pool.held_bytes, pool.peak_bytes, pool.allocations)
            for place, pool in memory.items()
        },
        0 if engine.resources.budget is None else engine.resources.budget.shared_bytes,
    )
