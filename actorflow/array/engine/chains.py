"""Units that are long chains of elementwise operations: computed block by block, by several threads."""

from __future__ import annotations

from sys import getrefcount
from typing import Any

import numpy as np

from actorflow.array.engine.blocks import Chain, Step, StepError
from actorflow.array.engine.units import Unit, is_own, spec_of
from actorflow.array.record.node import Input, Node, bytes_of
from actorflow.array.record.primitives import Elementwise, Reduction, Value
from actorflow.ops.reductions import may_be_uncertain
from actorflow.spec import TensorSpec

_alone = [np.empty(0)]
#: What ``getrefcount(values[i])`` says of an array that only the list refers to.
_IN_ONE_LIST = getrefcount(_alone[0])
#: Blocks that a thread computes at a time, so that another one can take a share.
_SHARE = 4
#: Operations of a chain that are named.
_MOST_NAMES = 16


class ChainUnit(Unit):
    """A chain of elementwise operations of one shape, and the reductions that end it."""

    __slots__ = ("_chain", "_left", "_next", "_results", "_returned", "_reused", "_steps")

    def __init__(
        self, nodes: list[Node], produced: dict[int, Node], same: dict[Node, Node], twins: dict[Node, list[Node]]
    ) -> None:
        reads, self._steps = steps_of(nodes, same)
        super().__init__(nodes, produced, twins, reads)
        self.claimed_bytes = sum([bytes_of(node) for node in produced.values()])
        self._reused: dict[int, int] = {}
        self._chain: Chain | None = None
        self._results: dict[int, Any] = {}
        self._next = self._left = 0
        self._returned: list[tuple[int, int]] = []

    @property
    def name(self) -> str:
        """Names of its operations."""
        return names_of(self._steps)

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
            step = self._steps[0]  # only a reduction by itself comes first
            shape = step.shape if step.op.elementwise else self._spec(step.arguments[0]).shape
            self._chain = Chain(self._steps, self._values, shape, self._results)
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
        if self._failed:  # what nobody has taken is not run any more
            self._left -= self._shares - self._next + sum([stop - start for start, stop in self._returned])
            self._next, self._returned = self._shares, []
        return self._left == 0

    def end(self) -> None:
        if self._failed:
            step, cause = self._failed[0]
            inputs = [self._spec(position) for position in self._steps[step].arguments]
            self.note(failed=True)
            self.fail(self.explain(step, self._steps[step].op.name, inputs, cause))
            return
        assert self._chain is not None
        count = self.evaluator.memory.count
        for i in self._produced:
            if not self._steps[i].op.elementwise:
                count(self._results[i])
        self.note(failed=False)
        self.hand_over(self._results, {})

    def finish(self) -> None:
        self._chain, self._results = None, {}
        super().finish()

    def compute(self, share: tuple[int, int]) -> None:
        assert self._chain is not None
        try:
            self._chain.run(*share)
        except StepError as error:
            self._failed = {0: (error.step, error.__cause__ or error)}
        except BaseException as error:  # an interrupt, for this thread
            if self._reused:  # what was being written over is lost
                self._failed = {0: (next(iter(self._produced)), error)}
            raise

    def _reusable(self) -> dict[int, int]:
        """For results by step, the input that nobody else refers to and that they may be written into."""
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
        if not isinstance(step.op, Elementwise) or not (last < i or (last == i and step.op.aligned)):
            return False
        # A total that is not certain takes the inputs once more.
        first = len(self._values)
        return not any(
            isinstance(each.op, Reduction)
            and may_be_uncertain(each.op.ufunc, each.dtype)
            and each.arguments[0] - first not in self._produced
            for each in self._steps
        )

    def _spec(self, position: int) -> TensorSpec:
        first = len(self._values)
        if position >= first:
            step = self._steps[position - first]
            return TensorSpec(step.shape, step.dtype)
        return spec_of(self._values[position])


def names_of(steps: list[Step]) -> str:
    """Names of the operations of a unit, for the profile."""
    shown = "+".join([step.op.name for step in steps[:_MOST_NAMES]])
    return shown if len(steps) <= _MOST_NAMES else f"{shown}+..."


def steps_of(nodes: list[Node], same: dict[Node, Node]) -> tuple[list[Input], list[Step]]:
    """What is read from outside, and the operations with the positions of their inputs."""
    reads: list[Input] = []
    positions: dict[int, int] = {}
    inside = {id(node): i for i, node in enumerate(nodes)}
    rows: list[list[int]] = []
    for node in nodes:
        row = []
        for each in node.inputs:
            read = same.get(each, each) if type(each) is Node else each
            key = id(read)
            if key not in positions and key not in inside:
                positions[key] = len(reads)
                reads.append(read)
            row.append(key)
        rows.append(row)
    first = len(reads)
    positions.update({key: first + i for key, i in inside.items()})
    steps = []
    for node, row in zip(nodes, rows, strict=True):
        assert node.op is not None
        arguments = tuple([positions[key] for key in row])
        steps.append(Step(node.op, arguments, node.params, node.shape, node.dtype, node.origin))
    return reads, steps
