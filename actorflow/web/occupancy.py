"""What is bounded, and how full it is: streams, blobs, functions, channels between ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow.actors.segment import SegmentActor
from actorflow.graph.nodes import Variable
from actorflow.ranks.edges import messages_under_way

if TYPE_CHECKING:
    from actorflow.actors.frame import Frame
    from actorflow.actors.op import OpActor
    from actorflow.actors.turnstile import Turnstile
    from actorflow.runtime.engine import Engine

#: Programs that are known at a time.
_MAX_PROGRAMS = 64
#: Blobs that are told of: a message must not grow with the graph.
_MAX_BLOBS = 4096


class _Parts:
    """What of one program is bounded.

    Attributes:
        ops: The program's ops, which its frames have as well.
        blobs: Ids of the blobs; not of variables, whose values outlive frames.
        turnstiles: What limits functions, with the ops' ids.
    """

    def __init__(self, ops: list[OpActor]) -> None:
        self.ops = ops
        slots: list[int] = []
        blobs: list[int] = []
        self.turnstiles: dict[int, Turnstile] = {}
        for actor in _each(ops):
            if actor.node_id != actor.node.id:
                continue  # it copies, sums or sends for the op
            for blob, written in zip(actor.node.outputs, actor.written, strict=False):
                if not isinstance(blob, Variable):
                    slots.append(written.slot)
                    blobs.append(blob.id)
            if actor.turnstile is not None and actor.turnstile.limit < sys.maxsize:
                self.turnstiles[actor.node_id] = actor.turnstile
        self.blobs, self._blob_of = np.unique(np.array(blobs, np.int64), return_inverse=True)
        self._slots = slots

    def held(self, values: list[Any]) -> npt.NDArray[np.int64]:
        """1 for each blob of which a frame has a value."""
        there = np.fromiter((values[slot] is not None for slot in self._slots), np.bool_, len(self._slots))
        held = np.zeros(len(self.blobs), np.int64)
        held[self._blob_of[there]] = 1  # one that is summed has several slots
        return held


def _each(ops: Iterable[OpActor]) -> Iterator[OpActor]:
    for actor in ops:
        if isinstance(actor, SegmentActor):
            yield from actor.parts
        else:
            yield actor


def _fullest(held: Mapping[_Parts, npt.NDArray[np.int64]]) -> list[list[int]]:
    """Blobs with the number of frames that hold them, those of most frames first."""
    if not held:
        return []
    blobs, blob_of = np.unique(np.concatenate([parts.blobs for parts in held]), return_inverse=True)
    counts = np.bincount(blob_of, np.concatenate([*held.values()]), len(blobs)).astype(np.int64)
    order = np.argsort(-counts, kind="stable")[: min(_MAX_BLOBS, np.count_nonzero(counts))]
    return np.column_stack([blobs[order], counts[order]]).tolist()  # type: ignore[no-any-return]


class Occupancy:
    """Counts, when asked, what the frames in flight hold; nothing is counted while they run.

    Args:
        engine: Whose.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._programs: dict[int, _Parts] = {}

    def report(self) -> dict[str, Any]:
        """The content of ``occupancy`` in the ``vitals`` message, of now. It takes about 0.05 us per value."""
        frames = self._engine.running
        held: dict[_Parts, npt.NDArray[np.int64]] = {}
        turnstiles: dict[int, Turnstile] = {}
        for frame in frames:
            parts = self._parts_of(frame.ops)
            if frame.values:
                held[parts] = held.get(parts, 0) + parts.held(frame.values)
            turnstiles |= parts.turnstiles
        streams = [{"number": s.number, "held": s.held, "in_flight": s.in_flight} for s in self._engine.streams]
        return {
            "frames": len(frames),
            "streams": streams,
            "blobs": _fullest(held),
            "functions": [
                [node_id, turnstile.running, turnstile.limit, len(turnstile.parked or ())]
                for node_id, turnstile in turnstiles.items()
                if turnstile.running or turnstile.parked
            ],
            "channels": self._channels(frames),
        }

    def _channels(self, frames: Iterable[Frame]) -> list[list[int]]:
        """Blob, sender, receiver; in how many frames its message is not taken, and in how many it is awaited.

        Each end counts for itself: this rank's here, those of the others as they were reported last.
        """
        ends = {rank: [*messages] for rank, messages in self._elsewhere().items()}
        own = messages_under_way(frames)
        if own:
            ends[self._engine.graph.world.rank] = [(*what, count) for what, count in own.items()]
        channels: dict[tuple[int, int, int], list[int]] = {}
        for rank, messages in ends.items():
            for node_id, peer, sends, count in messages:
                edge = (node_id, rank, peer) if sends else (node_id, peer, rank)
                channels.setdefault(edge, [0, 0])[0 if sends else 1] += count
        return [[*edge, *counts] for edge, counts in channels.items()]

    def _elsewhere(self) -> Mapping[int, list[tuple[int, int, bool, int]]]:
        monitor = self._engine.monitor
        return {} if monitor is None else monitor.messages

    def _parts_of(self, ops: list[OpActor]) -> _Parts:
        parts = self._programs.get(id(ops))
        if parts is None:
            if len(self._programs) >= _MAX_PROGRAMS:
                self._programs.clear()
            parts = self._programs[id(ops)] = _Parts(ops)  # it keeps the list, so that its id stays its own
        return parts
