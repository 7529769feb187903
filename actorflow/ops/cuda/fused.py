"""Kernel of `actorflow.ops.fused`: one launch, generated from the formulas of the steps.

Each step is rounded to its dtype, and products and sums are not contracted (``--fmad=false``), so results are those of
the steps' own kernels to the bit. Numbers of the steps (a factor, say) are arguments: other ones need no new kernel.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import cupy
import numpy as np

from actorflow.ops.arithmetic import Sum
from actorflow.ops.basic import Fill
from actorflow.ops.convert import Cast
from actorflow.ops.cuda.launch import ANYTHING, C_TYPES, FORMULAS, WIDER, Array, Formula, kernel
from actorflow.ops.fused import Fused
from actorflow.ops.operation import Operation
from actorflow.ops.unary import Clip
from actorflow.spec import TensorSpec

__all__: list[str] = []

_TYPES = {**C_TYPES, "float16": "float16", "bool": "bool"}


@lru_cache(maxsize=256)
def _prepared(operation: Fused, specs: tuple[TensorSpec, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The compiled kernel for inputs of these types, and the numbers that it takes behind them."""
    found = operation.specs(specs)
    names = [f"x{i}" for i in range(len(specs))]
    numbers: list[Any] = []
    lines = []
    for spec, (each, arguments) in zip(found[len(specs) :], operation.steps, strict=True):
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
        name, kind = f"v{len(names)}", _TYPES[spec.dtype.name]
        types = f"typedef {_TYPES[dtype.name]} T; typedef Wider<T>::type W;"
        lines.append(f"{kind} {name}; {{ {types} {' '.join(taken)} {name} = ({kind})({formula.text}); }}")
        names.append(name)
        numbers.extend(own)
    outputs = [(found[len(specs) + i].dtype.name, names[len(specs) + i]) for i in operation.results]
    lines += [f"y{k} = {name};" for k, (_, name) in enumerate(outputs)]
    inputs = [f"{spec.dtype.name} x{i}" for i, spec in enumerate(specs)]
    inputs += [f"{number.dtype.name} n{i}" for i, number in enumerate(numbers)]
    results = [f"{dtype} y{k}" for k, (dtype, _) in enumerate(outputs)]
    return _compiled(", ".join(inputs), ", ".join(results), "\n".join(lines)), tuple(numbers)


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


@lru_cache(maxsize=256)
def _compiled(inputs: str, outputs: str, body: str) -> Any:
    """The kernel of a source; compiled on its first use, whatever the numbers are."""
    name = f"actorflow_fused_{body.count(chr(10)) + 1}"
    return cupy.ElementwiseKernel(inputs, outputs, body, name, preamble=WIDER, options=("--fmad=false",))


@kernel(Fused, dtypes=ANYTHING)
def _fused(operation: Fused, inputs: list[Array], outputs: list[Array]) -> None:
    compiled, numbers = _prepared(operation, tuple([TensorSpec(x.shape, x.dtype) for x in inputs]))
    compiled(*inputs, *numbers, *outputs)
