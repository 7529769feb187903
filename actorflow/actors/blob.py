"""Blobs at run time: where their values are in a frame, and where the buffers go back to."""

from __future__ import annotations

from collections.abc import Iterable

from actorflow import core
from actorflow.actors.frame import RUNNING, Frame
from actorflow.actors.variable import VariableActor
from actorflow.devices.base import Fence
from actorflow.devices.memory import Bucket


class BlobActor(core.Blob):
    """One tensor slot of a program; see `actorflow.core.plain.Blob`."""

    __slots__ = ()


class ViewActor(core.View, BlobActor):
    """A slot whose value is a view of another slot's; see `actorflow.core.plain.View`."""

    __slots__ = ()


class UpdateActor(BlobActor):
    """The new value of a variable that a frame writes: committed as soon as it is computed."""

    __slots__ = ("read_slot", "variable")

    def __init__(self, slot: int, bucket: Bucket | None, variable: VariableActor, read_slot: int) -> None:
        super().__init__(slot, bucket)
        self.variable = variable
        self.read_slot = read_slot

    def commit(self, frame: Frame) -> None:
        """Make the computed value the variable's."""
        value = frame.values[self.slot]
        frame.values[self.slot] = None
        if not frame.updated:
            frame.updated = []
        frame.updated.append(self.variable.variable.name)
        if frame.budget is not None:
            frame.budget.replace(frame, self.slot, self.read_slot)
        self.variable.commit(frame, value, self.bucket)


def deliver(updates: Iterable[UpdateActor], frame: Frame, fence: Fence | None) -> None:
    """Commit values now, or when the loop has seen ``fence`` pass; at the end of an atomic frame with all others."""
    if fence is None:
        _arrived(updates, frame)
        return

    def passed() -> None:
        if fence.error is None:  # a device fails later than the buffers are there
            frame.guarded(_arrived, updates, frame)

    fence.add_waiter(passed)


def _arrived(updates: Iterable[UpdateActor], frame: Frame) -> None:
    for update in updates:
        # Not `halted`: an op that was queued behind may have failed on the lane, after this value was computed.
        if frame.state is not RUNNING or frame.values[update.slot] is None:
            continue
        if frame.atomic:
            if not frame.updates:
                frame.updates = []
            frame.updates.append(update)
        else:
            update.commit(frame)
