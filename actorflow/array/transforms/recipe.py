"""Recipes: the records of a function, to be made again on other arrays."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.array import Array
from actorflow.array.namespace.creation import FULL
from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import Primitive, Value, touched
from actorflow.array.record.record import (
    HOST,
    WORTH_A_LOOK,
    Evaluator,
    OpStep,
    Record,
    bytes_of,
    shown,
)
from actorflow.ops.step import StepError
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.array.transforms.program import Program

#: Load of what is computed only if it is asked for, so that forgotten records are looked at now and then.
_LATER = WORTH_A_LOOK >> 8
#: Most elements that a recipe touches to be computed at once.
_BRIEF = 1 << 24


class Recipe:
    """Records between arrays, to be made again.

    Results are computed together or one after the other, whatever is asked for first: what several of them need, and
    takes more than a pass over its elements, is computed once.

    Args:
        inputs: Records that arrays stand for.
        outputs: Records that are wanted; each was made while tracing, and is named once.
        first: Records with lower numbers were there before the tracing began.

    Attributes:
        captured: Records that were there before and that are read, too.
    """

    def __init__(self, inputs: Sequence[Record], outputs: Sequence[Record], first: int) -> None:
        nodes, before = needed(outputs, inputs, first)
        self.captured = before
        position: dict[Record, Any] = {node: i for i, node in enumerate((*inputs, *before, *nodes))}
        self._steps = [
            OpStep(node.op, _sources(node, position), node.params, node.shape, node.dtype, node.origin)
            for node in nodes
            if node.op is not None
        ]
        self._outputs = [position[node] for node in outputs]
        self._given = len(inputs) + len(before)
        self._kept = _shared(self._steps, self._given, self._outputs)
        self._load = sum([node.size for node in nodes])
        self._bytes = sum([*map(bytes_of, nodes)])
        self._rest: list[int] = []  # steps that are recorded where others are computed at once
        self._short = _Short(nodes, [TensorSpec(node.shape, node.dtype) for node in (*inputs, *before)])

    def bind(self, first: Sequence[int]) -> None:
        """Have later calls compute at once what takes no time, instead of recording it.

        Args:
            first: Positions of the outputs that are worth it; others are recorded in any case.
        """
        wanted = [self._outputs[i] for i in first]
        own = {*_reached(self._steps, self._given, wanted)}
        self._short.results = known = [*[i for i in self._kept if i in own], *wanted]
        others = [i for i in self._outputs if i not in known]
        self._rest = sorted(_reached(self._steps, self._given, others, known))

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Record it on arrays, for the inputs."""
        given, steps = self._given, self._steps
        nodes: list[Any] = [*[x._node for x in arrays], *self.captured]
        evaluators = [node.evaluator for node in nodes]
        evaluator = next((each for each in evaluators if each.dry_run), evaluators[0])
        computed = self._short.compute(steps, nodes, evaluator)
        nodes += [None] * len(steps)
        for i, x in computed.items():
            nodes[i] = x._node
        place = HOST
        for i in self._rest if computed else range(given, len(nodes)):
            op, inputs, params, shape, dtype, origin = steps[i - given]
            if not op.pure:
                inputs, params = op.again(inputs, params)
            reads: tuple[Any, ...] = tuple([nodes[each] if type(each) is int else each for each in inputs])
            if op is TRANSFER:
                params = (reads[0].place if type(reads[0]) is Record else HOST, place := params[1])
            elif Record.placing is not None:
                reads, place = Record.placing(op, reads, True)
            nodes[i] = Record(op, reads, shape, dtype, params, evaluator, place, origin)
        return self._shown([computed[i] if i in computed else nodes[i].show() for i in self._outputs], evaluator)

    def _shown(self, arrays: list[Array], evaluator: Evaluator) -> list[Array]:
        recorded = [x._node for x in arrays if not x._node.done]
        evaluator.pending.extend([node.handle for node in recorded if node.handle is not None])
        evaluator.load += self._load if len(recorded) == len(arrays) else _LATER
        if evaluator.is_limited:
            evaluator.recorded_bytes.append(self._bytes)
        if evaluator.load > evaluator.threshold:
            for node in recorded:
                evaluator.notice(node)
        return arrays


class _Short:
    """Results of a recipe that takes no time.

    Args:
        nodes: Its records.
        types: Of what is given.

    Attributes:
        results: Positions of the results that are computed at once; empty for none.
    """

    def __init__(self, nodes: Sequence[Record], types: Sequence[TensorSpec]) -> None:
        pure = all(node.op is not None and node.op.pure and node.op is not TRANSFER for node in nodes)
        work = sum([touched(node.op, node.inputs, node.size) for node in nodes if node.op is not None])
        self._is_short = pure and work <= _BRIEF
        self._types = types
        self._is_known = False  # whether it was called before
        self._program: Program | None = None
        self.results: list[int] = []

    def compute(self, steps: Sequence[OpStep], nodes: Sequence[Record], evaluator: Evaluator) -> dict[int, Array]:
        """The results by position; none where one of the inputs is not there, or nothing is computed at once."""
        if not (self._is_short and self.results and evaluator.at_once and Record.placing is None):
            return {}
        values: list[Any] = [node.value for node in nodes]
        for value in values:
            if type(value) is not np.ndarray:
                return {}
        if self._program is None:
            if not self._is_known:
                self._is_known = True
                return {}
            from actorflow.array.transforms.program import Program

            self._program = Program(steps, self._types, self.results)
        try:
            found = self._program(values)
        except StepError:  # it is raised where the value is asked for, as always
            return {}
        for x in found:
            evaluator.count(x)
        arrays = [shown(x, evaluator) for x in found]  # their memory is the program's to use again
        return dict(zip(self.results, arrays, strict=True))


def _sources(node: Record, position: Mapping[Record, Any]) -> tuple[int | Value, ...]:
    """The inputs' positions; the value of one that the traced function made of numbers."""
    return tuple([position.get(each, each.value) if type(each) is Record else each for each in node.inputs])  # type: ignore[misc]


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


def _reached(steps: Sequence[OpStep], given: int, results: Iterable[int], known: Container[int] = ()) -> Iterator[int]:
    """Positions of the steps that results need, the last one first, up to what is known."""
    wanted = {*results}
    for i in range(given + len(steps) - 1, given - 1, -1):
        if i in wanted and i not in known:
            yield i
            wanted.update([each for each in steps[i - given].arguments if type(each) is int])


def _shared(steps: Sequence[OpStep], given: int, outputs: Sequence[int]) -> list[int]:
    """The values to keep for results that are computed later: costly ones that several results need.

    What all readers hand on through other costly values of the same results need not be kept itself.
    """
    reach = [0] * (given + len(steps))
    readers: list[list[int]] = [[] for _ in reach]
    for bit, i in enumerate(outputs):
        reach[i] |= 1 << bit
    for i in range(len(reach) - 1, given - 1, -1):
        for each in steps[i - given].arguments:
            if type(each) is int:
                reach[each] |= reach[i]
                readers[each].append(i)
    kept = []
    for i, step in enumerate(steps, given):
        several = reach[i] & (reach[i] - 1)
        if several and not is_cheap(step.op) and i not in outputs:
            hidden = all(reach[j] == reach[i] and not is_cheap(steps[j - given].op) for j in readers[i])
            if not hidden:
                kept.append(i)
    return kept


def is_cheap(op: Primitive) -> bool:
    """Return whether a value costs nothing to make again: a view or constant, or one pass over its elements."""
    return op.elementwise or op.view or op is FULL
