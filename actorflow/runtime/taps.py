"""Taps: values of a running graph for onlookers.

A frame that is sampled runs in a program of its own, in which the values are kept to the end as fetched ones are; all
others run as if nobody looked. So a tap costs as much as its sampled frames cost more, and no more than one of its
samples is in memory; of a tap that samples frames in a row, as many as these. Values that take long to copy or look at
are copied and looked at in a thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from actorflow.core import clock_ns
from actorflow.errors import GraphError
from actorflow.graph.nodes import Blob
from actorflow.interchange import read_only, to_numpy
from actorflow.loop import waits
from actorflow.threads import CHEAP_BYTES, aside
from actorflow.trace.ring import RecordedValue
from actorflow.trace.values import ValueStatistics, statistics_of

if TYPE_CHECKING:
    from actorflow.actors.frame import Frame
    from actorflow.runtime.program import Program, Result
    from actorflow.trace.ring import Trace


class Tap:
    """Samples of some values of a graph's frames; see `Graph.tap`.

    An async iterator, and an async context manager that closes it. Samples are `Result`, of frames that have ended
    well. No frame is sampled as long as the last sample has not been taken out.

    Attributes:
        blobs: Whose values are sampled; may be set, for frames that start from then on.
        sampled: Frames that are sampled, and have not ended.
    """

    def __init__(
        self, taps: Taps, blobs: Sequence[Blob], every: int, interval_s: float, in_a_row: int, trace: Trace | None
    ) -> None:
        self.blobs = tuple(blobs)
        self.sampled: list[Frame] = []
        self._taps = taps
        self._every = every
        self._interval_s = interval_s
        self._in_a_row = in_a_row
        self._trace = trace  # where the statistics of samples go
        self._next_frame, self._next_s = 0, 0.0
        self._left = 0  # frames to be sampled behind the last one
        self._samples: deque[tuple[Result, int]] = deque()  # not taken out, and when their frames ended
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def is_waiting(self) -> bool:
        """True if a sample is there to be taken out."""
        return bool(self._samples)

    def is_due(self, number: int, now_s: float) -> bool:
        """Return whether the frame of a number is to be sampled."""
        is_free = not (self.sampled or self._samples)
        return self._left > 0 or (is_free and number >= self._next_frame and now_s >= self._next_s)

    def begin(self, frame: Frame, now_s: float) -> None:
        """A frame that is to be sampled has started."""
        if not self._left:
            self._left = self._in_a_row
            self._next_frame, self._next_s = frame.number + self._every, now_s + self._interval_s
        self._left -= 1
        self.sampled.append(frame)

    def put(self, frame: Frame, sample: Result, time_ns: int) -> None:
        """Take the values of a frame, which ended at a time."""
        self.end(frame)
        if not self._closed:
            self._samples.append((sample, time_ns))
            self._wake()

    def close(self) -> None:
        """Sample no further frame; idempotent."""
        self._closed = True
        self._samples.clear()
        self._taps.remove(self)
        self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Result:
        while not self._samples:
            if self._closed:
                raise StopAsyncIteration
            if waits(self._waiter):
                raise GraphError("a tap gives its samples to one task at a time: make another tap")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        sample, time_ns = self._samples.popleft()
        values, trace = sample._values, self._trace

        def look() -> list[ValueStatistics]:
            values[:] = map(to_numpy, values)  # of accelerators: the frame has ended, nothing is waited for
            return [] if trace is None else [*map(statistics_of, values)]

        touched = values if trace is not None else [value for value in values if type(value) is not np.ndarray]
        for name, statistics in zip(sample._by_name, await aside(look, _bytes(touched)), strict=False):
            assert trace is not None
            trace.add_value(RecordedValue(name, time_ns, sample.frames[0], statistics.figures))
        return sample

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def aclose(self) -> None:
        """As `close`: async iterators have it."""
        self.close()

    def end(self, frame: Frame) -> None:
        """A frame has ended, well or not."""
        if frame in self.sampled:
            self.sampled.remove(frame)

    def _wake(self) -> None:
        if waits(self._waiter):
            self._waiter.set_result(None)


def _bytes(values: Sequence[Any]) -> int:
    return sum(getattr(value, "nbytes", 0) for value in values)


class Taps:
    """All taps of one graph.

    Attributes:
        open: The taps that are not closed.
    """

    def __init__(self) -> None:
        self.open: tuple[Tap, ...] = ()
        self._copying: dict[int, asyncio.Task[None]] = {}  # by the number of the frame

    def add(self, tap: Tap) -> None:
        """Sample frames for a tap from now on."""
        self.open += (tap,)

    def forget(self) -> None:
        """Wait for no frame that is sampled: their loop was closed."""
        self._copying.clear()
        for tap in self.open:
            tap.sampled.clear()

    def remove(self, tap: Tap) -> None:
        """Sample none for it any more."""
        self.open = tuple([other for other in self.open if other is not tap])

    def due(self, number: int, now_s: float) -> tuple[Blob, ...]:
        """Blobs to keep of the frame of a number, in the order of the nodes."""
        wanted = {blob.id: blob for tap in self.open if tap.is_due(number, now_s) for blob in tap.blobs}
        return tuple([wanted[node_id] for node_id in sorted(wanted)])

    def copying(self, frame: Frame) -> asyncio.Task[None] | None:
        """The copying of the values that a frame has kept, while it goes on."""
        return self._copying.get(frame.number)

    def give(self, frame: Frame, values: dict[Blob, Any], foreign: list[Blob], make: Callable[..., Result]) -> None:
        """Give the taps the values that a frame has kept for them.

        Args:
            values: By blob.
            foreign: The blobs whose memory belongs to others, who may change it once the run has ended.
            make: Makes the result of some of them.
        """
        waiting, now_ns = [tap for tap in self.open if frame in tap.sampled], clock_ns()
        size_bytes = _bytes([values[blob] for blob in foreign])

        def copy() -> None:
            values.update({blob: read_only(values[blob].copy()) for blob in foreign})

        def put() -> None:
            for tap in waiting:
                tap.put(frame, make({blob: values[blob] for blob in tap.blobs if blob in values}), now_ns)

        async def copy_aside() -> None:
            try:
                await aside(copy, size_bytes)
                put()
            finally:
                self._copying.pop(frame.number, None)
                for tap in waiting:
                    tap.end(frame)

        if size_bytes > CHEAP_BYTES:
            self._copying[frame.number] = asyncio.create_task(copy_aside())
        else:
            copy()
            put()

    def begin(self, frame: Frame, program: Program, now_s: float) -> None:
        """A frame has started that keeps some values."""
        begun = [tap for tap in self.open if tap.is_due(frame.number, now_s)]
        for tap in begun:
            tap.begin(frame, now_s)

        def ended(_: object) -> None:
            program.hand_out(frame)
            if self.copying(frame) is None:
                for tap in begun:
                    tap.end(frame)

        frame.ended.add_done_callback(ended)
