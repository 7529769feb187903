"""Gradients of what is taken by indices: rows that are added up one after the other, in NumPy's order."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.cpu.indexing import from_front
from actorflow.ops.indexing import TakeDown
from actorflow.ops.numba.kernels import are_plain, kernel
from actorflow.ops.numba.routine import Routine

_TAKE_DOWN = """
def take_down(g, places, seen, dx, outer, count, length, inner):
    for n in range(outer):
        for i in range(length):
            seen[i] = 0
        for i in range(count):
            place = places[i]
            a = (n * count + i) * inner
            b = (n * length + place) * inner
            if seen[place]:
                for c in range(inner):
                    dx[b + c] = dx[b + c] + g[a + c]
            else:
                seen[place] = 1
                for c in range(inner):
                    dx[b + c] = g[a + c]
"""


@lru_cache(maxsize=4)
def _routine(dtype: str) -> Routine:
    arrays = (f"{dtype}*", "int64*", "uint8*", f"{dtype}*")
    return Routine(_TAKE_DOWN, "take_down", (*arrays, *["intp"] * 4))


@kernel(TakeDown)
def _take_down(operation: TakeDown, inputs: list[Array], outputs: list[Array]) -> bool:
    (g, indices), (dx,) = inputs, outputs
    outer = math.prod(dx.shape[: operation.axis])
    inner = math.prod(dx.shape[operation.axis + 1 :])
    # NumPy adds up single elements in pairs.
    if inner < 2 or not g.size or not are_plain([g, dx], g.dtype):
        return False
    function = _routine(g.dtype.name).function
    if function is None:
        return False
    places = np.ascontiguousarray(from_front("TakeDown", indices, operation.length).reshape(-1), np.int64)
    seen = np.empty(operation.length, np.uint8)
    dx.fill(0)
    function(id(g), id(places), id(seen), id(dx), outer, places.size, operation.length, inner)
    return True
