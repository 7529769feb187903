"""The newest calls of a graph, in a ring of fixed size that is always kept."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow import core
from actorflow.core import clock_ns
from actorflow.errors import text_of
from actorflow.spec import Lengths

_Ints = npt.NDArray[np.int64]

_TRACK_SHIFT = 40  # a key's lower bits are the node's id
_FAILED = 1 << 62  # and one of the upper ones says that the call has failed
_MAX_ERRORS = 1024  # failed calls whose exceptions a trace keeps
_MAX_LENGTHS = 1024  # frames of which a trace knows the lengths of open axes
_MAX_REQUESTS = 4096  # requests of batched runs that a trace has
_FORGOTTEN = "failed; with what is not kept any more"
_MAX_VALUES = 8192  # sampled values of which a trace has the statistics; each takes about 600 bytes
_MAX_TEXT = 200  # characters of a call's exception


class EndedRequest(NamedTuple):
    """A request of a batched run that has ended."""

    start_ns: int  # when it came, on the clock of `clock_ns`
    end_ns: int  # when its caller had the result, or the error
    frames: Sequence[int]  # numbers of the frames that have computed its rows; empty where that is not known
    outcome: str  # ``finished``, or the type of the error


class RecordedValue(NamedTuple):
    """Statistics of a value that a tap has sampled.

    Attributes:
        figures: `actorflow.trace.values.ValueStatistics.figures`; those that are not finite are left out in a file.
    """

    name: str  # name of the blob
    time_ns: int  # when its frame ended; on the clock of `clock_ns`, or of a recording
    frame: int  # number of the frame
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls that have ended, well or not, in the order in which they did; arrays of one length, a call each.

    Attributes:
        start_ns: When each began, on the clock of `clock_ns`.
        end_ns: When it ended.
        track: Index in `Trace.tracks`.
        node: `Node.id` of the node that it is shown at.
        frame: Number of its frame; -1 if it belongs to none.
        lost: Number of calls before these that are not kept any more.
        errors: Errors of failed calls in brief, by their position in the arrays.
        lengths: Lengths of the open axes of the newest frames, by their numbers.
    """

    start_ns: _Ints
    end_ns: _Ints
    track: _Ints
    node: _Ints
    frame: _Ints
    lost: int = 0
    errors: Mapping[int, str] = field(default_factory=dict)
    lengths: Mapping[int, Lengths] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """Mask of the calls that have failed."""
        mask = np.zeros(len(self), np.bool_)
        mask[[*self.errors]] = True
        return mask

    def frames(self) -> tuple[_Ints, _Ints, _Ints]:
        """Numbers of the frames, ascending, and when the first call of each began and its last one ended."""
        numbers, of = np.unique(self.frame, return_inverse=True)
        limits = np.iinfo(np.int64)
        starts, ends = np.full(len(numbers), limits.max), np.full(len(numbers), limits.min)
        np.minimum.at(starts, of, self.start_ns)
        np.maximum.at(ends, of, self.end_ns)
        return numbers, starts, ends


def in_brief(error: BaseException) -> str:
    """Text of an error as a trace keeps it: its type and the first line of its message, shortened."""
    kind, text = type(error).__name__, text_of(error).partition("\n")[0]
    brief = f"{kind}: {text}" if text else kind
    return brief if len(brief) <= _MAX_TEXT else f"{brief[: _MAX_TEXT - 3]}..."


class Trace(core.Ring):
    """The newest calls of one graph: a ring of fixed size that is always kept, and read without stopping it.

    Everything is called on the loop's thread. A call costs one `struct` write; there are no objects per call, but for
    the texts of the newest 1,024 failed ones, and of the newest 1,024 frames of open axes their lengths.

    Args:
        capacity: Number of calls that it has room for, a power of two; each takes 32 bytes.
    Attributes:
        total: Calls since the start; the position behind the newest one.
    """

    def __init__(self, capacity: int = 1 << 16) -> None:
        if capacity <= 0 or capacity & (capacity - 1):
            raise ValueError(f"capacity must be a power of two, got {capacity}")
        super().__init__(capacity)
        self.tracks = ["loop"]  # names of the loop and of lanes
        self._numbers = {"loop": 0}
        self._errors: deque[tuple[int, str]] = deque(maxlen=_MAX_ERRORS)
        self._lengths: deque[tuple[int, Lengths]] = deque(maxlen=_MAX_LENGTHS)
        self._requests: deque[tuple[float, float, Sequence[int], str]] = deque(maxlen=_MAX_REQUESTS)
        self._values: deque[RecordedValue] = deque(maxlen=_MAX_VALUES)
        self.requests_total = 0  # requests of batched runs that have ended since the start
        self.origin_ns = clock_ns()  # when the trace was made, on the clock of its times
        self.origin_s = time.time()  # the same moment in Unix seconds

    def key(self, node_id: int, track: str = "loop") -> int:
        """The key of a node on a track for `add`; a new track is made."""
        number = self._numbers.get(track)
        if number is None:
            number = self._numbers[track] = len(self.tracks)
            self.tracks.append(track)
        return number << _TRACK_SHIFT | node_id

    def track_of(self, key: int) -> str:
        """The name of the track of a key."""
        return self.tracks[key >> _TRACK_SHIFT]

    def add_failed(self, end_ns: int, elapsed_ns: int, key: int, frame: int, text: str) -> None:
        """Enter a call that has failed; ``text`` is its error (`in_brief`)."""
        self._errors.append((self.total, text))
        self.add(end_ns, elapsed_ns, key | _FAILED, frame)

    def add_lengths(self, frame: int, lengths: Lengths) -> None:
        """Enter how long the open axes of a frame are, before any of its calls."""
        self._lengths.append((frame, lengths))

    @property
    def position(self) -> tuple[int, int]:
        """Numbers of calls and requests that have ended."""
        return self.total, self.requests_total

    def add_request(self, start_s: float, end_s: float, frames: Sequence[int], outcome: str, times: int = 1) -> None:
        """Enter a request of a batched run that has ended: as in `EndedRequest`, by `time.perf_counter`."""
        self._requests.extend([(start_s, end_s, frames, outcome)] * times)
        self.requests_total += times

    def requests_since(self, position: int) -> list[EndedRequest]:
        """The requests from a position on, as far as they are kept."""
        kept = len(self._requests)
        found = islice(self._requests, max(0, kept - (self.requests_total - position)), None)
        return [EndedRequest(int(start * 1e9), int(end * 1e9), frames, how) for start, end, frames, how in found]

    def add_value(self, value: RecordedValue) -> None:
        """Enter a sampled value."""
        self._values.append(value)

    @property
    def values(self) -> list[RecordedValue]:
        """A copy of the newest 8,192 sampled values."""
        return [*self._values]

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
        texts, failed = dict(self._errors), np.flatnonzero(keys & _FAILED).tolist()
        errors = {row: texts.get(first + row, _FORGOTTEN) for row in failed}
        lost = first - max(position, 0)
        return Calls(ends - spans, ends, tracks, nodes, frames, lost, errors, dict(self._lengths))
