"""Units that are chains of elementwise operations and the reductions that end them: threads share the blocks."""

from __future__ import annotations

from functools import partial
from sys import getrefcount

import numpy as np

from actorflow.array.engine.units import Group, StepUnit, is_own
from actorflow.array.record.primitives import ElementwisePrimitive, ReductionPrimitive, Value
from actorflow.array.record.record import OpStep, bytes_of
from actorflow.ops.cpu.blocks import BoundChain, Chain, ChainStep, Fold
from actorflow.ops.reductions import may_be_uncertain
from actorflow.spec import TensorSpec

_alone = [np.empty(0)]
#: Reference count of ``values[i]``, an array that only the list refers to.
_IN_ONE_LIST = getrefcount(_alone[0])
#: Blocks that a thread computes at a time, so that another one can take a share.
_SHARE = 4


class ChainUnit(StepUnit):
    """A chain of elementwise operations of one shape, and the reductions that end it."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.claimed_bytes = sum([bytes_of(node) for node in group.produced.values()])
        self._reused: dict[int, int] = {}
        self._chain: BoundChain | None = None
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
                if not self._steps[i].op.elementwise:
                    self._results[i] = np.empty(node.shape, node.dtype)
                elif i in self._reused:
                    self._results[i] = self._values[self._reused[i]]
                else:
                    self._results[i] = take(node.shape, node.dtype)
            step = self._steps[0]  # a chain begins with a reduction only if it is nothing else
            shape = step.shape if step.op.elementwise else self._spec(step.arguments[0]).shape
            steps = [_prepared(step) for step in self._steps]
            specs = [TensorSpec(x.shape, x.dtype) for x in self._values]
            self._chain = Chain(steps, specs, shape, self._results).bind(self._values, self._results)
        except MemoryError as error:
            self._failed = {0: (next(iter(self._produced)), error)}
            return False
        self._left = self._chain.count
        return True

    @property
    def has_shares(self) -> bool:
        return not self._failed and (bool(self._returned) or self._next < self._shares)

    @property
    def _shares(self) -> int:
        return 0 if self._chain is None else self._chain.count

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
        except Exception as error:  # noqa: BLE001  raised to all who ask for the value
            self._failed = {0: self._chain.failure or (next(iter(self._produced)), error)}
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


def _prepared(step: OpStep) -> ChainStep:
    op, arguments, params, _, dtype, _ = step
    if isinstance(op, ReductionPrimitive):
        axes, _, folded = params
        fold = Fold(op.ufunc, axes, partial(op.fold, keepdims=True, dtype=folded))
        return ChainStep(fold, arguments, dtype)
    assert isinstance(op, ElementwisePrimitive)
    return ChainStep(op.compute, arguments, dtype, op.aligned)
