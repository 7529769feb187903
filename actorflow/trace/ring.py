"""What happened: calls that have ended, times per op, states of nodes while somebody watches, curves of scalars."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.errors import text_of

pack_call = Struct("=qqqq").pack_into
CALL_BYTES = 32
_TRACK_SHIFT = 40  # a key's lower bits are the node's id
_FAILED = 1 << 62  # and one of the upper ones says that the call has failed
#: Failed calls of which a trace knows what they have raised.
_MAX_ERRORS = 1024
_FORGOTTEN = "failed; with what is not kept any more"
#: Characters of what a call has raised.
_MAX_TEXT = 200


class NodeState(IntEnum):
    """What a node does in the latest frame that touched it."""

    IDLE = 0
    WAITING = 1
    RUNNING = 2
    DONE = 3
    FAILED = 4
    CANCELLED = 5


class Note(NamedTuple):
    """What those who watch are told of a node; ``node_id`` is its `Node.id`."""

    node_id: int
    text: str


class OpProfile:
    """Calls and time of one op since its graph was made; always kept.

    Attributes:
        calls: Calls that have ended well.
        failed: Calls that have failed, those that were repeated as well.
        total_ns: Wall time of those that ended well, in nanoseconds: compute on a lane or on the loop, waiting for
            async functions.
        last_ns: Wall time of the latest of them.
    """

    __slots__ = ("calls", "failed", "last_ns", "total_ns")

    def __init__(self) -> None:
        self.calls = 0
        self.failed = 0
        self.total_ns = 0
        self.last_ns = 0

    def add(self, elapsed_ns: int) -> None:
        """A call has ended well."""
        self.calls += 1
        self.total_ns += elapsed_ns
        self.last_ns = elapsed_ns


class SegmentProfile:
    """What became of the calls of one segment: ops that are launched as one (``af.Graph(..., capture=True)``).

    Calls that are neither captures nor replays were launched op by op, since their arrays were at new addresses.

    Attributes:
        ops: Names of the ops.
        calls: Calls so far.
        captures: Calls that were captured, and replayed at once.
        replays: Calls that launched what was captured before.
        refusal: Why the device cannot capture it; None if it can, as far as is known.
    """

    __slots__ = ("calls", "captures", "ops", "refusal", "replays")

    def __init__(self, ops: tuple[str, ...]) -> None:
        self.ops = ops
        self.calls = 0
        self.captures = 0
        self.replays = 0
        self.refusal: str | None = None


class FrameCounts:
    """Frames of one graph, by what became of them."""

    __slots__ = ("cancelled", "failed", "finished", "started")

    def __init__(self) -> None:
        self.started = 0
        self.finished = 0
        self.failed = 0
        self.cancelled = 0

    @property
    def in_flight(self) -> int:
        """Frames that run now."""
        return self.started - self.finished - self.failed - self.cancelled


class Monitor:
    """State per op, kept only while somebody watches; actors write it, each watcher takes what changed for him.

    Ops are known by `Node.id`. Actors store a byte and set a flag, from the loop or a lane's thread; there is no queue,
    so the last state wins and a slow watcher costs nothing.

    Attributes:
        states: `NodeState` of each op, by node id.
        dirty: 1 for each op whose state or profile changed since anybody looked.
        messages: What other ranks say of messages between them, by rank: `Node.id` of the blob, the rank that it comes
            from or goes to, whether the rank sends, and in how many frames it waits.
    """

    __slots__ = ("_watchers", "dirty", "messages", "states")

    def __init__(self, size: int) -> None:
        self.states = bytearray(size)
        self.dirty = bytearray(size)
        self.messages: dict[int, list[tuple[int, int, bool, int]]] = {}
        self._watchers: weakref.WeakSet[Changes] = weakref.WeakSet()

    def changes(self) -> Changes:
        """What changes from now on, for one watcher."""
        changes = Changes(self)
        self._watchers.add(changes)
        return changes

    def spread(self) -> None:
        """Hand the ops that are dirty to all watchers."""
        # Of a copy, made in one piece: lanes write meanwhile. What they mark after it stays marked, or is seen now.
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
        self.series: dict[str, deque[tuple[int, float]]] = {}

    def add(self, name: str, frame: int, value: Any) -> None:
        """Append one value."""
        series = self.series.get(name)
        if series is None:
            series = self.series[name] = deque(maxlen=self.limit)
        series.append((frame, float(value)))


class Calls(NamedTuple):
    """Calls that have ended, well or not, in the order in which the loop saw them end; arrays of one length.

    Attributes:
        start_ns: When each began, on the clock of `time.perf_counter_ns`.
        end_ns: When it ended.
        track: Index in `Trace.tracks` of what it ran on.
        node: `Node.id` of what it shows up as.
        frame: Number of its frame.
        lost: How many there were besides that the ring no longer has.
        errors: What failed calls have raised, in brief, by their place in the arrays.
    """

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    track: npt.NDArray[np.int64]
    node: npt.NDArray[np.int64]
    frame: npt.NDArray[np.int64]
    lost: int
    errors: Mapping[int, str]

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """Which calls have failed."""
        return marked(self.errors, len(self.node))


def marked(places: Iterable[int], size: int) -> npt.NDArray[np.bool_]:
    """An array that is True at some places."""
    mask = np.zeros(size, np.bool_)
    mask[[*places]] = True
    return mask


class FailureRecord(NamedTuple):
    """A failed frame, for those who watch; ``op_id`` is None where no single op failed."""

    time_s: float
    frame: int
    op_id: int | None
    message: str


def in_brief(error: BaseException) -> str:
    """What a call has raised, as a trace keeps it: its type and the first line of its message, not too long."""
    kind, text = type(error).__name__, text_of(error).partition("\n")[0]
    brief = f"{kind}: {text}" if text else kind
    return brief if len(brief) <= _MAX_TEXT else f"{brief[: _MAX_TEXT - 3]}..."


class Trace:
    """The newest calls of one graph: a ring of fixed size that is always kept, and read without stopping it.

    Everything is called on the loop's thread. A call costs one `struct` write; there are no objects per call, but for
    the texts of the newest 1,024 failed ones.

    Args:
        capacity: How many calls it has room for, a power of two; each takes 32 bytes.

    Attributes:
        tracks: Names of what calls run on: the loop, lanes.
        total: Calls since the start; the position behind the newest one.
        buffer: The ring; `OpActor` writes to it as `add` does.
        mask: One less than the capacity.
        origin_ns: When the trace was made, on the clock of its times.
        origin_s: The same moment in Unix seconds.
    """

    __slots__ = ("_errors", "_numbers", "buffer", "mask", "origin_ns", "origin_s", "total", "tracks")

    def __init__(self, capacity: int = 1 << 16) -> None:
        if capacity <= 0 or capacity & (capacity - 1):
            raise ValueError(f"capacity must be a power of two, got {capacity}")
        self.buffer = bytearray(capacity * CALL_BYTES)
        self.mask = capacity - 1
        self.tracks = ["loop"]
        self._numbers = {"loop": 0}
        self._errors: deque[tuple[int, str]] = deque(maxlen=_MAX_ERRORS)
        self.total = 0
        self.origin_ns = time.perf_counter_ns()
        self.origin_s = time.time()

    def key(self, node_id: int, track: str = "loop") -> int:
        """What `add` is told of a node on a track, which is made where it is new."""
        number = self._numbers.get(track)
        if number is None:
            number = self._numbers[track] = len(self.tracks)
            self.tracks.append(track)
        return number << _TRACK_SHIFT | node_id

    def track_of(self, key: int) -> str:
        """The name of the track of a key."""
        return self.tracks[key >> _TRACK_SHIFT]

    def add(self, end_ns: int, elapsed_ns: int, key: int, frame: int) -> None:
        """A call has ended."""
        total = self.total
        pack_call(self.buffer, (total & self.mask) * CALL_BYTES, end_ns, elapsed_ns, key, frame)
        self.total = total + 1

    def add_failed(self, end_ns: int, elapsed_ns: int, key: int, frame: int, text: str) -> None:
        """A call has failed; ``text`` is what it has raised (`in_brief`)."""
        self._errors.append((self.total, text))
        self.add(end_ns, elapsed_ns, key | _FAILED, frame)

    def since(self, position: int) -> Calls:
        """A copy of the calls from a position on, as far as the ring has them; `total` is where to go on."""
        first = max(position, self.total - self.mask - 1, 0)
        ring = np.frombuffer(self.buffer, np.int64).reshape(-1, 4)
        start, stop = first & self.mask, self.total & self.mask
        if first >= self.total:
            rows = ring[:0]
        elif start < stop:
            rows = ring[start:stop].copy()
        else:
            rows = np.concatenate([ring[start:], ring[:stop]])
        ends, spans, keys, frames = rows.T
        nodes = keys & ((1 << _TRACK_SHIFT) - 1)
        tracks = (keys & ~_FAILED) >> _TRACK_SHIFT
        return Calls(ends - spans, ends, tracks, nodes, frames, first - max(position, 0), self._errors_of(keys, first))

    def _errors_of(self, keys: npt.NDArray[np.int64], first: int) -> dict[int, str]:
        failed = np.flatnonzero(keys & _FAILED).tolist()
        if not failed:
            return {}
        texts = dict(self._errors)
        return {row: texts.get(first + row, _FORGOTTEN) for row in failed}
