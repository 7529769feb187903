"""Reads trace files: the ones that graphs save, and as far as their events allow, files of other programs.

Source: "Trace Event Format", the Catapult project.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Mapping
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from actorflow.errors import DataError
from actorflow.spec import Lengths
from actorflow.trace.recording import Recording
from actorflow.trace.ring import RecordedValue

_GZIP = b"\x1f\x8b"
#: Errors of values that have other types and sizes than they should have.
_WRONG = (AttributeError, TypeError, ValueError, OverflowError)
#: Microseconds from the first time to the last, at most: 146 years, of which nanoseconds fit into 64 bits.
_MOST_US = 2.0**62 / 1e3
#: Begin and end in microseconds, track, node, frame, error.
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
    """Events with a length, as they are found.

    Args:
        is_ours: Whether an argument ``error`` says that a call has failed; of other programs it may say anything.
    """

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
        """Look at one event.

        Raises:
            KeyError, AttributeError, TypeError, ValueError, OverflowError: if it lacks a field of its kind of event.
        """
        kind = event.get("ph")
        if event.get("cat") == "frame":  # ours: what else they say follows from their calls
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
            if begun:  # what began before the file did is left out
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
        """The calls found so far, with the names and lengths that our own files have.

        Raises:
            AttributeError, TypeError, ValueError, OverflowError: if that has another form.
        """
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
