"""Segments: ops of a plan that are captured and replayed as one. Pure: works on the plan's ops and slots alone.

A segment is what a device with streams launches as one: ops of one lane, in the order of the plan. It begins when all
that its ops read from elsewhere is there, and what it writes is announced together, so nothing that is needed within
may depend on it: the graph in which each segment is one node has no cycle.
"""

from __future__ import annotations

from collections.abc import Sequence

from actorflow.devices import device_kind
from actorflow.graph.graph import Graph
from actorflow.plan.groups import grouped
from actorflow.plan.order import producers_of
from actorflow.plan.plan import PlannedOp, Slot


def captures(graph: Graph) -> bool:
    """Return whether a graph's plans have segments: where it is asked for, and each op is not to be run by itself."""
    options = graph.options
    return options.capture and not (options.sequential or options.has_budget)


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

    Ops of a lane that can follow each other are one segment, which waits for all their inputs: so a segment
    begins as late as it may.

    Args:
        ops: In a topological order, with their lanes.
        slots: Values that they read and write.
    Returns:
        Indices of the ops of each segment, ascending.
    """
    lanes = [(op.place, op.lane) if may_be_captured(op) else None for op in ops]
    if not any(lanes):
        return []

    def joins(before: int, index: int) -> bool | None:
        return None if lanes[before] is None else lanes[before] == lanes[index]

    groups = grouped(producers_of(ops, slots), joins, lanes)
    return [tuple(group) for group in groups if len(group) > 1]
