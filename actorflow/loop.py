"""Programs: a coroutine on an event loop of its own; long work on a loop, in slices of its time; the ends of tasks.

A task may tidy up when it has been told to end, and that takes its time. So it is told once, whoever tells it (`end`),
and waited for (`wait_out`). Work of a loop that was closed never goes on, and nothing there can be told: it is
left alone (`end`, `waits`).
"""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sized
from contextlib import closing, contextmanager, suppress
from typing import Any, Self, TypeAlias, TypeGuard, TypeVar

_T = TypeVar("_T")
_F = TypeVar("_F", bound="asyncio.Future[Any]")
#: Work that says after each step that it can be interrupted, and, unless it is a short one, for how many it counts; it
#: returns its result.
Steps: TypeAlias = Generator[Any, None, _T]

#: Short steps of a slice, a millisecond or less: a number, and not a time, so that programs always do the same.
_SLICE_STEPS = 32
#: Tasks that have been told to end.
_told: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
#: Seconds between looks at a task that others have told to end, and how long they may take.
_LOOK_S = 0.02
_PATIENCE_S = 10.0


def run(main: Coroutine[Any, Any, _T], *, debug: bool | None = None) -> _T:
    """Run a coroutine on a new event loop, uvloop's when it is installed, and close it, as ``asyncio.run`` does.

    Ctrl-C cancels the coroutine, which may tidy up, and KeyboardInterrupt is raised when the loop has been closed. A
    second Ctrl-C does not wait for that, and a third one also ends code that blocks the loop.

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
    failure: list[Exception] = []
    with _Interrupts() as interrupts:
        try:
            with asyncio.Runner(debug=debug, loop_factory=_loop_factory()) as runner:
                is_coroutine = asyncio.iscoroutine(main)  # the loop refuses anything else
                program = _kept_apart(main, failure) if is_coroutine else main
                result = interrupts.run(runner.get_loop(), program)
            if failure:
                raise failure.pop()
            return result
        finally:
            if asyncio.iscoroutine(main):
                main.close()  # as above, if there is no loop to be had


class _Interrupts:
    """Takes Ctrl-C while a loop is made, runs and is closed, and raises KeyboardInterrupt when the loop is gone.

    The first one ends the main task, as with ``asyncio.run``. Behind the end of that task, asyncio's own handler raises
    wherever the interpreter is: in the middle of uvloop's code that leaves a loop that counts as running, and cannot be
    closed. Here nothing is raised in the code of a loop, unless somebody presses Ctrl-C for the third time.
    """

    def __init__(self) -> None:
        self._count = 0
        self._is_due = False  # whether KeyboardInterrupt is to be raised, whatever else comes of the program
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            with suppress(ValueError):  # an interpreter without signals, embedded in another program
                signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if signal.getsignal(signal.SIGINT) == self._pressed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._is_due:
            raise KeyboardInterrupt

    def run(self, loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, _T]) -> _T:
        """Run the main task to its end."""
        task: asyncio.Task[_T] = loop.create_task(main)
        self._loop, self._task = loop, task
        if self._is_due:  # pressed while the loop was being made
            self._is_due = False
            end(task)
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError:
            if self._count and not task.uncancel():
                raise KeyboardInterrupt from None
            raise

    def _pressed(self, number: int, frame: object) -> None:
        self._count += 1
        if self._count == 1 and self._task is not None and not self._task.done():
            end(self._task)
            self._wake(_nothing)
            return
        self._is_due = True
        if self._count == 2:
            self._wake(_interrupt)
        elif self._count > 2:  # the program's own code blocks the loop
            raise KeyboardInterrupt

    def _wake(self, callback: Callable[[], None]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it has been closed
                self._loop.call_soon_threadsafe(callback)


def _nothing() -> None:
    """Only have the loop look."""


def _interrupt() -> None:
    raise KeyboardInterrupt


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


def look_at(items: Sized) -> int:
    """The number of short steps that a step counts for which looks at all of some ops, or slots."""
    return 1 + len(items) // 8


def at_once(work: Steps[_T]) -> _T:
    """Do all of some work; returns its result."""
    with collector_paused():
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]


async def in_slices(work: Steps[_T]) -> _T:
    """Do some work in slices of about a millisecond, between which the loop does its other work.

    Returns its result.

    Cancellation: the rest of the work is not done.
    """
    with closing(work):
        while True:
            with collector_paused():
                left = _SLICE_STEPS
                while left > 0:
                    try:
                        left -= next(work) or 1
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


def end(task: asyncio.Task[Any]) -> None:
    """Tell a task to end, by a cancellation, unless it has been told before: that would cut off its clean-up.

    Tasks are cancelled here alone. Nothing happens to a task of a closed loop. One that others have cancelled, as a
    loop that ends cancels all tasks, is told when it goes on behind that, as behind a time limit within it.
    """
    if task not in _told and waits(task):
        _told.add(task)
        _tell(task, _PATIENCE_S)


def _tell(task: asyncio.Task[Any], left_s: float) -> None:
    if not task.cancelling() or left_s <= 0:  # not for ever: not all who cancel a task take that back
        task.cancel()
    elif not task.done():
        task.get_loop().call_later(_LOOK_S, _tell, task, left_s - _LOOK_S)


def waits(future: _F | None) -> TypeGuard[_F]:
    """Return whether somebody may wait for a future: it is not done, and its loop was not closed."""
    return future is not None and not future.done() and not future.get_loop().is_closed()


async def wait_out(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Wait until all of some tasks have ended, whatever becomes of the caller.

    A cancellation of the caller is raised when all have ended: nothing of them is left behind, however often it is
    cancelled, as a scope of anyio does in each turn of the loop. Those of closed loops never end, and are left out.
    """
    cancelled: asyncio.CancelledError | None = None
    left = {task for task in tasks if not task.get_loop().is_closed()}  # those done, too: its callbacks come first
    while left:
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError as error:
            cancelled = error
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
