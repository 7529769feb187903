"""Kernels that are one formula for each element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actorflow.ops.compare import (
    Equal,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    LogicalAnd,
    LogicalNot,
    LogicalOr,
    LogicalXor,
    NotEqual,
    Where,
)
from actorflow.ops.cuda.launch import ANYTHING, FLOATS, FORMULAS, NUMBERS, REALS, Array, Formula, elementwise, kernel
from actorflow.ops.operation import Operation
from actorflow.ops.powers import Exp, Log, Power, Reciprocal, Sqrt, Square
from actorflow.ops.unary import Absolute, Ceil, Clip, Floor, Negative, Round, Sign

_INTEGERS = tuple(name for name in REALS if name not in FLOATS)
_SIGNED = tuple(name for name in NUMBERS if not name.startswith("uint"))


def register_elementwise(
    formulas: Mapping[type[Operation], str], dtypes: Sequence[str], inputs: str, result: str = "T", inplace: bool = True
) -> None:
    """Register a kernel for each operation.

    Args:
        formulas: CUDA C for an element of the result, which is converted to its type.
        dtypes: Of the first input.
        inputs: Parameters of the formulas, as in ``cupy.ElementwiseKernel``.
        result: Type of the result.
        inplace: Whether the result may be written over the first input.
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


register_elementwise({Negative: "-x"}, _SIGNED, "T x")
register_elementwise({Square: "x * x"}, NUMBERS, "T x")
register_elementwise({Absolute: "x < T(0) ? T(-x) : x", Sign: "x > T(0) ? T(1) : x < T(0) ? T(-1) : x"}, REALS, "T x")
register_elementwise(
    {
        Ceil: "ceil(W(x))",
        Exp: "exp(W(x))",
        Floor: "floor(W(x))",
        Log: "log(W(x))",
        Reciprocal: "W(1) / W(x)",
        Round: "rint(W(x))",
        Sqrt: "sqrt(W(x))",
    },
    FLOATS,
    "T x",
)
register_elementwise({Power: "pow(W(a), W(b))"}, FLOATS, "T a, T b")
register_elementwise(
    {
        Greater: "a > b",
        GreaterEqual: "a >= b",
        Less: "a < b",
        LessEqual: "a <= b",
    },
    REALS,
    "T a, T b",
    "bool",
    inplace=False,
)
register_elementwise({Equal: "a == b", NotEqual: "a != b"}, ANYTHING, "T a, T b", "bool", inplace=False)
register_elementwise({LogicalAnd: "a && b", LogicalOr: "a || b", LogicalXor: "a != b"}, ("bool",), "T a, T b", "bool")
register_elementwise({LogicalNot: "!x"}, ("bool",), "T x", "bool")
register_elementwise({Where: "condition ? a : b"}, ("bool",), "bool condition, T a, T b", inplace=False)

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


@kernel(Power, dtypes=_INTEGERS, inplace=True)
def _integer_power(operation: Power, inputs: list[Array], outputs: list[Array]) -> None:
    _INTEGER_POWER(*inputs, outputs[0])


@kernel(Clip, dtypes=REALS, inplace=True)
def _clip(operation: Clip, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (y,) = inputs, outputs
    low, high = (None if bound is None else x.dtype.type(bound) for bound in (operation.low, operation.high))
    if low is not None or high is None:
        _AT_LEAST(x, x, y) if low is None else _AT_LEAST(x, low, y)
        x = y
    if high is not None:
        _AT_MOST(x, high, y)
