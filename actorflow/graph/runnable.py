"""Running a graph: what a definition offers on top of being one. The work is `actorflow.runtime.engine`'s."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy.typing as npt

from actorflow.errors import GraphError

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph
    from actorflow.graph.nodes import Blob, Op
    from actorflow.plan.memory import Footprint
    from actorflow.plan.plan import Plan
    from actorflow.runtime.engine import Engine
    from actorflow.runtime.pause import Pause
    from actorflow.runtime.program import Result
    from actorflow.runtime.stream import FrameStream

if TYPE_CHECKING:
    #: What may be fetched: a blob, an op (run it), a sub-graph (run all its ops), or a name.
    Target: TypeAlias = Blob | Op | Graph | str
    #: One of these, or several; None for the sinks.
    Fetch: TypeAlias = Target | Iterable[Target] | None
#: Values for blobs, by blob or by name.
Feeds = Mapping[Any, npt.ArrayLike]  # a mapping's keys are invariant: "Blob | str" would refuse dict[Blob, ...]


class Runnable:
    """What can be run: the root of a graph."""

    name: str
    parent: Graph | None
    root: Graph
    _engine: Engine | None

    # -- running ------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """What runs this graph: lanes, profile, frames in flight. Made on first use."""
        root = self.root
        if root._engine is None:
            from actorflow.runtime.engine import Engine  # the runtime is built on graphs

            root._engine = Engine(root)
        return root._engine

    def compile(self, fetch: Fetch = None) -> Plan:
        """Check the graph and plan how it runs; `run` does this by itself when the graph has changed.

        Args:
            fetch: As for `run`.
        Raises:
            GraphError: for a cycle (`CycleError`), an op with missing inputs or outputs, ...
            KernelNotFoundError: if a device has no kernel for an operation.
            DeviceUnavailableError: if a place names a device that is not there.
        """
        return self._runnable().plan(_targets(fetch))

    def memory_cost(self, fetch: Fetch = None) -> Footprint:
        """How much memory the variables and one frame take; printing it shows what takes how much.

        Args:
            fetch: As for `run`.
        """
        return self.compile(fetch).footprint()

    async def run(
        self,
        feeds: Feeds | None = None,
        *,
        fetch: Fetch = None,
        timeout: float | None = None,
        atomic: bool = False,
    ) -> Result:
        """Run one frame of the graph and return what was fetched.

        Calls may overlap; each has its own frame, and variables order them: a frame reads a weight when the frames
        started before it have updated that weight.

        Args:
            feeds: Arrays for the `sources`, by blob or by name. They are used without a copy: do not change them
                before `run` returns.
            fetch: Blobs whose values are returned, and ops or sub-graphs to run besides: one, its name, or several of
                these; only what they need is run. A variable gives its value before the frame's updates. By default
                everything is run and the `sinks` are returned.
            timeout: Longest time of the run in seconds; it goes on while the graph is paused.
            atomic: Commit all variables' updates together at the end of the run, or none of them.
        Returns:
            The fetched values, by blob or by name.
        Raises:
            FeedError, ShapeError, DTypeError: if the feeds do not fit.
            GraphError, KernelNotFoundError, DeviceError: as for `compile`.
            OpError: if an op fails; the first failure wins, the rest of the frame is cancelled, and the graph stays
                usable.
            RunTimeoutError: after ``timeout``, listing what the run waited for.
            RunCancelledError: if `cancel` has ended the run.
            StallError: after the graph's ``stall_limit`` without progress, likewise.
        Cancellation: returns promptly. Async functions are cancelled and awaited; a kernel that runs in a thread ends
        there by itself, and what it computes is dropped. Variables keep either their old or their new value.
        """
        return await self._runnable().run(feeds, _targets(fetch), timeout, atomic)

    def run_sync(self, feeds: Feeds | None = None, *, fetch: Fetch = None) -> Result:
        """`run` for scripts: starts an event loop, runs one frame, and closes the loop.

        Raises:
            RuntimeError: inside a running event loop; use ``await graph.run(...)`` there.
            GraphError: if the graph is paused, as nobody could resume it.
        """
        from actorflow.loop import run

        if asyncio._get_running_loop() is not None:
            raise RuntimeError("graph.run_sync() inside a running event loop would block it: use await graph.run(...)")
        if self.paused is not None:
            raise GraphError(f"graph {self.name!r} is {self.paused}: run_sync() would wait for ever, resume() it first")
        return run(self.run(feeds, fetch=fetch))

    def stream(
        self,
        feeds: AsyncIterable[Feeds] | Iterable[Feeds],
        *,
        fetch: Fetch = None,
        in_flight: int = 1,
        atomic: bool = False,
    ) -> FrameStream:
        """Run one frame per feed and yield the results in order.

        Args:
            feeds: Feeds as for `run`, from an iterable or an async iterable. The next one is asked for when there is
                room for a further frame, so a slow consumer slows its source down.
            fetch: As for `run`.
            in_flight: How many frames may overlap; the attribute of this name of what is returned changes it.
            atomic: As for `run`.
        Returns:
            An async generator of results.
        Raises:
            Whatever `run` raises, at the result that it belongs to; later frames are then cancelled.
        Leaving the ``async for`` early cancels the frames in flight and closes an async generator that gives the feeds
        (use ``contextlib.aclosing`` for that to happen at once).
        """
        return self._runnable().stream(feeds, _targets(fetch), in_flight, atomic)

    async def aclose(self) -> None:
        """Cancel the frames in flight and the runs that wait for the end of a pause, wait for their threads, and stop
        the lanes. A later `run` starts anew: the graph is not paused any more.
        """
        if self.root._engine is not None:
            await self.root._engine.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    # -- control: on the thread of the loop that the graph runs on ------------------------------------------------

    @property
    def paused(self) -> Pause | None:
        """How the graph is paused; None if it is not."""
        return self.engine.admission.pause

    @property
    def streams(self) -> list[FrameStream]:
        """The streams that run, oldest first."""
        return self.engine.streams

    def pause(self, reason: str = "") -> None:
        """Start no further frame. Those in flight go on to their end; runs and streams wait, in their order.

        Time goes on: a ``timeout`` of a run that waits ends it; ``stall_limit`` does not count while the graph is
        paused. A snapshot for a checkpoint can still be taken. On several ranks it holds the frames of this one; those
        of the others wait for its messages, as many as they have in flight.

        Args:
            reason: Shown to those who ask why nothing starts.
        """
        self._runnable().admission.close(reason)

    def resume(self) -> None:
        """Start frames again, those that have waited first and in their order."""
        self._runnable().admission.open()

    def step(self, frames: int = 1) -> None:
        """Let so many more frames of a paused graph start: of runs and streams that wait, in turn, or that come next.

        Raises:
            GraphError: if the graph is not paused.
            ValueError: for less than 1.
        """
        if frames < 1:
            raise ValueError(f"step: expected at least 1 frame, got {frames}")
        self._runnable().admission.step(frames)

    def cancel(self, frame: int | None = None, *, reason: str = "by Graph.cancel") -> list[int]:
        """End frames in flight. Who awaits them gets `RunCancelledError` at once; a stream ends with that.

        What was begun is treated as when the task that awaits a run is cancelled: async functions are cancelled, a
        kernel in a thread ends by itself, variables keep their old or their new value.

        Args:
            frame: Number of the frame; None for all. Runs that wait for the end of a pause have no frame yet, and go
                on waiting.
            reason: Said in the error.
        Returns:
            Numbers of the frames.
        Raises:
            GraphError: if there is no such frame in flight.
        """
        return self._runnable().cancel_frames(frame, reason)

    def _runnable(self) -> Engine:
        if self.parent is not None:
            raise GraphError(
                f"{self.name!r} is a sub-graph: run its root {self.root.name!r}, with fetch=[...] for this part of it"
            )
        return self.engine


def _targets(fetch: Fetch) -> tuple[Target, ...] | None:
    """What is fetched, one or several, as several."""
    if fetch is None:
        return None
    return tuple(fetch) if isinstance(fetch, Iterable) and not isinstance(fetch, str) else (fetch,)
