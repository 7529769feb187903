"""The elementwise steps of `actorflow.ops.fused` as CUDA C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from actorflow.ops.arithmetic import Sum
from actorflow.ops.basic import Fill
from actorflow.ops.broadcast import Reduction
from actorflow.ops.convert import Cast
from actorflow.ops.cuda.launch import C_TYPES, FORMULAS, Formula
from actorflow.ops.fused import Fused
from actorflow.ops.operation import Operation
from actorflow.ops.unary import Clip
from actorflow.spec import TensorSpec

#: Of variables; arrays of booleans are bytes.
VALUE_TYPES = {**C_TYPES, "bool": "bool"}


class Statements(NamedTuple):
    """What computes one element of all steps.

    Attributes:
        lines: Statements.
        names: Of the inputs, which are variables when the statements begin, and of what each step gives; "" for a
            reduction.
        numbers: Parameters of the operations, which are variables ``n0``, ``n1``, ... of their own types.
    """

    lines: list[str]
    names: list[str]
    numbers: list[Any]


def statements_of(operation: Fused, found: Sequence[TensorSpec], half: str) -> Statements:
    """The statements of a chain.

    Args:
        operation: The chain.
        found: The types of its inputs and steps; see `Fused.specs`.
        half: Name of the type of float16.
    """
    first = len(found) - len(operation.steps)
    types = {**VALUE_TYPES, "float16": half}
    written = Statements([], [f"x{i}" for i in range(first)], [])
    for spec, (each, arguments) in zip(found[first:], operation.steps, strict=True):
        names, numbers = written.names, written.numbers
        if isinstance(each, Reduction):
            names.append("")
            continue
        if isinstance(each, Fill):
            names.append(f"n{len(numbers)}")
            numbers.append(spec.dtype.type(each.value))
            continue
        dtype = next((found[a].dtype for a in arguments if found[a].dtype.kind != "b"), np.dtype(np.bool_))
        formula = _formula(each, len(arguments))
        own = formula.numbers(each, dtype.type)
        values = [names[a] for a in arguments] + [f"n{len(numbers) + i}" for i in range(len(own))]
        taken = [
            f"const {parameter} = {value};" for parameter, value in zip(formula.inputs.split(", "), values, strict=True)
        ]
        name, kind = f"v{len(names)}", types[spec.dtype.name]
        own_types = f"typedef {types[dtype.name]} T; typedef Wider<T>::type W;"
        written.lines.append(f"{kind} {name}; {{ {own_types} {' '.join(taken)} {name} = ({kind})({formula.text}); }}")
        names.append(name)
        numbers.extend(own)
    return written


def _formula(operation: Operation, count: int) -> Formula:
    if isinstance(operation, Sum):
        names = [f"a{i}" for i in range(count)]
        text = names[0]
        for name in names[1:]:
            text = f"T({text} + {name})"
        return Formula(", ".join(f"T {name}" for name in names), "T", text)
    if isinstance(operation, Cast):
        return Formula("T x", "R", "x")
    if isinstance(operation, Clip):
        return _clip(operation)
    return FORMULAS[type(operation)]


def _clip(operation: Clip) -> Formula:
    bounds = [(name, sign) for name, sign in (("low", "<"), ("high", ">")) if getattr(operation, name) is not None]
    text = "x"
    for name, sign in bounds:
        text = f"({text}) {sign} {name} ? {name} : ({text})"
    inputs = ", ".join(["T x", *(f"T {name}" for name, _ in bounds)])
    return Formula(inputs, "T", text, lambda own, kind: tuple([kind(getattr(own, name)) for name, _ in bounds]))
