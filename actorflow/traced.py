"""Traces of a graph: what a definition offers on top of being run, for those who ask where the time went."""

from __future__ import annotations

import asyncio
from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actorflow.graph import Graph
    from actorflow.recording import Recording

__all__ = ["Traced"]


class Traced:
    """What keeps its newest calls, watched or not."""

    root: Graph

    def recording(self) -> Recording:
        """The newest calls, as arrays: at most 65,536, of the whole root graph.

        To be called on the thread of the loop that the graph runs on, if that runs.
        """
        from actorflow.recording import Snapshot

        return Snapshot.of(self.root).recording()

    async def save_trace(self, path: str | PathLike[str]) -> None:
        """Save the newest calls for trace viewers (ui.perfetto.dev, chrome://tracing) and ``actorflow trace``.

        The calls are those that have ended by now; the file is written in a thread.

        Args:
            path: Where to; a name that ends in ``.gz`` gives a gzipped file, a tenth of the size.
        Raises:
            OSError: if the file cannot be written.
        Cancellation: returns at once; the file is written to its end.
        """
        from actorflow.recording import Snapshot

        snapshot = Snapshot.of(self.root)
        await asyncio.to_thread(lambda: snapshot.recording().save(path))

    def save_trace_sync(self, path: str | PathLike[str]) -> None:
        """`save_trace` for scripts."""
        self.recording().save(path)
