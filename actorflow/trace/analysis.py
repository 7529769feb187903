"""Analysis of a recording: times of lanes, ops and frames, idle stretches, and the critical path of a frame."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.errors import GraphError
from actorflow.trace.recording import Recording

_Ints = npt.NDArray[np.int64]


class LaneTimes(NamedTuple):
    """One lane, or another track that calls run on."""

    name: str
    calls: int  # calls that ran on it
    busy_ns: int  # time in which at least one of them ran
    share: float  # share of the trace's span in which it was busy
    longest_idle_ns: int  # between two of its calls


class OpTimes(NamedTuple):
    """The calls of one op, failed ones among them."""

    name: str
    calls: int
    failed: int  # number of failed ones
    total_ns: int  # their times together
    mean_ns: float  # their mean
    p50_ns: float  # their median
    p99_ns: float  # their 99th percentile
    share: float  # share of the times of all calls


class Gap(NamedTuple):
    """A stretch in which nothing ran anywhere."""

    start_ns: int
    length_ns: int
    before: tuple[str, int]  # the op whose call ended last before it, and its frame
    after: tuple[str, int]  # the op whose call ended it, and its frame


class PathCall(NamedTuple):
    """One call on a frame's critical path."""

    name: str
    track: str  # lane or other track that it ran on
    waited_ns: int  # from the end of the call that it follows, or from the begin of the frame
    behind_ns: int  # part of that in which its track was busy with other calls
    elapsed_ns: int
    failed: bool = False  # whether it has failed


class Frames(NamedTuple):
    """The frames of a trace."""

    total: int
    p50_ns: float  # median time from the begin of a frame's first call to the end of its last
    p99_ns: float  # 99th percentile of it
    overlap: float  # mean number in flight over the time in which any was
    most: int  # largest number in flight
    median: int  # number of a frame with the median latency
    slowest: int  # number of the one that took longest


class Analysis(NamedTuple):
    """Result of `analyse`."""

    span_ns: int  # from the begin of the first call to the end of the last
    calls: int
    failed: int  # number of failed ones
    lost: int  # number of earlier calls that it does not have
    idle_ns: int  # time of the span in which nothing ran
    lanes: list[LaneTimes]  # busy ones first
    ops: list[OpTimes]  # costly ones first
    gaps: list[Gap]  # long ones first
    frames: Frames | None  # None if its calls belong to no frames
    path_frame: int | None  # number of the frame whose critical path this is
    path: list[PathCall]  # its calls, in order


def analyse(recording: Recording, *, frame: int | None = None, gaps: int = 5) -> Analysis:
    """Find out where the time went; the critical path is that of ``frame``, by default one with the median latency.

    Raises:
        GraphError: if there is no call, or none of that frame.
    """
    if not len(recording):
        raise GraphError(f"the trace of graph {recording.graph!r} has no calls: there is nothing to analyse")
    start, end = recording.start_ns, recording.end_ns
    span_ns = int(end.max() - start.min())
    frames = _frames(recording)
    chosen = frame if frame is not None else frames.median if frames is not None else None
    if chosen is not None and not (recording.frame == chosen).any():
        numbers = np.unique(recording.frame[recording.frame >= 0])
        known = f"frames {numbers[0]} to {numbers[-1]}" if len(numbers) else "none"
        raise GraphError(f"the trace has no call of frame {chosen}; it has {known}")
    idle_ns, found = _gaps(recording, gaps)
    return Analysis(
        span_ns=span_ns,
        calls=len(recording),
        failed=len(recording.errors),
        lost=recording.lost,
        idle_ns=idle_ns,
        lanes=sorted(_lanes(recording, span_ns), key=lambda lane: (-lane.busy_ns, lane.name)),
        ops=sorted(_ops(recording), key=lambda op: (-op.total_ns, op.name)),
        gaps=found,
        frames=frames,
        path_frame=chosen,
        path=[] if chosen is None else _path(recording, chosen),
    )


def _busy(start: _Ints, end: _Ints) -> tuple[_Ints, _Ints]:
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reached = start[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.concatenate([[True], start[1:] > reached[:-1]]))
    return start[first], reached[np.append(first[1:] - 1, len(start) - 1)]


def _lanes(recording: Recording, span_ns: int) -> Iterator[LaneTimes]:
    for number, name in enumerate(recording.tracks):
        rows = np.flatnonzero(recording.track == number)
        if len(rows):
            begins, ends = _busy(recording.start_ns[rows], recording.end_ns[rows])
            busy_ns = int((ends - begins).sum())
            idle_ns = int((begins[1:] - ends[:-1]).max(initial=0))
            yield LaneTimes(name, len(rows), busy_ns, busy_ns / max(span_ns, 1), idle_ns)


def _ops(recording: Recording) -> Iterator[OpTimes]:
    elapsed = recording.end_ns - recording.start_ns
    everything = max(int(elapsed.sum()), 1)
    order = np.argsort(recording.node, kind="stable")
    nodes, first = np.unique(recording.node[order], return_index=True)
    failed = np.bincount(recording.node[recording.failed], minlength=len(recording.names)).tolist()
    for node, times in zip(nodes.tolist(), np.split(elapsed[order], first[1:]), strict=True):
        p50, p99 = np.quantile(times, [0.5, 0.99]).tolist()
        count, total = len(times), int(times.sum())
        name = recording.names[node]
        yield OpTimes(name, count, failed[node], total, total / count, p50, p99, total / everything)


def _gaps(recording: Recording, most: int) -> tuple[int, list[Gap]]:
    begins, ends = _busy(recording.start_ns, recording.end_ns)
    lengths = begins[1:] - ends[:-1]
    by_end, by_start = np.argsort(recording.end_ns, kind="stable"), np.argsort(recording.start_ns, kind="stable")
    found = []
    for at in np.argsort(-lengths, kind="stable")[:most].tolist():
        last = by_end[np.searchsorted(recording.end_ns[by_end], ends[at], "right") - 1]
        next_ = by_start[np.searchsorted(recording.start_ns[by_start], begins[at + 1])]
        found.append(Gap(int(ends[at]), int(lengths[at]), _of(recording, last), _of(recording, next_)))
    return int(lengths.sum()), found


def _of(recording: Recording, row: int) -> tuple[str, int]:
    return recording.names[recording.node[row]], int(recording.frame[row])


def _frames(recording: Recording) -> Frames | None:
    everything = recording.frames()
    numbers, starts, ends = (column[everything[0] >= 0] for column in everything)
    if not len(numbers):
        return None
    latencies = ends - starts
    begins, reached = _busy(starts, ends)
    p50, p99 = np.quantile(latencies, [0.5, 0.99]).tolist()
    order = np.argsort(latencies, kind="stable")
    # At the same moment, a frame that ends makes room for one that begins.
    moments = np.concatenate([ends, starts])
    steps = np.concatenate([np.full(len(ends), -1), np.ones(len(starts), np.int64)])
    in_flight = np.cumsum(steps[np.argsort(moments, kind="stable")])
    return Frames(
        total=len(numbers),
        p50_ns=p50,
        p99_ns=p99,
        overlap=float(latencies.sum() / max(int((reached - begins).sum()), 1)),
        most=max(int(in_flight.max()), 1),
        median=int(numbers[order[(len(order) - 1) // 2]]),
        slowest=int(numbers[order[-1]]),
    )


def _path(recording: Recording, frame: int) -> list[PathCall]:
    """From the frame's last call back, each time to the call that it waited for: of those that it follows, the last.

    A call that repeats a failed one waited for that, too. Where the file has no dependencies, it is the last
    call of the frame that ended before.
    """
    rows = np.flatnonzero(recording.frame == frame)
    start, end, node = recording.start_ns[rows], recording.end_ns[rows], recording.node[rows]
    failed = recording.failed[rows]
    rows_of: dict[int, list[int]] = {}
    for at, number in enumerate(node.tolist()):
        rows_of.setdefault(number, []).append(at)
    by_end = np.argsort(end, kind="stable")
    sorted_ends, rank = end[by_end], np.argsort(by_end)
    at = int(by_end[-1])
    busy = [_Busy(recording, track) for track in range(len(recording.tracks))]
    steps, follows = [], recording.follows
    while True:
        before: int | None
        if follows is None:
            # Never one behind it in this order: calls without a length may end when they begin.
            place = min(int(np.searchsorted(sorted_ends, start[at], "right")), int(rank[at])) - 1
            before = int(by_end[place]) if place >= 0 else None
        else:
            earlier = [row for number in follows[node[at]] for row in rows_of.get(number, ()) if start[row] < start[at]]
            earlier += [row for row in rows_of[int(node[at])] if failed[row] and row < at and end[row] <= start[at]]
            before = max(earlier, key=lambda row: (end[row], row), default=None)
        free_ns = int(start.min() if before is None else end[before])
        waited_ns = max(int(start[at]) - free_ns, 0)
        track = int(recording.track[rows[at]])
        behind_ns = busy[track].within(free_ns, int(start[at])) if waited_ns else 0
        name = recording.names[node[at]]
        elapsed_ns = int(end[at] - start[at])
        steps.append(PathCall(name, recording.tracks[track], waited_ns, behind_ns, elapsed_ns, bool(failed[at])))
        if before is None:
            return steps[::-1]
        at = before


class _Busy:
    """Busy time of a track within any stretch of time."""

    def __init__(self, recording: Recording, track: int) -> None:
        rows = recording.track == track
        self._begins, self._ends = _busy(recording.start_ns[rows], recording.end_ns[rows])
        self._before = np.concatenate([[0], np.cumsum(self._ends - self._begins)])

    def within(self, start_ns: int, end_ns: int) -> int:
        return self._until(end_ns) - self._until(start_ns)

    def _until(self, time_ns: int) -> int:
        at = int(np.searchsorted(self._begins, time_ns, "right"))
        over_ns = max(int(self._ends[at - 1]) - time_ns, 0) if at else 0
        return int(self._before[at]) - over_ns
