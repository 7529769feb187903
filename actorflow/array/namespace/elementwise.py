"""Functions of the standard that are called otherwise than in `actorflow.ops.elementwise`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actorflow.array.namespace.operate import cast, node_of
from actorflow.ops.elementwise import absolute, at_least, at_most, copy, power

if TYPE_CHECKING:
    from actorflow.array.array import Array

abs, pow = absolute, power


def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    """``x`` kept within bounds, in its own dtype; None leaves a side open."""
    dtype = node_of("clip", "x", x).dtype
    if min is None and max is None:
        return copy(x)
    clipped = x if min is None else at_least(x, min)
    return cast(clipped if max is None else at_most(clipped, max), dtype)
