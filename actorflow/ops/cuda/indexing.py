"""Kernels of `actorflow.ops.indexing`.

Backwards, what one index picked several times is added up in the order of the indices, without atomics: indices are
sorted, which keeps equal ones in their order, and one thread adds all parts of an element of the result.
"""

from __future__ import annotations

import math

import cupy
import numpy as np

from actorflow.ops.cuda.launch import FLOATS, REALS, Array, contiguous, kernel, launch_flat
from actorflow.ops.cuda.sort import sorted_places
from actorflow.ops.indexing import OneHot, Take, TakeAlongAxis, TakeAlongAxisDown, TakeDown

_INTEGERS = tuple(name for name in REALS if name not in FLOATS)
_PICKED = ("bool", *REALS)


def _bytes(x: Array) -> Array:
    x = contiguous(x)
    return x.view(np.uint8) if x.dtype == np.bool_ else x


@kernel(Take, dtypes=_PICKED)
def _take(operation: Take, inputs: list[Array], outputs: list[Array]) -> None:
    x, y, indices = _bytes(inputs[0]), _bytes(outputs[0]), contiguous(inputs[1])
    axis = operation.axis % x.ndim
    args = (x, indices, y, y.size, indices.size, x.shape[axis], math.prod(x.shape[axis + 1 :]))
    launch_flat("indexing", "take", y.size, args, x.dtype, LABEL=indices.dtype)


def _add_up(g: Array, indices: Array, dx: Array, columns: tuple[int, int, int], axis: tuple[int, int]) -> None:
    """Add the parts of ``g`` where they were picked.

    Args:
        g: (outer, parts, inner).
        indices: One for each part.
        dx: (outer, length, inner); written.
        columns: ``picked``, ``length`` and ``inner``: indices are (outer, picked, inner), and each means an element of
            (outer, length, inner), whose number is that of a place along the axis of ``dx``.
        axis: ``length`` and ``inner`` of ``dx``.
    """
    keys = cupy.empty((indices.size,), np.int64)
    length, inner = axis
    types = {"dtype": g.dtype, "LABEL": indices.dtype}
    launch_flat("indexing", "places", keys.size, (indices, keys, keys.size, *columns, length), **types)
    keys, parts = sorted_places(keys, length)
    dx.fill(0)
    launch_flat("indexing", "sum_equal", g.size, (g, keys, parts, dx, g.size, keys.size, length, inner), **types)


@kernel(TakeDown, dtypes=REALS)
def _take_down(operation: TakeDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g, indices), (dx,), length = (contiguous(x) for x in inputs), outputs, operation.length
    inner = math.prod(dx.shape[operation.axis + 1 :])
    _add_up(g, indices, dx, (indices.size, length, 1), (length, inner))


@kernel(TakeAlongAxis, dtypes=_PICKED)
def _take_along_axis(operation: TakeAlongAxis, inputs: list[Array], outputs: list[Array]) -> None:
    x, y, indices = _bytes(inputs[0]), _bytes(outputs[0]), contiguous(inputs[1])
    axis = operation.axis % x.ndim
    args = (x, indices, y, y.size, y.shape[axis], x.shape[axis], math.prod(x.shape[axis + 1 :]))
    launch_flat("indexing", "take_along", y.size, args, x.dtype, LABEL=indices.dtype)


@kernel(TakeAlongAxisDown, dtypes=REALS)
def _take_along_axis_down(operation: TakeAlongAxisDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g, indices), (dx,), axis = (contiguous(x) for x in inputs), outputs, operation.axis
    inner = math.prod(dx.shape[axis + 1 :])
    _add_up(g, indices, dx, (g.shape[axis], operation.length, inner), (dx.size, 1))


@kernel(OneHot, dtypes=_INTEGERS)
def _one_hot(operation: OneHot, inputs: list[Array], outputs: list[Array]) -> None:
    y, indices = _bytes(outputs[0]), contiguous(inputs[0])
    args = (indices, y, y.size, operation.depth)
    launch_flat("indexing", "one_hot", y.size, args, y.dtype, LABEL=indices.dtype)
