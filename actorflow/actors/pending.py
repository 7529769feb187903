"""What a frame waits for, in words: for the errors of frames that take too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actorflow.actors.blob import BlobActor
    from actorflow.actors.frame import Frame
    from actorflow.actors.op import OpActor

#: Ops named of each sort; a large graph has very many that wait.
_SHOWN = 10


def what_it_waits_for(frame: Frame) -> str:
    """Which ops run, and which wait for how many messages, from whom."""
    lines = [f"running: {_listing([actor.what for actor in frame.outstanding])}"]
    writers: dict[BlobActor, OpActor] = {blob: actor for actor in frame.ops for blob in actor.outputs}
    waiting = [actor for actor in frame.ops if frame.pending[actor.index] > 0 and actor not in frame.outstanding]
    for actor in waiting[:_SHOWN]:
        count = frame.pending[actor.index]
        unfinished = [
            writer.what
            for writer in (writers.get(blob) for blob in actor.inputs)
            if writer is not None and (frame.pending[writer.index] > 0 or writer in frame.outstanding)
        ]
        source = f"op {_listing(unfinished)}" if unfinished else "an earlier frame's turn at a variable"
        lines.append(f"  op {actor.what!r} waits for {count} of {len(actor.inputs)} inputs: {source}")
    if len(waiting) > _SHOWN:
        lines.append(f"  and {len(waiting) - _SHOWN} more ops wait")
    return "\n".join(lines)


def _listing(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (shown or "nothing") + more
