"""Whether branches that do not depend on each other are computed side by side, on several lanes, or on one.

Side by side, each value that one lane has from another is told by the loop: a thread wakes the loop, and that wakes
another one. On one lane all is one piece of work, and cores that have nothing to do take part in its kernels. Where a
calculation with the ops' measured times and that of waking threads says that the first may be quicker, both are tried,
and the quicker one stays.

Frames in flight are side by side in any case. Where each has one lane, a frame whose lane is busy has another that is
alike: its kernels use a core better than help with those of another frame does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from actorflow.actors.op import OpActor
from actorflow.core import FOREVER_NS
from actorflow.devices.base import Lane
from actorflow.devices.cpu import WorkerLane
from actorflow.trace.ring import Trace

#: How many frames run before the first look; each further look comes after four times as many.
_FRAMES, _GROWTH = 4, 4
#: Several lanes must be quicker by this factor, by calculation to be tried, and by measurement to stay.
_GAIN = 1.1


class Branches:
    """The choice for one program.

    Args:
        ops: The program's, on the lanes of the plan.
        trace: Of the graph's calls.
        alike: Gives the lanes that are like one, itself among them; none where there are no others.

    Attributes:
        left: Number of frames until the next look.
    """

    def __init__(self, ops: Sequence[OpActor], trace: Trace, alike: Callable[[Lane], tuple[Lane, ...]]) -> None:
        self._ops = ops
        self._alike = alike
        self._trace = trace
        self._movable = [op for op in ops if _is_movable(op)]
        self._planned = {op: op.lane for op in self._movable}
        self._is_apart = True  # as the plan has it
        self._spent_ns: dict[bool, float] = {}  # time of a frame, apart and not
        self._since = 0
        self._frames = _FRAMES
        self.left = _FRAMES
        if len({*self._planned.values()}) < 2:
            self.left, self._is_apart = FOREVER_NS, False
            self._have(self._planned)

    def look(self) -> bool:
        """Have the ops on the lanes that are quicker, as far as is known by now; return whether that has moved any."""
        self._frames *= _GROWTH
        self.left = self._frames
        lanes = self.lanes()
        if all(op.lane is lane for op, lane in lanes.items()):
            return False
        self._have(lanes)
        return True

    def _have(self, lanes: Mapping[OpActor, Lane]) -> None:
        alike = {lane: () if self._is_apart else self._alike(lane) for lane in {*lanes.values()}}
        for op, lane in lanes.items():
            if op.lane is not lane:
                op.move_to(lane, self._trace)
            op.lanes = alike[lane]

    def lanes(self) -> Mapping[OpActor, Lane]:
        """Lanes of the ops that may have another one than the plan's."""
        since, self._since = self._since, self._trace.total
        if len(self._spent_ns) < 2:
            # Not of the first frames, in which kernels are compiled and memory is new.
            spent_ns = _per_frame_ns(self._trace, since) if since else None
            is_tried = bool(self._spent_ns) or self._gain() >= _GAIN
            if not is_tried:
                self._is_apart = False
            elif spent_ns is not None:
                self._spent_ns[self._is_apart] = spent_ns
                self._is_apart = not self._is_apart
                if len(self._spent_ns) == 2:
                    self._is_apart = self._spent_ns[True] * _GAIN <= self._spent_ns[False]
        return self._planned if self._is_apart else dict.fromkeys(self._movable, self._planned[self._movable[0]])

    def _gain(self) -> float:
        """How much quicker the ops are on the lanes of the plan than one after the other, by their measured times."""
        ready_ns: dict[OpActor, float] = dict.fromkeys(self._ops, 0.0)
        free_ns: dict[Lane, float] = {}
        planned = self._planned
        wake_ns = planned[self._movable[0]].handover_ns
        end_ns = 0.0
        for op in self._ops:
            if op.cost_ns >= FOREVER_NS:
                return 0.0
            lane = planned.get(op, op.lane)
            begin_ns = max(ready_ns[op], free_ns.get(lane, 0.0))
            ended_ns = free_ns[lane] = begin_ns + op.cost_ns
            end_ns = max(end_ns, ended_ns)
            for follower in op.followers:
                told_ns = ended_ns + (0 if planned.get(follower, follower.lane) is lane else wake_ns)
                ready_ns[follower] = max(ready_ns[follower], told_ns)
        return sum(op.cost_ns for op in self._ops) / max(1.0, end_ns)


def _is_movable(op: OpActor) -> bool:
    """Return whether an op is one whose lane the plan has chosen, among several that are alike."""
    return op.joins and op.node.lane is None and isinstance(op.lane, WorkerLane) and op.inline_ns >= 0


def _per_frame_ns(trace: Trace, since: int) -> float | None:
    """Time of a frame that the graph spends with frames under way, on average of the newest calls; None without."""
    calls = trace.since(since)
    numbers, at = np.unique(calls.frame, return_inverse=True)
    if len(numbers) < 3:  # others than those between them may have begun before, or go on
        return None
    begins, ends = np.full(len(numbers), FOREVER_NS), np.zeros(len(numbers), np.int64)
    np.minimum.at(begins, at, calls.start_ns)
    np.maximum.at(ends, at, calls.end_ns)
    begins, ends = begins[1:-1], ends[1:-1]
    latest_ns = np.maximum.accumulate([0, *ends[:-1]])
    return float(np.median(np.maximum(0, ends - np.maximum(begins, latest_ns))))
