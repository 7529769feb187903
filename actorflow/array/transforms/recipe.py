"""Recipes: the records of a function, to be made again on other arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from actorflow.array.array import Array
from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import Value
from actorflow.array.record.record import HOST, Evaluator, OpStep, Record, bytes_of
from actorflow.array.transforms.stages import Stages, is_cheap, stages_of


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
        self._sizes = [node.size for node in (*inputs, *before)]
        self._given = len(inputs) + len(before)
        self._kept = [i - self._given for i in _shared(self._steps, self._given, self._outputs)]
        self._stages: Stages | None = None
        self._load = sum([node.size for node in nodes])
        self._bytes = sum([*map(bytes_of, nodes)])

    def bind(self, groups: Sequence[Sequence[int]]) -> None:
        """Have the results of later calls computed by tapes, where these do: see `Stage`.

        Args:
            groups: Positions of outputs, those together that are usually asked for together.
        """
        self._stages = stages_of(self._steps, self._sizes, self._outputs, groups)

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Record it on arrays, for the inputs."""
        nodes = [*[x._node for x in arrays], *self.captured]
        evaluators = [node.evaluator for node in nodes]
        evaluator = next((each for each in evaluators if each.dry_run), evaluators[0])
        if self._stages is not None and evaluator.takes_tapes and Record.placing is None:
            return self._stages(nodes, evaluator)
        place = HOST
        for op, inputs, params, shape, dtype, origin in self._steps:
            if not op.pure:
                inputs, params = op.again(inputs, params)
            reads: tuple[Any, ...] = tuple([nodes[i] if type(i) is int else i for i in inputs])
            if op is TRANSFER:
                params = (reads[0].place if type(reads[0]) is Record else HOST, place := params[1])
            elif Record.placing is not None:
                reads, place = Record.placing(op, reads, True)
            node = Record(op, reads, shape, dtype, params, evaluator, place, origin)
            nodes.append(node)
        if not evaluator.dry_run:
            for i in self._kept:
                nodes[self._given + i].keep()
        return self._shown([nodes[i] for i in self._outputs], evaluator)

    def _shown(self, nodes: list[Record], evaluator: Evaluator) -> list[Array]:
        arrays = [node.show() for node in nodes]
        evaluator.pending.extend([node.handle for node in nodes if node.handle is not None])
        evaluator.load += self._load
        if evaluator.is_limited:
            evaluator.recorded_bytes.append(self._bytes)
        if evaluator.load > evaluator.threshold:
            for node in nodes:
                evaluator.notice(node)
        return arrays


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
