"""Sums over axes, and the tiles that all reductions share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import cupy
import numpy as np

from actorflow.ops.cuda.launch import Array, contiguous, launch, wide_dtype

_BLOCK = 256
_WARP = 32
#: Blocks that fill the largest device some times over; a sum with fewer columns is cut into parts.
_ENOUGH_BLOCKS = 1024
#: A thread that sums fewer elements than this costs more to combine than it saves.
_LEAST_ELEMENTS = 8


class Tile(NamedTuple):
    """How a reduction is launched: ``grid`` blocks of ``block`` threads, each for ``columns`` columns.

    With ``parts`` above 1 each column is reduced in that many blocks, to be combined by a second launch.
    """

    grid: int
    block: int
    columns: int
    parts: int


class Columns(NamedTuple):
    """What is reduced: ``all`` columns of ``length`` elements, ``inner`` elements apart."""

    all: int
    length: int
    inner: int

    @classmethod
    def along(cls, shape: Sequence[int], axis: int) -> Columns:
        """The columns of a contiguous array along one axis."""
        axis %= len(shape)
        inner = math.prod(shape[axis + 1 :])
        return cls(math.prod(shape[:axis]) * inner, shape[axis], inner)

    def softmax_tile(self) -> Tile:
        """A tile whose threads have some elements each."""
        return self._tile(-(-self.length // 4), parts=False)

    def sum_tile(self) -> Tile:
        """A tile for a sum, cut into parts where the columns alone do not fill a device."""
        return self._tile(self.length, parts=True)

    def _tile(self, threads: int, parts: bool) -> Tile:
        if self.inner == 1:
            alongs = min(_BLOCK, _power_of_two(threads))
            columns = min(_BLOCK // alongs, _power_of_two(self.all))
        else:
            columns = min(_WARP, _power_of_two(self.all))
            alongs = min(_BLOCK // columns, _power_of_two(threads))
        alongs = max(alongs, _WARP // columns)
        blocks = -(-self.all // columns)
        count = 1
        if parts and blocks:
            count = min(max(1, _ENOUGH_BLOCKS // blocks), max(1, self.length // (alongs * _LEAST_ELEMENTS)))
        return Tile(blocks * count, columns * alongs, columns, count)


def _power_of_two(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()


def sum_axes(x: Array, axes: Sequence[int], out: Array, divisor: float = 1.0) -> None:
    """``out = x.sum(axes) / divisor``, in one or two launches and always in the same order.

    CuPy's reductions give each block some outputs, so that a sum to a few features runs on a few multiprocessors; this
    one divides long columns among blocks.

    Args:
        x: Any shape, floating; copied if it is not contiguous, or if the axes do not lie side by side.
        axes: What is summed over.
        out: Contiguous, of the remaining shape; the dtype of ``x``, or one that is computed in ``x``'s dtype.
        divisor: Divides the sum, before it is rounded to the dtype of ``out``.
    """
    x, columns = columns_over(x, axes)
    _sum(x, columns, out, wide_dtype(out.dtype).type(divisor))


def columns_over(x: Array, axes: Sequence[int]) -> tuple[Array, Columns]:
    """An array as contiguous columns along some axes; copied if it is not, or if the axes do not lie side by side."""
    axes = sorted(axis % x.ndim for axis in axes)
    first = axes[0] if axes else 0
    if axes != list(range(first, first + len(axes))):
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        x, first = x.transpose(*kept, *axes), len(kept)
    inner = math.prod(x.shape[first + len(axes) :])
    length = math.prod(x.shape[first : first + len(axes)])
    return contiguous(x), Columns(math.prod(x.shape[:first]) * inner, length, inner)


def _sum(x: Array, columns: Columns, out: Array, divisor: Any) -> None:
    tile = columns.sum_tile()
    if tile.parts == 1:
        function = "sum" if x.dtype == out.dtype else "sum_narrowing"
        _launch(function, x, out, columns, tile, divisor, out.dtype)
        return
    partial = cupy.empty((tile.parts, columns.all), wide_dtype(x.dtype))
    _launch("sum_widening", x, partial, columns, tile, partial.dtype.type(1), x.dtype)
    rest = Columns(columns.all, tile.parts, columns.all)
    function = "sum" if partial.dtype == out.dtype else "sum_narrowing"
    _launch(function, partial, out, rest, rest._tile(rest.length, parts=False), divisor, out.dtype)


def _launch(
    function: str, x: Array, y: Array, columns: Columns, tile: Tile, divisor: Any, dtype: np.dtype[Any]
) -> None:
    args = (x, y, *columns, tile.parts, tile.columns, divisor)
    launch("reduce", function, tile.grid, tile.block, args, dtype)
