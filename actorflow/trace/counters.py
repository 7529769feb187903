"""Counters of a running graph: times per op, frames, states of nodes while they are watched, curves of scalars."""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow import core
from actorflow.trace.values import ValueStatistics


class NodeState(IntEnum):
    """State of a node in the latest frame that touched it."""

    IDLE = 0
    WAITING = 1
    RUNNING = 2
    DONE = 3
    FAILED = 4
    CANCELLED = 5
    #: Of an op that no frame computes: its value is there before the first one.
    CONSTANT = 6
    #: Given to a lane, and behind other work there; a monitor never holds it, since only a look at the frames tells.
    QUEUED = 7


class NodeNote(NamedTuple):
    """A remark on a node for watchers; ``node_id`` is its `Node.id`."""

    node_id: int
    text: str


class NotFiniteRecord(NamedTuple):
    """Statistics of the inputs, by the names of the blobs, and results of an op that made a NaN or an infinity."""

    inputs: Mapping[str, ValueStatistics]
    results: Sequence[ValueStatistics]
    paused: bool  # whether the graph was paused, and the frame has gone on


class FailureRecord(NamedTuple):
    """A failed frame, for the live page; ``op_id`` is None where no single op failed."""

    time_s: float
    frame: int
    op_id: int | None
    message: str
    not_finite: NotFiniteRecord | None = None  # where a check of results has failed it, or has paused the graph


#: Counts the calls of one op.
OpProfile = core.Profile


@dataclass(slots=True, eq=False)
class SegmentProfile:
    """Calls of one segment, ops that are launched as one (``af.Graph(..., capture=True)``), by how they were launched.

    Calls that are neither captures nor replays were launched op by op, since their arrays were at new addresses. The
    attributes are described in `actorflow.trace.statistics.SegmentStatistics`.
    """

    ops: tuple[str, ...]
    calls: int = 0
    captures: int = 0
    replays: int = 0
    refusal: str | None = None


@dataclass(slots=True, eq=False, weakref_slot=True)
class FrameCounts:
    """Numbers of a graph's frames by outcome."""

    running: Collection[object]  # frames in flight
    apart: set[object] = field(default_factory=set)  # snapshots among these, which are not counted
    started: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def in_flight(self) -> int:
        """Frames that run now."""
        return len(self.running) - sum(frame in self.running for frame in self.apart)

    @property
    def finished(self) -> int:
        """Frames that have ended well."""
        return self.started - self.in_flight - self.failed - self.cancelled

    def clock(self) -> tuple[int, int]:
        """Numbers of frames that have started, and that have ended."""
        return self.started, self.started - self.in_flight


class Monitor:
    """State per op, kept only while there are watchers; each of them takes the changes since it last looked.

    Ops are known by `Node.id`. Actors store a byte and set a flag, from the loop or a lane's thread; there is no queue,
    so the last state wins and a slow watcher costs nothing.

    Attributes:
        messages: Reports of other ranks on messages between them, by rank: `Node.id` of the blob, the rank that it
            comes from or goes to, whether the rank sends, and in how many frames it waits.
    """

    def __init__(self, size: int) -> None:
        self.states = bytearray(size)  # `NodeState` of each op, by node id
        self.dirty = bytearray(size)  # 1 for each op whose state or profile changed since the last look
        self.messages: dict[int, list[tuple[int, int, bool, int]]] = {}
        self._watchers: weakref.WeakSet[Changes] = weakref.WeakSet()

    def show(self, ids: Iterable[int], state: NodeState) -> None:
        """Set the state of some ops."""
        for node_id in ids:
            self.states[node_id] = state
            self.dirty[node_id] = 1

    def show_all(self, ids: npt.NDArray[np.intp], state: NodeState) -> None:
        """Set the state of many ops, on the loop's thread."""
        np.frombuffer(self.states, np.uint8)[ids] = state
        np.frombuffer(self.dirty, np.uint8)[ids] = 1

    def give_up(self, ids: npt.NDArray[np.intp], others: Iterable[npt.NDArray[np.intp]] = ()) -> None:
        """Some ops, but for others, will not be called any more: none that waits or runs will come to its end."""
        states = np.frombuffer(self.states, np.uint8)
        left = ids[np.isin(states[ids], (NodeState.WAITING, NodeState.RUNNING))]
        for still in others:
            left = left[~np.isin(left, still)]
        if len(left):
            self.show_all(left, NodeState.CANCELLED)

    def changes(self) -> Changes:
        """The changes from now on, for one watcher."""
        changes = Changes(self)
        self._watchers.add(changes)
        return changes

    def spread(self) -> None:
        """Hand the ops that are dirty to all watchers."""
        # Of a copy, made in one piece: lanes write meanwhile. Ops they mark after it stay marked, or is seen now.
        ids = np.flatnonzero(np.frombuffer(bytes(self.dirty), dtype=np.uint8))
        np.frombuffer(self.dirty, dtype=np.uint8)[ids] = 0
        for watcher in self._watchers:
            watcher.pending[ids] = True


class Changes:
    """The ops that changed since one watcher last took them."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self.pending = np.zeros(len(monitor.dirty), dtype=np.bool_)

    def take(self) -> npt.NDArray[np.intp]:
        """Ids of the ops that changed since the last call, ascending."""
        self._monitor.spread()
        ids = np.flatnonzero(self.pending)
        self.pending[ids] = False
        return ids


class Scalars:
    """Fetched 0-d numbers by frame (loss, accuracy), the newest `limit` of each name."""

    def __init__(self, limit: int = 10_000) -> None:
        self.limit = limit
        self.series: defaultdict[str, deque[tuple[int, float]]] = defaultdict(lambda: deque(maxlen=limit))

    def add(self, name: str, frame: int, value: Any) -> None:
        """Append one value."""
        self.series[name].append((frame, float(value)))
