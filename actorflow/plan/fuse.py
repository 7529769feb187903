"""Fusion: what a plan computes in one pass over memory.

Elementwise operations of one shape that follow each other, and the reductions of their values, become one step of the
plan (`actorflow.ops.fused`). The ops of the graph stay what they are: the step lists them as its parts, and times,
states and errors are theirs.

An op's level is how many edges lie on the longest way to it that cannot be fused. Only ops of one level are joined, so
no two steps wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from actorflow.devices import device_kind
from actorflow.ops.elementwise import Sum
from actorflow.ops.fills import Constant, Fill
from actorflow.ops.function import Function
from actorflow.ops.fused import Fused, FusedColumns, FusedStep, columns_of, may_fuse, may_reduce
from actorflow.ops.linalg import Bias
from actorflow.ops.operation import Operation
from actorflow.ops.registry import Kernel
from actorflow.ops.rows import Elementwise
from actorflow.ops.shaping import Reduction
from actorflow.ops.transfer import Transfer
from actorflow.plan.plan import PlannedOp, Slot

#: Limits of one chain: of the arguments of a kernel, and of the time to compile it.
_MOST_STEPS, _MOST_INPUTS, _MOST_RESULTS = 32, 8, 8
_KINDS = (Elementwise, Reduction, Bias)

#: Gives the kernel that computes a fused operation in the place of some steps; None if their device has none.
ChooseKernel = Callable[[PlannedOp, Fused], Kernel | None]


class _Link(NamedTuple):
    """What an op is as a step of a chain.

    Attributes:
        operation: The operation.
        columns: Along which it reduces; None if it is elementwise.
    """

    operation: Operation
    columns: FusedColumns | None


def fuse(
    ops: Sequence[PlannedOp], slots: Sequence[Slot], folded: Sequence[PlannedOp], choose: ChooseKernel
) -> list[PlannedOp] | None:
    """Join ops that can be computed in one pass.

    Args:
        ops: In a topological order.
        slots: Values that they read and write; those that are read otherwise from now on are changed.
        folded: The ops that are computed once.
        choose: Gives kernels.
    Returns:
        The new ops, in a topological order, with indices of their own; None where nothing can be joined.
    """
    links: dict[int, _Link] = {}
    for op in ops:
        if isinstance(op.operation, _KINDS):
            link = _link(op, slots)
            if link is not None:
                links[op.index] = link
    if len(links) < 2:
        return None
    numbers = _Numbers(slots, folded)
    joined: dict[int, PlannedOp] = {}  # by the index of each part
    for group in _groups(ops, slots, links):
        made = _join([ops[index] for index in group], links, slots, numbers, choose)
        if made is not None:
            joined.update(dict.fromkeys(group, made))
    return _in_order(ops, slots, joined) if joined else None


def _link(op: PlannedOp, slots: Sequence[Slot]) -> _Link | None:
    """An op as a step of a chain, if it can be one."""
    kernel, node = op.kernel, op.node
    if kernel is None or len(op.outputs) != 1 or node.attempts is not None or isinstance(op.operation, Function):
        return None
    if kernel.key.library not in device_kind(op.place.kind).libraries:  # the user's own, or as the user asked for
        return None
    output, inputs = slots[op.outputs[0]], [slots[index].spec for index in op.inputs]
    if output.updates is not None:
        return None
    operation: Operation = Sum() if isinstance(op.operation, Bias) else op.operation
    if may_fuse(operation, inputs, output.spec):
        return _Link(operation, None)
    if isinstance(operation, Reduction) and may_reduce(operation, *inputs):
        shape = inputs[0].shape
        return _Link(operation, columns_of(shape, operation.axes(len(shape))))
    return None


class _Numbers:
    """Constants that are one number: part of the step that reads them."""

    def __init__(self, slots: Sequence[Slot], folded: Sequence[PlannedOp]) -> None:
        self._slots = slots
        self._writers = {slot: op for op in folded for slot in op.outputs}

    def of(self, index: int) -> Fill | None:
        """The number that a slot always has."""
        slot = self._slots[index]
        if not slot.is_constant or slot.spec.shape != ():
            return None
        writer = self._writers[index]
        while isinstance(writer.operation, Transfer):
            writer = self._writers[writer.inputs[0]]
        operation = writer.operation
        if isinstance(operation, Constant):
            operation = Fill(operation.value.item(), slot.spec)
        return operation if isinstance(operation, Fill) and may_fuse(operation, (), slot.spec) else None


def _groups(ops: Sequence[PlannedOp], slots: Sequence[Slot], links: dict[int, _Link]) -> Iterator[Sequence[int]]:
    """Indices of the ops that are computed as one, ascending; at least two."""
    levels = [0] * len(ops)
    writers: dict[int, PlannedOp] = {}
    groups: dict[int, list[int]] = {}
    for op in ops:
        index, level = op.index, 0
        link = links.get(index)
        joined = []
        for slot in op.inputs:
            before = writers.get(slot)
            if before is None:
                continue
            own = levels[before.index]
            if link is not None and _follows(before, op, links, slots):
                joined.append(before.index)
            else:
                own += 1
            level = max(level, own)
        levels[index] = level
        for slot in op.outputs:
            writers[slot] = op
        if link is None:
            continue
        group = groups[index] = [index]
        for other_index in joined:
            other = groups[other_index]
            if levels[other_index] == level and other is not group:
                other.extend(group)
                for member in group:
                    groups[member] = other
                group = other
    for members in {id(group): group for group in groups.values()}.values():
        if len(members) > 1:
            yield from _parts([ops[index] for index in sorted(members)], links, slots)


def _follows(before: PlannedOp, op: PlannedOp, links: dict[int, _Link], slots: Sequence[Slot]) -> bool:
    """Return whether an op can take a value of a chain from the one that computes it, element by element."""
    first, link = links.get(before.index), links[op.index]
    if first is None or first.columns is not None or before.place != op.place:
        return False
    one, other = before.node, op.node
    if one.lane != other.lane or one.priority != other.priority or one.hints != other.hints:
        return False
    return link.columns is not None or slots[before.outputs[0]].spec.shape == slots[op.outputs[0]].spec.shape


def _parts(group: Sequence[PlannedOp], links: dict[int, _Link], slots: Sequence[Slot]) -> Iterator[Sequence[int]]:
    """Divide a group into parts within the limits, whose reductions go along the same axes."""
    part: list[PlannedOp] = []
    others: list[PlannedOp] = []  # reductions along other axes: nothing in the group reads them
    along: FusedColumns | None = None
    for op in group:
        columns = links[op.index].columns
        if None not in (along, columns) and columns != along:
            others.append(op)
            continue
        along = along or columns
        grown = [*part, op]
        if part and (len(grown) > _MOST_STEPS or len(_outer(grown)) > _MOST_INPUTS):
            yield from _narrow(part, slots)
            grown, along = [op], columns
        part = grown
    yield from _narrow(part, slots)
    if others:
        yield from _parts(others, links, slots)


def _narrow(part: Sequence[PlannedOp], slots: Sequence[Slot]) -> Iterator[Sequence[int]]:
    if len(_results(part, slots)) > _MOST_RESULTS:
        yield from _narrow(part[: len(part) // 2], slots)
        yield from _narrow(part[len(part) // 2 :], slots)
    elif len(part) > 1:
        yield [op.index for op in part]


def _outer(part: Sequence[PlannedOp]) -> list[int]:
    """Slots that are read from outside."""
    own = {op.outputs[0] for op in part}
    return [*dict.fromkeys(slot for op in part for slot in op.inputs if slot not in own)]


def _results(part: Sequence[PlannedOp], slots: Sequence[Slot]) -> list[int]:
    """Positions of the ops whose values are read outside, or asked for though nothing reads them."""
    reads: dict[int, int] = {}
    for op in part:
        for slot in op.inputs:
            reads[slot] = reads.get(slot, 0) + 1
    found = [(reads.get(op.outputs[0], 0), slots[op.outputs[0]].readers) for op in part]
    return [i for i, (inside, all_) in enumerate(found) if not inside or inside < all_]


def _join(
    part: Sequence[PlannedOp],
    links: dict[int, _Link],
    slots: Sequence[Slot],
    numbers: _Numbers,
    choose: ChooseKernel,
) -> PlannedOp | None:
    """One op for several; None if there is no kernel, or nothing but reductions, which are not faster together."""
    outer = _outer(part)
    constants = {slot: number for slot in outer if (number := numbers.of(slot)) is not None}
    inputs = [slot for slot in outer if slot not in constants]
    if not inputs or all(links[op.index].columns is not None for op in part):
        return None
    results = _results(part, slots)
    inputs = _written_over_first(inputs, part, results[0], slots)
    positions = {slot: i for i, slot in enumerate(inputs)}
    steps: list[FusedStep] = []
    at: list[int] = []  # the step of each op
    for op in part:
        for slot in op.inputs:
            if slot not in positions:
                positions[slot] = len(inputs) + len(steps)
                steps.append(FusedStep(constants[slot], ()))
        positions[op.outputs[0]] = len(inputs) + len(steps)
        at.append(len(steps))
        steps.append(FusedStep(links[op.index].operation, tuple([positions[slot] for slot in op.inputs])))
    operation = Fused(tuple(steps), tuple([at[i] for i in results]))
    last = part[-1]
    kernel = choose(last, operation)
    if kernel is None:
        return None
    for op in part:
        for slot in op.inputs:
            slots[slot].readers -= 1
    waits = 0
    for slot in inputs:
        slots[slot].readers += 1
        waits += not slots[slot].is_constant
    return PlannedOp(
        last.index,
        last.node,
        last.shown_as,
        operation,
        last.place,
        replace(kernel, inplace=operation.may_write_over),
        tuple(inputs),
        tuple([part[i].outputs[0] for i in results]),
        waits,
        parts=tuple(part),
        steps=tuple(at),
    )


def _written_over_first(inputs: list[int], part: Sequence[PlannedOp], result: int, slots: Sequence[Slot]) -> list[int]:
    """The inputs, first one that the first result may be written over: of its type, and not read elsewhere."""
    spec = slots[part[result].outputs[0]].spec
    for slot in inputs:
        reads = sum(op.inputs.count(slot) for op in part)
        if slots[slot].spec == spec and slots[slot].readers == reads and not slots[slot].is_constant:
            return [slot, *[other for other in inputs if other != slot]]
    return inputs


def _in_order(ops: Sequence[PlannedOp], slots: Sequence[Slot], joined: dict[int, PlannedOp]) -> list[PlannedOp]:
    """The ops, joined ones in the place of their parts, behind all that they read; consumers are set anew."""
    units = [joined.get(op.index, op) for op in ops]
    distinct = [*{id(unit): unit for unit in units}.values()]
    members = {id(unit): unit.parts or (unit,) for unit in distinct}
    waits = dict.fromkeys(members, 0)
    after: dict[int, list[PlannedOp]] = {key: [] for key in members}
    for unit in distinct:
        for output in dict.fromkeys(slot for part in members[id(unit)] for slot in part.outputs):
            for consumer in {id(units[index]): units[index] for index in slots[output].consumers}.values():
                if consumer is not unit:
                    after[id(unit)].append(consumer)
                    waits[id(consumer)] += 1
    ready = [(unit.index, unit) for unit in distinct if not waits[id(unit)]]
    heapify(ready)
    order: list[PlannedOp] = []
    while ready:
        _, unit = heappop(ready)
        order.append(unit)
        for follower in after[id(unit)]:
            waits[id(follower)] -= 1
            if not waits[id(follower)]:
                heappush(ready, (follower.index, follower))
    for position, unit in enumerate(order):
        unit.index = position
    for slot in slots:
        consumers: list[int] = []
        known: set[int] = set()
        for unit in map(units.__getitem__, slot.consumers):
            if not unit.parts:
                consumers.append(unit.index)
            elif slot.index in unit.inputs and unit.index not in known:  # one message, however many parts read it
                known.add(unit.index)
                consumers.append(unit.index)
        slot.consumers = consumers
    return order
