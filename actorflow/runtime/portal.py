"""`Graph.run_sync` from several threads: a graph runs on one loop, and calls that find it taken go to that loop.

As long as one thread alone runs a graph this way, it has a loop of its own for each run. From the first call of
another thread on, all calls for it go through the portal: a thread with a loop, which lives while one is inside.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from actorflow.loop import run
from actorflow.threads import forget_in_child, held_at_fork, is_own

if TYPE_CHECKING:
    from actorflow.runtime.service import Service

_T = TypeVar("_T")


class Portal:
    """A loop in a thread of its own, for as long as other threads wait for its coroutines."""

    def __init__(self) -> None:
        self._lock = held_at_fork(threading.Lock(), is_outer=True)
        self.forget_parent()
        forget_in_child(self)

    def forget_parent(self) -> None:
        """Be closed, in the child of a fork, too."""
        self._inside = 0
        self._service: Service | None = None

    def run(self, main: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop and return its result; Ctrl-C cancels it.

        Raises:
            DeviceError: if there is no thread to be had.
        """
        from actorflow.runtime.service import Service

        with self._lock:
            if self._service is None:
                try:
                    self._service = Service("actorflow-portal", None, {})
                except BaseException:
                    main.close()
                    raise
            service, self._inside = self._service, self._inside + 1
        future = asyncio.run_coroutine_threadsafe(main, service.loop)
        try:
            return future.result()
        finally:
            future.cancel()
            del future, main  # what an error's traceback refers to this call by
            with self._lock:
                if service is self._service:  # else this is the child of a fork
                    self._inside -= 1
                    if not self._inside:
                        self._service = None
                        service.close()
                        service.join()


class Turns:
    """Threads that run a graph by `Graph.run_sync`: one on loops of its own, or several through the portal."""

    def __init__(self) -> None:
        self._thread: int | None = None  # the only one so far; 0 if there are several
        self._alone: Future[None] | None = None  # its newest run

    def run(self, main: Coroutine[Any, Any, _T]) -> _T:
        """Run it and return its result; blocks."""
        if is_own():  # a lane's thread, which the runs of other threads may wait for
            return run(main)
        mine = threading.get_ident()
        with _choosing:
            is_alone, before = self._thread in (None, mine), self._alone
            self._thread = mine if is_alone else 0
            done: Future[None] = Future()
            if is_alone:
                self._alone = done
        if not is_alone:
            if before is not None:
                before.result()
            return _portal.run(main)
        try:
            return run(main)
        finally:
            done.set_result(None)


_choosing = held_at_fork(threading.Lock())
_portal = Portal()
