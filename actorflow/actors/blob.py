"""Blobs at run time: where their values are in a frame, and where the buffers go back to."""

from __future__ import annotations

from collections.abc import Iterable
from sys import getrefcount
from weakref import getweakrefcount

from actorflow.actors.frame import Frame, FrameState
from actorflow.actors.variable import VariableActor
from actorflow.devices.base import Fence
from actorflow.devices.memory import UNSHARED, Bucket


class BlobActor:
    """One tensor slot of a program.

    The plan gives every slot exactly one producer (it sums the terms of a blob that has several), so the producer tells
    the slot's readers itself; they are counted, and the last one gives the buffer back.

    Attributes:
        bucket: Where its buffer goes back to; None for values that did not come from there, or it would grow.
    """

    __slots__ = ("bucket", "slot")

    def __init__(self, slot: int, bucket: Bucket | None) -> None:
        self.slot = slot  # index of its value in a frame
        self.bucket = bucket

    def drop(self, frame: Frame) -> None:
        """Give the buffer back: the last reader is done. May be called from a lane's thread."""
        values = frame.values
        buffer = values[self.slot]
        values[self.slot] = None
        bucket = self.bucket
        if bucket is not None and getrefcount(buffer) == UNSHARED:
            bucket.give_back(buffer)
        if frame.budget is not None:
            frame.budget.freed.append((frame, self.slot))


class ViewActor(BlobActor):
    """A slot whose value is a view of another slot's: what goes back to the bucket is the viewed buffer."""

    __slots__ = ()

    def drop(self, frame: Frame) -> None:
        values = frame.values
        buffer = values[self.slot].base
        values[self.slot] = None
        bucket = self.bucket
        # The viewed array need not be the bucket's: a kernel may return one of its own, or a view of that. What the
        # pool has made is in memory of the pool's, or the pool refers to it weakly.
        if (
            bucket is not None
            and buffer is not None
            and getrefcount(buffer) == UNSHARED
            and (buffer.shape, buffer.dtype) == bucket.spec
            and (buffer.base is not None or getweakrefcount(buffer))
        ):
            bucket.give_back(buffer)
        if frame.budget is not None:
            frame.budget.freed.append((frame, self.slot))


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
        if frame.state is not FrameState.RUNNING or frame.values[update.slot] is None:
            continue
        if frame.atomic:
            frame.updates.append(update)
        else:
            update.commit(frame)
