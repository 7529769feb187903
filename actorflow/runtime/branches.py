"""Whether branches that do not depend on each other are computed side by side, on several lanes, or on one.

Side by side, each value that one lane has from another is told by the loop: a thread wakes the loop, and that wakes
another one. On one lane all is one piece of work, and cores that have nothing to do take part in its kernels. Where a
calculation with the ops' measured times and that of waking threads says that the first may be quicker, both are tried,
and the quicker one stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from actorflow.actors.op import FOREVER_NS, OpActor
from actorflow.devices.base import Lane
from actorflow.devices.cpu import WorkerLane

if TYPE_CHECKING:
    from actorflow.runtime.program import Program

_AS_PLANNED: Mapping[OpActor, Lane] = MappingProxyType({})
#: Several lanes must be quicker by this factor, by calculation to be tried, and by measurement to stay.
_GAIN = 1.1


class Branches:
    """The choice for one program."""

    __slots__ = ("_is_apart", "_since", "_spent_ns")

    def __init__(self) -> None:
        self._is_apart = True  # as the plan has it
        self._spent_ns: dict[bool, float] = {}  # time of a frame, apart and not
        self._since = 0

    def lanes(self, base: Program) -> Mapping[OpActor, Lane]:
        """Lanes of the ops of a program that was built, where they are not those of the plan. Called now and then."""
        movable = [op for op in base.ops if _is_movable(op)]
        if len({op.lane for op in movable}) < 2:
            return _AS_PLANNED
        since, self._since = self._since, base.trace.total
        if len(self._spent_ns) < 2:
            # Not of the first frames, in which kernels are compiled and memory is new.
            spent_ns = _per_frame_ns(base, since) if since else None
            is_tried = bool(self._spent_ns) or _gain(base, movable) >= _GAIN
            if not is_tried:
                self._is_apart = False
            elif spent_ns is not None:
                self._spent_ns[self._is_apart] = spent_ns
                self._is_apart = not self._is_apart
                if len(self._spent_ns) == 2:
                    self._is_apart = self._spent_ns[True] * _GAIN <= self._spent_ns[False]
        return _AS_PLANNED if self._is_apart else dict.fromkeys(movable, movable[0].lane)


def _is_movable(op: OpActor) -> bool:
    """Return whether an op is one whose lane the plan has chosen, among several that are alike."""
    return op.joins and op.node.lane is None and isinstance(op.lane, WorkerLane) and op.inline_ns >= 0


def _per_frame_ns(base: Program, since: int) -> float | None:
    """Time of a frame that the graph spends with frames under way, on average of the newest calls; None without."""
    calls = base.trace.since(since)
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for frame, begin_ns, end_ns in zip(
        calls.frame.tolist(), calls.start_ns.tolist(), calls.end_ns.tolist(), strict=True
    ):
        begins[frame] = min(begin_ns, begins.get(frame, FOREVER_NS))
        ends[frame] = max(end_ns, ends.get(frame, 0))
    whole = [frame for frame in begins if min(begins) < frame < max(begins)]  # others may have begun before, or go on
    if not whole:
        return None
    latest_ns, spans = 0, []
    for frame in whole:
        spans.append(max(0, ends[frame] - max(begins[frame], latest_ns)))
        latest_ns = max(latest_ns, ends[frame])
    return float(np.median(spans))


def _gain(base: Program, movable: list[OpActor]) -> float:
    """How much quicker the ops are on the lanes of the plan than one after the other, by their measured times."""
    ready_ns: dict[OpActor, float] = dict.fromkeys(base.ops, 0.0)
    free_ns: dict[Lane, float] = {}
    lane = movable[0].lane
    assert isinstance(lane, WorkerLane)
    wake_ns = lane.handover_ns
    end_ns = 0.0
    for op in base.ops:
        if op.cost_ns >= FOREVER_NS:
            return 0.0
        begin_ns = max(ready_ns[op], free_ns.get(op.lane, 0.0))
        ended_ns = free_ns[op.lane] = begin_ns + op.cost_ns
        end_ns = max(end_ns, ended_ns)
        for follower in op.followers:
            told_ns = ended_ns + (0 if follower.lane is op.lane else wake_ns)
            ready_ns[follower] = max(ready_ns[follower], told_ns)
    return sum(op.cost_ns for op in base.ops) / max(1.0, end_ns)
