"""Chains of elementwise operations, computed block by block.

A block of each intermediate value fits the cache, so a chain reads its inputs and writes its results once, however
long it is. NumPy's own ufuncs do the work on each block: measured against numexpr on a chain of ten operations on 10
million float32, that took a fifth of its time here, and it keeps NumPy's dtypes and special values to the bit.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from actorflow.array.record.node import Origin
from actorflow.array.record.primitives import DType, Elementwise, Primitive, Reduction, Value
from actorflow.ops.reductions import is_certain

#: Elements of a block. Measured from 4 Ki to 512 Ki: with smaller ones, threads wait for each other after each call.
BLOCK = 131_072

Index = tuple[int | slice, ...]


class Step(NamedTuple):
    """One operation of a chain.

    Attributes:
        op: What is computed: elementwise, or a reduction.
        arguments: Positions of its inputs among the chain's inputs and the steps before it.
        params: Further arguments of a reduction.
        shape: Of the result.
        dtype: Of the result.
        origin: Where it was recorded.
    """

    op: Primitive
    arguments: tuple[int, ...]
    params: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: DType
    origin: Origin


class StepError(Exception):
    """A step of a chain failed; the cause is chained.

    Attributes:
        step: Its position.
    """

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


class _Scratch(threading.local):
    """Buffers for blocks, one set per thread."""

    def __init__(self) -> None:
        self.buffers: dict[tuple[DType, int], Value] = {}

    def take(self, dtype: DType, number: int, shape: tuple[int, ...], size: int) -> Value:
        """A buffer of this number, of a block's shape."""
        if size > BLOCK:
            return np.empty(shape, dtype)
        buffer = self.buffers.get((dtype, number))
        if buffer is None:
            buffer = self.buffers[dtype, number] = np.empty(BLOCK, dtype)
        return buffer[:size].reshape(shape)


_scratch = _Scratch()


class Chain:
    """A chain made ready to run.

    Args:
        steps: In order; all elementwise ones have the shape ``shape``.
        values: The chain's inputs.
        shape: Of each elementwise result.
        results: A buffer by step, for each elementwise step whose result is wanted; it may be an input's own, where
            nothing reads that afterwards.

    Attributes:
        results: As given, and with the reductions' results once all blocks have been computed.
        blocks: What each block is of the arrays.
    """

    def __init__(
        self, steps: Sequence[Step], values: list[Value], shape: tuple[int, ...], results: dict[int, Value]
    ) -> None:
        self.steps = steps
        self.results = results
        self._inputs = values
        self._folds = [i for i, step in enumerate(steps) if step.op.reduction]
        full = all(len(steps[i].params[0]) == len(shape) for i in self._folds)
        self._whole_shape = shape
        self._flat = full and all(v.size == 1 or (v.shape == shape and v.flags.c_contiguous) for v in values)
        size = math.prod(shape)
        self._shape = shape if not self._flat else () if size == 1 else (size,)
        self.blocks = self._divide(size)
        self._parts: dict[int, list[Any]] = {}
        for i in self._folds:
            step = steps[i]
            if len(self.blocks) > 1 and not self._flat and 0 not in step.params[0]:
                results[i] = np.empty(step.shape, step.dtype)
            else:
                self._parts[i] = [None] * len(self.blocks)
        self._registers = self._allocate() if len(self.blocks) > 1 else {}
        self._computed: set[int] = set()

    def run(self, start: int, stop: int) -> None:
        """Compute some of the blocks; different ones may be computed in different threads.

        What computes the last one puts the reductions together; so may several threads that end at once.
        """
        inputs = [self._view(value) for value in self._inputs]
        results = {i: self._shown(i, value) for i, value in self.results.items()}
        for number in range(start, stop):
            self._run_block(number, inputs, results)
        self._computed.update(range(start, stop))
        if len(self._computed) == len(self.blocks):
            for i, parts in self._parts.items():
                self.results[i] = self._total(i, parts)

    def _total(self, i: int, parts: list[Any]) -> Value:
        """A reduction, of those of its parts."""
        step = self.steps[i]
        assert isinstance(step.op, Reduction)
        total = parts[0]
        if len(parts) > 1:
            total = step.op.fold(np.asarray(parts), (0,), False, step.dtype)
            if not is_certain(step.op.ufunc, total):
                try:
                    total = step.op.fold(self._whole(step.arguments[0]), *step.params)
                except Exception as error:
                    raise StepError(i) from error
        return np.asarray(total, step.dtype).reshape(step.shape)

    def _whole(self, position: int) -> Value:
        """What a step reads, of all blocks: computed again where it is no result."""
        first = len(self._inputs)
        if position < first:
            return np.broadcast_to(self._inputs[position], self._whole_shape)
        if position - first in self.results:
            return self.results[position - first]
        needed = {position}
        for i in range(position, first - 1, -1):
            if i in needed:
                needed.update(self.steps[i - first].arguments)
        kept = [i for i in sorted(needed) if i >= first]
        places = {i: first + place for place, i in enumerate(kept)}
        steps = [self.steps[i - first] for i in kept]
        steps = [step._replace(arguments=tuple([places.get(i, i) for i in step.arguments])) for step in steps]
        value = np.empty(self._whole_shape, steps[-1].dtype)
        again = Chain(steps, self._inputs, self._whole_shape, {len(steps) - 1: value})
        again.run(0, len(again.blocks))
        return value

    def _divide(self, size: int) -> list[Index]:
        shape = self._shape
        if size <= BLOCK:
            return [()]
        axis, rest = 0, math.prod(shape[1:])
        while rest > BLOCK and not self._folds:
            axis += 1
            rest //= shape[axis]
        rows = max(1, BLOCK // rest)
        parts = [slice(i, min(i + rows, shape[axis])) for i in range(0, shape[axis], rows)]
        return [(*lead, part) for lead in product(*map(range, shape[:axis])) for part in parts]

    def _view(self, value: Value) -> Value:
        """An input as the blocks index it."""
        if value.size == 1:
            return value.reshape(())
        if self._flat:
            return value.reshape(-1)
        if value.shape == self._shape or len(self.blocks) == 1:
            return value
        return np.broadcast_to(value, self._shape)

    def _shown(self, i: int, value: Value) -> Value:
        """A result as the blocks index it."""
        return value.reshape(self._shape) if self._flat and not self.steps[i].op.reduction else value

    def _allocate(self) -> dict[int, int]:
        """The number of a buffer for each step whose result is not wanted; used again after the last reader."""
        first = len(self._inputs)
        last = {position - first: i for i, step in enumerate(self.steps) for position in step.arguments}
        free: dict[DType, list[int]] = {}
        most: dict[DType, int] = {}
        taken: dict[int, int] = {}
        for i, step in enumerate(self.steps):
            ended = [a for a in {position - first for position in step.arguments} if a in taken and last[a] == i]
            aligned = isinstance(step.op, Elementwise) and step.op.aligned
            if aligned:
                self._release(ended, taken, free)
            if not step.op.reduction and i not in self.results:
                numbers = free.setdefault(step.dtype, [])
                if not numbers:
                    numbers.append(most.get(step.dtype, 0))
                    most[step.dtype] = numbers[0] + 1
                taken[i] = numbers.pop()
            if not aligned:
                self._release(ended, taken, free)
        return taken

    def _release(self, ended: Iterable[int], taken: dict[int, int], free: dict[DType, list[int]]) -> None:
        for i in ended:
            free[self.steps[i].dtype].append(taken[i])

    def _run_block(self, number: int, inputs: list[Value], results: dict[int, Value]) -> None:
        index = self.blocks[number]
        shape = self._shape
        slots = inputs[:]
        if index:
            part = index[-1]
            assert isinstance(part, slice)
            shape = (part.stop - part.start, *shape[len(index) :])
            slots = [value[index] if value.ndim else value for value in inputs]
        size = math.prod(shape)
        for i, step in enumerate(self.steps):
            arguments = [slots[position] for position in step.arguments]
            if step.op.reduction:
                slots.append(self._fold(i, number, arguments[0]))
                continue
            if i in results:
                out = results[i][index] if index else results[i]
            elif index:
                out = _scratch.take(step.dtype, self._registers[i], shape, size)
            else:
                out = np.empty(shape, step.dtype)
            try:
                step.op.compute(*arguments, out=out)
            except Exception as error:
                raise StepError(i) from error
            slots.append(out)

    def _fold(self, i: int, number: int, block: Value) -> Any:
        step = self.steps[i]
        assert isinstance(step.op, Reduction)
        axes, keepdims, dtype = step.params
        if self._flat:
            axes, keepdims = tuple(range(block.ndim)), False
        part = step.op.fold(block, axes, keepdims, dtype)
        if i in self._parts:
            self._parts[i][number] = part
        else:
            self.results[i][self.blocks[number]] = part
        return part
