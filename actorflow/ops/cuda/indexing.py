"""Kernels of `actorflow.ops.indexing`."""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np

from actorflow.ops.cuda.launch import FLOATS, REALS, Array, contiguous, kernel, launch_flat
from actorflow.ops.indexing import OneHot, Take, TakeAlongAxis, TakeAlongAxisDown, TakeDown

__all__: list[str] = []

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


@kernel(TakeDown, dtypes=REALS)
def _take_down(operation: TakeDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g, indices), (dx,) = (contiguous(x) for x in inputs), outputs
    dx.fill(0)
    inner = math.prod(dx.shape[operation.axis + 1 :])
    sizes = (indices.size, operation.length)
    first = cupy.empty((indices.size,), np.uint8)
    following = cupy.empty((indices.size,), np.int64)
    args: tuple[Any, ...] = (indices, following, first, *sizes)
    launch_flat("indexing", "chain", indices.size, args, g.dtype, LABEL=indices.dtype)
    args = (g, indices, following, first, dx, g.size, *sizes, inner)
    launch_flat("indexing", "take_down", g.size, args, g.dtype, LABEL=indices.dtype)


@kernel(TakeAlongAxis, dtypes=_PICKED)
def _take_along_axis(operation: TakeAlongAxis, inputs: list[Array], outputs: list[Array]) -> None:
    x, y, indices = _bytes(inputs[0]), _bytes(outputs[0]), contiguous(inputs[1])
    axis = operation.axis % x.ndim
    args = (x, indices, y, y.size, y.shape[axis], x.shape[axis], math.prod(x.shape[axis + 1 :]))
    launch_flat("indexing", "take_along", y.size, args, x.dtype, LABEL=indices.dtype)


@kernel(TakeAlongAxisDown, dtypes=REALS)
def _take_along_axis_down(operation: TakeAlongAxisDown, inputs: list[Array], outputs: list[Array]) -> None:
    (g, indices), (dx,) = (contiguous(x) for x in inputs), outputs
    axis = operation.axis
    args = (g, indices, dx, dx.size, g.shape[axis], operation.length, math.prod(g.shape[axis + 1 :]))
    launch_flat("indexing", "take_along_down", dx.size, args, g.dtype, LABEL=indices.dtype)


@kernel(OneHot, dtypes=_INTEGERS)
def _one_hot(operation: OneHot, inputs: list[Array], outputs: list[Array]) -> None:
    y, indices = _bytes(outputs[0]), contiguous(inputs[0])
    args = (indices, y, y.size, operation.depth)
    launch_flat("indexing", "one_hot", y.size, args, y.dtype, LABEL=indices.dtype)
