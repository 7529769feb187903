"""Streams: a frame per feed, several in flight, results in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actorflow.actors.frame import Frame
    from actorflow.program import Program, Result
    from actorflow.runtime import Engine

__all__ = ["stream"]


def stream(
    engine: Engine,
    start: Callable[[Any], tuple[Program, Frame]],
    feeds: Any,
    in_flight: int,
) -> AsyncIterator[Result]:
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
    engine: Engine, start: Callable[[Any], tuple[Program, Frame]], source: AsyncIterator[Any], in_flight: int
) -> AsyncIterator[Result]:
    frames: deque[tuple[Program, Frame]] = deque()
    pull: asyncio.Task[Any] | None = None
    exhausted = False
    try:
        while frames or not exhausted:
            if pull is None and not exhausted and len(frames) < in_flight:
                pull = asyncio.ensure_future(_next(source))
            waits: list[asyncio.Future[Any]] = [] if pull is None else [pull]
            if frames:
                waits.append(frames[0][1].ended)
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if pull is not None and pull.done():
                feed = pull.result()
                pull = None
                if feed is _END:
                    exhausted = True
                else:
                    frames.append(start(feed))
            # A result that is ready goes out before anything else is awaited.
            while frames and frames[0][1].ended.done():
                program, frame = frames.popleft()
                yield await engine.outcome(program, frame)
    finally:
        if pull is not None:
            pull.cancel()
            await asyncio.wait([pull])
        await engine.cancel([frame for _, frame in frames])
        for _, frame in frames:
            if frame.ended.done() and not frame.ended.cancelled():
                frame.ended.exception()  # it failed behind the result that ended the stream
            else:
                frame.ended.cancel()
        aclose = getattr(source, "aclose", None)
        if aclose is not None:
            await aclose()


_END = object()


async def _next(source: AsyncIterator[Any]) -> Any:
    """The next feed, or the mark of the end: a StopAsyncIteration cannot leave a task."""
    try:
        return await anext(source)
    except StopAsyncIteration:
        return _END
