"""Rules of reductions."""

from __future__ import annotations

from actorflow.array import namespace as xp
from actorflow.array.array import Array

Grads = list["Array | None"]


def spread(x: Array, like: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The result of a reduction over ``axes``, with these axes of length 1."""
    if keepdims:
        return x
    return xp.reshape(x, tuple([1 if i in axes else n for i, n in enumerate(like.shape)]))
