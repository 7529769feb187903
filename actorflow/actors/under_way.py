"""Calls that are under way at a moment: which ops run, which are queued on a lane, and on which."""

from __future__ import annotations

from asyncio import Task
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.actors.frame import Frame
from actorflow.actors.op import OpActor, parts_of
from actorflow.core import Shift
from actorflow.devices.base import Fence
from actorflow.trace.counters import NodeState

#: Of several frames at one op, the state that says most about what goes on there.
_WEIGHT = {NodeState.DONE: 0, NodeState.WAITING: 1, NodeState.QUEUED: 2, NodeState.RUNNING: 3}


@dataclass(slots=True, eq=False)
class TrackLoad:
    """Calls on one track of the trace."""

    running: list[int] = field(default_factory=list)  # `Node.id` of the ops
    queued: int = 0  # calls behind them


class UnderWay(NamedTuple):
    """Calls of the frames in flight.

    A monitor holds each actor's last state. Between the end of work on a lane and the loop's word of it, and
    where several frames are at one op, that may be out of date; this is not, and costs nothing until somebody looks.
    """

    states: dict[int, NodeState]  # of the ops that have calls under way, by `Node.id`
    tracks: dict[str, TrackLoad]  # of those of `Trace.tracks` that have some

    @classmethod
    def of(cls, frames: Iterable[Frame]) -> UnderWay:
        """Look at some frames, from the loop's thread."""
        found = cls({}, {})
        running = []
        for frame in frames:
            for actor in frame.resting:
                found._add(_ids(actor), NodeState.WAITING)
            for actor, work in frame.at_work:
                parts = _ids(actor)
                if _is_done(work):
                    found._add(parts, NodeState.DONE)
                    continue
                track = frame.trace.track_of(actor.key)
                if isinstance(work, Task) or work.runs:
                    running.append((track, parts, work))
                else:
                    found.tracks.setdefault(track, TrackLoad()).queued += 1
                    found._add(parts, NodeState.QUEUED)
        for track, parts, work in running:
            if _is_done(work):  # and what is behind it may have been seen to run since
                found._add(parts, NodeState.DONE)
                continue
            found.tracks.setdefault(track, TrackLoad()).running += parts
            found._add(parts, NodeState.RUNNING)
        return found

    def over(self, states: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """A monitor's states, by `Node.id`, as they are with these calls under way."""
        seen = states.copy()
        for node_id, state in self.states.items():
            if node_id < len(seen):
                seen[node_id] = state
        return seen

    def _add(self, parts: list[int], state: NodeState) -> None:
        for node_id in parts:
            if _WEIGHT[state] >= _WEIGHT[self.states.get(node_id, NodeState.DONE)]:
                self.states[node_id] = state


def _ids(actor: OpActor) -> list[int]:
    return [part.node_id for part in parts_of(actor)]


def _is_done(work: Fence | Task[Any]) -> bool:
    if isinstance(work, Task):
        return work.done()
    return work.done or (work.begun and isinstance(work.argument, Shift) and not work.argument.begun_ns)
