"""Chains of elementwise operations, and the reductions that end them: computed block by block, by several threads.

A block of each intermediate value fits the cache, so a chain reads its inputs and writes its results once, however
long it is. NumPy's own ufuncs do the work on each block: measured against numexpr on a chain of ten operations on 10
million float32, that took a fifth of its time here, and it keeps NumPy's dtypes and special values to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, product
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from actorflow.ops.cpu import buffers
from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.cpu.reductions import sum_axes
from actorflow.ops.reductions import is_certain, may_be_parted
from actorflow.ops.step import StepError
from actorflow.spec import TensorSpec

#: Elements of a block.
BLOCK = buffers.BLOCK

_Index = tuple[int | slice, ...]


class Fold(NamedTuple):
    """A reduction."""

    ufunc: np.ufunc  # function that puts parts together
    axes: tuple[int, ...]  # axes that it goes along
    part: Callable[[Array, tuple[int, ...]], Any]  # called with an array and the axes; reduces these to length 1
    divisor: int | None = None  # number that the total is divided by; None if it is not


class ChainStep(NamedTuple):
    """One step of a chain.

    Attributes:
        compute: Its computation: an elementwise function called with the arguments and ``out``, a reduction, or
            nothing, as it is a number.
        arguments: Positions of its inputs among the chain's, followed by the steps before it.
        dtype: Dtype of the result.
        aligned: Whether ``out`` may be an argument that nothing else reads.
    """

    compute: Callable[..., Any] | Fold | Array
    arguments: tuple[int, ...]
    dtype: np.dtype[Any]
    aligned: bool = False


class Chain:
    """Steps on inputs of known types: how they are cut into blocks, and where the values of a block are kept.

    Args:
        steps: In order; no step reads a reduction's result.
        inputs: Types of the arrays it reads.
        shape: Shape of all of them together. Elementwise steps have it, but for those that only single elements lead
            to, and reduced values have it.
        results: Positions of the steps whose values are wanted, all reductions among them.
        is_dense: Whether the inputs lie flat in memory.
    """

    def __init__(
        self,
        steps: Sequence[ChainStep],
        inputs: Sequence[TensorSpec],
        shape: tuple[int, ...],
        results: Iterable[int],
        *,
        is_dense: bool = True,
    ) -> None:
        self.first = first = len(inputs)
        results = [*results]
        self.steps, self.results = steps, results
        self.folds = {i: step.compute for i, step in enumerate(steps) if isinstance(step.compute, Fold)}
        self.mapped = {i for i in self.results if i not in self.folds}
        of_number = {i for i, step in enumerate(steps) if isinstance(step.compute, np.ndarray)}
        self.template: list[Any] = [step.compute if i in of_number else None for i, step in enumerate(steps)]
        self.is_cut = math.prod(shape) > BLOCK
        self.is_flat = all(len(fold.axes) == len(shape) for fold in self.folds.values()) and all(
            spec.size == 1 or spec.shape == shape for spec in inputs
        )
        together = 1
        if is_dense and self.is_cut and (self.is_flat or not self.folds):
            together = min([_leading(spec.shape, shape) for spec in inputs if spec.size != 1], default=len(shape))
        self.is_flat = self.is_flat and together == len(shape)
        #: Number of leading axes that are seen as one.
        self.together = together
        self.whole = shape
        self.shape = (math.prod(shape[:together]), *shape[together:]) if self.is_cut else shape
        self.blocks = _divide(self.shape, by_rows=bool(self.folds))
        #: Whether blocks are pieces of the first axis.
        self.is_plain = all(len(index) < 2 for index, _ in self.blocks)
        #: Shapes of the inputs, and of steps, that have not the leading axes: blocks see all of them.
        self.static: dict[int, tuple[int, ...]] = {}
        is_repeated = self.is_plain and not self.is_flat
        is_one_row = math.prod(shape[:together]) == 1
        #: Shapes that inputs have in blocks, but for what blocks have of the first axis.
        self._targets: list[tuple[int, ...]] = []
        for i, spec in enumerate(inputs):
            own = (*[1] * (len(shape) - len(spec.shape)), *spec.shape)
            if spec.size == 1:
                self.static[i] = ()
            elif is_repeated and all(n == 1 for n in own[:together]) and not is_one_row:
                self.static[i] = own[together:]
            self._targets.append(self.static.get(i, (math.prod(own[:together]), *own[together:])))
        for i, step in enumerate(steps):
            if i not in results and self.static.keys() >= {*step.arguments}:
                self.static[first + i] = np.broadcast_shapes(*[self.static[position] for position in step.arguments])
        calls = [(i, step.compute, step.arguments) for i, step in enumerate(steps) if i not in of_number]
        self.calls = [call for call in calls if first + call[0] not in self.static]
        self._static_calls = [call for call in calls if first + call[0] in self.static]
        self.last = {position: i for i, step in enumerate(steps) for position in step.arguments}
        #: Time of each step so far, as far as it was measured.
        self.spent_ns = [0] * len(steps)
        self._inputs = inputs
        self.kept = self._kept()

    def _kept(self) -> dict[int, int | str]:
        """Where values are kept that are not results: a result's memory, by its step, or a name of scratch memory.

        Memory is used again after the last reader.
        """
        first, last = self.first, self.last
        free: dict[Any, list[int | str]] = {}
        taken: dict[int, int | str] = {}
        names = map("chain {}".format, count())
        # Results whose memory nothing uses yet; a reduction may go through the steps once more when all are written.
        waiting = set() if self.folds else set(self.mapped)

        for i, step in enumerate(self.steps):
            if isinstance(step.compute, np.ndarray) or first + i in self.static:
                continue
            arguments = {position - first for position in step.arguments}
            own = free.setdefault(step.dtype, [])
            for releases in (step.aligned, not step.aligned):
                if releases:
                    for a in arguments:
                        if a in taken and last[a + first] == i:
                            free[self.steps[a].dtype].append(taken[a])
                elif i not in self.mapped and i not in self.folds:
                    usable = [where for where in own if isinstance(where, str) or self._may_be_in(i, where)]
                    where = usable[-1] if usable else next((j for j in sorted(waiting) if self._may_be_in(i, j)), None)
                    if where is None:
                        where = next(names)
                    elif usable:
                        own.remove(where)
                    else:
                        waiting.discard(where)
                    taken[i] = where
        return taken

    def _may_be_in(self, i: int, j: int) -> bool:
        """Return whether the value of a step can be in the memory of a result that is computed later.

        It must have been read by then; so must inputs of that type, one of which that memory may be.
        """
        step, other, first, last = self.steps[i], self.steps[j], self.first, self.last
        if j <= i or other.dtype != step.dtype:
            return False
        end = last.get(first + i, i)
        read = [
            last.get(k, -1)
            for k, spec in enumerate(self._inputs)
            if spec.shape == self.whole and spec.dtype == other.dtype
        ]
        return (end < j or (end == j and other.aligned)) and all(k < i or (k == i and step.aligned) for k in read)

    def begin(self, inputs: Sequence[Array]) -> list[Any]:
        """The values that blocks begin with: inputs, numbers, and results of steps that are the same for all blocks."""
        first, static = self.first, self.static
        values: list[Any] = [
            x if i not in static or x.shape == static[i] else x.reshape(static[i]) for i, x in enumerate(inputs)
        ]
        values += self.template
        for i, compute, arguments in self._static_calls:
            begin_ns = perf_counter_ns()
            out = values[first + i] = np.empty(static[first + i], self.steps[i].dtype)
            try:
                with np.errstate(all="ignore"):
                    compute(*[values[position] for position in arguments], out=out)  # type: ignore[operator]
            except Exception as error:
                raise StepError(i) from error
            self.spent_ns[i] += perf_counter_ns() - begin_ns
        return values

    def bind(self, inputs: Sequence[Array], outputs: Mapping[int, Array]) -> BoundChain:
        """The chain on arrays.

        Args:
            inputs: Arrays that it reads.
            outputs: Arrays by step: for elementwise results, each of which may be an input that
                is not read afterwards, and arrays for all reductions' results.
        """
        chain = self
        if self.together > 1 and not all(x.size == 1 or x.flags.c_contiguous for x in (*inputs, *outputs.values())):
            chain = Chain(self.steps, self._inputs, self.whole, self.results, is_dense=False)
        return BoundChain(chain, inputs, outputs)

    def seen(self, i: int, x: Array) -> Array:
        """An input as blocks are taken of it."""
        target = self._targets[i]
        x = x if x.shape == target else x.reshape(target)
        return x if self.is_plain or i in self.static else np.broadcast_to(x, self.shape)


class BoundChain:
    """A chain whose arrays are known. Which thread computes which blocks makes no difference to the results.

    Attributes:
        count: Number of blocks.
        failure: The last step that failed, and why.
    """

    def __init__(self, chain: Chain, inputs: Sequence[Array], outputs: Mapping[int, Array]) -> None:
        self.failure: tuple[int, Exception] | None = None
        self.count = len(chain.blocks)
        self._chain = chain
        self._totals = {i: outputs[i] for i in chain.folds}
        #: By reduction that goes across blocks, its results by block; None if it needs all of its argument.
        self._parts: dict[int, dict[int, Array] | None] = {}
        self._computed: set[int] = set()
        self._same: int | None = None  # the result that is written over the first input
        if not chain.is_cut:
            self._begun = chain.begin(inputs)
            self._outputs = {i: outputs[i] for i in chain.mapped}
            return
        self._begun = chain.begin([chain.seen(i, x) for i, x in enumerate(inputs)])
        self._outputs = {i: outputs[i].reshape(chain.shape) for i in chain.mapped}
        if inputs and any(inputs[0] is y for y in outputs.values()):  # one array is one object in each block, too
            self._same = next(i for i, y in outputs.items() if y is inputs[0])
        for i, fold in chain.folds.items():
            if self.count > 1 and 0 in fold.axes:
                is_parted = may_be_parted(fold.ufunc, chain.steps[i].dtype)
                self._parts[i] = {} if is_parted else None
                argument = chain.steps[i].arguments[0] - chain.first
                if not is_parted and argument >= 0:
                    self._outputs.setdefault(argument, np.empty(chain.shape, chain.steps[argument].dtype))

    def run(self, start: int, stop: int) -> None:
        """Compute some of the blocks; different ones may be computed in different threads.

        The thread that computes the last one puts the reductions together; so may several threads that end at once.
        """
        with np.errstate(all="ignore"):
            for _ in self._values(range(start, stop)):
                pass
            if self._parts:
                self._computed.update(range(start, stop))
                if len(self._computed) == self.count:
                    for i, parts in self._parts.items():
                        self._write(i, (), self._total(i, parts))

    def _values(self, numbers: Iterable[int], until: int | None = None) -> Iterator[list[Any]]:
        """Compute blocks: gives the values of each, in memory that later steps and the next block take.

        Results are written; up to a step, reductions are left out.
        """
        chain = self._chain
        spent_ns = chain.spent_ns
        first, folds = chain.first, chain.folds
        shape: tuple[int, ...] | None = None
        memory: dict[int, Array] = {}
        for number in numbers:
            index, found = chain.blocks[number]
            if found != shape:
                memory, shape = self._memory(found), found
            values = self._begun.copy()
            if index:
                values[:first] = [x if i in chain.static else x[index] for i, x in enumerate(values[:first])]
            results = {i: y[index] if index else y for i, y in self._outputs.items()}
            if self._same is not None:
                values[0] = results[self._same]
            begin_ns = perf_counter_ns()
            for i, compute, arguments in chain.calls:
                if until is not None and i >= until:
                    break
                try:
                    if i in folds:
                        if until is None:
                            self._fold(i, number, values[arguments[0]])
                    else:
                        out = results.get(i)
                        if out is None:
                            where = chain.kept[i]
                            out = memory[i] if where.__class__ is str else results[where]  # type: ignore[index]
                        compute(*[values[position] for position in arguments], out=out)  # type: ignore[operator]
                        values[first + i] = out
                except Exception as error:
                    self.failure = i, error
                    raise
                end_ns = perf_counter_ns()
                spent_ns[i] += end_ns - begin_ns
                begin_ns = end_ns
            yield values

    def _memory(self, shape: tuple[int, ...]) -> dict[int, Array]:
        """Memory of this thread for the values of a block that are not results."""
        chain = self._chain
        is_short = math.prod(shape) <= BLOCK  # longer values would be kept for good
        memory = {}
        for i, where in chain.kept.items():
            if isinstance(where, str):
                dtype = chain.steps[i].dtype
                memory[i] = scratch(where, shape, dtype) if is_short else np.empty(shape, dtype)
        return memory

    def _fold(self, i: int, number: int, block: Array) -> None:
        if i not in self._parts:
            self._write(i, self._chain.blocks[number][0], self._part(i, block))
            return
        parts = self._parts[i]
        if parts is not None:
            parts[number] = self._part(i, block)

    def _part(self, i: int, x: Array) -> Array:
        chain, fold = self._chain, self._chain.folds[i]
        is_flat = chain.is_flat and chain.is_cut
        x = x if x.ndim or not chain.shape else x.reshape(chain.shape)  # the only element
        return np.asarray(fold.part(x, (0,) if is_flat else fold.axes))

    def _total(self, i: int, parts: dict[int, Array] | None) -> Array:
        chain = self._chain
        if parts:
            stack = np.stack([parts[number] for number in range(self.count)])
            ufunc: Any = chain.folds[i].ufunc
            total = sum_axes(stack, (0,)) if ufunc is np.add else np.asarray(ufunc.reduce(stack, axis=0))
            if is_certain(ufunc, total):
                return total
        try:
            return self._part(i, self._whole(chain.steps[i].arguments[0]))
        except Exception as error:
            self.failure = i, error
            raise

    def _whole(self, position: int) -> Array:
        """A value of all blocks: computed once more where it is not a result."""
        chain = self._chain
        step = position - chain.first
        if step < 0:
            return np.broadcast_to(self._begun[position], chain.shape)
        if step in self._outputs:
            return self._outputs[step]
        whole = np.empty(chain.shape, chain.steps[step].dtype)
        for (index, _), values in zip(chain.blocks, self._values(range(self.count), step + 1), strict=True):
            whole[index] = values[position]
        return whole

    def _write(self, i: int, index: _Index, total: Array) -> None:
        out, divisor = self._totals[i], self._chain.folds[i].divisor
        if index:
            out = out[index]
        if divisor is not None:
            total = total / total.dtype.type(divisor)
        np.copyto(out, total.reshape(out.shape), casting="unsafe")


def _divide(shape: tuple[int, ...], by_rows: bool) -> list[tuple[_Index, tuple[int, ...]]]:
    """Indices and shapes of the blocks: pieces of the first axis, or, unless they go by rows, of a later one."""
    size = math.prod(shape)
    if size <= BLOCK or (by_rows and shape[0] == 1):
        return [((), shape)]
    axis, rest = 0, size // shape[0]
    while rest > BLOCK and not by_rows:
        axis += 1
        rest //= shape[axis]
    rows = max(1, BLOCK // rest)
    parts = [slice(i, min(i + rows, shape[axis])) for i in range(0, shape[axis], rows)]
    return [
        ((*lead, part), (part.stop - part.start, *shape[axis + 1 :]))
        for lead in product(*map(range, shape[:axis]))
        for part in parts
    ]


def _leading(shape: tuple[int, ...], whole: tuple[int, ...]) -> int:
    """Number of leading axes of the whole shape that an input has in full, or is repeated along."""
    own = (*[1] * (len(whole) - len(shape)), *shape)
    in_full = next((i for i, (n, all_) in enumerate(zip(own, whole, strict=True)) if n != all_), len(whole))
    repeated = next((i for i, n in enumerate(own) if n != 1), len(whole))
    return max(in_full, repeated)
