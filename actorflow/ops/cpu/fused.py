"""Kernel of `actorflow.ops.fused`: the steps' own kernels, block by block, and reductions of the blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from actorflow.ops import reductions as ops
from actorflow.ops.cpu.buffers import BLOCK, Array, scratch
from actorflow.ops.cpu.parallel import element_ns, elementwise, even_cuts, spread
from actorflow.ops.cpu.reductions import sum_axes
from actorflow.ops.fills import Fill
from actorflow.ops.fused import Fused
from actorflow.ops.operation import Operation, wide_dtype
from actorflow.ops.registry import find_kernel, kernel
from actorflow.ops.shaping import ReduceSum, Reduction
from actorflow.spec import TensorSpec

#: Functions that put the parts of a reduction together.
_COMBINE: dict[type[Operation], np.ufunc] = {
    **dict.fromkeys((ops.CountNonzero, ops.ReduceMean, ReduceSum), np.add),
    ops.ReduceProd: np.multiply,
    ops.ReduceMax: np.maximum,
    ops.ReduceMin: np.minimum,
    ops.ReduceAny: np.logical_or,
    ops.ReduceAll: np.logical_and,
}
#: Elements of a block that is reduced. With those of elementwise chains, threads wait for each other after each call:
#: measured side by side on two busy cores, that took 1.3 to 1.8 times as long as with these.
_REDUCED_BLOCK = 4 * BLOCK
#: Pieces that idle cores may take of the blocks, which are some to each.
_MOST_PIECES = 24


class _StepKernel(NamedTuple):
    compute: Callable[..., Any]
    operation: Operation
    arguments: tuple[int, ...]
    dtype: np.dtype[Any]
    constant: Array | None
    result: int | None


@lru_cache(maxsize=256)
def _steps(operation: Fused, specs: tuple[TensorSpec, ...]) -> list[_StepKernel]:
    found = operation.specs(specs)
    outputs = {step: i for i, step in enumerate(operation.results)}
    steps = []
    for i, (each, arguments) in enumerate(operation.steps):
        dtype = found[len(specs) + i].dtype
        known = find_kernel(each, "cpu", found[arguments[0]].dtype if arguments else dtype)
        constant = np.full((), each.value, dtype) if isinstance(each, Fill) else None
        steps.append(_StepKernel(known.function, each, arguments, dtype, constant, outputs.get(i)))
    return steps


@kernel(Fused)
def _fused(operation: Fused, inputs: list[Array], outputs: list[Array]) -> None:
    (_reduced if operation.reductions else _mapped)(operation, inputs, outputs)


@elementwise
def _mapped(operation: Fused, inputs: list[Array], outputs: list[Array]) -> None:
    steps = _steps(operation, _specs(inputs))
    shape, size = outputs[0].shape, outputs[0].size
    with np.errstate(all="ignore"):
        if _are_flat((*inputs, *outputs), shape):
            flat = [x.reshape(() if x.size == 1 else -1) for x in (*inputs, *outputs)]
            for start in range(0, size, BLOCK):
                parts = [x[start : start + BLOCK] if x.ndim else x for x in flat]
                _run(steps, parts[: len(inputs)], parts[len(inputs) :], parts[-1].shape)
        elif size:
            _run(steps, [x.reshape(()) if x.size == 1 else np.broadcast_to(x, shape) for x in inputs], outputs, shape)


def _specs(inputs: Sequence[Array]) -> tuple[TensorSpec, ...]:
    return tuple([TensorSpec(x.shape, x.dtype) for x in inputs])


def _are_flat(arrays: Sequence[Array], shape: tuple[int, ...]) -> bool:
    return all(x.size == 1 or (x.shape == shape and x.flags.c_contiguous) for x in arrays)


def _run(
    steps: list[_StepKernel], inputs: list[Array], outputs: Sequence[Array | None], shape: tuple[int, ...]
) -> list[Array | None]:
    """Compute the elementwise steps of a block; their values, behind the inputs."""
    values: list[Any] = list(inputs)
    for i, step in enumerate(steps):
        target = None if step.result is None else outputs[step.result]
        if isinstance(step.operation, Reduction):
            values.append(None)
            continue
        if step.constant is not None:
            values.append(step.constant)
            if target is not None:
                target.fill(step.constant)
            continue
        arguments = [values[a] for a in step.arguments]
        if target is None:
            target = scratch(f"fused {i}", shape if any(x.ndim for x in arguments) else (), step.dtype)
        step.compute(step.operation, arguments, [target])
        values.append(target)
    return values


def _reduced(operation: Fused, inputs: list[Array], outputs: list[Array]) -> None:
    steps = _steps(operation, _specs(inputs))
    shape = np.broadcast_shapes(*[x.shape for x in inputs])
    mapped = [None if i in operation.reductions else y for i, y in zip(operation.results, outputs, strict=True)]
    size, given = math.prod(shape), [*inputs, *[y for y in mapped if y is not None]]
    is_flat = operation.columns(shape) == (1, size, 1) and _are_flat(given, shape)
    work = _Reduced(steps, inputs, mapped, (size,) if is_flat else shape, is_flat)
    pieces = even_cuts(len(work.blocks), _MOST_PIECES)
    spread(pieces, work.run, element_ns(size * (len(given) + len(steps))))
    for i in operation.reductions:
        step = steps[i]
        assert step.result is not None
        work.finish(i, outputs[step.result])


class _Reduced:
    """Blocks of a chain, each reduced at once.

    Args:
        steps: The chain.
        inputs: Arrays that it reads.
        outputs: Buffers for the results that are not reductions.
        shape: Shape of the chain, not ``()``; the blocks are cut along its first axis.
        is_flat: Take all arrays as flat, and reduce them as a whole.
    """

    def __init__(
        self,
        steps: list[_StepKernel],
        inputs: list[Array],
        outputs: Sequence[Array | None],
        shape: tuple[int, ...],
        is_flat: bool,
    ) -> None:
        self._steps = steps
        self._shape = shape
        self._is_flat = is_flat
        self._inputs = [x.reshape(()) if x.size == 1 else self._shaped(x) for x in inputs]
        self._outputs = [None if y is None else y.reshape(shape) for y in outputs]
        rows = max(1, _REDUCED_BLOCK // max(1, math.prod(shape[1:])))
        self.blocks = [slice(i, min(i + rows, shape[0])) for i in range(0, max(1, shape[0]), rows)]
        self._parts: dict[int, list[Any]] = {}
        #: Values of reductions that cannot be put together from parts, which are reduced once all are there.
        self._whole: dict[int, Array] = {}
        for i, step in enumerate(steps):
            if isinstance(step.operation, Reduction):
                self._parts[i] = [None] * len(self.blocks)
                is_cut = len(self.blocks) > 1 and 0 in self._axes(step.operation)
                if is_cut and not ops.may_be_parted(_COMBINE[type(step.operation)], step.dtype):
                    dtypes = [*[x.dtype for x in inputs], *[each.dtype for each in steps]]
                    self._whole[i] = np.empty(shape, dtypes[step.arguments[0]])

    def _shaped(self, x: Array) -> Array:
        return x.reshape(self._shape) if self._is_flat else np.broadcast_to(x, self._shape)

    def run(self, piece: slice) -> None:
        with np.errstate(all="ignore"):
            for number in range(piece.start, piece.stop):
                self._run_block(number)

    def _run_block(self, number: int) -> None:
        block = self.blocks[number]
        values = self._values(block)
        for i, parts in self._parts.items():
            value = values[self._steps[i].arguments[0]]
            if i in self._whole:
                self._whole[i][block] = value
            else:
                parts[number] = self._part(i, value)

    def _values(self, block: slice) -> list[Any]:
        """The inputs' and the steps' values of a block, in memory that the next one takes; outputs are written."""
        shape = (block.stop - block.start, *self._shape[1:])
        inputs = [x[block] if x.ndim else x for x in self._inputs]
        outputs = [None if y is None else y[block] for y in self._outputs]
        values = _run(self._steps, inputs, outputs, shape)
        return [value if value is None else np.broadcast_to(value, shape) for value in values]

    def _axes(self, operation: Reduction) -> tuple[int, ...]:
        return (0,) if self._is_flat else operation.axes(len(self._shape))

    def _part(self, i: int, x: Array) -> Array:
        operation = self._steps[i].operation
        assert isinstance(operation, Reduction)
        axes = self._axes(operation)
        if isinstance(operation, ReduceSum | ops.ReduceMean):
            return sum_axes(x, axes, keepdims=True)
        if isinstance(operation, ops.CountNonzero):
            return np.asarray(np.count_nonzero(x, axis=axes, keepdims=True))
        dtype = None
        if isinstance(operation, ops.ReduceProd):
            dtype = wide_dtype(x.dtype) if x.dtype.kind == "f" else self._steps[i].dtype
        return np.asarray(_COMBINE[type(operation)].reduce(x, axis=axes, dtype=dtype, keepdims=True))

    def finish(self, i: int, out: Array) -> None:
        """Put the parts of a reduction together, once all blocks have been computed."""
        operation, parts = self._steps[i].operation, self._parts[i]
        assert isinstance(operation, Reduction)
        axes = self._axes(operation)
        with np.errstate(all="ignore"):
            if len(parts) == 1:
                (total,) = parts
            elif i in self._whole:
                total = self._part(i, self._whole[i])
            elif 0 in axes:
                ufunc = _COMBINE[type(operation)]
                total = ufunc.reduce(np.stack(parts), axis=0)
                if not ops.is_certain(ufunc, total):
                    position = self._steps[i].arguments[0]
                    whole = np.concatenate([self._values(block)[position].copy() for block in self.blocks])
                    total = self._part(i, whole)
            else:
                total = np.concatenate(parts)
            if isinstance(operation, ops.ReduceMean):
                total = total / total.dtype.type(math.prod(self._shape[axis] for axis in axes))
            np.copyto(out, total.reshape(out.shape), casting="unsafe")
