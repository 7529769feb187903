"""Kernels of `actorflow.ops.nn.pool`: a thread per output element forwards, per image element backwards.

Backwards nothing is added atomically, so results do not depend on timing; a thread reads the few windows that see its
element instead, from the cache.
"""

from __future__ import annotations

import math

from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, kernel, launch_flat
from actorflow.ops.cuda.reductions import sum_axes
from actorflow.ops.cuda.windows import arguments, three
from actorflow.ops.nn import pool as ops
from actorflow.ops.nn.windows import Windows


def _launch(function: str, w: Windows, inputs: list[Array], output: Array, counts: tuple[int, ...] = ()) -> None:
    given = tuple(contiguous(array) for array in inputs)
    args = (*given, output, output.size, output.shape[-1], *arguments(w), *counts)
    launch_flat("pool", function, output.size, args, given[0].dtype)


@kernel(ops.MaxPool, dtypes=FLOATS)
def _max_pool(operation: ops.MaxPool, inputs: list[Array], outputs: list[Array]) -> None:
    w = operation.windows(inputs[0].shape[1:-1])
    _launch("max_pool", w, inputs, outputs[0])
    for indices in outputs[1:]:
        _launch("max_pool_indices", w, [*inputs, outputs[0]], indices)


@kernel(ops.MaxPoolDown, dtypes=FLOATS)
def _max_pool_down(operation: ops.MaxPoolDown, inputs: list[Array], outputs: list[Array]) -> None:
    _launch("max_pool_down", operation.windows(inputs[1].shape[1:-1]), inputs, outputs[0])


@kernel(ops.AveragePool, dtypes=FLOATS)
@kernel(ops.AveragePoolDown, dtypes=FLOATS)
def _average_pool(operation: ops.AveragePool | ops.AveragePoolDown, inputs: list[Array], outputs: list[Array]) -> None:
    is_down = isinstance(operation, ops.AveragePoolDown)
    w = operation.windows((outputs if is_down else inputs)[0].shape[1:-1])
    after = tuple(n + more for n, (_, more) in zip(w.size, w.pad, strict=True))
    # By what elements of a window are counted: sizes with the border behind, and whether it counts.
    counts = (*three(after, 1), int(operation.count_pad))
    _launch("average_pool_down" if is_down else "average_pool", w, inputs, outputs[0], counts)


@kernel(ops.GlobalAverage, dtypes=FLOATS)
def _global_average(operation: ops.GlobalAverage, inputs: list[Array], outputs: list[Array]) -> None:
    size = inputs[0].shape[1:-1]
    sum_axes(inputs[0], range(1, len(size) + 1), outputs[0], math.prod(size))
