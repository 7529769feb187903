"""How long the calls of each op take: estimates of quantiles, from the trace, at no cost to the calls."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from actorflow.trace.ring import Trace

#: A bucket is a quarter of an octave, from 128 ns to 550 s: an estimate is at most 19% off.
_PER_OCTAVE = 4
_FIRST_OCTAVE = 7
_BUCKETS = 128
#: Of ops with more calls than this, older ones count half as much, and half of that, and so on.
_FORGETFUL = 4096
#: Of more calls than this between two looks, the newest stand for the others: a look must not take long.
_MAX_CALLS = 1 << 13
#: Ops beyond these have no estimates; each takes 512 bytes.
_MAX_OPS = 1 << 16
_NO_TRACK = 255

_Ints = npt.NDArray[np.int64]


class Latencies:
    """A histogram of logarithmic buckets per op that has calls in the trace which have ended well.

    Args:
        trace: Where the calls are.
        row_of: Row of each op by `Node.id`, -1 for other nodes.

    Attributes:
        track_of: Index in `Trace.tracks` of what the latest call of each row ran on; 255 if that is not known.
    """

    def __init__(self, trace: Trace, row_of: _Ints) -> None:
        self._trace = trace
        self._row_of = row_of
        self.track_of = np.full(int(row_of.max(initial=-1)) + 1, _NO_TRACK, np.uint8)
        self._position = 0
        self._slot_of = np.full(int(row_of.max(initial=-1)) + 1, -1, np.int64)
        self._used = 0
        self._counts = np.zeros((256, _BUCKETS), np.uint32)
        self._totals = np.zeros(_MAX_OPS, np.int64)

    def advance(self) -> _Ints:
        """Take in the calls since the last time; returns the rows of their ops, ascending."""
        total = self._trace.total
        calls = self._trace.since(max(self._position, total - _MAX_CALLS))
        self._position = total
        known = (calls.node < len(self._row_of)) & ~calls.failed
        rows = self._row_of[calls.node[known]]
        elapsed_ns = (calls.end_ns - calls.start_ns)[known][rows >= 0]
        tracks = calls.track[known][rows >= 0]
        rows = rows[rows >= 0]
        self.track_of[rows] = np.minimum(tracks, _NO_TRACK)
        touched = np.flatnonzero(np.bincount(rows))
        self._make_slots(touched)
        slots = self._slot_of[rows]
        octaves = np.log2(np.maximum(elapsed_ns[slots >= 0], 1)) - _FIRST_OCTAVE
        buckets = np.clip((octaves * _PER_OCTAVE).astype(np.int64), 0, _BUCKETS - 1)
        slots = slots[slots >= 0]
        np.add.at(self._counts.reshape(-1), slots * _BUCKETS + buckets, 1)
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
            estimates.append((np.exp2(octaves) / 1e3).astype(np.float32))
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
