"""Kernels of `actorflow.ops.arithmetic`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import cupy

from actorflow.ops.arithmetic import Divide, Maximum, Minimum, Multiply, Scale, Subtract, Sum, WeightedSum
from actorflow.ops.cuda.launch import FLOATS, FORMULAS, NUMBERS, REALS, Array, Formula, elementwise, kernel
from actorflow.ops.cuda.ufuncs import register_elementwise

#: Terms per launch: their pointers and shapes must fit in the 4 KB of a kernel's arguments.
_MOST_TERMS = 16

FORMULAS[Scale] = Formula("T x, T factor", "T", "x * factor", lambda operation, kind: (kind(operation.factor),))

_SCALE = elementwise("scale", "T x, T factor", "T y", "y = x * factor")
_ADD_SCALED = elementwise("add_scaled", "T total, T x, T factor", "T y", "y = T(total + T(x * factor))")


@lru_cache(maxsize=_MOST_TERMS)
def _adder(terms: int) -> Any:
    """Adds in the order of the terms, each sum rounded to the dtype, as the CPU does."""
    names = [f"x{i}" for i in range(terms)]
    steps = " ".join(f"total = T(total + {name});" for name in names[1:])
    inputs = ", ".join(f"T {name}" for name in names)
    return elementwise(f"sum_{terms}", inputs, "T y", f"T total = x0; {steps} y = total")


def _whole(x: Array, y: Array) -> Array:
    """The first operand in the shape of the result, which all others broadcast to."""
    return x if x.shape == y.shape else cupy.broadcast_to(x, y.shape)


@kernel(Sum, dtypes=NUMBERS, inplace=True)
def _sum(operation: Sum, inputs: list[Array], outputs: list[Array]) -> None:
    (y,), first = outputs, inputs[:_MOST_TERMS]
    _adder(len(first))(_whole(first[0], y), *first[1:], y)
    for start in range(_MOST_TERMS, len(inputs), _MOST_TERMS - 1):
        terms = (y, *inputs[start : start + _MOST_TERMS - 1])
        _adder(len(terms))(*terms, y)


@kernel(WeightedSum, dtypes=FLOATS, inplace=True)
def _weighted_sum(operation: WeightedSum, inputs: list[Array], outputs: list[Array]) -> None:
    (y,), weights = outputs, [inputs[0].dtype.type(weight) for weight in operation.weights]
    _SCALE(_whole(inputs[0], y), weights[0], y)
    for x, weight in zip(inputs[1:], weights[1:], strict=True):
        _ADD_SCALED(y, x, weight, y)


@kernel(Scale, dtypes=FLOATS, inplace=True)
def _scale(operation: Scale, inputs: list[Array], outputs: list[Array]) -> None:
    _SCALE(inputs[0], inputs[0].dtype.type(operation.factor), outputs[0])


register_elementwise({Subtract: "a - b", Multiply: "a * b"}, NUMBERS, "T a, T b")
register_elementwise({Divide: "W(a) / W(b)"}, FLOATS, "T a, T b")
register_elementwise({Maximum: "a > b || a != a ? a : b", Minimum: "a < b || a != a ? a : b"}, REALS, "T a, T b")
