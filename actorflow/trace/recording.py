"""A trace to take away: calls with the names of their nodes, as a file for trace viewers and back.

The file is one for Chrome's and Perfetto's viewers, gzipped if its name ends in ``.gz``. Source: "Trace Event Format",
the Catapult project.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import DataError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Node, Op
from actorflow.spec import Lengths
from actorflow.trace.ring import Calls, RecordedValue

#: Name of a node that was deleted after its calls.
GONE = "a node that is gone"

_PROCESS, _FRAMES = 1, 1
_FIRST_TRACK = 2  # ids from 1: Perfetto takes 0 for the idle process
_ROWS = 256  # rows that are made numbers of Python at once


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
        ones, Perfetto would drop all but one without a word. So are frames. The exception of a failed call is an
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
        for number, start, end in _rows(*self.frames()):
            axes = self.lengths.get(number, ())
            yield from _pair(f'"frame {number}"', "frame", number + 1, _FRAMES, start, end, number, None, axes)
        quoted = [json.dumps(name) for name in self.names]
        for at in range(len(self.tracks)):
            yield from self._call_events(np.flatnonzero(self.track == at), at, quoted)
        for value in self.values:
            yield _counter(value)

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
    """A copy of a graph's newest calls, made on the loop in no time; the rest may be done in a thread."""

    graph: str  # name of the graph
    nodes: Sequence[Node]
    calls: Calls
    tracks: Sequence[str]  # `Trace.tracks`
    origin_ns: int  # `Trace.origin_ns`
    started_s: float  # `Trace.origin_s`
    values: Sequence[RecordedValue] = ()  # `Trace.values`; they may be left out for those who may not see them

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
        """`Recording.pieces` of the calls; empty ones first, while it finds their ops."""
        for step in self._steps():
            if step is None:
                yield ""
            else:
                yield from step.pieces()

    def _steps(self) -> Iterator[Recording | None]:
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


_GZIP = b"\x1f\x8b"
#: Errors of values that have other types and sizes than they should have.
_WRONG = (AttributeError, TypeError, ValueError, OverflowError)
#: Microseconds from the first time to the last, at most: 146 years, of which nanoseconds fit into 64 bits.
_MOST_US = 2.0**62 / 1e3
#: Begin and end in microseconds, track, node, frame, and its exception.
_Row = tuple[float, float, int, int, int, str | None]


def read_trace(path: str | PathLike[str]) -> Recording:
    """Read a trace file, gzipped or not: of `Graph.save_trace`, of the live page, or of another program.

    Of another program's events all that have a length are taken as calls: complete ones (``X``), pairs of ``B`` and
    ``E`` on one thread, and asynchronous pairs (``b``, ``e``).

    Raises:
        OSError: if the file cannot be read.
        DataError: if it is empty, cut off, not a trace, or has no event with a length.
    """
    document = _document(Path(path))
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise DataError(f'{path} is JSON, but not a trace: expected a list of events, or an object with "traceEvents"')
    about = document.get("otherData", {}) if isinstance(document, dict) else {}
    said = about.get("actorflow") if isinstance(about, dict) else None
    ours = said if isinstance(said, dict) else None
    try:
        spans = _Spans(is_ours=ours is not None)
        for event in events:
            if isinstance(event, dict):
                spans.take(event)
    except KeyError as error:
        raise DataError(f"{path} is not a trace: event {event} has no {error}") from error
    except _WRONG as error:
        raise DataError(f"{path} is not a trace: event {event} cannot be read: {error}") from error
    if not spans.rows:
        raise DataError(
            f"{path} has no calls: none of its {len(events)} events has a length"
            if ours is None
            else f"{path} is the trace of graph {ours.get('graph')!r} before its first call: there is nothing to show"
        )
    try:
        return spans.recording(ours)
    except _WRONG as error:
        raise DataError(f"{path} is damaged: {error}") from error


def _document(path: Path) -> Any:
    content = path.read_bytes()
    if content.startswith(_GZIP):
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(f"{path} is gzipped, but damaged or cut off: {error}") from error
    if not content.strip():
        raise DataError(f"{path} is empty: expected a trace as JSON")
    try:
        text = content.decode("utf-8-sig")
        return json.loads(text)
    except json.JSONDecodeError as error:
        return _unclosed(path, text, error)
    except (ValueError, RecursionError) as error:  # bytes that are not text, numbers of thousands of digits
        raise DataError(f"{path} is not a trace: it is not JSON ({error})") from error


def _unclosed(path: Path, text: str, error: json.JSONDecodeError) -> Any:
    """A list of events need not be closed, so that programs may write it until they are killed."""
    body = text.rstrip().removesuffix(",")
    if body.startswith("[") and body.endswith("}"):
        try:
            return json.loads(f"{body}]")
        except json.JSONDecodeError:
            pass
    if text.lstrip()[0] not in "[{":
        raise DataError(f"{path} is not a trace: it is not JSON ({error})") from error
    if error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated"):
        raise DataError(f"{path} is cut off after {len(text):,} characters: {error}") from error
    raise DataError(f"{path} is not a trace: it is not JSON ({error})") from error


class _Spans:
    """Events with a length, as they are found; where they are not ours, an argument ``error`` may say anything."""

    def __init__(self, *, is_ours: bool) -> None:
        self.rows: list[_Row] = []
        self._is_ours = is_ours
        self._lengths: dict[int, Lengths] = {}
        self._names: dict[str, int] = {}
        self._tracks: dict[tuple[Any, Any], int] = {}
        self._labels: dict[tuple[Any, Any], str] = {}
        self._processes: dict[Any, str] = {}
        self._open: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
        self._values: list[RecordedValue] = []

    def take(self, event: Mapping[str, Any]) -> None:
        """Look at one event; raises KeyError, or one of `_WRONG`, if it lacks a field of its kind."""
        kind = event.get("ph")
        if event.get("cat") == "frame":  # ours: their other fields follow from their calls
            said = event.get("args") or {}
            if self._is_ours and "axes" in said:
                self._lengths[int(said["frame"])] = tuple([(str(name), int(n)) for name, n in said["axes"].items()])
            return
        if kind == "X":
            start_us = _finite(event["ts"])
            self._add(event, start_us, start_us + _finite(event.get("dur", 0)))
        elif kind in ("B", "b"):
            self._open[self._identity(event)].append(event)
        elif kind in ("E", "e"):
            begun = self._open[self._identity(event)]
            if begun:  # spans begun before the file are left out
                first = begun.pop()
                self._add(first, _finite(first["ts"]), _finite(event["ts"]))
        elif kind == "C" and self._is_ours and event.get("cat") == "value":
            figures = {str(name): _finite(number) for name, number in event["args"].items()}
            time_ns = round(_finite(event["ts"]) * 1e3)
            self._values.append(RecordedValue(str(event["name"]), time_ns, int(event["frame"]), figures))
        elif kind == "M":
            label = str((event.get("args") or {}).get("name", ""))
            if event.get("name") == "thread_name":
                self._labels[event.get("pid"), event.get("tid")] = label
            elif event.get("name") == "process_name":
                self._processes[event.get("pid")] = label

    def recording(self, about: Mapping[str, Any] | None) -> Recording:
        """The calls found so far, with the other fields of a file of ours; raises one of `_WRONG` if that is wrong."""
        *columns, errors = zip(*sorted(self.rows, key=itemgetter(1)), strict=True)
        start_us, end_us, track, node, frame = map(np.array, columns)
        origin_us = 0.0 if about is not None else float(start_us.min())
        if not max(np.abs(start_us - origin_us).max(), np.abs(end_us - origin_us).max()) <= _MOST_US:
            raise ValueError(f"its times are not within {_MOST_US:.0f} us of each other")
        names = list(self._names)
        started_s = (about or {}).get("started")
        return Recording(
            graph=str((about or {}).get("graph", "")) or ", ".join(self._processes.values()),
            names=names,
            tracks=[self._label(key) for key in self._tracks],
            follows=None if about is None else self._follows(about.get("follows") or {}),
            start_ns=np.rint((start_us - origin_us) * 1e3).astype(np.int64),
            end_ns=np.rint((end_us - origin_us) * 1e3).astype(np.int64),
            track=track.astype(np.int64),
            node=node.astype(np.int64),
            frame=frame.astype(np.int64),
            lost=int((about or {}).get("lost", 0)),
            started_s=None if started_s is None else _finite(started_s),
            errors={row: error for row, error in enumerate(errors) if error is not None},
            lengths=self._lengths,
            values=self._values,
        )

    def _identity(self, event: Mapping[str, Any]) -> Any:
        if event["ph"] in ("B", "E"):
            return event.get("pid"), event.get("tid")
        local = event.get("id2") or {}
        return (
            event.get("cat"),
            event.get("pid"),
            str(event.get("id", local.get("local", local.get("global")))),
            event.get("name"),
        )

    def _add(self, event: Mapping[str, Any], start_us: float, end_us: float) -> None:
        name = str(event.get("name", "without a name"))
        key = event.get("pid"), event.get("tid")
        arguments = event.get("args") or {}
        frame = arguments.get("frame", -1)
        error = arguments.get("error") if self._is_ours else None
        node = self._names.setdefault(name, len(self._names))
        track = self._tracks.setdefault(key, len(self._tracks))
        is_number = isinstance(frame, int) and not isinstance(frame, bool) and 0 <= frame < 1 << 63
        frame = frame if is_number else -1
        self.rows.append((start_us, max(start_us, end_us), track, node, frame, None if error is None else str(error)))

    def _label(self, key: tuple[Any, Any]) -> str:
        process, thread = key
        label = self._labels.get(key) or f"thread {thread}"
        shared = len({process for process, _ in self._tracks}) == 1
        return label if shared else f"{self._processes.get(process) or f'process {process}'}: {label}"

    def _follows(self, follows: Mapping[str, Any]) -> list[tuple[int, ...]]:
        names = self._names
        return [tuple([names[before] for before in follows.get(name, ()) if before in names]) for name in names]


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError(f"expected a number, got {value}")
    return number
