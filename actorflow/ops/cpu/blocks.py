"""Chains of elementwise operations, and the reductions that end them: computed block by block, by several threads.

A block of each intermediate value fits the cache, so a chain reads its inputs and writes its results once, however
long it is. NumPy's own ufuncs do the work on each block: measured against numexpr on a chain of ten operations on 10
million float32, that took a fifth of its time here, and it keeps NumPy's dtypes and special values to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, product
from typing import Any, NamedTuple

import numpy as np

from actorflow.ops.cpu.buffers import BLOCK, Array, scratch
from actorflow.ops.reductions import is_certain, may_be_parted

_Index = tuple[int | slice, ...]


class Fold(NamedTuple):
    """A reduction.

    Attributes:
        ufunc: Function that puts parts together.
        axes: Axes that it goes along.
        part: Called with an array and the axes; reduces these to length 1.
        divisor: Number that the total is divided by; None if it is not.
    """

    ufunc: np.ufunc
    axes: tuple[int, ...]
    part: Callable[[Array, tuple[int, ...]], Any]
    divisor: int | None = None


class ChainStep(NamedTuple):
    """One step of a chain.

    Attributes:
        compute: What it computes: an elementwise function called with the arguments and ``out``, or a reduction.
        arguments: Positions of its inputs among those of the chain, followed by the steps before it.
        dtype: Dtype of the result.
        aligned: Whether ``out`` may be an argument that nothing else reads.
    """

    compute: Callable[..., Any] | Fold
    arguments: tuple[int, ...]
    dtype: np.dtype[Any]
    aligned: bool = False


class BlockedChain:
    """A chain whose arrays are known. Which thread computes which blocks makes no difference to the results.

    Args:
        steps: In order; no step reads what a reduction gives.
        inputs: Arrays that it reads.
        shape: Shape of all of them together. Elementwise steps have it, but for those that only single elements lead
            to, and what is reduced has it.
        outputs: Arrays by step: those that elementwise results of this shape are written into, each of which may be an
            input that is not read afterwards, and those for all reductions' results.

    Attributes:
        count: Number of blocks.
        failure: The last step that failed, and why.
    """

    def __init__(
        self, steps: Sequence[ChainStep], inputs: Sequence[Array], shape: tuple[int, ...], outputs: Mapping[int, Array]
    ) -> None:
        first = len(inputs)
        self.failure: tuple[int, Exception] | None = None
        self._steps = steps
        self._folds = {i: step.compute for i, step in enumerate(steps) if isinstance(step.compute, Fold)}
        mapped = {i: y for i, y in outputs.items() if i not in self._folds}
        self._is_flat = all(len(fold.axes) == len(shape) for fold in self._folds.values()) and all(
            x.size == 1 or (x.shape == shape and x.flags.c_contiguous) for x in (*inputs, *mapped.values())
        )
        self._shape = (math.prod(shape),) if self._is_flat else shape
        self._inputs = [
            x.reshape(()) if x.size == 1 else x.reshape(-1) if self._is_flat else np.broadcast_to(x, shape)
            for x in inputs
        ]
        self._outputs = {i: y.reshape(self._shape) for i, y in mapped.items()}
        self._totals = {i: outputs[i] for i in self._folds}
        self._blocks = _divide(self._shape, by_rows=bool(self._folds))
        self.count = len(self._blocks)
        self._computed: set[int] = set()
        #: By reduction that goes across blocks, its results by block; None if it needs all of its argument.
        self._parts: dict[int, dict[int, Array] | None] = {}
        for i, fold in self._folds.items():
            if self.count > 1 and 0 in fold.axes:
                is_parted = may_be_parted(fold.ufunc, steps[i].dtype)
                self._parts[i] = {} if is_parted else None
                argument = steps[i].arguments[0] - first
                if not is_parted and argument >= 0:
                    self._outputs.setdefault(argument, np.empty(self._shape, steps[argument].dtype))
        self._full = {i - first for i, x in enumerate(self._inputs) if x.ndim} | set(mapped)  # not single elements
        self._registers = self._assigned()

    def _assigned(self) -> dict[int, str]:
        """Names of the scratch memory for steps whose values are not outputs; used again after the last reader."""
        first = len(self._inputs)
        last = {position - first: i for i, step in enumerate(self._steps) for position in step.arguments}
        free: dict[np.dtype[Any], list[str]] = {}
        taken: dict[int, str] = {}
        names = map("chain {}".format, count())
        for i, step in enumerate(self._steps):
            arguments = {position - first for position in step.arguments}
            if not self._full.isdisjoint(arguments):
                self._full.add(i)
            ended = [a for a in arguments if a in taken and last[a] == i]
            own = free.setdefault(step.dtype, [])
            for releases in (step.aligned, not step.aligned):
                if releases:
                    for a in ended:
                        free[self._steps[a].dtype].append(taken[a])
                elif i not in self._outputs and i not in self._folds:
                    taken[i] = own.pop() if own else next(names)
        return taken

    def run(self, start: int, stop: int) -> None:
        """Compute some of the blocks; different ones may be computed in different threads.

        What computes the last one puts the reductions together; so may several threads that end at once.
        """
        with np.errstate(all="ignore"):
            for _ in self._values(range(start, stop)):
                pass
            self._computed.update(range(start, stop))
            if len(self._computed) == self.count:
                for i, parts in self._parts.items():
                    self._write(i, (), self._total(i, parts))

    def _values(self, numbers: Iterable[int], until: int | None = None) -> Iterator[list[Any]]:
        """Compute blocks: gives the values of each, in memory that later steps and the next block take.

        Outputs are written; up to a step, reductions are left out.
        """
        shape: tuple[int, ...] | None = None
        memory: dict[int, Array] = {}
        for number in numbers:
            index, found = self._blocks[number]
            if found != shape:
                memory, shape = self._memory(found), found
            values: list[Any] = [x[index] if index and x.ndim else x for x in self._inputs]
            for i, step in enumerate(self._steps[:until]):
                arguments = [values[position] for position in step.arguments]
                out = memory.get(i)
                try:
                    if isinstance(step.compute, Fold):
                        if until is None:
                            self._fold(i, number, arguments[0])
                    else:
                        if out is None:
                            out = self._outputs[i][index] if index else self._outputs[i]
                        step.compute(*arguments, out=out)
                except Exception as error:
                    self.failure = i, error
                    raise
                values.append(out)
            yield values

    def _memory(self, shape: tuple[int, ...]) -> dict[int, Array]:
        """Memory of this thread for the values of a block that are not outputs."""
        is_short = math.prod(shape) <= BLOCK  # longer values would be kept for good
        memory = {}
        for i, name in self._registers.items():
            own, dtype = shape if i in self._full else (), self._steps[i].dtype
            memory[i] = scratch(name, own, dtype) if is_short else np.empty(own, dtype)
        return memory

    def _fold(self, i: int, number: int, block: Array) -> None:
        if i not in self._parts:
            self._write(i, self._blocks[number][0], self._part(i, block))
            return
        parts = self._parts[i]
        if parts is not None:
            parts[number] = self._part(i, block)

    def _part(self, i: int, x: Array) -> Array:
        fold = self._folds[i]
        x = x if x.ndim else x.reshape(self._shape)  # the only element
        return np.asarray(fold.part(x, (0,) if self._is_flat else fold.axes))

    def _total(self, i: int, parts: dict[int, Array] | None) -> Array:
        if parts:
            stack = np.stack([parts[number] for number in range(self.count)])
            ufunc: Any = self._folds[i].ufunc
            total = np.asarray(ufunc.reduce(stack, axis=0, dtype=stack.dtype))
            if is_certain(ufunc, total):
                return total
        try:
            return self._part(i, self._whole(self._steps[i].arguments[0]))
        except Exception as error:
            self.failure = i, error
            raise

    def _whole(self, position: int) -> Array:
        """A value of all blocks: computed once more where it is not an output."""
        step = position - len(self._inputs)
        if step < 0:
            return np.broadcast_to(self._inputs[position], self._shape)
        if step in self._outputs:
            return self._outputs[step]
        whole = np.empty(self._shape, self._steps[step].dtype)
        for (index, _), values in zip(self._blocks, self._values(range(self.count), step + 1), strict=True):
            whole[index] = values[-1]
        return whole

    def _write(self, i: int, index: _Index, total: Array) -> None:
        out, divisor = self._totals[i], self._folds[i].divisor
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
