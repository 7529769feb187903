"""Several elementwise operations, and reductions of their results, in one pass over memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from actorflow.errors import GraphError, ShapeError
from actorflow.ops.elementwise import Cast, Sum
from actorflow.ops.fills import Fill
from actorflow.ops.operation import Operation
from actorflow.ops.reductions import CountNonzero, ReduceAll, ReduceAny, ReduceMax, ReduceMean, ReduceMin, ReduceProd
from actorflow.ops.rows import Elementwise
from actorflow.ops.shaping import ReduceSum, Reduction
from actorflow.ops.step import Step
from actorflow.spec import TensorSpec, broadcast_shapes

#: Kinds of the dtypes for which all devices compute the same, of the reductions that may end a chain.
_REDUCED_KINDS: dict[type[Operation], str] = {
    **dict.fromkeys((ReduceMax, ReduceMin, ReduceProd, ReduceSum), "iuf"),
    **dict.fromkeys((ReduceAll, ReduceAny), "b"),
    ReduceMean: "f",
    CountNonzero: "biuf",
}
_HALF = np.dtype(np.float16)


class FusedColumns(NamedTuple):
    """An array seen in the shape (outer, length, inner), whose middle axis reductions go along."""

    outer: int
    length: int
    inner: int


@dataclass(frozen=True)
class Fused(Operation):
    """Elementwise operations, each element taken through all of them at once, and reductions of their values.

    The values are as of the operations one after the other, each rounded to its dtype; in which order a reduction
    goes through its elements is each device's own, and always the same. A step that only constants lead to (`Fill`) is
    one number, of shape ``()``. Reduced values have the shape of all inputs together, all reductions go along the same
    axes, these lie side by side, and no step reads a reduction's result.

    Source: the chains of `actorflow.array`, which makes these; as ``cupy.fuse`` and numexpr do. Several results and
    several reductions of one shape in one kernel are XLA's multi-output fusion.

    Raises:
        GraphError: if an operation cannot be a step, or the value of a reduction is not a result.
        ShapeError: if a result does not have the shape of all inputs together, or reductions differ in their axes.

    Attributes:
        steps: The operations, in order; see `may_fuse`.
        results: Positions of the steps whose values are the outputs; all reductions are among them, the others have the
            shape of all inputs together.
        prepared: State that kernels keep for inputs of known types; its ``spent_ns`` are times of the steps so far.
    """

    arguments = ("*inputs",)

    steps: tuple[Step, ...]
    results: tuple[int, ...]
    prepared: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def reductions(self) -> tuple[int, ...]:
        """Positions of the steps that are reductions."""
        return tuple([i for i, step in enumerate(self.steps) if isinstance(step.operation, Reduction)])

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        specs = self.specs(inputs)
        if not self.results or not all(0 <= i < len(self.steps) for i in self.results):
            raise GraphError(f"Fused: results must be some of {len(self.steps)} steps, got {self.results}")
        found = tuple([specs[len(inputs) + i] for i in self.results])
        whole, reductions = broadcast_shapes(*[spec.shape for spec in inputs]), dict.fromkeys(self.reductions)
        for i, spec in zip(self.results, found, strict=True):
            if spec.shape != whole and i not in reductions:
                raise ShapeError(f"Fused: step {i} must have the shape {whole} of all inputs together, got {spec}")
        results, read = {*self.results}, {i - len(inputs) for step in self.steps for i in step.inputs}
        for i in reductions:
            if i not in results:
                raise GraphError(f"Fused: step {i} is a reduction, which must be one of the results {self.results}")
            if i in read:
                raise GraphError(f"Fused: step {i} is a reduction, which no step may read")
        columns = [self._columns(specs, i, whole) for i in reductions]
        for i, along in zip(reductions, columns, strict=True):
            if along != columns[0]:
                raise ShapeError(
                    f"Fused: step {i} must reduce (outer, length, inner) as the reduction before it does, "
                    f"{tuple(columns[0])}, got {tuple(along)}"
                )
        return found

    def _columns(self, specs: Sequence[TensorSpec], i: int, whole: tuple[int, ...]) -> FusedColumns:
        (argument,) = self.steps[i].inputs
        if specs[argument].shape != whole:
            raise ShapeError(f"Fused: step {i} must reduce the shape {whole} of all inputs, got {specs[argument]}")
        return self._columns_along(i, whole)

    def columns(self, whole: tuple[int, ...]) -> FusedColumns:
        """The columns that the reductions go along.

        Args:
            whole: The shape of all inputs together.
        """
        return self._columns_along(self.reductions[0], whole)

    def _columns_along(self, i: int, whole: tuple[int, ...]) -> FusedColumns:
        operation = self.steps[i].operation
        assert isinstance(operation, Reduction)
        columns = columns_of(whole, operation.axes(len(whole)))
        assert columns is not None  # as `may_reduce` has checked
        return columns

    def specs(self, inputs: Sequence[TensorSpec]) -> list[TensorSpec]:
        """The types of the inputs, then of all steps.

        Raises:
            GraphError: if an operation cannot be a step.
        """
        specs = list(inputs)
        for i, step in enumerate(self.steps):
            operation = step.operation
            if not all(0 <= position < len(specs) for position in step.inputs):
                raise GraphError(f"Fused: step {i} must read inputs and steps before it, got {step.inputs}")
            taken = [specs[position] for position in step.inputs]
            (result,) = operation.infer(*taken) or (None,)
            if result is None or not (may_fuse(operation, taken, result) or may_reduce(operation, *taken)):
                raise GraphError(f"Fused: step {i}, {operation} of {', '.join(map(str, taken))}, cannot be fused")
            specs.append(result)
        return specs

    def times(self) -> list[int]:
        """Time of each step so far, as far as kernels tell them apart."""
        found = [each.spent_ns for each in [*self.prepared.values()]]
        return [sum(times) for times in zip_longest([0] * len(self.steps), *found, fillvalue=0)]

    def may_write_over(self, in_place: bool) -> bool:
        """Return whether the first result may be written over the first input: nothing reads that afterwards.

        Args:
            in_place: Whether the kernel of the step that gives the result may write over its first argument.
        """
        result = self.results[0]
        last = max([i for i, step in enumerate(self.steps) if 0 in step.inputs], default=-1)
        if last == result:
            operation, inputs = self.steps[result].operation, self.steps[result].inputs
            is_first = in_place and inputs.index(0) == 0 and inputs.count(0) == 1
            return not self.reductions and (is_first or is_aligned(operation, len(inputs)))
        return not self.reductions and last < result

    def __str__(self) -> str:
        return f"Fused({', '.join(map(str, self.steps))})"


def is_aligned(operation: Operation, count: int) -> bool:
    """Return whether an elementwise operation of that many inputs is one function, which may write over any of them."""
    if not isinstance(operation, Elementwise) or type(operation).function is None:
        return False
    return operation.aligned and (count <= 2 or not isinstance(operation, Sum))


@dataclass(frozen=True)
class Followed(Operation):
    """An operation, and a chain that takes its result, as one function of a library; see `Kernel.joins`.

    Its inputs are the operation's, then the chain's but the first one, which is the result.

    Attributes:
        main: The operation.
        chain: The chain that follows it.
        count: Number of inputs of the operation.
    """

    arguments = ("*inputs",)

    main: Operation
    chain: Fused
    count: int

    @property
    def steps(self) -> tuple[Step, ...]:
        """The operation, then the chain's."""
        return (Step(self.main, (), site=0), *self.chain.steps)

    @property
    def results(self) -> tuple[int, ...]:
        """Positions of the steps whose values are the outputs."""
        return tuple([1 + i for i in self.chain.results])

    def times(self) -> list[int]:
        """Shares of the steps in the time, which nobody tells apart: all is the operation's."""
        return [1, *[0] * len(self.chain.steps)]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (y,) = self.main.infer(*inputs[: self.count]) or ()
        return self.chain.infer(y, *inputs[self.count :])

    def __str__(self) -> str:
        return f"Followed({self.main}, {self.chain})"


def may_fuse(operation: Operation, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
    """Return whether an operation can be an elementwise step of `Fused`: one formula, the same on all devices."""
    if isinstance(operation, Fill):
        return output.shape == () and output.dtype.kind in "biuf"
    if not isinstance(operation, Elementwise):
        return False
    if isinstance(operation, Cast):
        kinds = "" if _HALF in (inputs[0].dtype, output.dtype) else "biuf"  # devices round by way of float32
    else:
        kinds = "iuf" if isinstance(operation, Sum) else operation.formula_kinds
    return all(map(_is_known, (*inputs, output))) and inputs[operation.conditions].dtype.kind in kinds


def may_reduce(operation: Operation, *inputs: TensorSpec) -> bool:
    """Return whether an operation can be a step of `Fused` that reduces a value of the chain."""
    kinds = _REDUCED_KINDS.get(type(operation), "")
    return (
        isinstance(operation, Reduction)
        and _is_known(inputs[0])
        and inputs[0].dtype.kind in kinds
        and columns_of(inputs[0].shape, operation.axes(len(inputs[0].shape))) is not None
    )


def columns_of(shape: Sequence[int], axes: Sequence[int]) -> FusedColumns | None:
    """An array as (outer, length, inner), of which axes are the middle; None if they do not lie side by side.

    Axes of length 1 lie anywhere; of no axes, each element is a column.
    """
    within = [i for i in axes if shape[i] != 1]
    if not within:
        return FusedColumns(math.prod(shape), 1, 1)
    first, last = min(within), max(within)
    if any(shape[i] != 1 and i not in within for i in range(first, last)):
        return None
    return FusedColumns(math.prod(shape[:first]), math.prod(shape[first : last + 1]), math.prod(shape[last + 1 :]))


def _is_known(spec: TensorSpec) -> bool:
    return spec.dtype.kind in "biuf" and spec.dtype.itemsize <= 8
