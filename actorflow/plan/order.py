"""Orders and lanes for the ops of a plan. Pure: works on the plan's ops and slots alone."""

from __future__ import annotations

from collections.abc import Sequence

from actorflow.devices import device_kind
from actorflow.ops.function import Function
from actorflow.place import Place
from actorflow.plan.plan import PlannedOp, Slot

DEFAULT_LANE = "main"


def remaining_lengths(ops: Sequence[PlannedOp], slots: Sequence[Slot]) -> list[int]:
    """For each op, the number of ops on the longest path from it to an end, itself included, plus priorities."""
    lengths = [0] * len(ops)
    for op in reversed(ops):
        longest = 0
        for slot in op.outputs:
            for consumer in slots[slot].consumers:
                if lengths[consumer] > longest:  # noqa: PLR1730  max() costs much more, for each reader
                    longest = lengths[consumer]
        lengths[op.index] = longest + 1 + op.node.priority
    return lengths


def put_critical_first(ops: Sequence[PlannedOp], slots: Sequence[Slot], lengths: Sequence[int]) -> list[int]:
    """Sort each value's consumers so that the one with the longest way to go is told, and so fired, first.

    Returns:
        Indices of the ops that read nothing that an op writes, sorted likewise: no value tells them.
    """
    for slot in slots:
        if len(slot.consumers) > 1:
            slot.consumers.sort(key=lengths.__getitem__, reverse=True)
    written = bytearray(len(slots))
    for op in ops:
        for index in op.outputs:
            written[index] = slots[index].updates is None
    roots = [op.index for op in ops if not any(map(written.__getitem__, op.inputs))]
    roots.sort(key=lengths.__getitem__, reverse=True)
    return roots


def assign_lanes(
    ops: Sequence[PlannedOp], slots: Sequence[Slot], lengths: Sequence[int], capture: bool = False
) -> None:
    """Choose lanes for ops whose user named none.

    A chain stays on its lane, where one op follows the other without a word to the loop: an op goes on where the
    producer of one of its inputs ran, the one with the longest way to go if several of them wait to be followed. An op
    that finds all its producers followed by others begins a chain on the lane of its device that has the least to do.

    Args:
        ops: In a topological order; copies between devices have their lanes already.
        slots: Values that they read and write.
        lengths: Result of `remaining_lengths`.
        capture: Whether devices that can capture get one lane, so that as much as possible is launched as one.
    """
    writers: list[PlannedOp | None] = [None] * len(slots)
    followed = bytearray(len(ops))
    loads: dict[Place, dict[str, int]] = {}
    place: Place | None = None
    load: dict[str, int] = {}
    for op in ops:
        if op.lane is not None:
            continue
        if op.place is not place:  # hashes of many equal places would take most of the time
            place = op.place
            load = loads.setdefault(place, _lanes(place, capture))
        if op.node.lane is not None:
            op.lane = op.node.lane
        elif isinstance(op.operation, Function) and op.operation.is_async:  # a task on the loop
            op.lane = DEFAULT_LANE
        else:
            before: PlannedOp | None = None
            for slot in op.inputs:
                producer = writers[slot]
                if (
                    producer is not None
                    and not followed[producer.index]
                    and producer.lane in load
                    and (producer.place is place or producer.place == place)
                    and (before is None or lengths[producer.index] > lengths[before.index])
                ):
                    before = producer
            if before is None or before.lane is None:
                lane = min(load, key=load.__getitem__)
            else:
                followed[before.index] = True
                lane = before.lane
            op.lane = lane
            load[lane] += 1
        for slot in op.outputs:
            writers[slot] = op


def _lanes(place: Place, capture: bool) -> dict[str, int]:
    kind = device_kind(place.kind)
    return dict.fromkeys(lane_names(1 if capture and kind.captures else kind.parallel_lanes()), 0)


def lane_names(count: int) -> list[str]:
    """Names of so many lanes that are alike."""
    return [DEFAULT_LANE, *(f"{DEFAULT_LANE}.{i}" for i in range(1, count))]


def producers_of(ops: Sequence[PlannedOp], slots: Sequence[Slot]) -> list[list[int]]:
    """For each op the indices of the ops whose messages it waits for, once per message."""
    producers: list[list[int]] = [[] for _ in ops]
    for op in ops:
        for slot in op.outputs:
            for consumer in slots[slot].consumers:
                producers[consumer].append(op.index)
    return producers


def depth_first(ops: Sequence[PlannedOp], slots: Sequence[Slot]) -> list[int]:
    """A topological order that ends one chain of ops before it begins the next, so that little is held at once.

    Returns:
        Indices of ``ops``.
    """
    waits = [*map(len, producers_of(ops, slots))]
    stack = [op.index for op in reversed(ops) if not waits[op.index]]
    order = []
    while stack:
        index = stack.pop()
        order.append(index)
        ready = []
        for output in ops[index].outputs:
            for consumer in slots[output].consumers:
                waits[consumer] -= 1
                if not waits[consumer]:
                    ready.append(consumer)
        stack.extend(reversed(ready))
    return order
