"""How many threads BLAS may use beside the lanes.

BLAS libraries keep one pool of threads for the whole process, so its size is decided in one place for all graphs: the
cores are shared out among the worker lanes that run.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from importlib import import_module
from typing import Any

__all__ = ["BlasThreads", "blas_threads", "cores", "wider_core_type"]


def cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def wider_core_type() -> str | None:
    """What ``OPENBLAS_CORETYPE`` must be, before NumPy is loaded, for its OpenBLAS to use AVX-512.

    OpenBLAS chooses its kernels by the processor's model. It takes those for AVX2 where it does not know the model, as
    0.3.31 does not know AMD's fifth EPYC, and multiplies matrices at about half of the speed.

    Returns:
        None where it uses AVX-512 already, or the processor has none.
    """
    from threadpoolctl import threadpool_info

    features: dict[str, bool] = getattr(import_module("numpy._core._multiarray_umath"), "__cpu_features__", {})
    is_narrow = any(
        library["internal_api"] == "openblas" and library["architecture"] in {"Haswell", "Zen"}
        for library in threadpool_info()
    )
    return "SkylakeX" if is_narrow and features.get("AVX512_SKX", False) else None


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
