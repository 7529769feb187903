"""Kernel of `actorflow.ops.fused`: generated from the formulas of the steps; one launch where nothing is reduced.

Each step is rounded to its dtype, and no kernel contracts products and sums (`actorflow.ops.cuda.launch.OPTIONS`), so
results are those of the steps' own kernels to the bit. Numbers of the steps (a factor, say) are arguments: other ones
need no new kernel.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from actorflow.ops.cuda.fused_reduce import reduce_chain
from actorflow.ops.cuda.fused_steps import statements_of
from actorflow.ops.cuda.launch import ANYTHING, Array, elementwise_of_any, kernel
from actorflow.ops.fused import Fused
from actorflow.spec import TensorSpec


@lru_cache(maxsize=256)
def _prepared(operation: Fused, specs: tuple[TensorSpec, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The compiled kernel for inputs of these types, and the numbers that it takes behind them."""
    found = operation.specs(specs)
    lines, names, numbers = statements_of(operation, found, "float16")
    outputs = [(found[len(specs) + i].dtype.name, names[len(specs) + i]) for i in operation.results]
    lines += [f"y{k} = {name};" for k, (_, name) in enumerate(outputs)]
    inputs = [f"{spec.dtype.name} x{i}" for i, spec in enumerate(specs)]
    inputs += [f"{number.dtype.name} n{i}" for i, number in enumerate(numbers)]
    results = [f"{dtype} y{k}" for k, (dtype, _) in enumerate(outputs)]
    return _compiled(", ".join(inputs), ", ".join(results), "\n".join(lines)), tuple(numbers)


@lru_cache(maxsize=256)
def _compiled(inputs: str, outputs: str, body: str) -> Any:
    """The kernel of a source; compiled on its first use, whatever the numbers are."""
    return elementwise_of_any(f"fused_{body.count(chr(10)) + 1}", inputs, outputs, body)


@kernel(Fused, dtypes=ANYTHING)
def _fused(operation: Fused, inputs: list[Array], outputs: list[Array]) -> None:
    if operation.reductions:
        reduce_chain(operation, inputs, outputs)
        return
    compiled, numbers = _prepared(operation, tuple([TensorSpec(x.shape, x.dtype) for x in inputs]))
    compiled(*inputs, *numbers, *outputs)
