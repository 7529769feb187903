"""Kernels of elementwise operations: most are made of the formula of the operation's row."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import cupy
import numpy as np

from actorflow.ops import elementwise as ops
from actorflow.ops.cuda.launch import (
    ANYTHING,
    FLOATS,
    NUMBERS,
    REALS,
    Array,
    Formula,
    as_integer,
    elementwise,
    formula_of,
    kernel,
)
from actorflow.ops.operation import Operation
from actorflow.ops.registry import Kernel, KernelKey, kernel_maker
from actorflow.ops.rows import Elementwise


@kernel(ops.Copy, dtypes=ANYTHING, inplace=True)
@kernel(ops.Dummy, dtypes=ANYTHING, inplace=True)
def _copy(operation: Operation, inputs: list[Array], outputs: list[Array]) -> None:
    if inputs[0] is not outputs[0]:
        cupy.copyto(outputs[0], inputs[0])


@kernel(ops.Cast, dtypes=ANYTHING)
def _cast(operation: Operation, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (y,) = inputs, outputs
    if x.dtype.kind == "f" and y.dtype.kind in "iu":
        _to_integers(y.dtype)(x, y)
    else:
        cupy.copyto(y, x, casting="unsafe")


@cache
def _to_integers(dtype: np.dtype[Any]) -> Any:
    return elementwise(f"to_{dtype.name}", "T x", "R result", f"result = {as_integer(dtype)}")


_INTEGERS = tuple(name for name in REALS if name not in FLOATS)


@cache
def _compiled(name: str, formula: Formula) -> Any:
    """One kernel for all dtypes."""
    return elementwise(name, formula.inputs, f"{formula.result} result", f"result = {formula.result}({formula.text})")


@kernel_maker("cuda", "cupy")
def make(operation: type[Operation], key: KernelKey) -> Kernel | None:
    """The kernel of an elementwise operation that has a formula for this dtype."""
    first = np.dtype(key.dtype).kind
    if not issubclass(operation, Elementwise) or key.dtype not in ANYTHING:
        return None
    formula = formula_of(operation)  # type: ignore[arg-type]
    # Where the first inputs are conditions, what is chosen may be of any type.
    if formula is None or (first not in operation.formula_kinds and not operation.conditions):
        return None
    compiled = _compiled(operation.function_name, formula)

    def compute(operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
        compiled(*inputs, *formula.numbers(operation, outputs[0].dtype.type), outputs[0])

    return Kernel(key, compute, inplace=operation.aligned and operation.result is None)


_INTEGER_POWER = elementwise(
    "integer_power",
    "T a, T b",
    "T y",
    "T power = T(1); T factor = a; "
    "for (long long left = (long long)b; left > 0; left /= 2, factor = T(factor * factor)) "
    "if (left % 2) power = T(power * factor); "
    "y = power",
)


@kernel(ops.Power, dtypes=_INTEGERS, inplace=True)
def _integer_power(operation: Operation, inputs: list[Array], outputs: list[Array]) -> None:
    _INTEGER_POWER(*inputs, outputs[0])


#: Terms per launch: their pointers and shapes must fit in the 4 KB of a kernel's arguments.
_MOST_TERMS = 16

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


@kernel(ops.Sum, dtypes=NUMBERS, inplace=True)
def _sum(operation: Operation, inputs: list[Array], outputs: list[Array]) -> None:
    (y,), first = outputs, inputs[:_MOST_TERMS]
    _adder(len(first))(_whole(first[0], y), *first[1:], y)
    for start in range(_MOST_TERMS, len(inputs), _MOST_TERMS - 1):
        terms = (y, *inputs[start : start + _MOST_TERMS - 1])
        _adder(len(terms))(*terms, y)


@kernel(ops.WeightedSum, dtypes=FLOATS, inplace=True)
def _weighted_sum(operation: ops.WeightedSum, inputs: list[Array], outputs: list[Array]) -> None:
    (y,), weights = outputs, [inputs[0].dtype.type(weight) for weight in operation.weights]
    _SCALE(_whole(inputs[0], y), weights[0], y)
    for x, weight in zip(inputs[1:], weights[1:], strict=True):
        _ADD_SCALED(y, x, weight, y)
