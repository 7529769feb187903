"""The trace in the format of Chrome's and Perfetto's trace viewers.

Source: "Trace Event Format", the Catapult project.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.history import Calls

__all__ = ["chrome_trace"]

_PROCESS, _FRAMES = 1, 1
_FIRST_TRACK = 2  # ids from 1: Perfetto takes 0 for the idle process


def chrome_trace(
    graph_name: str,
    calls: Calls,
    tracks: Sequence[str],
    names: Sequence[str],
    index_of: npt.NDArray[np.int64],
    origin_ns: int,
) -> str:
    """Calls as JSON: one track per lane, and one with the frames.

    Calls of one track that overlap (async functions, messages) are asynchronous events: of overlapping complete ones,
    Perfetto would drop all but one without a word. So are frames.

    Args:
        graph_name: Name of the process in the viewer.
        calls: What to show.
        tracks: `actorflow.history.Trace.tracks`.
        names: Names of the graph's nodes.
        index_of: Index in ``names`` by `Node.id`, -1 for nodes that are gone.
        origin_ns: Time 0 of the result, on the clock of the calls.
    """
    events: list[str] = [_metadata("process_name", _PROCESS, graph_name), _metadata("thread_name", _FRAMES, "frames")]
    events += [_metadata("thread_name", _FIRST_TRACK + at, track) for at, track in enumerate(tracks)]
    events += _frames(calls, origin_ns)
    quoted = [json.dumps(name) for name in names]
    for track in range(len(tracks)):
        events += _calls(calls, np.flatnonzero(calls.track == track), track, quoted, index_of, origin_ns)
    return '{"displayTimeUnit": "ns", "traceEvents": [\n' + ",\n".join(events) + "\n]}\n"


def _metadata(kind: str, thread: int, name: str) -> str:
    event: dict[str, Any] = {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": {"name": name}}
    return json.dumps(event)


def _frames(calls: Calls, origin_ns: int) -> Iterator[str]:
    numbers, of = np.unique(calls.frame, return_inverse=True)
    starts = np.full(len(numbers), np.iinfo(np.int64).max)
    ends = np.zeros(len(numbers), np.int64)
    np.minimum.at(starts, of, calls.start_ns)
    np.maximum.at(ends, of, calls.end_ns)
    columns = numbers, starts - origin_ns, ends - origin_ns
    for number, start, end in zip(*[column.tolist() for column in columns], strict=True):
        yield from _pair(f'"frame {number}"', "frame", number + 1, _FRAMES, start, end, number)


def _calls(
    calls: Calls,
    rows: npt.NDArray[np.intp],
    track: int,
    quoted: Sequence[str],
    index_of: npt.NDArray[np.int64],
    origin_ns: int,
) -> Iterator[str]:
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    starts, ends = calls.start_ns[rows] - origin_ns, calls.end_ns[rows] - origin_ns
    overlap = bool((starts[1:] < np.maximum.accumulate(ends)[:-1]).any()) if len(rows) else False
    nodes, frames = calls.node[rows], calls.frame[rows]
    known = np.where(nodes < len(index_of), index_of[np.minimum(nodes, len(index_of) - 1)], -1)
    columns = (rows, starts, ends, known, frames)
    for row, start, end, index, frame in zip(*[column.tolist() for column in columns], strict=True):
        name = quoted[index] if index >= 0 else '"a node that is gone"'
        thread = _FIRST_TRACK + track
        if overlap:
            yield from _pair(name, "call", row + 1, thread, start, end, frame)
        else:
            yield (
                f'{{"ph": "X", "name": {name}, "cat": "call", "pid": {_PROCESS}, "tid": {thread}, '
                f'"ts": {start / 1e3:.3f}, "dur": {(end - start) / 1e3:.3f}, "args": {{"frame": {frame}}}}}'
            )


def _pair(name: str, category: str, number: int, thread: int, start: int, end: int, frame: int) -> Iterator[str]:
    head = f'"name": {name}, "cat": "{category}", "id": "{number:#x}", "pid": {_PROCESS}, "tid": {thread}'
    yield f'{{"ph": "b", {head}, "ts": {start / 1e3:.3f}, "args": {{"frame": {frame}}}}}'
    yield f'{{"ph": "e", {head}, "ts": {end / 1e3:.3f}}}'
