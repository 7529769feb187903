"""Batch and layer normalization: statistics are NumPy's, what is done with them to each element is one pass.

Of a layer only the gradient gains much: NumPy centers it twice on the way to its statistics, and little else is left.
"""

from __future__ import annotations

from functools import lru_cache

from actorflow.ops.cpu import norm
from actorflow.ops.cpu.buffers import Array
from actorflow.ops.nn.norm import BatchNorm, BatchNormDown, BatchNormInference, LayerNormDown
from actorflow.ops.numba.flat import call
from actorflow.ops.numba.kernels import are_plain, kernel
from actorflow.ops.numba.routine import Routine

#: Fewer elements take NumPy less time than it takes to find the routine.
LEAST = 2048
#: Element ``i`` is of row ``n`` and channel ``c``.
_ROWS = """
def {name}({arrays}, width, start, stop):
    for n in range(start, stop):
        for c in range(width):
            i = n * width + c
            {lines}
"""


def _rows(name: str, dtype: str, arrays: str, *lines: str) -> Routine:
    types = [*[f"{dtype}*"] * (arrays.count(",") + 1), *["intp"] * 3]
    return Routine(_ROWS.format(name=name, arrays=arrays, lines="\n".ljust(13).join(lines)), name, types)


@lru_cache(maxsize=4)
def _normalize(dtype: str) -> Routine:
    return _rows("normalize", dtype, "x, center, factor, shift, y", "y[i] = (x[i] - center[c]) * factor[c] + shift[c]")


@lru_cache(maxsize=4)
def _combine(dtype: str) -> Routine:
    line = "dx[i] = g[i] * of_g[c] + (x[i] - mean[c]) * of_x[c] + of_1[c]"
    return _rows("combine", dtype, "g, x, mean, of_g, of_x, of_1, dx", line)


@lru_cache(maxsize=4)
def _begin(dtype: str) -> Routine:
    lines = ("v = (x[i] - center[n]) * r[n]", "normal[i] = v", "product[i] = g[i] * v", "scaled[i] = g[i] * scale[c]")
    return _rows("begin", dtype, "g, x, center, r, scale, normal, product, scaled", *lines)


@lru_cache(maxsize=4)
def _subtract(dtype: str) -> Routine:
    line = "dx[i] = (dx[i] - mean[n] - normal[i] * mean_product[n]) * r[n]"
    return _rows("subtract", dtype, "dx, normal, mean, mean_product, r", line)


def _each(routine: Routine, *arrays: Array) -> None:
    function = routine.function
    assert function is not None
    call(function, arrays, rows=arrays[0].shape[0], width=arrays[0].shape[1])


@kernel(BatchNorm)
def _batch_norm(operation: BatchNorm, inputs: list[Array], outputs: list[Array]) -> bool:
    routine = _normalize(inputs[0].dtype.name)
    if inputs[0].size < LEAST or not are_plain([*inputs, *outputs], inputs[0].dtype) or routine.function is None:
        return False
    norm.batch_norm(operation, inputs, outputs, lambda *arrays: _each(routine, *arrays))
    return True


@kernel(BatchNormInference)
def _batch_norm_inference(operation: BatchNormInference, inputs: list[Array], outputs: list[Array]) -> bool:
    x, scale, shift, mean, variance = inputs
    routine = _normalize(x.dtype.name)
    if x.size < LEAST or not are_plain([*inputs, *outputs], x.dtype) or routine.function is None:
        return False
    width, factor = x.shape[-1], norm.factor_of(scale, variance, operation.epsilon, x.dtype)
    _each(routine, x.reshape(-1, width), mean, factor, shift, outputs[0].reshape(-1, width))
    return True


@kernel(BatchNormDown)
def _batch_norm_down(operation: BatchNormDown, inputs: list[Array], outputs: list[Array]) -> bool:
    routine = _combine(inputs[0].dtype.name)
    if inputs[0].size < LEAST or not are_plain([*inputs, *outputs], inputs[0].dtype) or routine.function is None:
        return False
    norm.batch_norm_down(operation, inputs, outputs, lambda *arrays: _each(routine, *arrays))
    return True


@kernel(LayerNormDown)
def _layer_norm_down(operation: LayerNormDown, inputs: list[Array], outputs: list[Array]) -> bool:
    routines = [make(inputs[0].dtype.name) for make in (_begin, _subtract)]
    if inputs[0].size < LEAST or not are_plain([*inputs, *outputs], inputs[0].dtype):
        return False
    if None in [routine.function for routine in routines]:  # all are asked for
        return False
    begin, subtract = routines
    norm.layer_norm_down(
        operation, inputs, outputs, lambda *arrays: _each(begin, *arrays), lambda *arrays: _each(subtract, *arrays)
    )
    return True
