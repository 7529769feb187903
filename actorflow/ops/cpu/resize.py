"""Kernels of `actorflow.ops.nn.resize`: sums of rows that are picked and weighted, band by band in the cache."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.devices.team import team
from actorflow.ops.cpu.buffers import Array, in_float32, scratch
from actorflow.ops.cpu.parallel import element_ns
from actorflow.ops.nn.resize import Resize, ResizeDown
from actorflow.ops.registry import kernel

_PIECE_BYTES = 256 << 10


class _Pass(NamedTuple):
    """A summand of some rows of a band: one picked row for each, and its weight."""

    rows: slice | npt.NDArray[np.intp]
    picked: npt.NDArray[np.intp]
    weights: Array


@lru_cache(maxsize=256)
def _bands(
    operation: Resize, is_down: bool, length: int, count: int, dtype: np.dtype[Any]
) -> list[tuple[slice, list[_Pass]]]:
    """The rows of a result in bands of at most ``count``, and the summands of each; ``length`` is that of ``x``."""
    seen, weights = operation.taps(length)
    made = np.broadcast_to(np.arange(operation.size)[:, np.newaxis], seen.shape)
    rows, picked, total = (seen, made, length) if is_down else (made, seen, operation.size)
    order = np.argsort(rows, axis=None, kind="stable")
    starts = np.searchsorted(rows.reshape(-1)[order], np.arange(total + 1))
    bands = []
    for first in range(0, total, count):
        band = slice(first, min(first + count, total))
        begins, counts = starts[band], np.diff(starts[first : band.stop + 1])
        passes = []
        for rank in range(counts.max()):
            left = np.flatnonzero(counts > rank)
            at = order[begins[left] + rank]
            where = slice(None) if left.size == counts.size else left
            passes.append(_Pass(where, picked.reshape(-1)[at], weights.reshape(-1)[at, np.newaxis].astype(dtype)))
        bands.append((band, passes))
    return bands


@kernel(Resize)
@kernel(ResizeDown)
@in_float32
def _resize(given: Resize | ResizeDown, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (y,), is_down = inputs, outputs, isinstance(given, ResizeDown)
    operation: Resize = given.forward if isinstance(given, ResizeDown) else given
    axis = operation.axis
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    sources, results = (array.reshape(outer, array.shape[axis], inner) for array in (x, y))
    fitting = max(1, _PIECE_BYTES // max(1, inner * y.itemsize))
    step = max(1, fitting // y.shape[axis])
    length = (y if is_down else x).shape[axis]
    bands = _bands(operation, is_down, length, fitting, y.dtype)
    found = [(slice(first, first + step), *band) for first in range(0, outer, step) for band in bands]

    def compute(piece: tuple[slice, slice, list[_Pass]]) -> None:
        images, band, passes = piece
        source, total = sources[images], results[images, band]
        is_begun = bool(passes) and isinstance(passes[0].rows, slice)
        if not is_begun:
            total.fill(0)
        for number, (rows, picked, weights) in enumerate(passes):
            is_first = is_begun and number == 0
            share = total if is_first else scratch("share", (len(source), picked.size, inner), y.dtype)
            np.take(source, picked, axis=1, out=share, mode="clip")
            if operation.mode != "nearest":
                np.multiply(share, weights, out=share)
            if not is_first:
                total[:, rows] += share

    team.spread(found, compute, element_ns(6 * max(x.size, y.size)))
