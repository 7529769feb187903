"""Segments: ops of a plan that are captured and replayed as one. Pure: works on the plan's ops and slots alone.

A segment is what a device with streams launches as one: ops of one lane, in the order of the plan. It begins when all
that its ops read from elsewhere is there, and what it writes is announced together, so nothing that is needed within
may depend on it: the graph in which each segment is one node has no cycle.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from actorflow.devices import device_kind
from actorflow.graph.graph import Graph
from actorflow.place import Place
from actorflow.plan.order import messages_awaited
from actorflow.plan.plan import PlannedOp, Slot

_Lane = tuple[Place, str]


def captures(graph: Graph) -> bool:
    """Return whether a graph's plans have segments: where it is asked for, and each op is not to be run by itself."""
    options = graph.options
    limits = (options.memory_budget_bytes, *(device.memory_budget for device in options.devices.values()))
    return options.capture and not options.sequential and all(limit is None for limit in limits)


def may_be_captured(op: PlannedOp) -> bool:
    """Return whether an op does the same in each frame, but for the memory that it uses, and the host need not look on.

    So it has a kernel that only launches, into buffers that it is given: no function, no copy between devices, no view,
    no random numbers, and no timeout or retries.
    """
    kernel = op.kernel
    return (
        kernel is not None
        and kernel.captures
        and not (kernel.returns or kernel.random)
        and op.node.attempts is None
        and device_kind(op.place.kind).captures
    )


def find_segments(ops: Sequence[PlannedOp], slots: Sequence[Slot]) -> list[tuple[int, ...]]:
    """Runs of at least two ops that may be captured as one.

    The ops are taken in an order in which each comes behind what it reads: first all those that can be taken and are
    not in a segment, so that a segment begins as late as it may; then, on one lane, all that can be taken one behind
    the other. What is taken without a break is a segment, so the order in which they are taken has no cycle.

    Args:
        ops: In a topological order, with their lanes.
        slots: Values that they read and write.
    Returns:
        Indices of the ops of each segment, ascending.
    """
    capturable = [may_be_captured(op) for op in ops]
    if not any(capturable):
        return []
    waits = messages_awaited(ops, slots)
    others: deque[int] = deque()
    lanes: defaultdict[_Lane, deque[int]] = defaultdict(deque)

    def ready(index: int) -> None:
        op = ops[index]
        assert op.lane is not None
        (lanes[op.place, op.lane] if capturable[index] else others).append(index)

    def take(queue: deque[int]) -> int:
        index = queue.popleft()
        for slot in ops[index].outputs:
            for consumer in slots[slot].consumers:
                waits[consumer] -= 1
                if not waits[consumer]:
                    ready(consumer)
        return index

    for op in ops:
        if not waits[op.index]:
            ready(op.index)
    segments: list[tuple[int, ...]] = []
    while True:
        while others:
            take(others)
        queue = min(filter(None, lanes.values()), default=None, key=lambda indices: indices[0])
        if queue is None:
            return segments
        segment = []
        while queue:
            segment.append(take(queue))
        if len(segment) > 1:
            segments.append(tuple(sorted(segment)))
