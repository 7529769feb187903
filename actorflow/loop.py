"""Programs: a coroutine on an event loop of its own; and long work on a loop, in slices of its time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeAlias, TypeVar

_T = TypeVar("_T")
#: Work that says after each step that it can be interrupted; it returns its result.
Steps: TypeAlias = Generator[None, None, _T]

#: Steps of a slice, a millisecond or less: a number, and not a time, so that programs do the same each time they run.
_SLICE_STEPS = 32


def run(main: Coroutine[Any, Any, _T], *, debug: bool | None = None) -> _T:
    """Run a coroutine on a new event loop, uvloop's when it is installed, and close it, as ``asyncio.run`` does.

    Args:
        main: The program.
        debug: As for ``asyncio.run``.
    Raises:
        RuntimeError: if a loop runs in this thread already, as in a notebook.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [])
        >>> y = x + 1
        >>> async def main():
        ...     async with graph:
        ...         return (await graph.run({x: 1}))[y].item()
        >>> af.run(main())
        2.0
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        if asyncio.iscoroutine(main):
            main.close()  # it would warn that it was not awaited
        raise RuntimeError("af.run() where an event loop runs already (a notebook, python -m asyncio): await main()")
    try:
        program, failure = main, list[Exception]()
        if asyncio.iscoroutine(main):
            program = _kept_apart(main, failure)
        with asyncio.Runner(debug=debug, loop_factory=_loop_factory()) as runner:
            result = runner.run(program)
        if failure:
            raise failure.pop()
        return result
    finally:
        if asyncio.iscoroutine(main):
            main.close()  # as above, if there is no loop to be had


async def _kept_apart(main: Coroutine[Any, Any, _T], failure: list[Exception]) -> _T:
    """Await a program; its error goes into a list: a runner's own calls refer to its task, and that to its error."""
    try:
        return await main
    except Exception as error:  # noqa: BLE001  raised by the caller
        failure.append(error)
        return None  # type: ignore[return-value]


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the collector from running inside the ``with`` block, unless the application has turned it off anyway.

    For synchronous code that makes very many objects and keeps nearly all of them: the collector looks at all of them
    again and again and finds nothing, which takes half of the time with a million ops.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def at_once(work: Steps[_T]) -> _T:
    """Do all of some work; returns its result."""
    with collector_paused():
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]


async def in_slices(work: Steps[_T]) -> _T:
    """Do some work in slices of about a millisecond, between which the loop does what else it has to.

    Returns its result.

    Cancellation: the rest of the work is not done.
    """
    with closing(work):
        while True:
            with collector_paused():
                for _ in range(_SLICE_STEPS):
                    try:
                        next(work)
                    except StopIteration as end:
                        return end.value  # type: ignore[no-any-return]
            await asyncio.sleep(0)


def ended_with(task: asyncio.Future[Any]) -> BaseException | None:
    """Error of a task that has ended, None if it has ended well; CancelledError if it was cancelled.

    A cancelled task keeps that no longer: its traceback refers to all calls of the task, which often refer to the task,
    so that all of it would live until the garbage collector comes. It refers to the caller of this, too.
    """
    try:
        return task.exception()
    except asyncio.CancelledError as error:
        return error


async def wait_out(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Wait until all of some tasks have ended, whatever becomes of the caller.

    A cancellation of the caller is passed on to them, as if it awaited their coroutines itself, and raised when all
    have ended: nothing of them is left behind, however often it is cancelled.
    """
    cancelled: asyncio.CancelledError | None = None
    left = set(tasks)  # also those that are done: what follows from their end comes first
    while left:
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError as error:
            cancelled = error
            for task in left:
                task.cancel()
        left = {task for task in left if not task.done()}
    if cancelled is not None:
        try:
            raise cancelled
        finally:
            del cancelled  # whose traceback refers to this


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on Windows
        return None
    return uvloop.new_event_loop
