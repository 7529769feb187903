"""Limits on the threads of BLAS beside the lanes.

BLAS libraries keep one pool of threads for the whole process, so its size is decided in one place for all graphs: the
cores are shared out among the worker lanes that run.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from actorflow.threads import cores, forget_in_child, held_at_fork


class BlasThreads:
    """Limits BLAS to ``cores // lanes`` threads while there are several lanes, and restores what was set before.

    The cores of a process may change at any time, so they are never counted among the lanes.
    """

    def __init__(self) -> None:
        self._lock = held_at_fork(threading.Lock())
        # A lane may be closed by the garbage collector at any moment, within this lock too: changes are only noted, and
        # the thread that holds the lock applies them.
        self._changes: deque[tuple[int, int, int]] = deque()  # of the three numbers below
        self._lanes = 0
        self._keepers = 0  # calls of `keep_single` that have not ended
        self._singles = 0  # calls within `single`
        self._limiter: Any = None
        self._libraries: list[Any] | None = None
        self._lowered: list[tuple[Any, int]] = []  # within `single`, and what they go back to
        forget_in_child(self)

    def forget_parent(self) -> None:
        """This is the child of a fork, which has none of the lanes. BLAS hears of it when it has some."""
        self._changes.clear()
        self._lanes = self._keepers = self._singles = 0

    @property
    def share(self) -> int:
        """Threads that one lane may use now, for libraries whose threads are not set here."""
        return self._share(max(1, self._lanes))

    @property
    def next_share(self) -> int:
        """Threads that each lane may use once there is one more."""
        return self._share(self._lanes + 1)

    def lane_started(self) -> None:
        """There is one more lane."""
        self._change(lanes=1)

    def keep_single(self) -> None:
        """Keep BLAS on one thread until `release_single`."""
        self._change(keepers=1)

    def release_single(self) -> None:
        """End what `keep_single` began. May be called by the garbage collector."""
        self._change(keepers=-1)

    def lane_stopped(self) -> None:
        """There is one lane less. May be called by the garbage collector."""
        self._change(lanes=-1)

    @contextmanager
    def single(self) -> Iterator[None]:
        """Products of matrices, within the block, on the thread that calls for them alone.

        For work that is spread over threads piece by piece: BLAS takes one product at a time if each has several
        threads. It is so for the whole process, since BLAS knows no other way.
        """
        if self.share == 1:
            yield
            return
        self._change(singles=1)
        try:
            yield
        finally:
            self._change(singles=-1)

    def _share(self, lanes: int) -> int:
        return 1 if self._keepers else max(1, cores() // lanes)

    def _change(self, lanes: int = 0, keepers: int = 0, singles: int = 0) -> None:
        self._changes.append((lanes, keepers, singles))
        while self._changes and self._lock.acquire(blocking=False):
            try:
                while self._changes:
                    lanes, keepers, singles = self._changes.popleft()
                    self._lanes += lanes
                    self._keepers += keepers
                    self._singles += singles
                    if lanes or keepers:
                        self._restore()
                        self._share_out()
                if self._singles and not self._lowered:
                    self._lower()
                elif not self._singles:
                    self._restore()
            finally:
                self._lock.release()

    def _share_out(self) -> None:
        if self._limiter is not None:
            self._limiter.restore_original_limits()
            self._limiter = None
        if self._lanes > 1 or self._keepers:
            share = self.share
            controller = _controller()
            self._libraries = controller.lib_controllers
            if any(library.num_threads > share for library in controller.lib_controllers):
                self._limiter = controller.limit(limits=share)

    def _lower(self) -> None:
        if self._libraries is None:
            self._libraries = _controller().lib_controllers
        self._lowered = [(library, library.get_num_threads()) for library in self._libraries]
        for library, _ in self._lowered:
            library.set_num_threads(1)

    def _restore(self) -> None:
        lowered, self._lowered = self._lowered, []
        for library, count in lowered:
            library.set_num_threads(count)


def _controller() -> Any:
    from threadpoolctl import ThreadpoolController  # costs some ms: only where several threads are used

    return ThreadpoolController().select(user_api="blas")


blas_threads = BlasThreads()
