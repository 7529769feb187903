"""Counters of batched runs: rows per frame, times that requests waited, and their outcomes."""

from __future__ import annotations

from asyncio import CancelledError
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from actorflow.errors import QueueFullError, RunTimeoutError

#: Upper ends of the buckets of times in seconds: Prometheus's, and three below them.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class HistogramStatistics(NamedTuple):
    """Counts of values between limits.

    Attributes:
        limits: Upper ends of the buckets, which they contain; the last bucket has none.
        counts: Values in each bucket, one more than there are limits.
        total: Sum of all values.
    """

    limits: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def mean(self) -> float:
        """Mean of the values; 0 without any."""
        return self.total / max(sum(self.counts), 1)

    def quantile(self, share: float) -> float:
        """Estimate of the value that a share of all values do not exceed, as Prometheus makes it; 0 without any."""
        left = share * sum(self.counts)
        below = 0.0
        for limit, count in zip(self.limits, self.counts):  # noqa: B905  the last bucket has no limit
            if count and left <= count:
                return below + (limit - below) * left / count
            left, below = left - count, limit
        return below if self.total else 0.0


class Histogram:
    """Counts values in buckets."""

    def __init__(self, limits: Sequence[float]) -> None:
        self._limits = tuple(limits)
        self._counts = [0] * (len(self._limits) + 1)
        self._total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self._counts[bisect_left(self._limits, value)] += times
        self._total += value * times

    def statistics(self) -> HistogramStatistics:
        """The counts of this moment."""
        return HistogramStatistics(self._limits, tuple(self._counts), self._total)


class SessionStatistics(NamedTuple):
    """State of a session at one moment.

    Attributes:
        number: Number of the session, by the order of their opening.
        steps: Steps whose results it has got.
        doing: ``"waits"`` for the start of its frame, ``"computes"``, or is ``"idle"``.
        for_s: Seconds since its step was asked for, or since the one before was returned.
    """

    number: int
    steps: int
    doing: str
    for_s: float


class BatchStatistics(NamedTuple):
    """Figures of a batcher at one moment; see `Batcher.statistics`.

    Attributes:
        waiting_rows: Rows whose frame has not started.
        queue_rows: Number of rows that may wait.
        in_flight: Frames that run now.
        frames: Frames that have started, repeated ones included.
        padded_rows: Rows that were added to fill frames up to a bucket.
        finished: Requests that got their result.
        failed: Requests that got an error, for their own rows or for their frame.
        cancelled: Requests whose caller was cancelled.
        expired: Requests whose time was over.
        refused: Requests that found the queue full.
        rows: Rows of requests per frame.
        wait_s: Seconds from a request to the start of its frame, of the last one if there are several.
        latency_s: Seconds from a request to its result.
        sessions: Sessions that have a slot.
        max_sessions: Number of slots.
        steps: Steps of sessions that got their result.
        first_step_s: Seconds from the opening of a session, a wait for a slot included, to its first result.
        between_steps_s: Seconds from the result of a step to that of the next one.
        longest: Sessions, eight at most: those whose step was asked for longest ago, then those that are idle.
        blocks: Blocks of a cache that sessions have.
        max_blocks: Number of blocks.
    """

    waiting_rows: int
    queue_rows: int
    in_flight: int
    frames: int
    padded_rows: int
    finished: int
    failed: int
    cancelled: int
    expired: int
    refused: int
    rows: HistogramStatistics
    wait_s: HistogramStatistics
    latency_s: HistogramStatistics
    sessions: int
    max_sessions: int
    steps: int
    first_step_s: HistogramStatistics
    between_steps_s: HistogramStatistics
    longest: tuple[SessionStatistics, ...]
    blocks: int
    max_blocks: int


@dataclass(slots=True, eq=False)
class BatchCounters:
    """Counters of a batcher; `BatchStatistics` describes the attributes."""

    rows: Histogram
    frames: int = 0
    padded_rows: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    refused: int = 0
    steps: int = 0
    first_step_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    between_steps_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    wait_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    latency_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))

    def count_failure(self, error: BaseException) -> None:
        """Count a request that has got no result."""
        if isinstance(error, QueueFullError):
            self.refused += 1
        elif isinstance(error, RunTimeoutError):
            self.expired += 1
        elif isinstance(error, CancelledError | GeneratorExit):
            self.cancelled += 1
        else:
            self.failed += 1
