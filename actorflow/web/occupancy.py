"""What is bounded, and how full it is: streams, blobs, functions, channels between ranks."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from actorflow.actors.channel import ReceiveActor, SendActor
from actorflow.actors.segment import SegmentActor
from actorflow.node import Variable

if TYPE_CHECKING:
    from actorflow.actors.op import OpActor
    from actorflow.actors.turnstile import Turnstile
    from actorflow.runtime import Engine

__all__ = ["Occupancy"]

#: Programs that are known at a time.
_MAX_PROGRAMS = 64


class _Parts:
    """What of one program is bounded.

    Attributes:
        ops: The program's ops, which its frames have as well.
        slots: Where values of blobs are, with the blobs' ids; not of variables, whose values outlive frames.
        turnstiles: What limits functions, with the ops' ids.
    """

    def __init__(self, ops: list[OpActor]) -> None:
        self.ops = ops
        self.slots: list[tuple[int, int]] = []
        self.turnstiles: dict[int, Turnstile] = {}
        for actor in _each(ops):
            if actor.node_id != actor.node.id:
                continue  # it copies, sums or sends for the op
            for blob, written in zip(actor.node.outputs, actor.written, strict=False):
                if not isinstance(blob, Variable):
                    self.slots.append((written.slot, blob.id))
            if actor.turnstile is not None and actor.turnstile.limit < sys.maxsize:
                self.turnstiles[actor.node_id] = actor.turnstile


def _each(ops: Iterable[OpActor]) -> Iterator[OpActor]:
    for actor in ops:
        if isinstance(actor, SegmentActor):
            yield from actor.parts
        else:
            yield actor


class Occupancy:
    """Counts, when asked, what the frames in flight hold; nothing is counted while they run.

    Args:
        engine: Whose.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._programs: dict[int, _Parts] = {}

    def report(self) -> dict[str, Any]:
        """The content of ``occupancy`` in the ``vitals`` message, of now. It takes about 0.1 us per value."""
        frames = self._engine.running
        blobs: Counter[int] = Counter()
        turnstiles: dict[int, Turnstile] = {}
        messages: Counter[tuple[int, int, bool]] = Counter()
        for frame in frames:
            parts = self._parts_of(frame.ops)
            values = frame.values
            if values:
                blobs.update({node_id for slot, node_id in parts.slots if values[slot] is not None})
            turnstiles |= parts.turnstiles
            for actor in frame.outstanding:
                if isinstance(actor, SendActor | ReceiveActor):
                    messages[actor.node_id, actor.peer, isinstance(actor, SendActor)] += 1
        streams = [{"number": s.number, "held": s.held, "in_flight": s.in_flight} for s in self._engine.streams]
        return {
            "frames": len(frames),
            "streams": streams,
            "blobs": list(blobs.items()),
            "functions": [
                [node_id, turnstile.running, turnstile.limit, len(turnstile.parked or ())]
                for node_id, turnstile in turnstiles.items()
                if turnstile.running or turnstile.parked
            ],
            "channels": [[node_id, peer, "to" if sent else "from", n] for (node_id, peer, sent), n in messages.items()],
        }

    def _parts_of(self, ops: list[OpActor]) -> _Parts:
        parts = self._programs.get(id(ops))
        if parts is None:
            if len(self._programs) >= _MAX_PROGRAMS:
                self._programs.clear()
            parts = self._programs[id(ops)] = _Parts(ops)  # it keeps the list, so that its id stays its own
        return parts
