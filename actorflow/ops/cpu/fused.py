"""Kernel of `actorflow.ops.fused`: the steps' own kernels, block by block, and reductions of the blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from actorflow.devices.registry import device_kind
from actorflow.devices.team import team
from actorflow.ops import reductions as ops
from actorflow.ops.cpu import blocks, described
from actorflow.ops.cpu.blocks import Chain, ChainStep, Fold
from actorflow.ops.cpu.buffers import Array
from actorflow.ops.cpu.parallel import MOST_PIECES, element_ns, even_cuts
from actorflow.ops.cpu.reductions import sum_axes
from actorflow.ops.elementwise import Sum
from actorflow.ops.fills import Fill
from actorflow.ops.fused import Followed, Fused, is_aligned
from actorflow.ops.operation import Operation, wide_dtype
from actorflow.ops.registry import find_kernel, kernel, load_libraries
from actorflow.ops.rows import Elementwise
from actorflow.ops.shaping import ReduceSum, Reduction
from actorflow.ops.step import StepError
from actorflow.spec import TensorSpec


@kernel(Fused)
def _fused(operation: Fused, inputs: list[Array], outputs: list[Array]) -> None:
    chain = _prepared(operation, inputs)
    _run(chain, dict(zip(chain.results, outputs, strict=True)), inputs)


@kernel(Followed)
def _followed(operation: Followed, inputs: list[Array], outputs: list[Array]) -> None:
    """The one, by the first library that has it, then the other: for pairs without a primitive that computes both."""
    main, count = operation.main, operation.count
    (spec,) = main.infer(*[TensorSpec(x.shape, x.dtype) for x in inputs[:count]]) or ()
    y = np.empty(spec.shape, spec.dtype)
    try:
        libraries = load_libraries("cpu", device_kind("cpu").libraries)
        find_kernel(main, "cpu", inputs[0].dtype, libraries=libraries).function(main, inputs[:count], [y])
    except Exception as error:
        raise StepError(0) from error
    try:
        _fused(operation.chain, [y, *inputs[count:]], outputs)
    except StepError as error:
        raise StepError(1 + error.step) from error.__cause__


def _run(chain: Chain, outputs: Mapping[int, Array], inputs: list[Array]) -> None:
    bound = chain.bind(inputs, outputs)
    touched = math.prod(chain.whole) * (len(inputs) + len(outputs) + len(chain.steps) * bool(chain.folds))
    cuts = even_cuts(bound.count, MOST_PIECES)
    try:
        team.spread(cuts, lambda cut: bound.run(cut.start, cut.stop), element_ns(touched))
    except Exception as error:  # noqa: BLE001  whatever a step has raised
        step, cause = bound.failure or (len(chain.steps) - 1, error)
        raise StepError(step) from cause


def _prepared(operation: Fused, inputs: Sequence[Array]) -> Chain:
    """A chain of NumPy's functions on inputs of these types; see `Chain`."""
    key = (blocks.BLOCK, *[(x.shape, x.dtype) for x in inputs])
    found: Chain | None = operation.prepared.get(key)
    if found is None:
        specs = [TensorSpec(x.shape, x.dtype) for x in inputs]
        steps, shape = steps_of(operation, specs), np.broadcast_shapes(*[spec.shape for spec in specs])
        found = operation.prepared[key] = Chain(steps, specs, shape, operation.results)
    return found


def steps_of(operation: Fused, specs: Sequence[TensorSpec]) -> list[ChainStep]:
    """The steps of a chain on inputs of these types, each by NumPy."""
    found = operation.specs(specs)
    steps = []
    for step, spec in zip(operation.steps, found[len(specs) :], strict=True):
        each, arguments = step.operation, step.inputs
        if isinstance(each, Reduction):
            fold = _fold(each, found[arguments[0]], spec.dtype)
            steps.append(ChainStep(fold, arguments, spec.dtype))
        elif isinstance(each, Fill):
            steps.append(ChainStep(np.asarray(each.value, spec.dtype), arguments, spec.dtype))
        else:
            steps.append(_mapping(each, arguments, found[arguments[0]].dtype, spec.dtype))
    return steps


def _mapping(
    operation: Operation, arguments: tuple[int, ...], dtype: np.dtype[Any], result: np.dtype[Any]
) -> ChainStep:
    assert isinstance(operation, Elementwise)
    known = find_kernel(operation, "cpu", dtype)
    is_sum = isinstance(operation, Sum) and len(arguments) == 2
    if is_sum or known.function.__module__ == described.__name__:  # its row's, without what a call of its own needs
        return ChainStep(operation.into, arguments, result, is_aligned(operation, len(arguments)))
    function = getattr(known.function, "in_one_piece", known.function)
    # A kernel may write over its first argument, but over no other one.
    return ChainStep(partial(_call, function, operation), arguments, result, known.inplace and len(arguments) == 1)


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
