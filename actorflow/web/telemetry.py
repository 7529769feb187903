"""What changed in an engine since whoever asks last looked: states, profile, frames, curves, failures, notes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import islice, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from actorflow.trace.ring import NodeState, OpProfile
from actorflow.web.latency import Latencies
from actorflow.web.structure import Structure
from actorflow.web.wire import OpStates, encode_calls, encode_states, encode_status

if TYPE_CHECKING:
    from actorflow.runtime.engine import Engine
    from actorflow.trace.ring import Changes, Monitor

_T = TypeVar("_T")
_CALLS, _TOTAL, _LAST = attrgetter("calls"), attrgetter("total_ns"), attrgetter("last_ns")
_MOST = 0xFFFFFFFF
_NEVER = OpProfile()
#: Calls in one message: more in a tick than anybody could see one by one.
_MAX_CALLS = 4000
#: Ops whose quantiles are estimated in one tick, which takes under a millisecond.
_MAX_ESTIMATES = 256


class Tail(Generic[_T]):
    """Counts what is appended to a bounded deque, so that every reader can have its own place in it."""

    def __init__(self, items: deque[_T]) -> None:
        self.items = items
        self.total = len(items)
        self._newest = items[-1] if items else None

    def advance(self) -> bool:
        """Count new items; returns whether there are any."""
        if not self.items or self.items[-1] is self._newest:
            return False
        for item in reversed(self.items):
            if item is self._newest:
                break
            self.total += 1
        self._newest = self.items[-1]
        return True

    def since(self, total: int) -> Sequence[_T]:
        """Items counted since `total` was this, as far as the deque still has them; none that came after `advance`."""
        uncounted = 0
        for item in reversed(self.items):
            if item is self._newest:
                break
            uncounted += 1
        end = len(self.items) - uncounted
        return list(islice(self.items, max(0, end - (self.total - total)), end))


class Position(NamedTuple):
    """How far a client has been told.

    Attributes:
        states: Sequence number of the latest states message.
        status: Sequence number of the latest status message.
        curves: Number of points it has had of each curve.
        failures: Number of failures it has had.
        notes: Number of notes it has had.
    """

    states: int
    status: int
    curves: dict[str, int]
    failures: int
    notes: int


class Telemetry:
    """The state of one engine's ops and frames, with the sequence number at which each op changed last.

    The first `advance` takes in everything.

    Args:
        engine: Whose; it must be watched.
        structure: The ops to follow, as the clients know them.
        seq: Sequence number to continue from.
    """

    def __init__(self, engine: Engine, structure: Structure, seq: int) -> None:
        self.engine = engine
        self.structure = structure
        self.seq = seq + 1
        self._monitor: Monitor | None = None
        self._changes: Changes | None = None
        self._changed = np.full(len(structure.op_ids), self.seq, np.int64)
        self._row_of = np.full(int(structure.op_ids.max(initial=-1)) + 1, -1, np.int64)
        self._row_of[structure.op_ids] = np.arange(len(structure.op_ids))
        self._latencies = Latencies(engine.trace, self._row_of)
        self._states = OpStates.zeros(structure.op_index)._replace(track=self._latencies.track_of)
        self._failed = np.stack([structure.op_index, np.zeros_like(structure.op_index)])  # as they are encoded
        self._failing = np.zeros(0, np.intp)  # rows of ops of which calls have failed
        self._unestimated = np.zeros(len(structure.op_ids), np.bool_)
        self._next_row = 0
        self._frames = self._frame_numbers()
        self._curves = {name: Tail(points) for name, points in engine.scalars.series.items()}
        self._failures = Tail(engine.errors)
        self._notes = Tail(engine.notes)
        self._states_seq = self._status_seq = self.seq

    def advance(self) -> bool:
        """Take in what happened since the last call; returns whether anything did, and `seq` moved."""
        seq = self.seq + 1
        rows, estimated = self._dirty_rows(), self._estimate()
        if len(rows):
            self._read(rows)
            self._changed[rows] = self._states_seq = seq
        if len(estimated):
            self._changed[estimated] = self._states_seq = seq
        status = self._advance_status()
        if status:
            self._status_seq = seq
        if not len(rows) and not len(estimated) and not status:
            return False
        self.seq = seq
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
        """Where a client is that has been told everything."""
        curves = {name: tail.total for name, tail in self._curves.items()}
        return Position(self._states_seq, self._status_seq, curves, self._failures.total, self._notes.total)

    def encode(self, since: Position | None) -> list[str | bytes]:
        """What brings a client from ``since`` to now: deltas, or for None the whole state."""
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
                    self.engine.frames,
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

    def encode_calls(self, since: int | None) -> list[str | bytes]:
        """Calls that the trace has had since a position; for None all that fit into a message, and what tracks mean."""
        trace = self.engine.trace
        if since == trace.total:
            return []
        return encode_calls(
            trace,
            trace.since(since or 0),
            self.structure.index_of,
            time_s=time.time(),
            revision=self.structure.revision,
            most=_MAX_CALLS,
        )

    def _dirty_rows(self) -> npt.NDArray[np.int64]:
        monitor = self.engine.monitor
        if monitor is not self._monitor or monitor is None:
            # The dirty flags of the monitor before are lost, so everything may have changed.
            self._monitor = monitor
            self._changes = None if monitor is None else monitor.changes()
            return np.arange(len(self.structure.op_ids))
        assert self._changes is not None
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
            seen = np.frombuffer(self._monitor.states, np.uint8)
            known = ids < len(seen)
            now[known] = seen[ids[known]]
        # What finished before anybody watched left no state, but it left calls.
        now[(now == NodeState.IDLE) & (calls > 0)] = NodeState.DONE
        states.state[rows] = now

    def _advance_status(self) -> bool:
        frames = self._frame_numbers()
        changed = frames != self._frames
        self._frames = frames
        for name, points in self.engine.scalars.series.items():
            tail = self._curves.get(name)
            if tail is None:
                self._curves[name] = Tail(points)
                changed = True
            elif tail.advance():
                changed = True
        changed = self._notes.advance() or changed
        return self._failures.advance() or changed

    def _frame_numbers(self) -> tuple[int, int, int, int]:
        frames = self.engine.frames
        return frames.started, frames.finished, frames.failed, frames.cancelled
