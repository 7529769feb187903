"""Traces of a graph: what a definition offers on top of being run, for those who ask where the time went."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

from actorflow.errors import require
from actorflow.threads import in_thread

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from actorflow.graph.graph import Graph
    from actorflow.trace.recording import Recording


class Traced:
    """What keeps its newest calls, watched or not."""

    root: Graph

    def recording(self) -> Recording:
        """The newest calls, as arrays: at most 65,536, of the whole root graph, failed ones among them.

        To be called on the thread of the loop that the graph runs on, if that runs.
        """
        from actorflow.trace.recording import Snapshot

        return Snapshot.of(self.root).recording()

    async def save_trace(self, path: str | PathLike[str]) -> None:
        """Save the newest calls for trace viewers (ui.perfetto.dev, chrome://tracing) and ``actorflow trace``.

        The calls are those that have ended by now; the file is written in a thread.

        Args:
            path: Where to; a name that ends in ``.gz`` gives a gzipped file, an eighth of the size.
        Raises:
            OSError: if the file cannot be written.
        Cancellation: returns at once; the file is written to its end.
        """
        from actorflow.trace.recording import Snapshot

        snapshot = Snapshot.of(self.root)
        await in_thread(lambda: snapshot.recording().save(path))

    def save_trace_sync(self, path: str | PathLike[str]) -> None:
        """`save_trace` for scripts."""
        self.recording().save(path)

    # -- OpenTelemetry -----------------------------------------------------------------------------------------------

    def instrument(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        min_us: float = 100.0,
        max_calls: int = 128,
        nest_streams: bool = False,
    ) -> None:
        """Make OpenTelemetry spans from now on: one per frame, and below it one per call that took its time.

        A frame's span is below the one that is current where `run` is called: a request's, say. Calls have theirs when
        the frame has ended, from the times in the trace. Those of async functions are there while they run, so that
        spans that such a function makes are below its own; spans that a plain function makes are below the frame's.
        A failed call has a span, however short, and so has each that is repeated; what it has raised is recorded there,
        and in the frame's if that fails as well. A sub-graph stands for its root.

        Each frame of a stream is the root of a trace of its own, with a link to the span that is current where its
        feed came from, as a stream may have very many.

        Args:
            tracer_provider: Whose spans; the default is the global one.
            min_us: Calls that took less than so many microseconds have no span, unless they are async functions.
            max_calls: Most calls of a frame that have a span, the longest ones; 0 for frames alone.
            nest_streams: Put frames of streams below the current span, as those of `run` are.
        Raises:
            MissingExtraError: without the package opentelemetry-api.
            ValueError: for a negative number.
        """
        require("opentelemetry.trace", extra="otel", purpose="graph.instrument()")
        from actorflow import __version__
        from actorflow.trace.spans import Instrumentation

        if min_us < 0 or max_calls < 0:
            raise ValueError(f"min_us and max_calls must not be negative, got {min_us} and {max_calls}")
        self.root.engine.instrumentation = Instrumentation(
            self.root, __version__, tracer_provider, min_us=min_us, max_calls=max_calls, nest_streams=nest_streams
        )

    def uninstrument(self) -> None:
        """Make no spans of frames that start from now on."""
        self.root.engine.instrumentation = None
