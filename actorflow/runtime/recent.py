"""A cache of the results used last."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any, Generic, TypeVar

from actorflow.threads import held_at_fork

_T = TypeVar("_T")


class RecentCache(Generic[_T]):
    """The values of the keys that were used last; for several threads.

    Args:
        most: Most values that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: OrderedDict[Any, _T] = OrderedDict()
        self._lock = held_at_fork(Lock())

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Any) -> _T | None:
        """The value of a key; None if it is not kept."""
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: Any, value: _T) -> None:
        """Keep a value, and drop the one unused for longest."""
        with self._lock:
            self._entries[key] = value
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)
