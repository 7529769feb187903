"""Kernels of `actorflow.ops.elementwise`; most are one formula for each element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import cupy

from actorflow.ops import elementwise as ops
from actorflow.ops.cuda.launch import ANYTHING, FLOATS, FORMULAS, NUMBERS, REALS, Array, Formula, elementwise, kernel
from actorflow.ops.operation import Operation


@kernel(ops.Copy, dtypes=ANYTHING, inplace=True)
@kernel(ops.Dummy, dtypes=ANYTHING, inplace=True)
def _copy(operation: ops.Copy | ops.Dummy, inputs: list[Array], outputs: list[Array]) -> None:
    if inputs[0] is not outputs[0]:
        cupy.copyto(outputs[0], inputs[0])


@kernel(ops.Cast, dtypes=ANYTHING)
def _cast(operation: ops.Cast, inputs: list[Array], outputs: list[Array]) -> None:
    cupy.copyto(outputs[0], inputs[0], casting="unsafe")


_INTEGERS = tuple(name for name in REALS if name not in FLOATS)
_SIGNED = tuple(name for name in NUMBERS if not name.startswith("uint"))


def register_elementwise(
    formulas: Mapping[type[Operation], str], dtypes: Sequence[str], inputs: str, result: str = "T", inplace: bool = True
) -> None:
    """Register a kernel for each operation.

    Args:
        formulas: CUDA C for an element of the result, which is converted to its type.
        dtypes: Dtypes of the first input.
        inputs: Parameters of the formulas, as in ``cupy.ElementwiseKernel``.
        result: Type of the result.
        inplace: The result may be written over the first input.
    """

    def register(operation: type[Operation], formula: str) -> None:
        body = f"result = {result}({formula})"
        compiled = elementwise(f"{operation.__name__.lower()}_{len(dtypes)}", inputs, f"{result} result", body)
        FORMULAS[operation] = Formula(inputs, result, formula)

        @kernel(operation, dtypes=dtypes, inplace=inplace)
        def compute(operation: Operation, inputs: list[Array], outputs: list[Array]) -> None:
            compiled(*inputs, outputs[0])

    for operation, formula in formulas.items():
        register(operation, formula)


register_elementwise({ops.Negative: "-x"}, _SIGNED, "T x")
register_elementwise({ops.Square: "x * x"}, NUMBERS, "T x")
register_elementwise(
    {ops.Absolute: "x < T(0) ? T(-x) : x", ops.Sign: "x > T(0) ? T(1) : x < T(0) ? T(-1) : x"}, REALS, "T x"
)
register_elementwise(
    {
        ops.Ceil: "ceil(W(x))",
        ops.Exp: "exp(W(x))",
        ops.Floor: "floor(W(x))",
        ops.Log: "log(W(x))",
        ops.Reciprocal: "W(1) / W(x)",
        ops.Round: "rint(W(x))",
        ops.Sqrt: "sqrt(W(x))",
    },
    FLOATS,
    "T x",
)
register_elementwise({ops.Power: "pow(W(a), W(b))"}, FLOATS, "T a, T b")
register_elementwise(
    {ops.Greater: "a > b", ops.GreaterEqual: "a >= b", ops.Less: "a < b", ops.LessEqual: "a <= b"},
    REALS,
    "T a, T b",
    "bool",
    inplace=False,
)
register_elementwise({ops.Equal: "a == b", ops.NotEqual: "a != b"}, ANYTHING, "T a, T b", "bool", inplace=False)
register_elementwise(
    {ops.LogicalAnd: "a && b", ops.LogicalOr: "a || b", ops.LogicalXor: "a != b"}, ("bool",), "T a, T b", "bool"
)
register_elementwise({ops.LogicalNot: "!x"}, ("bool",), "T x", "bool")
register_elementwise({ops.Where: "condition ? a : b"}, ("bool",), "bool condition, T a, T b", inplace=False)

_INTEGER_POWER = elementwise(
    "integer_power",
    "T a, T b",
    "T y",
    "T power = T(1); T factor = a; "
    "for (long long left = (long long)b; left > 0; left /= 2, factor = T(factor * factor)) "
    "if (left % 2) power = T(power * factor); "
    "y = power",
)
_AT_LEAST = elementwise("at_least", "T x, T low", "T y", "y = x < low ? low : x")
_AT_MOST = elementwise("at_most", "T x, T high", "T y", "y = x > high ? high : x")


@kernel(ops.Power, dtypes=_INTEGERS, inplace=True)
def _integer_power(operation: ops.Power, inputs: list[Array], outputs: list[Array]) -> None:
    _INTEGER_POWER(*inputs, outputs[0])


@kernel(ops.Clip, dtypes=REALS, inplace=True)
def _clip(operation: ops.Clip, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (y,) = inputs, outputs
    low, high = (None if bound is None else x.dtype.type(bound) for bound in (operation.low, operation.high))
    if low is not None or high is None:
        _AT_LEAST(x, x, y) if low is None else _AT_LEAST(x, low, y)
        x = y
    if high is not None:
        _AT_MOST(x, high, y)


#: Terms per launch: their pointers and shapes must fit in the 4 KB of a kernel's arguments.
_MOST_TERMS = 16

FORMULAS[ops.Scale] = Formula("T x, T factor", "T", "x * factor", lambda operation, kind: (kind(operation.factor),))

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
def _sum(operation: ops.Sum, inputs: list[Array], outputs: list[Array]) -> None:
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


@kernel(ops.Scale, dtypes=FLOATS, inplace=True)
def _scale(operation: ops.Scale, inputs: list[Array], outputs: list[Array]) -> None:
    _SCALE(inputs[0], inputs[0].dtype.type(operation.factor), outputs[0])


register_elementwise({ops.Subtract: "a - b", ops.Multiply: "a * b"}, NUMBERS, "T a, T b")
register_elementwise({ops.Divide: "W(a) / W(b)"}, FLOATS, "T a, T b")
register_elementwise(
    {ops.Maximum: "a > b || a != a ? a : b", ops.Minimum: "a < b || a != a ? a : b"}, REALS, "T a, T b"
)
