"""Taps: values of a running graph for those who look on.

A frame that is sampled runs in a program of its own, in which the values are kept to the end as fetched ones are; all
others run as if nobody looked. So a tap costs what the frames that it samples cost more, and no more than one of its
samples is in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from actorflow.errors import GraphError
from actorflow.graph.nodes import Blob
from actorflow.interchange import to_numpy

if TYPE_CHECKING:
    from actorflow.actors.frame import Frame
    from actorflow.runtime.program import Program, Result


class Tap:
    """Samples of some values of a graph's frames; see `Graph.tap`.

    An async iterator, and an async context manager that closes it. Samples are `Result`, of frames that have ended
    well. No frame is sampled as long as the last sample has not been taken out.
    """

    def __init__(self, taps: Taps, blobs: Sequence[Blob], every: int, interval_s: float) -> None:
        self.blobs = tuple(blobs)
        self._taps = taps
        self._every = every
        self._interval_s = interval_s
        self._next_frame, self._next_s = 0, 0.0
        self.sampled: Frame | None = None  # the one under way
        self._sample: Result | None = None  # not taken out
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def is_waiting(self) -> bool:
        """True if a sample is there to be taken out."""
        return self._sample is not None

    def is_due(self, number: int, now_s: float) -> bool:
        """Return whether the frame of a number is to be sampled."""
        is_free = self.sampled is None and self._sample is None
        return is_free and number >= self._next_frame and now_s >= self._next_s

    def begin(self, frame: Frame, now_s: float) -> None:
        """A frame that is to be sampled has started."""
        self.sampled = frame
        self._next_frame, self._next_s = frame.number + self._every, now_s + self._interval_s

    def put(self, frame: Frame, sample: Result) -> None:
        """Take what a frame gave."""
        self.end(frame)
        if not self._closed:
            self._sample = sample
            self._wake()

    def close(self) -> None:
        """Sample no further frame; idempotent."""
        self._closed, self._sample = True, None
        self._taps.remove(self)
        self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Result:
        while (sample := self._sample) is None:
            if self._closed:
                raise StopAsyncIteration
            if self._waiter is not None:
                raise GraphError("a tap gives its samples to one task at a time: make another tap")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._sample = None
        sample._values[:] = map(to_numpy, sample._values)  # of accelerators: the frame has ended, nothing is waited for
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
        if self.sampled is frame:
            self.sampled = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Taps:
    """All taps of one graph.

    Attributes:
        open: Those that are not closed.
    """

    def __init__(self) -> None:
        self.open: tuple[Tap, ...] = ()

    def add(self, tap: Tap) -> None:
        """Sample frames for a tap from now on."""
        self.open += (tap,)

    def remove(self, tap: Tap) -> None:
        """Sample none for it any more."""
        self.open = tuple([other for other in self.open if other is not tap])

    def due(self, number: int, now_s: float) -> tuple[Blob, ...]:
        """What is to be kept of the frame of a number, in the order of the nodes."""
        wanted = {blob.id: blob for tap in self.open if tap.is_due(number, now_s) for blob in tap.blobs}
        return tuple([wanted[node_id] for node_id in sorted(wanted)])

    def begin(self, frame: Frame, program: Program, now_s: float) -> None:
        """A frame has started that keeps some values."""
        begun = [tap for tap in self.open if tap.is_due(frame.number, now_s)]
        for tap in begun:
            tap.begin(frame, now_s)

        def ended(_: object) -> None:
            program.hand_out(frame)
            for tap in begun:
                tap.end(frame)

        frame.ended.add_done_callback(ended)
