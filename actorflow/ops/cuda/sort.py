"""Places of equal keys beside each other, by a radix sort of our own.

CuPy's sort is Thrust's, which makes the host wait for the stream, and cannot be captured.
"""

from __future__ import annotations

import cupy
import numpy as np

from actorflow.ops.cuda.launch import Array, launch

# As in kernels/sort.cuh.
_DIGIT_BITS = 6
_THREADS = 128
_TILE = _THREADS * 32


def sorted_places(keys: Array, bound: int) -> tuple[Array, Array]:
    """Keys in their order, and the place that each had before; equal ones in the order of these places.

    The work is linear in the number of keys, and the order in which it is done depends on nothing but the keys. It
    takes one launch for a few thousand keys, and three for each digit of more.

    Args:
        keys: int64, from 0 to ``bound``; overwritten.
        bound: The largest key there may be.
    """
    count, bits = keys.size, max(1, bound.bit_length())
    tiles, rounds = -(-count // _TILE), -(-bits // _DIGIT_BITS)
    pairs = (keys, *(cupy.empty((count,), np.int64) for _ in range(3)))
    if tiles <= 1:
        _launch("sort_tile", tiles, *pairs, count, bits)
        return (pairs[2], pairs[3]) if rounds % 2 else (pairs[0], pairs[1])
    table = cupy.empty((tiles << _DIGIT_BITS,), np.int64)
    for shift in range(0, bits, _DIGIT_BITS):
        _launch("count_digits", tiles, pairs[0], table, count, tiles, shift)
        _launch("add_up", 1, table, table.size)
        _launch("place", tiles, *pairs, table, count, tiles, shift)
        pairs = (*pairs[2:], *pairs[:2])
    return pairs[0], pairs[1]


def _launch(function: str, grid: int, *args: Array | int) -> None:
    launch("sort", function, grid, _THREADS, args, np.dtype(np.float32))
