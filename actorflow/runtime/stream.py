"""Streams: a frame per feed, several in flight, results in order. They are built on the engine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any

from actorflow.actors.dispatcher import leave_loop
from actorflow.actors.frame import Frame
from actorflow.errors import FeedError, GraphError, text_of, whole
from actorflow.loop import end, wait_out
from actorflow.runtime.engine import Engine, Fetch
from actorflow.runtime.program import Program, Result
from actorflow.threads import forget_in_child


class FrameStream(AsyncGenerator[Result, None]):
    """An async generator of results, one per feed, in order; returned by `Graph.stream`.

    Args:
        engine: Starts the frames.
        feeds: As for `Graph.stream`.
        fetch: As for `Graph.stream`.
        in_flight: Number of frames that may overlap.
        atomic, is_partial: As for `Graph.stream`.

    Attributes:
        number: Streams of a graph are numbered from 0 in the order in which they were made.

    Raises:
        GraphError, TypeError: for wrong arguments.

    Example:
        >>> import asyncio, itertools
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [], "int64")
        >>> y = x * x
        >>> async def main():
        ...     squares = []
        ...     async with graph:
        ...         stream = graph.stream({x: i} for i in itertools.count())
        ...         async for result in stream:
        ...             squares.append(result[y].item())
        ...             if squares[-1] >= 9:
        ...                 stream.finish()  # no further feed is asked for; frames in flight still come
        ...     return squares[:4], stream.is_running
        >>> asyncio.run(main())
        ([0, 1, 4, 9], False)
    """

    def __init__(
        self, engine: Engine, feeds: Any, fetch: Fetch, in_flight: int, atomic: bool, is_partial: bool = False
    ) -> None:
        if isinstance(feeds, AsyncIterable):
            source = aiter(feeds)
        elif isinstance(feeds, Iterable) and not isinstance(feeds, Mapping):
            source = _Synchronous(feeds)
        else:
            raise TypeError(f"feeds must be an iterable or an async iterable of mappings, got {type(feeds).__name__}")
        checked, targets = whole("in_flight", in_flight, 1), None if fetch is None else tuple(fetch)
        self.number = engine.register(self)
        name = f"stream {self.number} of graph {engine.graph.name!r}"
        # It does not know the stream, so that one that is dropped is closed at once.
        self._feeder = _Feeder(engine, targets, (atomic, is_partial), source, checked, name)
        self._results = self._feeder.results()
        forget_in_child(self)

    @property
    def in_flight(self) -> int:
        """Number of frames that may overlap, at least 1.

        It may be set while the stream runs. With more, further feeds are asked for at once; with fewer, none is until
        enough frames have been taken out. A feed that has been asked for gets its frame.

        Raises:
            GraphError: for less than 1.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [])
            >>> y = x + 1
            >>> async def main():
            ...     async with graph:
            ...         stream = graph.stream({x: number} for number in range(100))
            ...         async for _ in stream:
            ...             stream.in_flight = 4
            ...         return stream.in_flight, stream.started
            >>> af.run(main())
            (4, 100)
        """
        return self._feeder.in_flight

    @in_flight.setter
    def in_flight(self, frames: int) -> None:
        self._feeder.in_flight = whole("in_flight", frames, 1)
        if self.is_running:
            self._feeder.refill()

    @property
    def started(self) -> int:
        """Number of frames that have started."""
        return self._feeder.started

    @property
    def held(self) -> int:
        """Number of frames that have started and have not been taken out: they run, or their results wait."""
        return len(self._feeder.frames)

    @property
    def is_running(self) -> bool:
        """True if it has begun and not ended."""
        return self._feeder.is_running

    def finish(self) -> None:
        """Ask for no further feed: the stream ends, well, when the frames in flight have been taken out.

        A feed that has been asked for gets its frame. Nothing happens if the stream does not run.
        """
        if self.is_running:
            self._feeder.finish()

    def call_at_starts(self, callback: Callable[[], None]) -> None:
        """Call something right after each start of a frame, before anything else happens."""
        self._feeder.at_start = callback

    def forget_parent(self) -> None:
        """Give up a stream that has begun in the parent of a fork: it is the parent's."""
        if self.is_running:
            self._feeder.is_running = False
            self._parents, self._results = self._results, _lost(self._feeder.name)

    def __anext__(self) -> Coroutine[Any, Any, Result]:
        return self._results.__anext__()

    def asend(self, value: None) -> Coroutine[Any, Any, Result]:
        """As that of any generator."""
        return self._results.asend(value)

    def athrow(self, *error: Any) -> Coroutine[Any, Any, Result]:
        """As that of any generator."""
        return self._results.athrow(*error)

    def aclose(self) -> Coroutine[Any, Any, None]:
        """Cancel the frames in flight and close the source."""
        return self._results.aclose()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _lost(name: str) -> AsyncGenerator[Result, None]:
    results: list[Result] = []
    for result in results:  # none, but this makes it a generator
        yield result
    raise GraphError(f"{name} runs in the parent process, from which this one was forked: make another stream here")


class _Synchronous(AsyncIterator[Any]):
    """A plain iterable in the form of an async one."""

    def __init__(self, feeds: Iterable[Any]) -> None:
        self._feeds = iter(feeds)

    async def __anext__(self) -> Any:
        try:
            return next(self._feeds)
        except StopIteration:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        close = getattr(self._feeds, "close", None)
        if close is not None:
            close()


class _Feeder:
    """Takes feeds and starts their frames as long as there is room, also while the consumer is busy.

    Attributes:
        frames: Frames that have been started and not been taken out, in order.
    """

    def __init__(
        self,
        engine: Engine,
        fetch: Fetch,
        how: tuple[bool, bool],
        source: AsyncIterator[Any],
        in_flight: int,
        name: str,
    ) -> None:
        self.frames: deque[tuple[Program, Frame]] = deque()
        self.exhausted = False  # whether no further one will come
        self.in_flight = in_flight
        self.started = 0
        self.is_running = False
        self.is_finishing = False  # whether no further feed will be asked for
        self.at_start: Callable[[], None] | None = None  # called right after the start of each
        self.name = name
        self._engine = engine
        self._fetch = fetch
        self._atomic, self._is_partial = how
        self._source = source
        self._pull: asyncio.Task[None] | None = None

    async def results(self) -> AsyncGenerator[Result, None]:
        """Give the frames' results, in order. A stream that is left cancels its frames and closes its source."""
        frames, resources = self.frames, self._engine.resources
        claim = resources.claim()
        try:
            while frames or not self.exhausted:
                if not frames:
                    await asyncio.wait([self.refill()])
                    continue
                program, frame = frames[0]
                items = frame.items
                if items is not None:
                    made = items.results
                    while True:
                        if not made:
                            items.compute(frame)
                            if not made and not await items.come(frame):
                                break
                        result = made.popleft()
                        if items.resting is not None and not items.is_nudged:
                            items.go_on_soon(frame)
                        yield result
                result = await program.outcome(frame)
                frames.popleft()
                self.refill()
                if items is None:
                    yield result
            self.refill().result()  # raises what the source, or a wrong feed, has raised
        finally:
            self.is_running = False
            closing: asyncio.Task[None] | None = None
            try:
                if asyncio._get_running_loop() is None:  # it is collected after its loop was closed
                    self._stop()
                else:  # what must happen happens here or in a task, which no cancellation of the consumer can stop
                    closing = asyncio.ensure_future(self._close(self._stop()))
                resources.end_stream()
                if closing is not None:
                    await wait_out([closing])
                    closing.result()
            finally:
                del closing  # whose error, if it has one, refers to this call
                claim.release()

    def refill(self, _: object = None) -> asyncio.Task[None]:
        """Ask for a feed if there is room for its frame; returns the latest attempt."""
        pull = self._pull
        if self.is_finishing and pull is not None and pull.done():
            self.exhausted = True
        frames = self.frames
        ends = bool(frames) and frames[0][1].error is not None  # nobody will see what comes behind a failure
        if pull is None or (pull.done() and not (self.exhausted or ends) and len(frames) < self.in_flight):
            self.is_running = True
            pull = self._pull = asyncio.ensure_future(self._take())
            pull.add_done_callback(self.refill)
        return pull

    def finish(self) -> None:
        """Ask for no further feed."""
        self.is_finishing = True
        self.refill()

    def _stop(self) -> set[asyncio.Task[Any]]:
        """Start nothing more, and leave the frames; returns what has yet to end."""
        self.exhausted = True
        ending: set[asyncio.Task[Any]] = set()
        if self._pull is not None:
            self._pull.remove_done_callback(self.refill)
            end(self._pull)
            ending.add(self._pull)
        for _, frame in self.frames:
            frame.leave()
            ending |= frame.tasks
        return ending

    async def _close(self, ending: set[asyncio.Task[Any]]) -> None:
        try:
            await wait_out(ending)
        finally:
            if self._pull is not None and not self._pull.cancelled():
                self._pull.exception()
            self._pull = None  # its error refers to this feeder
            try:
                aclose = getattr(self._source, "aclose", None)
                if aclose is not None:
                    await aclose()
            except BaseException as error:
                self._explain(error, "when it was closed")
                raise

    async def _take(self) -> None:
        permit, queue = None, self._engine.queue
        try:
            if queue.closed:
                permit = await queue.keep()  # a paused graph asks for no feed that it could not use
                if self.is_finishing or len(self.frames) >= self.in_flight:
                    return  # that has changed meanwhile
            try:
                feed = await anext(self._source)
            except StopAsyncIteration:
                self.exhausted = True
                return
            except BaseException as error:
                self._explain(error, f"for frame {self.started} of it")
                raise
            begun = self._engine.begin(
                feed, self._fetch, self._atomic, streamed=True, permit=permit, is_partial=self._is_partial
            )
            self.frames.append(await begun)
            self.started += 1
            if self.at_start is not None:
                self.at_start()
        except BaseException:
            self.exhausted = True
            raise
        finally:
            queue.give_back(permit)

    def _explain(self, error: BaseException, when: str) -> None:
        """Raise FeedError for an error of the source that would mean something else to the consumer.

        CancelledError and GeneratorExit would say there that the consumer was cancelled, or closed.
        """
        if isinstance(error, Exception) or (isinstance(error, asyncio.CancelledError) and _is_cancelled()):
            return
        leave_loop(error)
        raise FeedError(f"the source of {self.name} raised {type(error).__name__} {when}: {text_of(error)}") from error
