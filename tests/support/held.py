"""Arrays that are held by nothing when the use of them has ended, although the garbage collector is off."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.actors.frame import Frame
from tests.support.waiting import settle

#: Objects that are never to be in a cycle of references: what holds arrays, and what refers to all by its traceback.
_NEVER_CYCLIC = (Frame, BaseException, np.ndarray)


class Arrays:
    """A maker of arrays that knows which of them are alive."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Any]] = []

    def __call__(self, *shape: int) -> npt.NDArray[np.float64]:
        """An array of ones."""
        array = np.ones(shape)
        self.watch(array)
        return array

    def watch(self, value: Any) -> None:
        """Count another object as one of them."""
        self._made.append(weakref.ref(value))

    @property
    def made(self) -> int:
        return len(self._made)

    @property
    def alive(self) -> int:
        return sum(ref() is not None for ref in self._made)


@asynccontextmanager
async def nothing_held(*, is_open: bool = True) -> AsyncIterator[Arrays]:
    """Check that no array of those made inside the block is alive behind it, by counting of references alone.

    Args:
        is_open: Whether what has used them lives on, so that nothing at all that refers to them may be in a cycle.
    """
    gc.collect()
    gc.disable()
    try:
        arrays = Arrays()
        yield arrays
        await settle()
        alive = arrays.alive
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        cyclic = [repr(found)[:200] for found in gc.garbage if isinstance(found, _NEVER_CYCLIC)] if is_open else []
        gc.garbage.clear()
    finally:
        gc.set_debug(0)
        gc.enable()
    assert arrays.made
    assert not alive, f"{alive} of {arrays.made} arrays are alive"
    assert not cyclic, f"in a cycle of references: {cyclic}"
