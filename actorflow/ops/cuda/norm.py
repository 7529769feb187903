"""Kernels of `actorflow.ops.nn.norm`.

Statistics are taken in one pass over the data, in float32 at least, and the results are written in another. So a batch
is read twice and written once forwards (3 times its size through memory), and read twice with its gradient and written
once backwards (5 times); layers need a third pass backwards (7 times), since they add up along both axes. A pass is one
launch, and where the columns alone do not fill a device a small one more, which joins their parts; what is done with
the few numbers of the statistics is done in the same launches. So it is 3 launches forwards and 3 backwards, 2 and 2
where there are no parts, and up to 5 backwards for layers; float16 takes one more backwards.

The statistics broadcast: (channels,) for batches, (samples, 1) for layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import cupy
import numpy as np

from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, elementwise, kernel, launch
from actorflow.ops.cuda.reductions import Columns, Tile
from actorflow.ops.nn import norm as ops
from actorflow.ops.operation import wide_dtype

_NORMALIZE = elementwise(
    "normalize",
    "T x, R mean, R variance, T scale, T shift, float64 epsilon",
    "T y",
    "y = T((R(x) - mean) / R(sqrt(variance + R(epsilon))) * R(scale) + R(shift))",
)
_NARROW = elementwise("narrow_two", "R a, R b", "T x, T y", "x = T(a); y = T(b)")
_BATCH_DOWN = elementwise(
    "batch_norm_down",
    "T g, T x, T scale, R mean, R r, R total, R product, float64 count",
    "T dx",
    "const R n = (R(x) - mean) * r; dx = T(r * R(scale) * (R(g) - total / R(count) - n * (product / R(count))))",
)
_LAYER_DOWN = elementwise(
    "layer_norm_down",
    "T g, T x, T scale, R mean, R r, R total, R product, float64 count",
    "T dx",
    "const R n = (R(x) - mean) * r; dx = T(r * (R(g) * R(scale) - total / R(count) - n * (product / R(count))))",
)
_INFERENCE_DOWN = elementwise("normalize_by_constants_down", "T g, T scale, R r", "T dx", "dx = T(R(g) * R(scale) * r)")


class _Rows(NamedTuple):
    """An array seen as (rows, width), with statistics per column or per row."""

    rows: int
    width: int
    axis: int

    @classmethod
    def of(cls, shape: tuple[int, ...], axes: int, axis: int) -> _Rows:
        return cls(math.prod(shape[:-axes]), math.prod(shape[-axes:]), axis)

    def matrix(self, x: Array) -> Array:
        return contiguous(x).reshape(self.rows, self.width)

    def statistic(self, x: Array) -> Array:
        return contiguous(x).reshape((1, self.width) if self.axis == 0 else (self.rows, 1))

    def columns(self, axis: int) -> Columns:
        return Columns.along((self.rows, self.width), axis)

    @property
    def terms(self) -> int:
        return self.rows if self.axis == 0 else self.width


def _wide(count: int, dtype: np.dtype[Any], *shape: int) -> list[Array]:
    return [cupy.empty(shape, wide_dtype(dtype)) for _ in range(count)]


def _launch(
    function: str, columns: Columns, tile: Tile, arrays: Sequence[Any], dtype: np.dtype[Any], *more: Any
) -> None:
    launch("norm", function, tile.grid, tile.block, (*arrays, *columns, *more), dtype)


class _Running(NamedTuple):
    """Running statistics: what they were, what they become, and the shares of which."""

    old: Sequence[Array]
    new: Sequence[Array]
    kept: float
    of_mean: float
    of_variance: float


def _statistics(rows: _Rows, x: Array, mean: Array, variance: Array, running: _Running | None = None) -> None:
    columns = rows.columns(rows.axis)
    tile = columns.sum_tile()
    old, new, *shares = running or _Running((mean, variance), (mean, variance), 0, 0, 0)
    moves = (*map(contiguous, old), *new, *map(wide_dtype(x.dtype).type, shares), int(running is not None))
    if tile.parts == 1:
        _launch("moments", columns, tile, (x, mean, variance, mean), x.dtype, tile.parts, tile.columns, *moves)
        return
    partial = _wide(3, x.dtype, tile.parts, columns.all)
    _launch("moments", columns, tile, (x, *partial), x.dtype, tile.parts, tile.columns, *moves)
    rest = Columns(columns.all, tile.parts, columns.all)
    tile = rest.softmax_tile()
    _launch("join_moments", rest, tile, (*partial, mean, variance), x.dtype, tile.columns, *moves)


class _Sums(NamedTuple):
    """Sums along an axis of ``g``, along rows times ``scale``, and of that times normalized ``x``; and ``r``."""

    total: Array
    product: Array
    r: Array

    @classmethod
    def along(
        cls, axis: int, rows: _Rows, arrays: Sequence[Array], spread: Array, epsilon: float, out: Sequence[Array] = ()
    ) -> _Sums:
        """Take them in one pass.

        Args:
            axis: The axis.
            rows: How the arrays are seen.
            arrays: ``g``, ``x``, ``mean`` and ``scale``.
            spread: The variances; their ``r``, from before, if the axis is not that of the statistics.
            epsilon: Is added to the variances.
            out: Where the sums are wanted, too, in the dtype of ``x``.
        """
        dtype, columns, is_across = arrays[1].dtype, rows.columns(axis), axis != rows.axis
        tile = columns.sum_tile()
        is_wide = dtype == wide_dtype(dtype)
        sums = [array.reshape(columns.all) for array in out] if out and is_wide else _wide(2, dtype, columns.all)
        partial = sums if tile.parts == 1 else _wide(2, dtype, tile.parts, columns.all)
        r = spread if is_across else cupy.empty(spread.shape, spread.dtype)
        given = (*arrays[:3], spread, arrays[3], *partial, r, wide_dtype(dtype).type(epsilon))
        more = (tile.parts, tile.columns, int(is_across), axis)
        _launch("sums_of_normalized", columns, tile, given, dtype, *more)
        if tile.parts > 1:
            rest = Columns(columns.all, tile.parts, columns.all)
            tile = rest.softmax_tile()
            _launch("join_sums", rest, tile, (*partial, *sums), dtype, tile.columns)
        if out and not is_wide:
            _NARROW(*sums, *[array.reshape(columns.all) for array in out])
        return cls(sums[0], sums[1], r)


@kernel(ops.BatchNorm, dtypes=FLOATS)
def _batch_norm(operation: ops.BatchNorm, inputs: list[Array], outputs: list[Array]) -> None:
    x, scale, shift, *old = inputs
    y, mean, variance, *new = outputs
    rows, momentum = _Rows.of(x.shape, 1, 0), operation.momentum
    matrix, unbiased = rows.matrix(x), momentum * (rows.rows / (rows.rows - 1))
    _statistics(rows, matrix, mean, variance, _Running(old, new, 1 - momentum, momentum, unbiased))
    own = map(rows.statistic, (mean, variance, scale, shift))
    _NORMALIZE(matrix, *own, np.float64(operation.epsilon), rows.matrix(y))


@kernel(ops.BatchNormInference, dtypes=FLOATS, inplace=True)
def _batch_norm_inference(operation: ops.BatchNormInference, inputs: list[Array], outputs: list[Array]) -> None:
    x, scale, shift, mean, variance = inputs
    _NORMALIZE(x, mean, variance, scale, shift, np.float64(operation.epsilon), outputs[0])


@kernel(ops.BatchNormInferenceDown, dtypes=FLOATS)
@kernel(ops.BatchNormDown, dtypes=FLOATS)
def _batch_norm_down(operation: ops.BatchNormDown, inputs: list[Array], outputs: list[Array]) -> None:
    rows = _Rows.of(inputs[1].shape, 1, 0)
    g, x = (rows.matrix(array) for array in inputs[:2])
    scale, mean, variance = (contiguous(array) for array in inputs[2:])
    dx, dscale, dshift = outputs
    total, product, r = _Sums.along(0, rows, (g, x, mean, scale), variance, operation.epsilon, (dshift, dscale))
    if isinstance(operation, ops.BatchNormInferenceDown):
        _INFERENCE_DOWN(g, rows.statistic(scale), rows.statistic(r), rows.matrix(dx))
        return
    statistics = map(rows.statistic, (scale, mean, r, total, product))
    _BATCH_DOWN(g, x, *statistics, np.float64(rows.terms), rows.matrix(dx))


@kernel(ops.LayerNorm, dtypes=FLOATS)
def _layer_norm(operation: ops.LayerNorm, inputs: list[Array], outputs: list[Array]) -> None:
    rows = _Rows.of(inputs[0].shape, operation.axes, 1)
    x, (y, mean, variance) = rows.matrix(inputs[0]), outputs
    _statistics(rows, x, mean, variance)
    own = [contiguous(v).reshape(1, rows.width) for v in inputs[1:]]
    epsilon = np.float64(operation.epsilon)
    _NORMALIZE(x, rows.statistic(mean), rows.statistic(variance), *own, epsilon, rows.matrix(y))


@kernel(ops.LayerNormDown, dtypes=FLOATS)
def _layer_norm_down(operation: ops.LayerNormDown, inputs: list[Array], outputs: list[Array]) -> None:
    rows = _Rows.of(inputs[1].shape, operation.axes, 1)
    g, x = (rows.matrix(array) for array in inputs[:2])
    scale, mean, variance = (contiguous(array) for array in inputs[2:])
    dx, dscale, dshift = outputs
    arrays, epsilon = (g, x, mean, scale), operation.epsilon
    total, product, r = _Sums.along(1, rows, arrays, variance, epsilon)
    _Sums.along(0, rows, arrays, r, epsilon, (dshift, dscale))
    statistics = map(rows.statistic, (mean, r, total, product))
    _LAYER_DOWN(g, x, scale.reshape(1, rows.width), *statistics, np.float64(rows.terms), rows.matrix(dx))
