"""A trace to take away: calls with the names of their nodes, as a file for trace viewers and back.

The file is one for Chrome's and Perfetto's viewers, gzipped if its name ends in ``.gz``. Source: "Trace Event Format",
the Catapult project.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Node, Op
from actorflow.spec import Lengths
from actorflow.trace.ring import Calls, RecordedValue

#: Name of a node that was deleted after its calls.
GONE = "a node that is gone"

_PROCESS, _FRAMES = 1, 1
_FIRST_TRACK = 2  # ids from 1: Perfetto takes 0 for the idle process
#: Rows that are made numbers of Python at once.
_ROWS = 256


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Recording(Calls):
    """Calls with the names of their nodes; times begin when the graph was made.

    Attributes:
        graph: Name of the graph.
        names: Names of the nodes that calls were of; ``node`` is an index in it.
        tracks: Names of the tracks of calls: the loop, lanes, async functions, channels; ``track`` is an index in it.
        follows: For each node the indices of those whose calls in the same frame its own wait for; None if that is
            not known, as in other programs' files.
        started_s: Time 0 in Unix seconds, if that is known.
        values: Statistics of sampled values, in the order of sampling.
    """

    graph: str
    names: Sequence[str]
    tracks: Sequence[str]
    follows: Sequence[tuple[int, ...]] | None
    started_s: float | None = None
    values: Sequence[RecordedValue] = ()

    def __repr__(self) -> str:
        return f"<Recording of graph {self.graph!r}: {len(self):,} calls of {len(self.names):,} nodes>"

    def to_json(self) -> str:
        """The calls for trace viewers: a row per track, and one with the frames.

        Calls of one track that overlap (async functions, messages) are asynchronous events: of overlapping complete
        ones, Perfetto would drop all but one without a word. So are frames. What failed calls have raised is an
        argument of theirs, ``error``, and they are of the category ``failed`` besides.
        """
        return "".join(self.pieces())

    def pieces(self) -> Iterator[str]:
        """The text of `to_json` in short pieces, for a loop that must not work on it for long at once."""
        about = {"graph": self.graph, "lost": self.lost, "started": self.started_s}
        yield f'{{"displayTimeUnit": "ns", "otherData": {{"actorflow": {json.dumps(about)[:-1]}'
        if self.follows is not None:
            yield ', "follows": '
            separator = "{"
            for name, at in {name: at for at, name in enumerate(self.names)}.items():
                yield f"{separator}{json.dumps(name)}: {json.dumps([self.names[i] for i in self.follows[at]])}"
                separator = ", "
            yield "}" if self.names else "{}"
        yield '}}, "traceEvents": [\n'
        separator = ""
        for event in self._events():
            yield separator + event
            separator = ",\n"
        yield "\n]}\n"

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file, gzipped if the name ends in ``.gz``.

        Raises:
            OSError: if the file cannot be written.
        """
        content = self.to_json().encode()
        Path(path).write_bytes(gzip.compress(content, mtime=0) if fspath(path).endswith(".gz") else content)

    def _events(self) -> Iterator[str]:
        yield _metadata("process_name", _PROCESS, self.graph)
        yield _metadata("thread_name", _FRAMES, "frames")
        for at, track in enumerate(self.tracks):
            yield _metadata("thread_name", _FIRST_TRACK + at, track)
        yield from self._frame_events()
        quoted = [json.dumps(name) for name in self.names]
        for at in range(len(self.tracks)):
            yield from self._call_events(np.flatnonzero(self.track == at), at, quoted)
        for value in self.values:
            yield _counter(value)

    def _frame_events(self) -> Iterator[str]:
        for number, start, end in _rows(*self.frames()):
            axes = self.lengths.get(number, ())
            yield from _pair(f'"frame {number}"', "frame", number + 1, _FRAMES, start, end, number, None, axes)

    def _call_events(self, rows: npt.NDArray[np.intp], track: int, quoted: Sequence[str]) -> Iterator[str]:
        rows = rows[np.argsort(self.start_ns[rows], kind="stable")]
        starts, ends = self.start_ns[rows], self.end_ns[rows]
        overlap = bool((starts[1:] < np.maximum.accumulate(ends)[:-1]).any()) if len(rows) else False
        columns = (rows, starts, ends, self.node[rows], self.frame[rows])
        thread = _FIRST_TRACK + track
        for row, start, end, node, frame in _rows(*columns):
            error = self.errors.get(row)
            category = "call" if error is None else "call,failed"
            if overlap:
                yield from _pair(quoted[node], category, row + 1, thread, start, end, frame, error)
            else:
                colour = "" if error is None else '"cname": "terrible", '  # chrome://tracing's word for red
                yield (
                    f'{{"ph": "X", "name": {quoted[node]}, "cat": "{category}", "pid": {_PROCESS}, "tid": {thread}, '
                    f'"ts": {start / 1e3:.3f}, "dur": {(end - start) / 1e3:.3f}, {colour}{_arguments(frame, error)}}}'
                )


@dataclass(frozen=True, slots=True)
class TraceCopy:
    """A copy of a graph's newest calls, made on the loop in no time; the rest may be done in a thread.

    Attributes:
        graph: Name of the graph.
        nodes: Its nodes.
        calls: The calls.
        tracks: `Trace.tracks`.
        origin_ns: `Trace.origin_ns`.
        started_s: `Trace.origin_s`.
        values: `Trace.values`; left out for clients that may not see them.
    """

    graph: str
    nodes: Sequence[Node]
    calls: Calls
    tracks: Sequence[str]
    origin_ns: int
    started_s: float
    values: Sequence[RecordedValue] = ()

    @classmethod
    def of(cls, graph: Graph, *, values: bool = True) -> TraceCopy:
        """Make one, with statistics of values or without; on the thread of the graph's loop, if that runs."""
        trace = graph.engine.trace
        calls, tracks, sampled = trace.since(0), tuple(trace.tracks), trace.values if values else ()
        return cls(graph.name, graph.nodes, calls, tracks, trace.origin_ns, trace.origin_s, sampled)

    def recording(self) -> Recording:
        """The recording: finds the nodes of the calls."""
        *_, recording = self._steps()
        assert isinstance(recording, Recording)
        return recording

    def pieces(self) -> Iterator[str]:
        """`Recording.pieces` of the calls; empty ones first, while it finds out what these were of."""
        for step in self._steps():
            if step is None:
                yield ""
            else:
                yield from step.pieces()

    def _steps(self) -> Iterator[Recording | None]:
        """Short steps of the work, and at the end its result."""
        calls = self.calls
        ids, of = np.unique(calls.node, return_inverse=True)
        seen = set(ids.tolist())
        nodes = {}
        for node in self.nodes:
            if node.id in seen:
                nodes[node.id] = node
            yield None
        index = {node_id: at for at, node_id in enumerate(ids.tolist())}
        follows: list[tuple[int, ...]] = []
        for node_id in index:
            follows.append(_befores(nodes[node_id], index) if node_id in nodes else ())
            yield None
        yield Recording(
            graph=self.graph,
            names=[nodes[node_id].name if node_id in nodes else GONE for node_id in index],
            tracks=self.tracks,
            follows=follows,
            start_ns=calls.start_ns - self.origin_ns,
            end_ns=calls.end_ns - self.origin_ns,
            track=calls.track,
            node=of.astype(np.int64),
            frame=calls.frame,
            lost=calls.lost,
            started_s=self.started_s,
            errors=calls.errors,
            lengths=calls.lengths,
            values=[value._replace(time_ns=value.time_ns - self.origin_ns) for value in self.values],
        )


def _befores(node: Node, index: dict[int, int]) -> tuple[int, ...]:
    """Indices of nodes whose calls come right before a node's: those that write its inputs, their copies and sums."""
    blobs = node.inputs if isinstance(node, Op) else [node] if isinstance(node, Blob) else []
    before = [writer.id for blob in blobs for writer in (*blob.producers, blob)]
    return tuple(dict.fromkeys([index[i] for i in before if i in index and i != node.id]))


def _rows(*columns: npt.NDArray[np.integer[Any]]) -> Iterator[tuple[int, ...]]:
    """Arrays of one length, row by row, as Python's numbers."""
    for at in range(0, len(columns[0]), _ROWS):
        yield from zip(*[column[at : at + _ROWS].tolist() for column in columns], strict=True)


def _metadata(kind: str, thread: int, name: str) -> str:
    event: dict[str, Any] = {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": {"name": name}}
    return json.dumps(event)


def _counter(value: RecordedValue) -> str:
    # Each argument is a curve in the viewers: the number of the frame is beside them.
    figures = {name: number for name, number in value.figures.items() if math.isfinite(number)}
    head = f'"ph": "C", "name": {json.dumps(value.name)}, "cat": "value", "pid": {_PROCESS}, "frame": {value.frame}'
    return f'{{{head}, "ts": {value.time_ns / 1e3:.3f}, "args": {json.dumps(figures)}}}'


def _arguments(frame: int, error: str | None, lengths: Lengths = ()) -> str:
    axes = f', "axes": {json.dumps(dict(lengths))}' if lengths else ""
    return f'"args": {{"frame": {frame}{axes}' + ("}" if error is None else f', "error": {json.dumps(error)}}}')


def _pair(
    name: str,
    category: str,
    number: int,
    thread: int,
    start: int,
    end: int,
    frame: int,
    error: str | None = None,
    lengths: Lengths = (),
) -> Iterator[str]:
    head = f'"name": {name}, "cat": "{category}", "id": "{number:#x}", "pid": {_PROCESS}, "tid": {thread}'
    yield f'{{"ph": "b", {head}, "ts": {start / 1e3:.3f}, {_arguments(frame, error, lengths)}}}'
    yield f'{{"ph": "e", {head}, "ts": {end / 1e3:.3f}}}'
