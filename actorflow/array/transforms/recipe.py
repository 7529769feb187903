"""Recipes: the records of a function, to be made again on other arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.array import Array
from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import touched
from actorflow.array.record.record import (
    HOST,
    WORTH_A_LOOK,
    Evaluator,
    Record,
    bytes_of,
    shown,
)
from actorflow.array.record.steps import describe, reached, steps_of
from actorflow.ops.step import StepError
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.array.transforms.program import Program

#: Load of what is computed only if it is asked for, so that forgotten records are looked at now and then.
_LATER = WORTH_A_LOOK >> 8
#: Most elements that a recipe touches to be computed at once.
_BRIEF = 1 << 24


class Recipe:
    """Records between arrays, to be made again, or computed at once where that takes no time.

    Args:
        inputs: Records that arrays stand for.
        outputs: Records that are wanted; each was made while tracing, and is named once.
        first: Records with lower numbers were there before the tracing began.
        prompt: Positions of the outputs that are computed at once; others only where they are asked for, from what that
            has computed.

    Attributes:
        captured: Records that were there before and that are read, too.
    """

    def __init__(self, inputs: Sequence[Record], outputs: Sequence[Record], first: int, prompt: Sequence[int]) -> None:
        nodes, self.captured = needed(outputs, inputs, first)
        description = describe(nodes, set(), varies=False)
        self._steps = [*description.entries]
        self._origins = [node.origin for node in nodes]
        position = {node: i for i, node in enumerate((*inputs, *self.captured))}
        #: Values that are given: those that the traced function made of numbers, or arguments of random operations.
        self._given = [each.value if isinstance(each, Record) else each for each in description.given]
        #: Of it, what is an input, with its position.
        self._fed = [
            (i, position[each])
            for i, each in enumerate(description.given)
            if isinstance(each, Record) and each in position
        ]
        place_of = {node: i for i, node in enumerate(nodes)}
        self._outputs = [place_of[node] for node in outputs]
        self._load = sum([node.size for node in nodes])
        self._bytes = sum([*map(bytes_of, nodes)])
        work = sum([touched(node.op, node.inputs, node.size) for node in nodes if node.op is not None])
        self._is_brief = work <= _BRIEF and all(op.pure and op is not TRANSFER for op, *_ in self._steps)
        steps = [*steps_of(description.entries)]
        own = reached(steps, [self._outputs[i] for i in prompt])
        self._rest = [i for i in reached(steps, self._outputs) if i not in own]
        read = [each for i in self._rest for each in steps[i].reads]
        #: Positions of what is computed at once.
        self._results = [*dict.fromkeys(i for i in (*self._outputs, *read) if i in own)]
        self._calls = 0  # whose inputs were there
        self._program: Program | None = None

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs for arrays, in the place of the inputs."""
        read: list[Any] = [*[x._node for x in arrays], *self.captured]
        evaluator = next((node.evaluator for node in read if node.evaluator.dry_run), read[0].evaluator)
        given = self._given.copy()
        for i, position in self._fed:
            given[i] = read[position]
        computed: list[Array] = []
        if self._is_brief and evaluator.at_once and Record.placing is None:
            computed = self._computed(given, evaluator)
        arrays_by = dict(zip(self._results, computed, strict=False))
        nodes: list[Any] = [None] * len(self._steps)
        for i, x in arrays_by.items():
            nodes[i] = x._node
        place = HOST
        for i in self._rest if computed else range(len(nodes)):
            op, params, shape, dtype, row, _ = self._steps[i]
            reads: tuple[Any, ...] = tuple([nodes[each] if each >= 0 else given[-1 - each] for each in row])
            if not op.pure:
                reads, params = op.again(reads, given[-1 - params])
            if op is TRANSFER:
                params = (reads[0].place if type(reads[0]) is Record else HOST, place := params[1])
            elif Record.placing is not None:
                reads, place = Record.placing(op, reads, True)
            nodes[i] = Record(op, reads, shape, dtype, params, evaluator, place, self._origins[i])
        recorded = [nodes[i] for i in self._outputs if i not in arrays_by]
        found = [arrays_by[i] if i in arrays_by else nodes[i].show() for i in self._outputs]
        evaluator.pending.extend([node.handle for node in recorded])
        evaluator.load += _LATER if computed else self._load
        if evaluator.is_limited:
            evaluator.recorded_bytes.append(self._bytes)
        if evaluator.load > evaluator.threshold:
            for node in recorded:
                evaluator.notice(node)
        return found

    def _computed(self, given: list[Any], evaluator: Evaluator) -> list[Array]:
        """Values that are computed at once, from the second call on that has all inputs; else none."""
        values = given.copy()
        for i, _ in self._fed:
            values[i] = value = given[i].value
            if type(value) is not np.ndarray:
                return []
        if self._program is None:
            self._calls += 1
            if self._calls == 1:
                return []
            from actorflow.array.transforms.program import Given, Program

            inputs = {i for i, _ in self._fed}
            kinds = [
                Given(TensorSpec(x.shape, x.dtype), number=None if i in inputs else x) for i, x in enumerate(values)
            ]
            self._program = Program([*steps_of(self._steps)], kinds, self._results)
        try:
            found = self._program(values)
        except StepError:  # it is raised where the value is asked for, as always
            return []
        for x in found:
            evaluator.count(x)
        return [shown(x, evaluator) for x in found]  # their memory is the program's to use again


def needed(results: Sequence[Record], known: Sequence[Record], first: int) -> tuple[list[Record], list[Record]]:
    """The records that results need, in order, up to those that are known: those of the tracing, and those before."""
    seen, before = set(known), []
    found = []
    stack = [*results]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op is None or node.number < first or not node.evaluator.dry_run:
            if node.op is not None or node.value is None or node.number < first:
                before.append(node)
        else:
            found.append(node)
            stack.extend(each for each in node.inputs if type(each) is Record)
    found.sort(key=lambda node: node.number)
    before.sort(key=lambda node: node.number)
    return found, before
