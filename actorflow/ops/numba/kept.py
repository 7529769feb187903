"""What compiled kernels keep for an operation, as long as it lives, so that calls have little left to do."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import ref

from actorflow.devices.memory import OWNERS
from actorflow.ops.cpu.buffers import Array
from actorflow.ops.operation import KEPT, Operation

_T = TypeVar("_T")
#: For arrays of so many shapes, as long as the tables take no more than this: to make large ones takes little of the
#: time of a call.
_MOST_MADE = 64
_MOST_BYTES = 1 << 20


class Kept:
    """What the kernels of one operation keep: what is made for arrays of some shapes, and the weight, packed."""

    __slots__ = ("_made", "_made_bytes", "_packed", "_seen")

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self._made_bytes = 0
        self._seen = 0
        self._packed: tuple[Callable[[], Array | None], Array] | None = None

    def made(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """What has been made for a key."""
        found: _T | None = self._made.get(key)
        if found is None:
            found = make()
            size_bytes = getattr(found, "size_bytes", 0)
            if len(self._made) >= _MOST_MADE or self._made_bytes + size_bytes > _MOST_BYTES:
                self._made, self._made_bytes = {}, 0
            self._made[key] = found
            self._made_bytes += size_bytes
        return found

    def packed(self, weight: Array, pack: Callable[[Array], Array]) -> Array:
        """The weight, packed.

        From its second use on that is kept, and the weight with it: what is referred to is not written again. A weight
        that each step of a training replaces is used once, and its memory goes back.
        """
        kept = self._packed
        if kept is not None:
            if kept[0]() is weight:
                return kept[1]
            self._packed = None
        found = pack(weight)
        if self._seen == id(weight) or not weight.flags.writeable:
            # No pool writes a view over; one of what was fed is another one in each call, and keeps what was fed.
            self._packed = (lambda: weight) if type(weight.base) in OWNERS else ref(weight), found
        self._seen = id(weight)
        return found


def kept(operation: Operation) -> Kept:
    """What is kept for an operation, as long as it lives."""
    own = operation.__dict__
    found: Kept | None = own.get(KEPT)
    if found is None:
        found = own[KEPT] = Kept()
    return found
