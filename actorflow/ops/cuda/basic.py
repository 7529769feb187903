"""Kernels of `actorflow.ops.basic`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import cupy

from actorflow.ops.basic import Copy, Fill, Mul, Reshape, Scale, Sum
from actorflow.ops.cuda.launch import ANYTHING, FLOATS, NUMBERS, Array, elementwise, kernel
from actorflow.spec import TensorSpec

__all__: list[str] = []

#: Terms per launch: their pointers and shapes must fit in the 4 KB of a kernel's arguments.
_MOST_TERMS = 16

_MUL = elementwise("mul", "T a, T b", "T y", "y = a * b")
_SCALE = elementwise("scale", "T x, T factor", "T y", "y = x * factor")


@lru_cache(maxsize=_MOST_TERMS)
def _adder(terms: int) -> Any:
    """Adds in the order of the terms, each sum rounded to the dtype, as the CPU does."""
    names = [f"x{i}" for i in range(terms)]
    steps = " ".join(f"total = T(total + {name});" for name in names[1:])
    return cupy.ElementwiseKernel(
        ", ".join(f"T {name}" for name in names), "T y", f"T total = x0; {steps} y = total;", f"actorflow_sum_{terms}"
    )


@kernel(Copy, dtypes=ANYTHING, inplace=True)
def _copy(operation: Copy, inputs: list[Array], outputs: list[Array]) -> None:
    if inputs[0] is not outputs[0]:
        cupy.copyto(outputs[0], inputs[0])


@kernel(Sum, dtypes=NUMBERS, inplace=True)
def _sum(operation: Sum, inputs: list[Array], outputs: list[Array]) -> None:
    (y,), first = outputs, inputs[:_MOST_TERMS]
    _adder(len(first))(*first, y)
    for start in range(_MOST_TERMS, len(inputs), _MOST_TERMS - 1):
        terms = (y, *inputs[start : start + _MOST_TERMS - 1])
        _adder(len(terms))(*terms, y)


@kernel(Mul, dtypes=FLOATS, inplace=True)
def _mul(operation: Mul, inputs: list[Array], outputs: list[Array]) -> None:
    _MUL(*inputs, outputs[0])


@kernel(Scale, dtypes=FLOATS, inplace=True)
def _scale(operation: Scale, inputs: list[Array], outputs: list[Array]) -> None:
    _SCALE(inputs[0], inputs[0].dtype.type(operation.factor), outputs[0])


@kernel(Fill, dtypes=ANYTHING)
def _fill(operation: Fill, inputs: list[Array], outputs: list[Array]) -> None:
    outputs[0].fill(operation.value)


@kernel(Reshape, dtypes=ANYTHING, returns=True)
def _reshape(operation: Reshape, inputs: list[Array], outputs: None) -> list[Array]:
    shape = operation.infer(*(TensorSpec(x.shape, x.dtype) for x in inputs))[0].shape
    return [inputs[0].reshape(shape)]
