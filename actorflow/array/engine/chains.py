"""Long chains of elementwise operations, and the reductions that end them: computed block by block, by several threads.

A block of each intermediate value fits the cache, so a chain reads its inputs and writes its results once, however
long it is. NumPy's own ufuncs do the work on each block: measured against numexpr on a chain of ten operations on 10
million float32, that took a fifth of its time here, and it keeps NumPy's dtypes and special values to the bit.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from itertools import product
from sys import getrefcount
from typing import Any

import numpy as np

from actorflow.array.engine.units import StepUnit, is_own
from actorflow.array.record.primitives import DType, ElementwisePrimitive, ReductionPrimitive, Value
from actorflow.array.record.record import OpStep, Record, bytes_of
from actorflow.ops.reductions import is_certain, may_be_uncertain

#: Elements of a block. Measured from 4 Ki to 512 Ki: with smaller ones, threads wait for each other after each call.
BLOCK = 131_072
_alone = [np.empty(0)]
#: Reference count of ``values[i]``, an array that only the list refers to.
_IN_ONE_LIST = getrefcount(_alone[0])
#: Blocks that a thread computes at a time, so that another one can take a share.
_SHARE = 4

Index = tuple[int | slice, ...]


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
        if size > BLOCK:
            return np.empty(shape, dtype)
        buffer = self.buffers.get((dtype, number))
        if buffer is None:
            buffer = self.buffers[dtype, number] = np.empty(BLOCK, dtype)
        return buffer[:size].reshape(shape)


_scratch = _Scratch()


class ReadyChain:
    """A chain made ready to run.

    Args:
        steps: In order; all elementwise ones have the shape ``shape``.
        values: The chain's inputs.
        shape: Of each elementwise result.
        results: A buffer by step, for each elementwise step whose result is wanted; it may be an input's own, where
            nothing reads that afterwards.

    Attributes:
        results: As given, and with the reductions' results once all blocks have been computed.
        blocks: For each block its index into the arrays.
    """

    def __init__(
        self, steps: Sequence[OpStep], values: list[Value], shape: tuple[int, ...], results: dict[int, Value]
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
        step = self.steps[i]
        assert isinstance(step.op, ReductionPrimitive)
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
        """The input of a step, of all blocks: computed once more where it is not a result."""
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
        chain = ReadyChain(steps, self._inputs, self._whole_shape, {len(steps) - 1: value})
        chain.run(0, len(chain.blocks))
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
        if value.size == 1:
            return value.reshape(())
        if self._flat:
            return value.reshape(-1)
        if value.shape == self._shape or len(self.blocks) == 1:
            return value
        return np.broadcast_to(value, self._shape)

    def _shown(self, i: int, value: Value) -> Value:
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
            aligned = isinstance(step.op, ElementwisePrimitive) and step.op.aligned
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
        assert isinstance(step.op, ReductionPrimitive)
        axes, keepdims, dtype = step.params
        if self._flat:
            axes, keepdims = tuple(range(block.ndim)), False
        part = step.op.fold(block, axes, keepdims, dtype)
        if i in self._parts:
            self._parts[i][number] = part
        else:
            self.results[i][self.blocks[number]] = part
        return part


class ChainUnit(StepUnit):
    """A chain of elementwise operations of one shape, and the reductions that end it."""

    __slots__ = ("_chain", "_left", "_next", "_returned", "_reused")

    def __init__(
        self,
        nodes: list[Record],
        produced: dict[int, Record],
        same: dict[Record, Record],
        twins: dict[Record, list[Record]],
    ) -> None:
        super().__init__(nodes, produced, same, twins)
        self.claimed_bytes = sum([bytes_of(node) for node in produced.values()])
        self._reused: dict[int, int] = {}
        self._chain: ReadyChain | None = None
        self._next = self._left = 0
        self._returned: list[tuple[int, int]] = []

    def begin(self) -> int:
        self._reused = self._reusable()
        return sum([bytes_of(node) for i, node in self._produced.items() if i not in self._reused])

    def allocate(self) -> bool:
        self._left = 1
        take = self.evaluator.memory.take
        try:
            for i, node in self._produced.items():
                if self._steps[i].op.elementwise:
                    reused = self._reused.get(i)
                    self._results[i] = take(node.shape, node.dtype) if reused is None else self._values[reused]
            step = self._steps[0]  # a chain begins with a reduction only if it is nothing else
            shape = step.shape if step.op.elementwise else self._spec(step.arguments[0]).shape
            self._chain = ReadyChain(self._steps, self._values, shape, self._results)
        except MemoryError as error:
            self._failed = {0: (next(iter(self._produced)), error)}
            return False
        self._left = len(self._chain.blocks)
        return True

    @property
    def has_shares(self) -> bool:
        return not self._failed and (bool(self._returned) or self._next < self._shares)

    @property
    def _shares(self) -> int:
        return 0 if self._chain is None else len(self._chain.blocks)

    def take_share(self) -> tuple[int, int]:
        if self._returned:
            return self._returned.pop()
        start = self._next
        self._next = min(start + _SHARE, self._shares)
        return start, self._next

    def return_share(self, share: tuple[int, int]) -> bool:
        if self._reused:
            return False
        self._returned.append(share)
        return True

    def end_share(self, share: tuple[int, int]) -> bool:
        self._left -= share[1] - share[0]
        if self._failed:  # parts that no thread has taken are not run any more
            self._left -= self._shares - self._next + sum([stop - start for start, stop in self._returned])
            self._next, self._returned = self._shares, []
        return self._left == 0

    def end(self) -> None:
        if self._failed:
            self.note(failed=True)
            self.fail(self._error(*self._failed[0]))
            return
        assert self._chain is not None
        count = self.evaluator.memory.count
        for i in self._produced:
            if not self._steps[i].op.elementwise:
                count(self._results[i])
        self.note(failed=False)
        self.hand_over(self._results, {})

    def finish(self) -> None:
        self._chain = None
        super().finish()

    def compute(self, share: tuple[int, int]) -> None:
        assert self._chain is not None
        try:
            self._chain.run(*share)
        except StepError as error:
            self._failed = {0: (error.step, error.__cause__ or error)}
        except BaseException as error:  # an interrupt, for this thread
            if self._reused:  # the input that was being written over is lost
                self._failed = {0: (next(iter(self._produced)), error)}
            raise

    def _reusable(self) -> dict[int, int]:
        """For results by step, the input that nothing else refers to and that they may be written into."""
        free = [
            position
            for position in range(len(self._values))
            if getrefcount(self._values[position]) == _IN_ONE_LIST and is_own(self._values[position])
        ]
        if not free:
            return {}
        last = {position: i for i, step in enumerate(self._steps) for position in step.arguments}
        found: dict[int, int] = {}
        for i in self._produced:
            for position in free:
                if self._may_reuse(i, self._values[position], last[position]):
                    found[i] = position
                    free.remove(position)
                    break
        return found

    def _may_reuse(self, i: int, value: Value, last: int) -> bool:
        step = self._steps[i]
        if value.shape != step.shape or value.dtype != step.dtype:
            return False
        if not isinstance(step.op, ElementwisePrimitive) or not (last < i or (last == i and step.op.aligned)):
            return False
        # The total of an uncertain reduction reads the inputs once more.
        first = len(self._values)
        return not any(
            isinstance(each.op, ReductionPrimitive)
            and may_be_uncertain(each.op.ufunc, each.dtype)
            and each.arguments[0] - first not in self._produced
            for each in self._steps
        )
