"""Blobs at run time: slots of values, and variables, at which frames take turns without locks or barriers.

An update gives a new array and swaps it in, so a reader is never disturbed and nothing waits for readers. What is left
to order is which value a frame reads: a frame that may update the variable takes a turn when it starts, and every
frame started later reads once that turn has passed, by the update or by the frame's end without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from sys import getrefcount
from typing import TYPE_CHECKING, Any
from weakref import ref

from actorflow.actors.frame import RUNNING, Frame
from actorflow.core import UNSHARED, Blob, View
from actorflow.devices.memory import Bucket
from actorflow.errors import ActorflowError, GraphError, text_of
from actorflow.interchange import to_numpy

if TYPE_CHECKING:
    from actorflow.actors.op import OpActor
    from actorflow.devices.base import Device, Fence
    from actorflow.devices.stream import StreamLane
    from actorflow.graph.nodes import Variable


class BlobActor(Blob):
    """One tensor slot of a program; see `actorflow.core.plain.Blob`."""

    __slots__ = ()


class ViewActor(View, BlobActor):
    """A slot whose value is a view of another slot's; see `actorflow.core.plain.View`."""

    __slots__ = ()


class Turn:
    """The time in which one frame may update a variable. It passes only after the turn before it."""

    __slots__ = ("_left", "_reached", "_waiters", "next", "passed")

    def __init__(self, before: Turn | None) -> None:
        self.next: Turn | None = None
        self.passed = False  # whether later frames may read
        self._left = False
        self._reached = before is None or before.passed
        self._waiters: list[Callable[[], None]] = []
        if not self._reached:
            assert before is not None
            before.next = self

    def when_passed(self, waiter: Callable[[], None]) -> None:
        """Call ``waiter()`` when the turn passes, which it must not have yet."""
        self._waiters.append(waiter)

    def leave(self) -> None:
        """The frame has updated the variable, or will not do so any more. Idempotent."""
        self._left = True
        turn: Turn | None = self
        while turn is not None and turn._reached and turn._left and not turn.passed:
            turn.passed = True
            waiters, turn._waiters = turn._waiters, []
            for waiter in waiters:
                waiter()
            # Not kept: an old turn that is held (by a frame's exception, for instance) would hold all later ones.
            following, turn.next = turn.next, None
            if following is not None:
                following._reached = True
            turn = following


class VariableActor:
    """One variable of a graph, shared by all its programs.

    Attributes:
        last: The turn of the frame that has started last of those that may update it.
    """

    __slots__ = ("_counted", "_device", "lanes", "last", "variable")

    def __init__(self, variable: Variable, device: Device) -> None:
        self.variable = variable  # the variable
        self._device = device
        self.lanes: dict[StreamLane, None] = {}  # streams whose work uses its buffers, in programs made so far
        self.last: Turn | None = None
        self._counted: Any = None

    def prepare(self) -> None:
        """Have the value where it is read from: the first one is computed when it is asked for.

        Raises:
            GraphError: if it cannot be had; `DeviceError` if its device cannot take it.
        """
        try:
            self.read()
        except ActorflowError:
            raise
        except Exception as error:
            variable = self.variable
            raise GraphError(
                f"variable {variable.name!r} could not be brought to {variable.place}: "
                f"{type(error).__name__}: {text_of(error)}"
            ) from error

    def read(self) -> Any:
        """The value as of now, an array of the variable's device."""
        value = self.variable.held
        if value is not self._counted:  # assigned by the application
            device = self._device
            if not device.is_array(value):
                value = device.upload(to_numpy(value))
                self.variable.commit(value)
            device.memory.adopt(value)
            before, self._counted = self._counted, value
            if before is not None:
                device.memory.retire(before)
        return value

    def commit(self, frame: Frame, value: Any, bucket: Bucket | None) -> None:
        """The frame's update: swap the array in and end the frame's turn."""
        self._counted = value
        old = self.variable.commit(value)
        # A reader that still holds the old array gives it back itself (`BlobActor.drop`).
        if bucket is not None and old is not None and getrefcount(old) == UNSHARED:
            bucket.give_back(old)
        frame.turns[self].leave()

    def swap(self, value: Any) -> None:
        """Make an array the value, behind the updates of all frames that have started, and before later frames'."""
        before = self.last
        if before is None or before.passed:
            self.variable.commit(value)
        else:
            self.last = turn = Turn(before)
            before.when_passed(partial(self._swap, turn, value))  # behind the frames that wait to read what it leaves

    def _swap(self, turn: Turn, value: Any) -> None:
        self.variable.commit(value)
        turn.leave()

    def is_awaited_by(self, frame: Frame) -> bool:
        """Return whether later frames wait for a frame's update of the variable."""
        turn = frame.turns.get(self)
        return turn is not None and not turn.passed

    def forget_turns(self) -> None:
        """No frame that has a turn here, or waits for one, goes on."""
        self.last = None


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


class VariableUse:
    """Read or update, by one program, of a variable whose frames take turns."""

    __slots__ = ("_slot", "followers", "updates", "variable")

    def __init__(
        self, variable: VariableActor, slot: int | None, followers: tuple[OpActor, ...], updates: bool
    ) -> None:
        self.variable = variable  # the variable
        self._slot = slot  # None if only awaited
        self.followers = followers  # ops that wait for it
        self.updates = updates  # whether the program may update it

    def enter(self, frame: Frame) -> None:
        """A frame starts: it reads when the frames before it have had their turns, and takes one if it may update."""
        variable = self.variable
        before = variable.last
        if self.updates:
            if not frame.turns:
                frame.turns, frame.ends_quietly = {}, False
            variable.last = frame.turns[variable] = Turn(before)
        if before is None or before.passed:
            self.open(frame)
        else:
            # Not by the frame itself: it may have stopped long before the turn passes.
            before.when_passed(partial(self._open_later, ref(frame)))

    def open(self, frame: Frame) -> None:
        """The frame may read."""
        if frame.halted:
            return
        if self._slot is not None:
            frame.values[self._slot] = self.variable.read()
        frame.announce(self.followers, None)
        frame.close_end()

    def _open_later(self, waiting: ref[Frame]) -> None:
        frame = waiting()
        if frame is not None:
            frame.guarded(self.open, frame)
            frame.wake()
