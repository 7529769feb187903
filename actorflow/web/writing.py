"""Long answers, written beside the graph: one at a time in a thread, in slices that leave the GIL to the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter

from actorflow.threads import in_thread
from actorflow.web.exchange import CHUNK_BYTES, Refused, Response

#: Time that a thread may write for at once. A loop that wants the GIL meanwhile waits for that long at most; it would
#: wait for Python's whole switch interval, ten times as long, for a thread that writes on and on.
_SLICE_S = 0.0005
#: And then it rests, so that it takes a small share of the GIL even from a loop that is always busy.
_REST_S = 0.002


class Writer:
    """Writes the long answers of a page: one at a time, and one for all who have asked before it was begun.

    So clients cost the graph no more when they are many. What each gets was there when it asked, and later.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting: dict[str, asyncio.Task[list[bytes]]] = {}
        self._tasks: set[asyncio.Task[list[bytes]]] = set()
        self._ending = threading.Event()  # tells the thread

    async def write(self, what: str, begin: Callable[[], Iterable[str]]) -> list[bytes]:
        """The answer, encoded in parts.

        Args:
            what: Which answer it is.
            begin: Called on the loop when its turn has come: takes what is to be answered, and gives it piece by piece;
                each is made in a thread, and short.
        Raises:
            Refused: with 503, if the page is closed meanwhile.
        Cancellation: the answer is written all the same, as others may wait for it.
        """
        task = self._waiting.get(what)
        if task is None or task.done():  # done before its turn came: its loop has ended
            task = self._waiting[what] = asyncio.create_task(self._write(what, begin))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.wait([task])
        if task.cancelled():
            raise Refused(Response.of_text(503, "the page is being closed"))
        return task.result()

    async def aclose(self) -> None:
        """End what is being written; idempotent. What is asked for later is written, in any loop."""
        tasks = [*self._tasks]
        self._ending.set()
        for task in tasks:
            task.cancel()
        self._turn, self._waiting, self._ending = asyncio.Lock(), {}, threading.Event()
        if tasks:
            await asyncio.wait(tasks)

    async def _write(self, what: str, begin: Callable[[], Iterable[str]]) -> list[bytes]:
        waiting, ending = self._waiting, self._ending
        async with self._turn:
            waiting.pop(what, None)  # who asks from now on is to get what happens from now on
            return await in_thread(partial(_written, begin(), ending))


def _written(pieces: Iterable[str], ending: threading.Event) -> list[bytes]:
    chunks: list[bytes] = []
    part: list[str] = []
    size = 0
    due_s = perf_counter() + _SLICE_S
    for piece in pieces:
        part.append(piece)
        size += len(piece)
        if size >= CHUNK_BYTES:
            chunks.append("".join(part).encode())
            part, size = [], 0
        if perf_counter() >= due_s:
            if ending.wait(_REST_S):
                return []
            due_s = perf_counter() + _SLICE_S
    return [*chunks, "".join(part).encode()]
