"""How many threads BLAS may use beside the lanes.

BLAS libraries keep one pool of threads for the whole process, so its size is decided in one place for all graphs: the
cores are shared out among the worker lanes that run.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any

__all__ = ["BlasThreads", "blas_threads", "cores"]


def cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


class BlasThreads:
    """Limits BLAS to ``cores // lanes`` threads while there are several lanes, and restores what was set before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # A lane may be closed by the garbage collector at any moment, within this lock too: changes are only noted, and
        # whoever holds the lock applies them.
        self._changes: deque[int] = deque()
        self._lanes = 0
        self._limiter: Any = None

    @property
    def share(self) -> int:
        """Threads that one lane may use now, for libraries whose threads are not set here."""
        return max(1, cores() // max(1, self._lanes))

    def lane_started(self) -> None:
        """There is one more lane."""
        self._change(1)

    def keep_single(self) -> None:
        """Keep BLAS on one thread until `release_single`."""
        self._change(cores())

    def release_single(self) -> None:
        """End what `keep_single` began. May be called by the garbage collector."""
        self._change(-cores())

    def lane_stopped(self) -> None:
        """There is one lane less. May be called by the garbage collector."""
        self._change(-1)

    def _change(self, lanes: int) -> None:
        self._changes.append(lanes)
        while self._changes and self._lock.acquire(blocking=False):
            try:
                while self._changes:
                    self._lanes += self._changes.popleft()
                self._apply()
            finally:
                self._lock.release()

    def _apply(self) -> None:
        if self._limiter is not None:
            self._limiter.restore_original_limits()
            self._limiter = None
        if self._lanes > 1:
            from threadpoolctl import ThreadpoolController  # costs some ms: only for those who use several lanes

            share = self.share
            controller = ThreadpoolController().select(user_api="blas")
            if any(library.num_threads > share for library in controller.lib_controllers):
                self._limiter = controller.limit(limits=share)


blas_threads = BlasThreads()
