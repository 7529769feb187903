"""Kernel of `actorflow.ops.fused`: the steps' own kernels, block by block, and reductions of the blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from actorflow.ops import reductions as ops
from actorflow.ops.cpu.blocks import BlockedChain, ChainStep, Fold
from actorflow.ops.cpu.buffers import Array
from actorflow.ops.cpu.parallel import MOST_PIECES, element_ns, even_cuts, spread
from actorflow.ops.cpu.reductions import sum_axes
from actorflow.ops.fused import Fused
from actorflow.ops.operation import Operation, wide_dtype
from actorflow.ops.registry import find_kernel, kernel
from actorflow.ops.shaping import ReduceSum, Reduction
from actorflow.spec import TensorSpec


@kernel(Fused)
def _fused(operation: Fused, inputs: list[Array], outputs: list[Array]) -> None:
    shape, steps = _prepared(operation, tuple([TensorSpec(x.shape, x.dtype) for x in inputs]))
    chain = BlockedChain(steps, inputs, shape, dict(zip(operation.results, outputs, strict=True)))
    touched = math.prod(shape) * (len(inputs) + len(outputs) + len(steps) * bool(operation.reductions))
    spread(even_cuts(chain.count, MOST_PIECES), lambda cut: chain.run(cut.start, cut.stop), element_ns(touched))


@lru_cache(maxsize=256)
def _prepared(operation: Fused, specs: tuple[TensorSpec, ...]) -> tuple[tuple[int, ...], list[ChainStep]]:
    """The shape of all inputs together, and the steps."""
    found = operation.specs(specs)
    shape = np.broadcast_shapes(*[spec.shape for spec in specs])
    steps = []
    for (each, arguments), spec in zip(operation.steps, found[len(specs) :], strict=True):
        taken = found[arguments[0]] if arguments else spec
        if isinstance(each, Reduction):
            steps.append(ChainStep(_fold(each, taken, spec.dtype), arguments, spec.dtype))
        else:
            known = find_kernel(each, "cpu", taken.dtype)
            compute = partial(_call, known.function, each)
            # A kernel may write over its first argument, but over no other one.
            steps.append(ChainStep(compute, arguments, spec.dtype, known.inplace and len(arguments) == 1))
    return shape, steps


def _call(function: Callable[..., None], operation: Operation, *inputs: Array, out: Array) -> None:
    function(operation, inputs, [out])


def _fold(operation: Reduction, x: TensorSpec, dtype: np.dtype[Any]) -> Fold:
    axes, count = operation.axes(len(x.shape)), operation.count(x)
    if count == x.size > 0:
        axes = tuple(range(len(x.shape)))  # axes of length 1, too
    ufunc = operation.ufunc or np.add  # parts of means and counts are added up
    if isinstance(operation, ReduceSum | ops.ReduceMean):
        mean_of = count if isinstance(operation, ops.ReduceMean) else None
        return Fold(ufunc, axes, partial(sum_axes, keepdims=True), mean_of)
    if isinstance(operation, ops.CountNonzero):
        return Fold(ufunc, axes, lambda x, axes: np.count_nonzero(x, axis=axes, keepdims=True))
    wide = None
    if isinstance(operation, ops.ReduceProd):
        wide = wide_dtype(x.dtype) if x.dtype.kind == "f" else dtype
    return Fold(ufunc, axes, lambda x, axes: ufunc.reduce(x, axis=axes, dtype=wide, keepdims=True))
