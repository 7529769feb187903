"""Kernels of `actorflow.ops.reductions`, of sums and of broadcasting, and the tiles that all reductions share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import cupy
import numpy as np

from actorflow.ops import reductions as ops
from actorflow.ops.cuda.launch import ANYTHING, FLOATS, REALS, Array, contiguous, kernel, launch
from actorflow.ops.operation import wide_dtype
from actorflow.ops.shaping import BroadcastTo, ReduceSum, Reduction

_BLOCK = 256
_WARP = 32
#: Blocks that fill the largest device some times over; a sum with fewer columns is cut into parts.
_ENOUGH_BLOCKS = 1024
#: A thread that sums fewer elements than this costs more to combine than it saves.
_LEAST_ELEMENTS = 8


class Tile(NamedTuple):
    """A launch of a reduction: ``grid`` blocks of ``block`` threads, each for ``columns`` columns.

    With ``parts`` above 1 each column is reduced in that many blocks, to be combined by a second launch.
    """

    grid: int
    block: int
    columns: int
    parts: int


class Columns(NamedTuple):
    """An array that is reduced: ``all`` columns of ``length`` elements, ``inner`` elements apart."""

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
        axes: Axes to sum over.
        out: Contiguous, of the remaining shape; the dtype of ``x``, or one that is computed in ``x``'s dtype.
        divisor: Divides the sum, before it is rounded to the dtype of ``out``.
    """
    x, columns = columns_over(x, axes)
    _sum_columns(x, columns, out, wide_dtype(out.dtype).type(divisor))


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


def _sum_columns(x: Array, columns: Columns, out: Array, divisor: Any) -> None:
    tile = columns.sum_tile()
    if tile.parts == 1:
        function = "sum" if x.dtype == out.dtype else "sum_narrowing"
        _launch_sum(function, x, out, columns, tile, divisor, out.dtype)
        return
    partial = cupy.empty((tile.parts, columns.all), wide_dtype(x.dtype))
    _launch_sum("sum_widening", x, partial, columns, tile, partial.dtype.type(1), x.dtype)
    rest = Columns(columns.all, tile.parts, columns.all)
    function = "sum" if partial.dtype == out.dtype else "sum_narrowing"
    _launch_sum(function, partial, out, rest, rest._tile(rest.length, parts=False), divisor, out.dtype)


def _launch_sum(
    function: str, x: Array, y: Array, columns: Columns, tile: Tile, divisor: Any, dtype: np.dtype[Any]
) -> None:
    args = (x, y, *columns, tile.parts, tile.columns, divisor)
    launch("reduce", function, tile.grid, tile.block, args, dtype)


def _fold(function: str, again: str, operation: Reduction, x: Array, out: Array) -> None:
    """Reduce in one launch, or in two where the columns alone do not fill a device; always in the same order."""
    x, columns = columns_over(_as_bytes(x), operation.axes(x.ndim))
    out = _as_bytes(out)
    tile = columns.sum_tile()
    if tile.parts == 1:
        _launch(function, x, out, columns, tile.grid, tile.block, tile.parts, tile.columns)
        return
    partial = cupy.empty((tile.parts, columns.all), wide_dtype(out.dtype) if out.dtype.kind == "f" else out.dtype)
    _launch(function, x, partial, columns, tile.grid, tile.block, tile.parts, tile.columns)
    rest = Columns(columns.all, tile.parts, columns.all)
    tile = rest.softmax_tile()
    _launch(again, partial, out, rest, tile.grid, tile.block, 1, tile.columns)


def _launch(function: str, x: Array, y: Array, columns: Columns, grid: int, block: int, parts: int, width: int) -> None:
    launch("fold", function, grid, block, (x, y, *columns, parts, width), x.dtype, RESULT=y.dtype)


def _as_bytes(x: Array) -> Array:
    return contiguous(x).view(np.uint8) if x.dtype == np.bool_ else x


@kernel(BroadcastTo, dtypes=ANYTHING)
def _broadcast_to(operation: BroadcastTo, inputs: list[Array], outputs: list[Array]) -> None:
    cupy.copyto(outputs[0], cupy.broadcast_to(inputs[0], outputs[0].shape))


@kernel(ReduceSum, dtypes=REALS)
def _sum(operation: ReduceSum, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (y,) = inputs, outputs
    if x.dtype.kind == "f":
        sum_axes(x, operation.axes(x.ndim), y)
    else:
        _fold("fold_sum", "fold_sum", operation, x, y)


@kernel(ops.ReduceMean, dtypes=FLOATS)
def _mean(operation: ops.ReduceMean, inputs: list[Array], outputs: list[Array]) -> None:
    axes = operation.axes(inputs[0].ndim)
    sum_axes(inputs[0], axes, outputs[0], float(math.prod(inputs[0].shape[i] for i in axes)))


def _register(operation: type[Reduction], dtypes: tuple[str, ...], function: str, again: str | None = None) -> None:
    @kernel(operation, dtypes=dtypes)
    def compute(operation: Reduction, inputs: list[Array], outputs: list[Array]) -> None:
        _fold(function, again or function, operation, inputs[0], outputs[0])


_register(ops.ReduceMax, REALS, "fold_max")
_register(ops.ReduceMin, REALS, "fold_min")
_register(ops.ReduceProd, REALS, "fold_prod")
_register(ops.ReduceAny, ("bool",), "fold_any")
_register(ops.ReduceAll, ("bool",), "fold_all")
_register(ops.CountNonzero, ("bool", *REALS), "count_nonzero", "fold_sum")


@kernel(ops.ArgMax, dtypes=REALS)
@kernel(ops.ArgMin, dtypes=REALS)
def _position(operation: ops.ArgMax | ops.ArgMin, inputs: list[Array], outputs: list[Array]) -> None:
    x, columns = columns_over(inputs[0], operation.axes(inputs[0].ndim))
    tile = columns.softmax_tile()
    args: tuple[Any, ...] = (x, outputs[0], *columns, tile.columns, int(isinstance(operation, ops.ArgMax)))
    launch("fold", "position", tile.grid, tile.block, args, x.dtype, RESULT=x.dtype)
