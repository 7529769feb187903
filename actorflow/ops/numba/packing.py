"""Panels of a weight whose inputs and outputs change places, as gradients want them, by a compiled loop.

NumPy takes three times as long: either what it reads or what it writes lies apart.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.numba.assembly import Vectors, vectors
from actorflow.ops.numba.product import pack, panels_of, room_for
from actorflow.ops.numba.routine import Routine

#: Blocks of what is read along its rows and written along its columns, so that both stay in the cache.
_ROWS, _COLUMNS = 16, 8

_PACK = f"""
def pack_turned(weight, packed, panels, count, taps, inputs, outputs, own):
    nothing = weight[0] * 0
    for number in range(count):
        first, columns, length = panels[number * 5], panels[number * 5 + 1], panels[number * 5 + 2]
        to, group = panels[number * 5 + 3], panels[number * 5 + 4]
        first -= group * inputs
        for tap in range(taps):
            start = ((taps - 1 - tap) * inputs + first) * outputs + group * own
            for rows in range(0, own, {_ROWS}):
                for some in range(0, length, {_COLUMNS}):
                    for row in range(rows, min(own, rows + {_ROWS})):
                        a, b = start + row, to + (tap * own + row) * length
                        for column in range(some, min(some + {_COLUMNS}, columns)):
                            packed[b + column] = weight[a + column * outputs]
                        for column in range(max(some, columns), min(some + {_COLUMNS}, length)):
                            packed[b + column] = nothing
"""


@lru_cache(maxsize=4)
def _routine(dtype: str) -> Routine:
    return Routine(_PACK, "pack_turned", (*[f"{dtype}*"] * 2, "int64*", *["intp"] * 5))


@lru_cache(maxsize=1024)
def _table(depth: int, columns: int, groups: int, v: Vectors) -> Array:
    return np.array([each._replace(width=each.width * v.lanes) for each in panels_of(depth, columns, groups, v)])


def pack_turned(weight: Array, groups: int = 1) -> Array:
    """The panels of the weight that takes gradients of outputs to those of inputs.

    Args:
        weight: (taps, inputs of a group, outputs), in C order.
        groups: Number of groups.
    Returns:
        As `pack` of (tap and output of a group, input): the taps are back to front.
    """
    taps, inputs, outputs = weight.shape
    own = outputs // groups
    function = _routine(weight.dtype.name).function
    if function is None:
        flipped = weight[::-1].reshape(taps, inputs, groups, own)
        return pack(flipped.transpose(0, 3, 2, 1).reshape(taps * own, groups * inputs), groups)
    v = vectors(weight.dtype.name)
    assert v is not None
    panels = _table(taps * own, groups * inputs, groups, v)
    packed = room_for(panels[:, 2].sum() * taps * own, weight.dtype)
    function(id(weight), id(packed), id(panels), len(panels), taps, inputs, outputs, own)
    return packed
