"""Loaders in programs without a loop."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from actorflow.errors import PipelineError
from actorflow.loop import end, run
from actorflow.pipeline.run import IN_PARENT, Run
from actorflow.threads import forget_in_child, held_at_fork, start_thread

if TYPE_CHECKING:
    from actorflow.pipeline.loader import Loader


class _Bridge:
    """A loader in a thread with a loop, and a queue between that and the program."""

    def __init__(self, loader: Loader[Any], ahead: int) -> None:
        self._loader = loader
        self._items: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._ahead = ahead
        self._asked = 0  # items, and at last the end
        self._given = 0
        self._run: Run | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wanted: asyncio.Event | None = None
        self._task: asyncio.Task[Any] | None = None
        self._lock = held_at_fork(threading.Lock(), is_outer=True)
        forget_in_child(self)
        self._is_closed = False
        self._thread = start_thread(partial(contextvars.copy_context().run, self._work), "actorflow-loader")

    def take(self) -> tuple[bool, Any]:
        """The next item and True, or False and why there is none: an error or None. Blocks."""
        self._asked += 1  # written here alone
        self._call(self._tell_asked)
        is_item, value = self._items.get()
        if is_item:
            assert self._run is not None
            assert self._run.taken is not None
            self._run.taken += 1  # as above
        return is_item, value

    def close(self) -> None:
        """Stop, and block until the thread has ended."""
        with self._lock:
            self._is_closed = True
        self._call(self._cancel)
        self._thread.join()
        self._items = queue.SimpleQueue()  # its items are not taken any more
        self._task = None  # its cancellation refers to this

    def forget_parent(self) -> None:
        """This is the child of a fork, which does not have the thread."""
        self._loop = None
        self._items = queue.SimpleQueue()
        self._items.put((False, PipelineError(f"the loader {IN_PARENT}")))

    def _call(self, callback: Any) -> None:
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(callback)

    def _tell_asked(self) -> None:
        assert self._wanted is not None
        self._wanted.set()

    def _cancel(self) -> None:
        assert self._task is not None
        end(self._task)

    def _work(self) -> None:
        try:
            run(self._main())
        except BaseException as error:  # noqa: BLE001  the program gets it, also one that has left the loop
            self._items.put((False, error))
        else:
            self._items.put((False, None))

    async def _main(self) -> None:
        self._wanted = asyncio.Event()
        self._task = asyncio.current_task()
        with self._lock:
            self._loop = asyncio.get_running_loop()
            is_closed = self._is_closed
        try:
            if not is_closed:
                await self._pass_on()
        except asyncio.CancelledError:
            if not self._is_closed:  # something leaves the loop: items that have come through go before it
                await self._drained()
        finally:
            if self._run is not None:  # else the loader may be iterated elsewhere, and goes on there
                await self._loader.stopped()
            with self._lock:
                self._loop = None

    async def _pass_on(self) -> None:
        items = aiter(self._loader)
        self._run = items.run
        self._run.taken = 0
        self._run.drained = self._drained
        async for item in items:
            await self._has(1)
            self._given += 1
            self._items.put((True, item))

    async def _drained(self) -> None:
        """Wait until the program has got all items, and asks for those behind them."""
        await self._has(self._ahead + 1)

    async def _has(self, room: int) -> None:
        assert self._wanted is not None
        while self._asked + self._ahead - self._given < room:
            self._wanted.clear()
            await self._wanted.wait()


def iterate(loader: Loader[Any], ahead: int) -> Iterator[Any]:
    """Check that no loop runs, and make the generator; see `Pipeline.iter_sync`."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return blocking(loader, ahead)
    raise PipelineError("iter_sync would block the running loop: use `async for item in loader` there")


def blocking(loader: Loader[Any], ahead: int) -> Iterator[Any]:
    """The rest of an epoch; blocks for each item, in a running loop, too."""
    bridge = _Bridge(loader, ahead)
    try:
        while True:
            is_item, value = bridge.take()
            if is_item:
                yield value
            elif value is not None:
                raise value
            else:
                return
    finally:
        value = None  # an error's traceback refers to this call
        bridge.close()
