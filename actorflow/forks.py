"""The children of ``os.fork()``: what they must forget of their parent, and locks that no fork finds taken.

A child has the memory of its parent, and of its threads the one that forked. Whoever keeps threads, or work that they
have, is told in the child (`forget_in_child`), and forgets them: what is asked for later begins anew there, and what
was under way belongs to the parent. A lock that another thread holds at the fork would never be released in the child,
and what it guards might be half changed; so a fork waits for such locks (`held_at_fork`).
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

#: A fork waits so long for a lock, in seconds. Only a signal's handler that forks in the middle of one ever does.
_PATIENCE_S = 10.0


class Heir(Protocol):
    """Whoever a child inherits from its parent, and has something to forget."""

    def forget_parent(self) -> None:
        """This is the child of a fork: threads, and what they were at, are the parent's. Starts and awaits nothing."""


class Lock(Protocol):
    """A lock or a condition of `threading`."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...

    def release(self) -> None: ...


_T = TypeVar("_T", bound=Heir)
_L = TypeVar("_L", bound=Lock)
# By weak references, in order. A dictionary and not a `WeakSet`: to copy it takes one step, as a thread may add to it.
_heirs: dict[weakref.ref[Any], None] = {}
_outer: dict[weakref.ref[Any], None] = {}
_inner: dict[weakref.ref[Any], None] = {}
# Threads fork one after the other: none may switch the collector on, or release the locks, within another one's fork.
_turn = threading.RLock()
# The forks that are under way: whether the collector ran before, and the locks that were taken. A signal's handler may
# fork within one.
_forks: list[tuple[bool, list[Any]]] = []


def forget_in_child(heir: _T) -> _T:
    """Have `Heir.forget_parent` called in each child of a fork, as long as the heir is there; returns it."""
    _note(_heirs, heir)
    return heir


def held_at_fork(lock: _L, *, is_outer: bool = False) -> _L:
    """Have each fork wait for a lock; returns it.

    Args:
        lock: Within it no other one is taken; at most such a one, if it is an outer one.
        is_outer: Whether locks of the other kind are taken within it.
    """
    _note(_outer if is_outer else _inner, lock)
    return lock


def _note(known: dict[weakref.ref[Any], None], value: Any) -> None:
    known[weakref.ref(value, lambda ref: known.pop(ref, None))] = None


def _alive(known: dict[weakref.ref[Any], None]) -> list[Any]:
    return [value for ref in [*known] if (value := ref()) is not None]


def _before() -> None:
    _turn.acquire()
    held: list[Any] = []
    _forks.append((gc.isenabled(), held))
    gc.disable()  # what it finds may want one of the locks
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
