"""Streams: a frame per feed, several in flight, results in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actorflow.actors.frame import Frame
    from actorflow.program import Program, Result
    from actorflow.runtime import Engine

__all__ = ["stream"]


def stream(
    engine: Engine,
    start: Callable[[Any], Awaitable[tuple[Program, Frame]]],
    feeds: Any,
    in_flight: int,
) -> AsyncGenerator[Result, None]:
    """Check the arguments and make the generator; see `Graph.stream`."""
    if in_flight < 1:
        raise ValueError(f"in_flight must be at least 1, got {in_flight}")
    if isinstance(feeds, AsyncIterable):
        return _stream(engine, start, aiter(feeds), in_flight)
    if isinstance(feeds, Iterable) and not isinstance(feeds, Mapping):
        return _stream(engine, start, _Synchronous(feeds), in_flight)
    raise TypeError(f"feeds must be an iterable or an async iterable of mappings, got {type(feeds).__name__}")


class _Synchronous:
    """A plain iterable in the form of an async one."""

    def __init__(self, feeds: Iterable[Any]) -> None:
        self._feeds = iter(feeds)

    def __aiter__(self) -> _Synchronous:
        return self

    async def __anext__(self) -> Any:
        try:
            return next(self._feeds)
        except StopIteration:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        close = getattr(self._feeds, "close", None)
        if close is not None:
            close()


async def _stream(
    engine: Engine, start: Callable[[Any], Awaitable[tuple[Program, Frame]]], source: AsyncIterator[Any], in_flight: int
) -> AsyncGenerator[Result, None]:
    feeder = _Feeder(start, source, in_flight)
    frames = feeder.frames
    try:
        while frames or not feeder.exhausted:
            if not frames:
                await asyncio.wait([feeder.refill()])
                continue
            result = await engine.outcome(*frames[0])
            frames.popleft()
            feeder.refill()
            yield result
        feeder.refill().result()  # raises what the source, or a wrong feed, has raised
    finally:
        await feeder.stop()
        await engine.cancel([frame for _, frame in frames])
        for _, frame in frames:
            if frame.ended.done() and not frame.ended.cancelled():
                frame.ended.exception()  # it failed behind the result that ended the stream
            else:
                frame.ended.cancel()
        engine.end_stream()
        aclose = getattr(source, "aclose", None)
        if aclose is not None:
            await aclose()


class _Feeder:
    """Takes feeds and starts their frames as long as there is room, also while the consumer is busy.

    Attributes:
        frames: Those that have been started and not been taken out, in order.
        exhausted: Whether no further one will come.
    """

    def __init__(
        self, start: Callable[[Any], Awaitable[tuple[Program, Frame]]], source: AsyncIterator[Any], in_flight: int
    ) -> None:
        self.frames: deque[tuple[Program, Frame]] = deque()
        self.exhausted = False
        self._start = start
        self._source = source
        self._in_flight = in_flight
        self._pull: asyncio.Task[None] | None = None

    def refill(self, _: object = None) -> asyncio.Task[None]:
        """Ask for a feed if there is room for its frame; returns the latest attempt."""
        pull = self._pull
        if pull is None or (pull.done() and not self.exhausted and len(self.frames) < self._in_flight):
            pull = self._pull = asyncio.ensure_future(self._take())
            pull.add_done_callback(self.refill)
        return pull

    async def stop(self) -> None:
        """Start nothing more."""
        self.exhausted = True
        if self._pull is not None:
            self._pull.cancel()
            await asyncio.wait([self._pull])
            if not self._pull.cancelled():
                self._pull.exception()

    async def _take(self) -> None:
        try:
            self.frames.append(await self._start(await anext(self._source)))
        except StopAsyncIteration:
            self.exhausted = True
        except BaseException:
            self.exhausted = True
            raise
