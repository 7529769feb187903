"""Fusion: ops that a plan computes in one pass over memory.

Elementwise operations of one shape that follow each other, and the reductions of their values, become one step of the
plan (`actorflow.ops.fused`): on devices, as each launch counts, and on the host where values are large. So do those
that a library computes together, with the op they follow, a convolution say. The ops of the graph stay as they are: the
step lists them as its parts, and times, states and errors are theirs.

Normalization by given statistics is elementwise: its factors are computed as the chain begins. They are not multiplied
into weights beforehand, as weights are variables, which may get new values at any time (ADR 24).

No two steps wait for each other (`actorflow.plan.groups`). A message waits for those before it, which it may answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from actorflow.devices import device_kind
from actorflow.loop import Steps, look_at
from actorflow.ops.collective import AllReduce
from actorflow.ops.elementwise import Divide, Multiply, Sqrt, Subtract, Sum
from actorflow.ops.fills import Constant, Fill
from actorflow.ops.fused import Followed, Fused, FusedColumns, columns_of, may_fuse, may_reduce
from actorflow.ops.linalg import Bias
from actorflow.ops.nn.norm import BatchNormInference
from actorflow.ops.operation import Operation
from actorflow.ops.registry import Kernel
from actorflow.ops.rows import Elementwise
from actorflow.ops.shaping import Reduction
from actorflow.ops.step import Step
from actorflow.ops.transfer import Receive, Send, Transfer
from actorflow.plan.groups import grouped
from actorflow.plan.order import producers_of
from actorflow.plan.plan import PlannedOp, Slot
from actorflow.spec import TensorSpec

#: Limits of one chain: of the arguments of a kernel, and of the time to compile one on a GPU.
_MOST_STEPS, _MOST_INPUTS, _MOST_RESULTS = 32, 8, 8
#: Bytes of a chain's values on the host from which on passes over memory take longer than its blocks do. Measured on
#: one core of an AMD EPYC with 32 MiB of cache, time with joining to that without, of 6 products, 6 mixed steps, 3 of
#: these, and 3 with a sum. float32: 1 MiB 1.10, 1.76, 1.63, 2.08; 4 MiB 0.81, 1.00, 1.21, 1.25; 8 MiB 0.72, 0.81,
#: 1.11, 1.09; 16 MiB 0.68, 0.86, 1.02, 0.98. float64: 4 MiB 1.17, 1.19, 1.59, 1.23; 8 MiB 1.01, 0.92, 0.98, 0.84.
LARGE_BYTES = 8 << 20
#: Short steps of a slice of the loop's time (`actorflow.loop`) that it takes to try to join an op to a product.
_JOINING = 8
_KINDS = (Elementwise, Reduction, Bias, BatchNormInference)

#: Gives the kernel for an operation on arrays of a dtype in the place of an op; None if the device has none.
ChooseKernel = Callable[[PlannedOp, Operation, np.dtype[Any]], Kernel | None]


class _Link(NamedTuple):
    """An op's part in a chain.

    Attributes:
        steps: Its computation, as a chain of its own: the last one is its result.
        columns: Along which it reduces; None if it is elementwise.
    """

    steps: Sequence[Step]
    columns: FusedColumns | None = None


def fuse(
    ops: Sequence[PlannedOp], slots: Sequence[Slot], folded: Sequence[PlannedOp], choose: ChooseKernel
) -> Steps[list[PlannedOp] | None]:
    """Join ops that can be computed in one pass.

    Args:
        ops: In a topological order.
        slots: Values that they read and write; their readers are changed in place.
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
            yield
    if not links:
        return None
    yield look_at(ops)
    parts = {index: [op] for index, op in enumerate(ops) if index in links}  # the chain of each op
    for group in _groups(ops, slots, links):
        yield
        together = [ops[index] for index in group]
        parts.update((index, together) for index in group)
    joiner = _Joiner(slots, folded, links, choose)
    joined: dict[int, PlannedOp] = {}  # by the index of each part
    for op in reversed(ops):  # of several that a chain reads, it takes the result of the last one
        if op.kernel is not None and op.kernel.joins is not None:
            for part in _following(op, parts, joined, links, slots):
                yield _JOINING
                made = joiner.join(part, op)
                if made is not None:
                    joined.update({each.index: made for each in made.parts})
                    break
    for part in {id(part): part for part in parts.values()}.values():
        if len(part) > 1 and joined.keys().isdisjoint([op.index for op in part]):
            yield
            made = joiner.join(part)
            if made is not None:
                joined.update({each.index: made for each in made.parts})
    yield
    return (yield from in_new_order(ops, slots, joined)) if joined else None


def _link(op: PlannedOp, slots: Sequence[Slot]) -> _Link | None:
    if not _may_be_joined(op, slots):
        return None
    output, inputs = slots[op.outputs[0]].spec, [slots[index].spec for index in op.inputs]
    operation = op.operation
    if isinstance(operation, BatchNormInference):
        kinds = {spec.dtype for spec in inputs}
        return _Link(_normalization(operation, output.dtype)) if len(kinds) == 1 and output.dtype.itemsize > 2 else None
    if isinstance(operation, Bias):
        operation = Sum()
    one = Step(operation, tuple(range(len(inputs))))
    if may_fuse(operation, inputs, output):
        return _Link([one])
    if isinstance(operation, Reduction) and may_reduce(operation, *inputs):
        shape = inputs[0].shape
        return _Link([one], columns_of(shape, operation.axes(len(shape))))
    return None


def _may_be_joined(op: PlannedOp, slots: Sequence[Slot]) -> bool:
    """Return whether an op has a kernel as any other, and one result."""
    kernel = op.kernel
    if kernel is None or len(op.outputs) != 1 or op.node.attempts is not None:
        return False
    # Not the user's own, and not one that was asked for.
    return kernel.key.library in device_kind(op.place.kind).libraries and slots[op.outputs[0]].updates is None


def _normalization(operation: BatchNormInference, dtype: np.dtype[Any]) -> list[Step]:
    """Steps of ``x, scale, shift, mean, variance``."""
    epsilon = Fill(operation.epsilon, TensorSpec((), dtype))
    return [
        Step(epsilon, ()),
        Step(Sum(), (4, 5)),
        Step(Sqrt(), (6,)),
        Step(Divide(), (1, 7)),
        Step(Subtract(), (0, 3)),
        Step(Multiply(), (9, 8)),
        Step(Sum(), (10, 2)),
    ]


def _groups(ops: Sequence[PlannedOp], slots: Sequence[Slot], links: dict[int, _Link]) -> Iterator[Sequence[int]]:
    reads = producers_of(ops, slots)
    last: PlannedOp | None = None
    for op in ops:
        if isinstance(op.operation, Send | Receive | AllReduce):
            if last is not None:
                reads[op.index].append(last.index)
            last = op

    def joins(before: int, index: int) -> bool:
        return index in links and _follows(ops[before], ops[index], links, slots)

    for group in grouped(reads, joins):
        if len(group) > 1:
            yield from _parts([ops[index] for index in group], links, slots)


def _follows(before: PlannedOp, op: PlannedOp, links: dict[int, _Link], slots: Sequence[Slot]) -> bool:
    """Return whether an op can take a value of a chain from the one that computes it, element by element."""
    first, link = links.get(before.index), links[op.index]
    if first is None or first.columns is not None or not _is_alike(before, op):
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
    own = {op.outputs[0] for op in part}
    return [*dict.fromkeys(slot for op in part for slot in op.inputs if slot not in own)]


def _results(part: Sequence[PlannedOp], slots: Sequence[Slot]) -> list[int]:
    reads: dict[int, int] = {}
    for op in part:
        for slot in op.inputs:
            reads[slot] = reads.get(slot, 0) + 1
    found = [(reads.get(op.outputs[0], 0), slots[op.outputs[0]].readers) for op in part]
    return [i for i, (inside, all_) in enumerate(found) if not inside or inside < all_]


def _following(
    main: PlannedOp,
    parts: dict[int, list[PlannedOp]],
    joined: dict[int, PlannedOp],
    links: dict[int, _Link],
    slots: Sequence[Slot],
) -> Iterator[list[PlannedOp]]:
    """Chains that alone take the result of an op, the longest first."""
    slot = slots[main.outputs[0]]
    part = parts.get(slot.consumers[0], []) if slot.consumers and _may_be_joined(main, slots) else []
    own, found = {slot.index}, list[PlannedOp]()
    for op in part:
        is_free = op.index not in joined and links[op.index].columns is None and _is_alike(main, op)
        if is_free and not own.isdisjoint(op.inputs):
            own.add(op.outputs[0])
            found.append(op)
    while found and slot.readers == sum(op.inputs.count(slot.index) for op in found):
        yield found
        found = found[:-1]


def _is_alike(one: PlannedOp, other: PlannedOp) -> bool:
    a, b = one.node, other.node
    return one.place == other.place and (a.lane, a.priority, a.hints) == (b.lane, b.priority, b.hints)


class _Joiner:
    """Makes one op of several ones."""

    def __init__(
        self, slots: Sequence[Slot], folded: Sequence[PlannedOp], links: dict[int, _Link], choose: ChooseKernel
    ) -> None:
        self._slots = slots
        self._writers = {slot: op for op in folded for slot in op.outputs}
        self._links = links
        self._choose = choose

    def join(self, part: Sequence[PlannedOp], main: PlannedOp | None = None) -> PlannedOp | None:
        """One op for a chain and the op it follows; None where that cannot be, or does not pay."""
        slots, last = self._slots, part[-1]
        outer = _outer(part)
        constants = {slot: number for slot in outer if (number := self._number(slot)) is not None}
        results = _results(part, slots)
        inputs = _written_over_first([slot for slot in outer if slot not in constants], part, results[0], slots)
        if main is not None:
            inputs = [main.outputs[0], *[slot for slot in inputs if slot != main.outputs[0]]]
        if main is not None and len(results) > 1:  # with one it is like one op: no two wait for each other
            return None
        # Reductions alone are not faster together.
        if not inputs or all(self._links[op.index].columns is not None for op in part):
            return None
        outputs = [part[i].outputs[0] for i in results]
        chain = self._chain(part, inputs, constants, results, first_site=main is not None)
        operation: Fused | Followed = chain
        read = inputs
        if main is not None:
            operation, read = Followed(main.operation, chain, len(main.inputs)), [*main.inputs, *inputs[1:]]
        kernel = self._choose(last, operation, slots[read[0]].spec.dtype)
        if kernel is None:
            return None
        is_large = any(slots[op.outputs[0]].spec.size_bytes >= LARGE_BYTES for op in part)
        if main is not None or (device_kind(last.place.kind).is_host and not is_large):
            asked = kernel if main is None else main.kernel
            joins = None if asked is None else asked.joins
            if joins is None or not joins(operation, [slots[slot].spec for slot in read]):
                return None
        if main is not None:
            return as_one([main, *part], operation, kernel, read, outputs, slots)
        first = part[results[0]].kernel
        is_in_place = chain.may_write_over(first is not None and first.inplace)
        is_in_place = is_in_place and slots[read[0]].spec == slots[outputs[0]].spec
        return as_one(part, operation, replace(kernel, inplace=is_in_place), read, outputs, slots)

    def _number(self, index: int) -> Fill | None:
        """The one number that a slot always has: part of the step that reads it."""
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

    def _chain(
        self,
        part: Sequence[PlannedOp],
        inputs: Sequence[int],
        constants: dict[int, Fill],
        results: Sequence[int],
        first_site: int,
    ) -> Fused:
        """The chain, whose steps have the positions of the ops as their sites, counted from the first one's."""
        positions = {slot: i for i, slot in enumerate(inputs)}
        steps: list[Step] = []

        def add(operation: Operation, arguments: Iterable[int], site: int) -> int:
            steps.append(Step(operation, tuple(arguments), site=site))
            return len(inputs) + len(steps) - 1

        for site, op in enumerate(part, first_site):
            values = []
            for slot in op.inputs:
                if slot not in positions:
                    positions[slot] = add(constants[slot], (), site)
                values.append(positions[slot])
            for step in self._links[op.index].steps:
                values.append(add(step.operation, [values[position] for position in step.inputs], site))
            positions[op.outputs[0]] = values[-1]
        ends = [positions[part[i].outputs[0]] - len(inputs) for i in results]
        return Fused(tuple(steps), tuple(ends))


def as_one(
    parts: Sequence[PlannedOp],
    operation: Operation,
    kernel: Kernel,
    inputs: Sequence[int],
    outputs: Sequence[int],
    slots: Sequence[Slot],
) -> PlannedOp:
    """One op for several, in the place of the last one; slots have other readers from now on."""
    for op in parts:
        for slot in op.inputs:
            slots[slot].readers -= 1
    for slot in inputs:
        slots[slot].readers += 1
    return replace(
        parts[-1],
        operation=operation,
        kernel=kernel,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        specs=tuple([slots[slot].spec for slot in outputs]),
        waits=sum(not slots[slot].is_constant for slot in inputs),
        parts=tuple(parts),
    )


def _written_over_first(inputs: list[int], part: Sequence[PlannedOp], result: int, slots: Sequence[Slot]) -> list[int]:
    """The inputs, first one that the first result may be written over: of its type, and not read elsewhere."""
    spec = slots[part[result].outputs[0]].spec
    for slot in inputs:
        reads = sum(op.inputs.count(slot) for op in part)
        if slots[slot].spec == spec and slots[slot].readers == reads and not slots[slot].is_constant:
            return [slot, *[other for other in inputs if other != slot]]
    return inputs


def in_new_order(
    ops: Sequence[PlannedOp], slots: Sequence[Slot], joined: dict[int, PlannedOp]
) -> Steps[list[PlannedOp]]:
    """The ops, joined ones in the place of their parts, behind all that they read; consumers are set anew."""
    units = [joined.get(op.index, op) for op in ops]
    distinct = {unit.index: unit for unit in units}
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(distinct, ()))
    for op, unit in zip(ops, units, strict=True):
        for consumer in [units[index] for slot in op.outputs for index in slots[slot].consumers]:
            if consumer is not unit:
                sorter.add(consumer.index, unit.index)
        yield
    sorter.prepare()
    ready: list[int] = []
    order: list[PlannedOp] = []
    while sorter:
        for index in sorter.get_ready():
            heappush(ready, index)
        first = heappop(ready)
        order.append(distinct[first])
        sorter.done(first)
        yield
    for position, unit in enumerate(order):
        unit.index = position
    yield look_at(slots)
    for slot in slots:
        consumers: list[int] = []
        known: set[int] = set()
        for unit in map(units.__getitem__, slot.consumers):
            if not unit.parts:
                consumers.append(unit.index)
            elif unit.index not in known:  # a message for each time it is read, however many parts read it
                known.add(unit.index)
                consumers += [unit.index] * unit.inputs.count(slot.index)
        slot.consumers = consumers
    return order
