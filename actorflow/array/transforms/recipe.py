"""Recipes: the records of a function, to be made again on other arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from actorflow.array.array import Array
from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import touched, view_of
from actorflow.array.record.record import HOST, SEVERAL, WORTH_A_LOOK, Origin, Record, bytes_of, computed
from actorflow.array.record.steps import Entry, Step, describe, reached, steps_of
from actorflow.core import desk
from actorflow.runtime.quiet import quiet

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
        steps = [*steps_of(description.entries)]
        own = reached(steps, [self._outputs[i] for i in prompt]) if work <= _BRIEF else {}
        last = {each: i for i, step in enumerate(steps) for each in step.reads}
        fed = {-1 - i for i, _ in self._fed}
        #: Values of steps that follow from constants alone.
        self._constants: list[Any] = [None] * len(steps)
        #: The others: position, entry, what computes it at once, its origin, and whose results it frees.
        self._steps: list[tuple[int, Entry, Any, Origin, list[int]]] = []
        for i, (step, entry, node) in enumerate(zip(steps, description.entries, nodes, strict=True)):
            at_once = i in own and step.op.pure and step.op is not TRANSFER
            read = [self._constants[each] if each >= 0 else self._given[-1 - each] for each in step.reads]
            is_fed = not fed.isdisjoint(step.reads) or any(each is None for each in read)
            if at_once and i not in self._outputs and not is_fed and step.dtype != SEVERAL:
                with suppress(Exception):  # it is raised where the value is asked for
                    self._constants[i] = quiet.run(step.op.called(step.params, step.shape, step.dtype), *read)
            if self._constants[i] is None:
                freed = [each for each in step.reads if each >= 0 and last[each] == i and each not in self._outputs]
                quick = _quick(step) if at_once else None
                self._steps.append((i, entry, quick, node.origin, [*dict.fromkeys(freed)]))

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs for arrays, in the place of the inputs."""
        read: list[Any] = [*arrays, *[node.unheld() for node in self.captured]]
        evaluator = next((x._node.evaluator for x in read if x._node.evaluator.dry_run), read[0]._node.evaluator)
        given = self._given.copy()
        for i, position in self._fed:
            given[i] = read[position]
        is_open = evaluator.at_once and desk.placing is None and not desk.dry_runs
        found, later = self._constants.copy(), []
        for i, (op, params, shape, dtype, row, _), quick, origin, freed in self._steps:
            inputs = [found[each] if each >= 0 else given[-1 - each] for each in row]
            if is_open and quick is not None:
                found[i] = quick(*inputs)
                if found[i] is None:
                    nodes = [each._node if type(each) is Array else each for each in inputs]
                    found[i] = computed(op, nodes, params, shape, dtype, evaluator)
            if found[i] is None:
                place = HOST
                reads: tuple[Any, ...] = tuple([each._node if type(each) is Array else each for each in inputs])
                if not op.pure:
                    reads, params = op.again(reads, given[-1 - params])
                if op is TRANSFER:
                    params = (reads[0].place if type(reads[0]) is Record else HOST, place := params[1])
                elif desk.placing is not None:
                    reads, place = desk.placing(op, reads, True)
                found[i] = Record(op, reads, shape, dtype, params, evaluator, place, origin).show()
                later.append(i)
            for j in freed:
                found[j] = None
        if later:
            evaluator.pending.extend([found[i]._node.handle for i in self._outputs if i in later])
            evaluator.load += self._load if len(later) == len(self._steps) else _LATER
            if evaluator.is_limited:
                evaluator.recorded_bytes.append(self._bytes)
            if evaluator.load > evaluator.threshold:
                for i in self._outputs:
                    if not found[i]._node.done:
                        evaluator.notice(found[i]._node)
        return [found[i] for i in self._outputs]


def _quick(step: Step) -> Callable[..., Any]:
    """Computes a step at the desk; gives None where it is computed otherwise."""
    op = step.op
    if op.loop is not None and len(step.reads) < 3:
        return op.loop.of_one if len(step.reads) == 1 else op.loop.of_two
    if op.turned is not None:
        one, other = op.turned
        return lambda x1, x2: desk.product(x1, x2, one, other)
    view = view_of(op.operation)
    call = view or op.bound(step.params, step.shape)
    return lambda *inputs: desk.call(call, *inputs, view is not None) if len(inputs) == 1 else None


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
