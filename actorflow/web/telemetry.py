"""Changes of an engine since a client was last told: states, latencies, frames, curves, failures."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import islice, repeat, takewhile
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from actorflow.actors.under_way import UnderWay
from actorflow.runtime.engine import Engine
from actorflow.trace.counters import Changes, Monitor, NodeState, OpProfile
from actorflow.trace.ring import Trace
from actorflow.web.vitals import functions, streams
from actorflow.web.wire import EncodedGraph, OpStates, encode_calls, encode_states, encode_status

#: A bucket is a quarter of an octave, from 128 ns to 550 s: an estimate is at most 19% off.
_PER_OCTAVE = 4
_FIRST_OCTAVE = 7
_BUCKETS = 128
#: In ops with more calls than this, older ones count half as much, and half of that, and so on.
_FORGETFUL = 4096
#: Of more calls between two looks, only this many of the newest are counted: a look must not take long.
_MAX_LOOKED_AT = 1 << 13
#: Ops beyond these have no estimates; each takes 512 bytes.
_MAX_OPS = 1 << 16
_NO_TRACK = 255
_ONE = np.uint32(1)  # of the counts' own type: another would have each call converted, which takes 20 times as long

_Ints = npt.NDArray[np.int64]


class Latencies:
    """A histogram of logarithmic buckets per op that has calls in the trace which have ended well.

    Args:
        row_of: Row of each op by `Node.id`, -1 for other nodes.

    Attributes:
        track_of: Index in `Trace.tracks` of the track of each row's latest call; 255 if unknown.
        longest_us: Longest call of each row that was looked at; 0 before the first.
    """

    def __init__(self, trace: Trace, row_of: _Ints) -> None:
        self._trace = trace
        self._row_of = row_of
        self.track_of = np.full(int(row_of.max(initial=-1)) + 1, _NO_TRACK, np.uint8)
        self.longest_us = np.zeros(int(row_of.max(initial=-1)) + 1, np.float32)
        self._position = 0
        self._slot_of = np.full(int(row_of.max(initial=-1)) + 1, -1, np.int64)
        self._used = 0
        self._counts = np.zeros((256, _BUCKETS), np.uint32)
        self._totals = np.zeros(_MAX_OPS, np.int64)

    def advance(self) -> _Ints:
        """Take in the calls since the last time; returns the rows of their ops, ascending."""
        total = self._trace.total
        calls = self._trace.since(max(self._position, total - _MAX_LOOKED_AT))
        self._position = total
        known = (calls.node < len(self._row_of)) & ~calls.failed
        rows = self._row_of[calls.node[known]]
        elapsed_ns = (calls.end_ns - calls.start_ns)[known][rows >= 0]
        tracks = calls.track[known][rows >= 0]
        rows = rows[rows >= 0]
        self.track_of[rows] = np.minimum(tracks, _NO_TRACK)
        np.maximum.at(self.longest_us, rows, (elapsed_ns / 1e3).astype(np.float32))
        touched = np.flatnonzero(np.bincount(rows))
        self._make_slots(touched)
        slots = self._slot_of[rows]
        octaves = np.log2(np.maximum(elapsed_ns[slots >= 0], 1)) - _FIRST_OCTAVE
        buckets = np.clip((octaves * _PER_OCTAVE).astype(np.int64), 0, _BUCKETS - 1)
        slots = slots[slots >= 0]
        np.add.at(self._counts.reshape(-1), slots * _BUCKETS + buckets, _ONE)
        self._totals += np.bincount(slots, minlength=len(self._totals))
        many = np.flatnonzero(self._totals > _FORGETFUL)
        self._counts[many] //= 2
        self._totals[many] //= 2
        return touched[self._slot_of[touched] >= 0]

    def estimate_us(self, rows: _Ints, *shares: float) -> list[npt.NDArray[np.float32]]:
        """Microseconds that a share of an op's calls do not exceed; of rows that `advance` has returned.

        It takes about 3 us per row.
        """
        reached = self._counts[self._slot_of[rows]].cumsum(axis=1, dtype=np.uint32)
        lines = np.arange(len(rows))
        estimates = []
        for share in shares:
            wanted = share * reached[:, -1]
            bucket = (reached < wanted[:, None]).sum(axis=1)
            below = np.where(bucket > 0, reached[lines, bucket - 1], 0)
            part = (wanted - below) / (reached[lines, bucket] - below)
            octaves = (bucket + part) / _PER_OCTAVE + _FIRST_OCTAVE
            # A bucket reaches beyond the longest call in it.
            estimates.append(np.minimum((np.exp2(octaves) / 1e3).astype(np.float32), self.longest_us[rows]))
        return estimates

    def _make_slots(self, rows: _Ints) -> None:
        new = rows[self._slot_of[rows] < 0][: _MAX_OPS - self._used]
        needed = self._used + len(new)
        if needed > len(self._counts):
            grown = np.zeros((min(_MAX_OPS, 2 * needed), _BUCKETS), np.uint32)
            grown[: self._used] = self._counts[: self._used]
            self._counts = grown
        self._slot_of[new] = np.arange(self._used, needed)
        self._used = needed


_T = TypeVar("_T")
_CALLS, _TOTAL, _LAST = attrgetter("calls"), attrgetter("total_ns"), attrgetter("last_ns")
_MOST = 0xFFFFFFFF
_NEVER = OpProfile()
#: Calls in one message: more in a tick than can be seen one by one.
_MAX_CALLS = 4000
#: Ops whose quantiles are estimated in one tick, which takes under a millisecond.
_MAX_ESTIMATES = 256


class Tail(Generic[_T]):
    """Counts items appended to a bounded deque, so that every reader can have its own place in it."""

    def __init__(self, items: deque[_T]) -> None:
        self.items = items
        self.total = len(items)
        self._newest = items[-1] if items else None

    def advance(self) -> bool:
        """Count new items; returns whether there are any."""
        if not self.items or self.items[-1] is self._newest:
            return False
        self.total += self._uncounted()
        self._newest = self.items[-1]
        return True

    def since(self, total: int) -> Sequence[_T]:
        """Items counted since `total` was this, as far as the deque still has them; none that came after `advance`."""
        end = len(self.items) - self._uncounted()
        return list(islice(self.items, max(0, end - (self.total - total)), end))

    def _uncounted(self) -> int:
        return sum(1 for _ in takewhile(lambda item: item is not self._newest, reversed(self.items)))


class Position(NamedTuple):
    """Place of a client in the stream: how far it has been told."""

    states: int  # sequence number of the latest states message
    status: int  # sequence number of the latest status message
    curves: dict[str, int]  # number of points it has had of each curve
    failures: int  # number of failures it has had
    notes: int  # number of notes it has had


class Telemetry:
    """The state of one engine's ops and frames, with the sequence number at which each op changed last.

    The first `advance` takes in everything.

    Args:
        structure: The ops to follow, as the clients know them.
    """

    def __init__(self, engine: Engine, structure: EncodedGraph, seq: int) -> None:
        self.engine = engine
        self.structure = structure
        self.seq = seq + 1
        self._monitor: Monitor | None = None
        self._changes: Changes | None = None
        self._changed = np.full(len(structure.op_ids), self.seq, np.int64)
        self._row_of = np.full(int(structure.op_ids.max(initial=-1)) + 1, -1, np.int64)
        self._row_of[structure.op_ids] = np.arange(len(structure.op_ids))
        self._latencies = Latencies(engine.trace, self._row_of)
        self._states = OpStates.zeros(structure.op_index)._replace(
            track=self._latencies.track_of, max_us=self._latencies.longest_us
        )
        self._failed = np.stack([structure.op_index, np.zeros_like(structure.op_index)])  # as they are encoded
        self._failing = np.zeros(0, np.intp)  # rows of ops of which calls have failed
        self._unestimated = np.zeros(len(structure.op_ids), np.bool_)
        self._next_row = 0
        self._under_way = UnderWay({}, {})
        self._now: dict[str, Any] = {}
        self._curves = {name: Tail(points) for name, points in engine.scalars.series.items()}
        self._failures = Tail(engine.errors)
        self._notes = Tail(engine.notes)
        self._states_seq = self._status_seq = self.seq

    def advance(self) -> bool:
        """Take in all changes since the last call; returns whether anything did, and `seq` moved."""
        seq = self.seq + 1
        rows, estimated = self._dirty_rows(), self._estimate()
        if len(rows):
            self._read(rows)
        status = self._advance_status()
        if len(rows) or len(estimated):
            self._changed[rows] = self._changed[estimated] = self._states_seq = seq
        elif not status:
            return False
        # Behind states there is always the status of the same moment, so that both can be shown at once.
        self.seq = self._status_seq = seq
        return True

    def _estimate(self) -> npt.NDArray[np.int64]:
        """Bring quantiles of calls up to date, of some ops at a time; returns their rows."""
        self._unestimated[self._latencies.advance()] = True
        rows = np.flatnonzero(self._unestimated)
        if len(rows) > _MAX_ESTIMATES:
            rows = np.roll(rows, -int(np.searchsorted(rows, self._next_row)))[:_MAX_ESTIMATES]
            self._next_row = int(rows[-1]) + 1
        if len(rows):
            self._unestimated[rows] = False
            self._states.p50_us[rows], self._states.p99_us[rows] = self._latencies.estimate_us(rows, 0.5, 0.99)
        return rows

    def position(self) -> Position:
        """Position of a client that has been told everything."""
        curves = {name: tail.total for name, tail in self._curves.items()}
        return Position(self._states_seq, self._status_seq, curves, self._failures.total, self._notes.total)

    def encode(self, since: Position | None) -> list[str | bytes]:
        """Encode the changes from ``since`` to now: deltas, or for None the whole state."""
        messages: list[str | bytes] = []
        full, time_s = since is None, time.time()
        told = since or Position(0, 0, {}, 0, 0)
        if full or self._states_seq > told.states:
            messages.append(
                encode_states(
                    self._states.take(np.flatnonzero(self._changed > told.states)),
                    self._failed.take(self._failing[self._changed[self._failing] > told.states], axis=1),
                    base=told.states,
                    seq=self._states_seq,
                    time_s=time_s,
                    revision=self.structure.revision,
                    full=full,
                )
            )
        if full or self._status_seq > told.status:
            curves = {name: tail.since(told.curves.get(name, 0)) for name, tail in self._curves.items()}
            messages.append(
                encode_status(
                    self._now,
                    {name: points for name, points in curves.items() if points},
                    self._failures.since(told.failures),
                    self._notes.since(told.notes),
                    base=told.status,
                    seq=self._status_seq,
                    time_s=time_s,
                    full=full,
                )
            )
        return messages

    def encode_calls(self, since: tuple[int, int] | None) -> list[str | bytes]:
        """Calls and requests since a position of the trace; for None all that it keeps."""
        trace = self.engine.trace
        if since == trace.position:
            return []
        calls, requests = since or (0, 0)
        most = trace.total if since is None else _MAX_CALLS  # at first all that the trace keeps
        return encode_calls(
            trace,
            trace.since(calls),
            trace.requests_since(requests),
            self.structure.index_of,
            time_s=time.time(),
            revision=self.structure.revision,
            most=most,
        )

    def _dirty_rows(self) -> npt.NDArray[np.int64]:
        monitor = self.engine.monitor
        before, self._under_way = self._under_way, UnderWay.of(self.engine.running)
        if monitor is not self._monitor or monitor is None:
            # The dirty flags of the monitor before are lost, so everything may have changed.
            self._monitor = monitor
            self._changes = None if monitor is None else monitor.changes()
            return np.arange(len(self.structure.op_ids))
        assert self._changes is not None
        moved = [node_id for node_id, _ in before.states.items() ^ self._under_way.states.items()]
        self._changes.pending[np.array(moved, np.intp)] = True
        ids = self._changes.take()
        rows = self._row_of[ids[ids < len(self._row_of)]]
        return rows[rows >= 0]

    def _read(self, rows: npt.NDArray[np.int64]) -> None:
        ids = self.structure.op_ids[rows]
        profile = self.engine.profile
        profiles = list(map(profile.get, ids.tolist(), repeat(_NEVER)))
        count = len(profiles)
        calls = np.fromiter(map(_CALLS, profiles), np.int64, count)
        total_ns = np.fromiter(map(_TOTAL, profiles), np.float64, count)
        last_ns = np.fromiter(map(_LAST, profiles), np.float64, count)
        states = self._states
        states.calls[rows] = np.minimum(calls, _MOST)
        states.mean_us[rows] = total_ns / np.maximum(calls, 1) / 1e3
        states.last_us[rows] = last_ns / 1e3
        failed = [each.failed for each in profiles]  # as a rule all are 0, and an array takes three times as long
        if any(failed):
            self._failed[1, rows] = np.minimum(np.fromiter(failed, np.int64, count), _MOST)
            self._failing = np.flatnonzero(self._failed[1])
        now = np.zeros(count, np.uint8)
        if self._monitor is not None:
            seen = self._under_way.over(np.frombuffer(self._monitor.states, np.uint8))
            known = ids < len(seen)
            now[known] = seen[ids[known]]
        # Ops that finished before the graph was watched left no state, but calls.
        now[(now == NodeState.IDLE) & (calls > 0)] = NodeState.DONE
        states.state[rows] = now

    def _advance_status(self) -> bool:
        now = self._now_numbers()
        changed = now != self._now
        self._now = now
        for name, points in self.engine.scalars.series.items():
            tail = self._curves.get(name)
            if tail is None:
                self._curves[name] = Tail(points)
                changed = True
            elif tail.advance():
                changed = True
        changed = self._notes.advance() or changed
        return self._failures.advance() or changed

    def _now_numbers(self) -> dict[str, Any]:
        engine = self.engine
        tracks = [[name, load.running, load.queued] for name, load in self._under_way.tracks.items()]
        return {
            "frames": {name: getattr(engine.frames, name) for name in ("started", "finished", "failed", "cancelled")},
            "tracks": tracks,
            "functions": functions(engine),
            "streams": streams(engine),
        }
