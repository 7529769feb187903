"""Kernels that are one of NumPy's functions on each element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

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
from actorflow.ops.cpu.buffers import BITS, Array, flat_blocks, keep_where, scratch
from actorflow.ops.cpu.parallel import elementwise
from actorflow.ops.operation import Operation
from actorflow.ops.powers import Exp, Log, Power, Reciprocal, Sqrt, Square
from actorflow.ops.registry import kernel
from actorflow.ops.unary import Absolute, Ceil, Clip, Floor, Negative, Round, Sign


def register_ufuncs(functions: Mapping[type[Operation], Callable[..., Any]], inplace: bool) -> None:
    """Register a function of NumPy as the kernel of each operation; infinities and what is not a number are no news."""

    def register(operation: type[Operation], function: Callable[..., Any]) -> None:
        @kernel(operation, inplace=inplace)
        @elementwise
        def compute(operation: Operation, inputs: list[Array], outputs: list[Array]) -> None:
            with np.errstate(all="ignore"):
                function(*inputs, out=outputs[0])

    for operation, function in functions.items():
        register(operation, function)


register_ufuncs(
    {
        Absolute: np.absolute,
        Ceil: np.ceil,
        Exp: np.exp,
        Floor: np.floor,
        Log: np.log,
        LogicalAnd: np.logical_and,
        LogicalNot: np.logical_not,
        LogicalOr: np.logical_or,
        LogicalXor: np.logical_xor,
        Negative: np.negative,
        Power: np.power,
        Reciprocal: np.reciprocal,
        Round: np.rint,
        Sign: np.sign,
        Sqrt: np.sqrt,
        Square: np.square,
    },
    inplace=True,
)
register_ufuncs(
    {
        Equal: np.equal,
        Greater: np.greater,
        GreaterEqual: np.greater_equal,
        Less: np.less,
        LessEqual: np.less_equal,
        NotEqual: np.not_equal,
    },
    inplace=False,
)


@kernel(Clip, inplace=True)
@elementwise
def _clip(operation: Clip, inputs: list[Array], outputs: list[Array]) -> None:
    (x,), (y,) = inputs, outputs
    if operation.low is not None:
        x = np.maximum(x, operation.low, out=y)
    if operation.high is not None:
        np.minimum(x, operation.high, out=y)
    elif x is not y:
        np.copyto(y, x)


@kernel(Where)
@elementwise
def _where(operation: Where, inputs: list[Array], outputs: list[Array]) -> None:
    (condition, a, b), (y,) = inputs, outputs
    if b.ndim == 0 and condition.shape == a.shape == y.shape and a.dtype.kind in "fV" and not b.any():
        for kept, values, out in flat_blocks(condition, a, y):
            keep_where(kept, values, out)
        return
    condition, a, b = (x if x.shape == y.shape else np.broadcast_to(x, y.shape) for x in inputs)
    bits = BITS.get(y.itemsize)
    for kept, first, second, out in flat_blocks(condition, a, b, y):
        if bits is None or not y.size:
            out[...] = np.where(kept, first, second)
            continue
        # By their bits, which takes a tenth of the time of a choice for each element.
        ones, own = scratch("bits", kept.shape, bits), second.view(bits)
        np.negative(kept.view(np.int8), out=ones)
        np.bitwise_and(np.bitwise_xor(first.view(bits), own, out=out.view(bits)), ones, out=ones)
        np.bitwise_xor(ones, own, out=out.view(bits))
