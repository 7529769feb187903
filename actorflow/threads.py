"""Threads, and how forks change them.

All threads are started here, so that none is taken for running that is not.

The child of an ``os.fork()`` has the memory of its parent, and of its threads only the one that forked. An object that
keeps threads, or work that they have, is notified in the child (`forget_in_child`) and forgets them: threads asked for
later begin anew there, and work under way belongs to the parent. A lock that another thread holds at the fork
would never be released in the child, and the data it guards might be half changed; so a fork waits for such locks
(`held_at_fork`).
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import math
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from actorflow.core import plain
from actorflow.errors import DeviceError

_T = TypeVar("_T")
#: Bytes that are copied, or looked at, on the loop: it takes less than half of a millisecond.
CHEAP_BYTES = 1 << 18
#: Seconds that a fork waits for a lock. Only a signal's handler that forks in the middle of one ever does.
_PATIENCE_S = 10.0


class Simulation:
    """The substitute for threads while a program is simulated.

    Attributes:
        work: Called with a lane that is given work, which it is to do; None where threads do it.
        call_at: Has something called at a time of `actorflow.core.clock_ns`; None where threads wait for it.
        disk: Called before each step of writing a file: "write", "flush", "replace", the path, the one it replaces. It
            raises the error of the step, and nothing is flushed.
        loop: The loop that does all this; None where threads have their own.
        forgets: Called as a simulation begins, for caches that decide the order of work.
    """

    work: Callable[[Any], None] | None = None
    call_at: Callable[[int, Callable[[], None]], None] | None = None
    disk: Callable[[str, Any, Any], None] | None = None
    loop: asyncio.AbstractEventLoop | None = None

    def __init__(self) -> None:
        self.forgets: list[Callable[[], None]] = []


simulation = Simulation()
_here = threading.local()


def cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """A thread that runs ``target()``, for its owner to keep: it has started.

    It is a daemon, so that a program that ends in the middle of a call does not hang; its owner ends it properly.

    Raises:
        DeviceError: if the system has no thread to give; nothing is left of the attempt then, and a later one may work.
    """
    if simulation.work is not None:
        raise DeviceError(f"thread {name!r} cannot be started: there are none in a simulation")
    may_run: SimpleQueue[bool] = SimpleQueue()

    def run() -> None:
        if may_run.get():
            _here.is_own = True
            target()

    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except BaseException as error:
        may_run.put(False)  # Ctrl-C while the caller waits for the thread to begin: nothing would ever end it
        if isinstance(error, RuntimeError | MemoryError):
            raise DeviceError(f"thread {name!r} cannot be started: {error}") from error
        raise
    may_run.put(True)
    return thread


def is_own() -> bool:
    """Return whether the current thread is one that `start_thread` has started, and not the application's."""
    return getattr(_here, "is_own", False)


async def in_thread(work: Callable[[], _T]) -> _T:
    """Call ``work()`` in a thread of the loop's executor in the caller's context; gives its result or raises its error.

    Raises:
        DeviceError: if the executor has no thread and the system none to give; the work is not done then.
    Cancellation: returns at once; work that has begun goes on to its end.
    """
    context, outcome = contextvars.copy_context(), Future[_T]()

    def call() -> None:
        if outcome.set_running_or_notify_cancel():
            try:
                outcome.set_result(context.run(work))
            except BaseException as error:  # noqa: BLE001  raised where it is awaited
                outcome.set_exception(error)

    try:
        asyncio.get_running_loop().run_in_executor(None, call)
    except (RuntimeError, MemoryError) as error:
        # The executor has queued the call all the same: unless a thread has taken it already, none may.
        if outcome.cancel():
            raise DeviceError(f"a thread of the event loop's executor cannot be started: {error}") from error
    return await asyncio.wrap_future(outcome)


async def aside(work: Callable[[], _T], size_bytes: float = math.inf) -> _T:
    """Call ``work()``, in a thread if it touches many bytes; where there is no thread, it takes the loop's time.

    Cancellation: as of `in_thread`.
    """
    if size_bytes > CHEAP_BYTES:
        try:
            return await in_thread(work)
        except DeviceError:
            pass
    return work()


class Heir(Protocol):
    """An object that a child inherits from its parent, and that has something to forget."""

    def forget_parent(self) -> None:
        """Forget threads and their work, which are the parent's. Called in the child; starts and awaits nothing."""


class Lock(Protocol):
    """A lock or a condition of `threading`."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...

    def release(self) -> None: ...


_H = TypeVar("_H", bound=Heir)
_L = TypeVar("_L", bound=Lock)
# Weak references, in order. Not a `WeakSet`: a dictionary is copied in one step, while another thread may add to it.
_heirs: dict[weakref.ref[Any], None] = {}
_outer: dict[weakref.ref[Any], None] = {}
_inner: dict[weakref.ref[Any], None] = {}
# Held during a fork: no thread may enable the collector or release the locks within the fork of another one.
_turn = threading.RLock()
# Forks under way, several if a signal's handler forks within one: whether the collector was enabled, and locks taken.
_forks: list[tuple[bool, list[Any]]] = []


def forget_in_child(heir: _H) -> _H:
    """Have `Heir.forget_parent` called in each child of a fork while the object is alive; returns the object."""
    _note(_heirs, heir)
    return heir


def held_at_fork(lock: _L, *, is_outer: bool = False) -> _L:
    """Have each fork wait for a lock and hold it; returns the lock.

    Args:
        lock: A lock; no other one is taken while it is held, unless it is an outer one.
        is_outer: Whether inner locks are taken while it is held.
    """
    _note(_outer if is_outer else _inner, lock)
    return lock


def new_condition() -> threading.Condition:
    """A condition that forks wait for, whose lock a thread may take again; inner locks are taken while it is held."""
    return held_at_fork(threading.Condition(), is_outer=True)


def _note(known: dict[weakref.ref[Any], None], value: Any) -> None:
    known[weakref.ref(value, lambda ref: known.pop(ref, None))] = None


def _alive(known: dict[weakref.ref[Any], None]) -> list[Any]:
    return [value for ref in [*known] if (value := ref()) is not None]


def _before() -> None:
    _turn.acquire()
    held: list[Any] = []
    _forks.append((gc.isenabled(), held))
    gc.disable()  # a finalizer may want one of the locks
    held.extend(lock for lock in (*_alive(_outer), *_alive(_inner)) if lock.acquire(timeout=_PATIENCE_S))


def _release() -> None:
    collects, held = _forks.pop()
    while held:
        held.pop().release()
    if collects:
        gc.enable()
    _turn.release()


def _in_child() -> None:
    held = {id(lock) for lock in _forks[-1][1]}
    for lock in (*_alive(_outer), *_alive(_inner)):
        if id(lock) not in held:  # it took too long, or another thread has just made it: no thread here knows it yet
            lock._at_fork_reinit()  # as the standard library does with its own
    _release()
    errors: list[BaseException] = []
    for heir in _alive(_heirs):
        try:
            heir.forget_parent()
        except BaseException as error:  # noqa: BLE001  the others must forget all the same
            errors.append(error)
    if errors:
        raise BaseExceptionGroup("what a child of a fork has of its parent could not all be forgotten", errors)


_register: Callable[..., None] | None = getattr(os, "register_at_fork", None)
if _register is not None:  # not on Windows
    _register(before=_before, after_in_parent=_release, after_in_child=_in_child)

plain.counting = held_at_fork(threading.RLock())
