"""Processes that call one function, for work that holds the GIL."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from time import perf_counter_ns
from typing import Any

from actorflow.errors import PipelineError

__all__ = ["Processes", "check_picklable"]

#: The function of this process; a call then sends items alone.
_fn: Callable[[Any], Any] | None = None


class Processes:
    """A pool of processes for one stage, started with the first call and kept from run to run.

    They are forked from a clean server process where the system has that, else spawned: never from this process, whose
    threads may hold locks.

    Args:
        fn: The function, which pickle can find or hold.
        count: How many.
        expands: Whether what the function returns is iterated.
    """

    def __init__(self, fn: Callable[[Any], Any], count: int, expands: bool = False) -> None:
        self._fn = _Listed(fn) if expands else fn
        self._count = count
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, items: list[Any]) -> Future[tuple[int, list[tuple[Any, BaseException | None]]]]:
        """Call for some items; gives the time in nanoseconds, and each result or what was raised instead."""
        if self._pool is None:
            methods = multiprocessing.get_all_start_methods()
            context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
            self._pool = ProcessPoolExecutor(self._count, context, _install, (pickle.dumps(self._fn),))
        return self._pool.submit(_call, items)

    def drop(self) -> None:
        """The pool is broken: the next call starts another one."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def close(self) -> None:
        """Block until the processes have ended, after the calls that run. Idempotent."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)


class _Listed:
    """A function with the items of what it returns in a list: an iterator cannot be sent."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self._fn = fn

    def __call__(self, item: Any) -> list[Any]:
        return list(self._fn(item))


def check_picklable(fn: Callable[..., Any]) -> None:
    """Check that a function can be sent to another process.

    Raises:
        PipelineError: if it cannot.
    """
    try:
        pickle.dumps(fn)
    except Exception as error:  # pickle raises whatever an object's own methods raise
        raise PipelineError(
            f"executor='process' needs a function that pickle can send, at the top level of a module; {fn!r}: {error}"
        ) from error


def _install(pickled: bytes) -> None:
    global _fn  # noqa: PLW0603  what a process of the pool is for
    _fn = pickle.loads(pickled)  # noqa: S301  it comes from the process that started this one


def _call(items: list[Any]) -> tuple[int, list[tuple[Any, BaseException | None]]]:
    assert _fn is not None
    start = perf_counter_ns()
    results: list[tuple[Any, BaseException | None]] = []
    for item in items:
        try:
            results.append((_fn(item), None))
        except Exception as error:  # noqa: BLE001  the loop gets it
            results.append((None, _sendable(error)))
    return perf_counter_ns() - start, results


def _sendable(error: Exception) -> Exception:
    """An error that survives the way back; some cannot be made again from their arguments."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  it was made here
    except Exception:  # noqa: BLE001  as above
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
