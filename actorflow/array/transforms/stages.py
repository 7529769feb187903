"""Stages: what a recipe records, as few operations, each of which runs a tape.

The results of a recipe come in groups: those that are asked for together, such as gradients, and others, such as the
value. A stage computes a group; what several groups need, and takes more than a pass over its elements, has a stage of
its own, which comes first. So nothing is computed twice, whatever is asked for, and nothing that is forgotten.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np

from actorflow.array.array import Array
from actorflow.array.namespace.creation import FULL
from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import PART, Primitive, Value
from actorflow.array.record.record import (
    HOST,
    SEVERAL,
    WORTH_A_LOOK,
    Evaluator,
    OpStep,
    Record,
    failure,
    given,
    shown,
)
from actorflow.array.record.tape import StepError, Tape
from actorflow.array.record.work import CHAINED, MOST_WORK, measure
from actorflow.devices.memory import POOLED_BYTES
from actorflow.spec import TensorSpec

#: Load of what is computed only if it is asked for, so that forgotten records are looked at now and then.
_LATER = WORTH_A_LOOK >> 8
#: Most elements that an operation touches beside others: more are worth a thread.
_MOST_ALONE = 1 << 19
#: Tapes of a stage that are kept: for the results that are wanted.
_MOST_TAPES = 16
#: Operations that a stage is named after.
_MOST_NAMES = 16


class _Sized(NamedTuple):
    size: int


class Stage(Primitive):
    """Some results of steps, as one operation. If there are several, its value is a tuple, whose parts are records.

    Its parameter refers to these then.

    Args:
        steps: All steps of the recipe; arguments are positions, first of what is given, then of the steps before.
        works: Elements that each of them touches.
        before: Positions of steps that a stage before has computed.
        outputs: Positions of the results.

    Attributes:
        reads: Positions of what it reads.
    """

    work: int

    def __init__(
        self,
        steps: Sequence[OpStep],
        works: Sequence[int],
        first: int,
        before: Sequence[int],
        outputs: Sequence[int],
    ) -> None:
        own, self.reads = _steps_between(steps, first, {*range(first), *before}, outputs)
        self._steps = [steps[i - first] for i in own]
        self.work = sum([works[i - first] for i in own])
        shift = {each: i for i, each in enumerate((*self.reads, *own))}
        self._bound = [
            step._replace(arguments=tuple([shift[each] if type(each) is int else each for each in step.arguments]))
            for step in self._steps
        ]
        self.outputs = outputs
        self._results = [shift[i] for i in outputs]
        self._parts = [steps[i - first] for i in outputs]
        self.parts = self._bound, self._results
        self._tapes: dict[tuple[bool, ...], Tape] = {}
        self._all = (True,) * len(outputs)
        shown = "+".join([step.name for step in self._steps[:_MOST_NAMES]])
        name = shown if len(self._steps) <= _MOST_NAMES else f"{shown}+..."
        self._is_single = len(outputs) == 1
        super().__init__(name, self._compute_single if self._is_single else self._compute_wanted, pure=False)

    def compute_now(self, reads: Sequence[Record], evaluator: Evaluator) -> list[Array] | None:
        """Its results, if what it reads is there."""
        values: list[Any] = [read.value for read in reads]
        for value in values:
            if type(value) is not np.ndarray:
                return None
        try:
            found = self._tape(self._all)(values)
        except StepError:  # it is raised where the value is asked for, as always
            return None
        return [(shown if x.nbytes < POOLED_BYTES else given)(x, evaluator) for x in found]

    def record(self, reads: Sequence[Record], evaluator: Evaluator) -> list[Record]:
        """Records of its results, for what it reads."""
        last = self._parts[-1]
        if self._is_single:
            return [Record(self, tuple(reads), last.shape, last.dtype, (), evaluator, HOST, last.origin)]
        parts: list[weakref.ref[Record]] = []
        whole = Record(self, tuple(reads), (), SEVERAL, (parts,), evaluator, HOST, last.origin)
        found = [
            Record(PART, (whole,), step.shape, step.dtype, (i,), evaluator, HOST, step.origin)
            for i, step in enumerate(self._parts)
        ]
        parts += map(weakref.ref, found)
        return found

    def settled(self, params: Any) -> Any:
        """The results that can still be asked for, instead of references to their records."""
        return (tuple([part() is not None for part in params[0]]),) if params else params

    def _compute_single(self, *values: Value) -> Value:
        found = self._compute_one(0, values)
        if isinstance(found, Exception):
            raise found
        return cast("Value", found)

    def _compute_wanted(self, *arguments: Any) -> tuple[Any, ...]:
        *values, wanted = arguments
        try:
            found = iter(self._tape(wanted)(values))
        except StepError:  # it may concern only some of them
            return tuple([self._compute_one(i, values) if want else None for i, want in enumerate(wanted)])
        return tuple([next(found) if want else None for want in wanted])

    def _compute_one(self, i: int, values: Sequence[Value]) -> Any:
        try:
            return self._tape(tuple([i == j for j in range(len(self.outputs))]))(values)[0]
        except StepError as error:
            step, bound = self._steps[error.step], self._bound[error.step]
            first = len(self.reads)
            specs = []
            for each in bound.arguments:
                found = each if type(each) is not int else values[each] if each < first else self._bound[each - first]
                specs.append(TensorSpec(found.shape, found.dtype))
            return failure(step.name, step.origin, specs, error.__cause__ or error)

    def _tape(self, wanted: tuple[bool, ...]) -> Tape:
        found = self._tapes.get(wanted)
        if found is None:
            if len(self._tapes) >= _MOST_TAPES:
                self._tapes.clear()
            results = [i for i, want in zip(self._results, wanted, strict=True) if want]
            found = self._tapes[wanted] = Tape(self._bound, len(self.reads), results)
        return found


class Stages:
    """The stages of a recipe, in order.

    Args:
        steps: Arguments are positions, first of what is given, then of the steps before.
        works: Elements that each of them touches.
        first: Number of values that are given.
        outputs: Positions of the results.
        groups: Positions of outputs; the first group is computed at once where that takes no time.
    """

    def __init__(
        self,
        steps: Sequence[OpStep],
        works: Sequence[int],
        first: int,
        outputs: Sequence[int],
        groups: Sequence[Sequence[int]],
    ) -> None:
        own = [[outputs[i] for i in group] for group in groups]
        shared = _shared(steps, first, outputs, _reach(steps, first, own))
        rest = [part for group in own if (part := [i for i in group if i not in shared])]
        self._outputs = outputs
        self._wanted = {*outputs}
        self._stages = [Stage(steps, works, first, (), shared)] if shared else []
        self._stages += [Stage(steps, works, first, shared, part) for part in rest]
        #: What is computed at once, and what is recorded then.
        self._now = Stage(steps, works, first, (), [*shared, *[i for i in own[0] if i not in shared]])
        self._later = [stage for stage in self._stages if stage.outputs[0] not in self._now.outputs]

    def __call__(self, nodes: Sequence[Record], evaluator: Evaluator) -> list[Array]:
        """The results for what is given: computed at once where that takes no time, else recorded."""
        now, stages = self._now, self._stages
        known = [*nodes]
        found: dict[int, Array] = {}
        if evaluator.at_once and now.work <= WORTH_A_LOOK:
            arrays = now.compute_now([nodes[i] for i in now.reads], evaluator)
            if arrays is not None:
                found = dict(zip(now.outputs, arrays, strict=True))
                stages = self._later
        records: dict[int, Record] = {i: x._node for i, x in found.items()}
        for stage in stages:
            reads = [known[i] if i < len(known) else records[i] for i in stage.reads]
            for i, node in zip(stage.outputs, stage.record(reads, evaluator), strict=True):
                records[i] = node
                if i in self._wanted:
                    found[i] = node.show()
                    evaluator.pending.append(cast("Any", node.handle))
                else:
                    node.keep()
            evaluator.load += _LATER if found and stages is self._later else stage.work
        if evaluator.load > evaluator.threshold:
            for node in records.values():
                evaluator.notice(node)
        return [found[i] for i in self._outputs]


def stages_of(
    steps: Sequence[OpStep], sizes: Sequence[int], outputs: Sequence[int], groups: Sequence[Sequence[int]]
) -> Stages | None:
    """The stages of steps; None where several threads compute them better, or they have random numbers.

    Args:
        steps: Arguments are positions, first of what is given, then of the steps before.
        sizes: Number of elements of each value that is given.
        outputs: Positions of the results.
        groups: Positions of outputs; the first group is computed at once where that takes no time.
    """
    known: list[Any] = [*map(_Sized, sizes)]
    works = []
    for op, arguments, params, shape, *_ in steps:
        size = prod(shape)
        known.append(_Sized(size))
        kind, work = measure(op, [known[a] if type(a) is int else a for a in arguments], size, params)
        if kind == CHAINED or work > _MOST_ALONE or not op.pure or op is TRANSFER:
            return None
        works.append(work)
    return Stages(steps, works, len(sizes), outputs, groups) if sum(works) <= MOST_WORK else None


def _steps_between(
    steps: Sequence[OpStep], first: int, known: set[int], outputs: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The positions of the steps that results need beyond what is known, and of what they read of that."""
    needed: set[int] = {*outputs}
    for i in range(first + len(steps) - 1, first - 1, -1):
        if i in needed and i not in known:
            needed.update([each for each in steps[i - first].arguments if type(each) is int])
    return sorted(needed - known), sorted(needed & known)


def _reach(steps: Sequence[OpStep], first: int, groups: Sequence[Sequence[int]]) -> list[int]:
    """For each position, the groups that need it, as bits."""
    reach = [0] * (first + len(steps))
    for bit, group in enumerate(groups):
        for i in group:
            reach[i] |= 1 << bit
    for i in range(len(reach) - 1, first - 1, -1):
        for each in steps[i - first].arguments:
            if type(each) is int:
                reach[each] |= reach[i]
    return reach


def _shared(steps: Sequence[OpStep], first: int, outputs: Sequence[int], reach: Sequence[int]) -> list[int]:
    """The values to keep between groups: results that both need, and what is costly and several need.

    What all readers hand on through other costly values of the same groups need not be kept itself.
    """
    several = [bits & (bits - 1) > 0 for bits in reach]
    costly = [i >= first and not is_cheap(steps[i - first].op) for i in range(len(reach))]
    hidden = [True] * len(reach)
    for i in range(first, len(reach)):
        for each in steps[i - first].arguments:
            if type(each) is int and not (reach[i] == reach[each] and costly[i]):
                hidden[each] = False
    return [i for i in range(first, len(reach)) if several[i] and (i in outputs or (costly[i] and not hidden[i]))]


def is_cheap(op: Primitive) -> bool:
    """Return whether a value costs nothing to make again: a view or constant, or one pass over its elements."""
    return op.elementwise or op.view or op is FULL
