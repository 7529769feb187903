"""The order in which the results of calls go out, and their positions.

In order, a position is that of the input, with how many outputs of an item have gone out where there can be several.
When results go out as they come, it also says which of the items behind the oldest one have gone out. Then the order
itself is chance, and positions further down, which count items of the stream, hold only if it is repeated: so a
position leads to the ones given after it, and makes of them the order in which a run that begins there gives its first
items.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from actorflow.pipeline.stages.stage import MARK

if TYPE_CHECKING:
    from actorflow.pipeline.calls.call import CallActor, Job


class SlotState(Enum):
    """States of an item: WAITING -> RUNNING -> DONE; RESTING before a repeated call, PAUSED if more will come of it."""

    WAITING = "waiting"
    RUNNING = "running"
    RESTING = "resting"
    PAUSED = "paused"
    DONE = "done"


@dataclass(slots=True, eq=False)
class Slot:
    """An item in a stage, from its arrival until all that becomes of it has gone out."""

    number: int  # in the order of arrival in this run
    value: Any
    before: Any  # position before it
    after: Any  # position behind it
    state: SlotState = SlotState.WAITING
    outputs: deque[Any] = field(default_factory=deque)  # that have not gone out yet
    emitted: int = 0  # outputs that have gone out, in earlier runs too
    skip: int = 0  # outputs still to be dropped, since they went out before
    iterator: Any = None  # of further outputs
    error: BaseException | None = None
    attempt: int = 0  # calls that have failed
    job: Job | None = None  # the call that runs
    timer: asyncio.TimerHandle | None = None  # ends a rest
    is_gone: bool = False  # nothing more will come of it
    is_alone: bool = False  # sent to a process alone, since a call for several items has failed


class _Place(NamedTuple):
    """A position in the order of the inputs."""

    at: Any  # position in front of the stage
    emitted: int  # outputs of the item behind it that have gone out
    seen: int  # items whose turn has come, where the share of failures is limited
    skipped: int  # those of them that were left out


class InOrder:
    """Results go out in the order of the items; begins at a position as plain data."""

    def __init__(self, actor: CallActor, state: Any) -> None:
        self.slots: deque[Slot] = deque()  # items in the stage, oldest first
        self.seen = self.skipped = 0  # as in the stage's positions
        self._actor = actor
        self.accepted = 0  # items that have come
        self._is_simple = not (actor.how.expands or actor.how.policy.is_limited)
        self._skip = 0
        at = actor.upstream.start
        if state is not None and not self._is_simple:
            _, self._skip, self.seen, self.skipped = state
        # The position before the first item.
        self.start = at if self._is_simple else _Place(at, self._skip, self.seen, self.skipped)

    @staticmethod
    def front(how: Any, state: Any) -> Any:
        """The part of a saved position that is for the stages in front."""
        return state[0] if state is not None and (how.expands or how.policy.is_limited) else state

    def accept(self, value: Any, before: Any, after: Any) -> Slot:
        """An item has come."""
        slot = Slot(self.accepted, value, before, after)
        if value is MARK:
            slot.outputs.append(MARK)
            slot.state = SlotState.DONE
        else:
            self.accepted += 1
            slot.skip = slot.emitted = self._skip
            self._skip = 0
        self.slots.append(slot)
        return slot

    @property
    def open(self) -> int:
        """Items of which something is still to go out."""
        return len(self.slots)

    def has_room(self, limit: int) -> bool:
        """Return whether there is room for another item, while up to ``limit`` are in calls."""
        return len(self.slots) < limit + self._actor.how.waiting_results

    def gained(self, slot: Slot) -> None:
        """An item has outputs, or its last call has ended."""

    def is_due(self) -> bool:
        """Return whether `emit` would find something to do."""
        if not self.slots or len(self._actor.out.items) >= self._actor.out.capacity:
            return False
        slot = self.slots[0]
        return bool(slot.outputs) or slot.state in (SlotState.DONE, SlotState.PAUSED)

    def emit(self) -> bool:
        """Give the results that are next; return whether one is left that there is no room for."""
        actor, out, slots = self._actor, self._actor.out, self.slots
        given = 0
        while slots:
            slot = slots[0]
            if slot.outputs:
                if len(out.items) >= out.capacity:
                    break
                value = slot.outputs.popleft()
                if value is not MARK:
                    slot.emitted += 1
                    given += 1
                out.items.append((value, self._position(slot)))
                out.owner.wake()
            elif slot.state is SlotState.DONE:
                self.seen += slot.value is not MARK
                if slot.error is not None:
                    self.skipped += 1
                    if not actor.leaves_out(slot):
                        break
                slots.popleft()
            else:
                if slot.state is SlotState.PAUSED and len(out.items) < out.capacity:
                    actor.resume(slot)
                break
        actor.stats.items_out += given
        return bool(slots) and bool(slots[0].outputs)

    def clear(self) -> None:
        """Let go of all items."""
        self.slots.clear()

    def _position(self, slot: Slot) -> Any:
        if self._is_simple:
            return slot.after
        if self._actor.how.expands and slot.value is not MARK:
            return _Place(slot.before, slot.emitted, self.seen, self.skipped)
        return _Place(slot.after, 0, self.seen + (slot.value is not MARK), self.skipped)

    def freeze(self, position: Any) -> Any:
        """A position as plain data."""
        upstream = self._actor.upstream
        if self._is_simple:
            return upstream.freeze(position)
        return [upstream.freeze(position.at), position.emitted, position.seen, position.skipped]


@dataclass(slots=True, eq=False)
class Trail:
    """A position in a stream whose order is chance."""

    at: Any  # position in front of the stage, before the oldest item that has not gone out
    origin: int  # number of that item
    mask: int  # bit i says that item origin + i has gone out
    partly: tuple[tuple[int, int], ...]  # items of which a part has gone out, with the number of outputs
    seen: int  # as in the order of the inputs
    skipped: int  # as there
    number: int  # of the item whose output has gone out at this position
    next: Trail | None = None


class Unordered:
    """Results go out as they come; as far as a saved position goes, in the order in which they went out before.

    Arguments and attributes are those of `InOrder`.
    """

    def __init__(self, actor: CallActor, state: Any) -> None:
        self.slots: deque[Slot] = deque()
        self.seen = self.skipped = 0
        self._actor = actor
        self.accepted = 0
        self._origin = 0
        self._at = actor.upstream.start
        self._mask = 0
        self._partly: dict[int, int] = {}
        self._known: deque[int] = deque()  # numbers of the items that go out next, as they did before
        self._ready: deque[Slot] = deque()
        self.open = 0
        if state is not None:
            _, self._mask, partly, self.seen, self.skipped, known = state
            self._partly = {int(number): emitted for number, emitted in partly}
            self._known.extend(known)
        self._reach = max(self._known, default=-1)
        self.start = self._trail = self._behind(-1)

    @staticmethod
    def front(how: Any, state: Any) -> Any:  # noqa: ARG004
        """The part of a saved position that is for the stages in front."""
        return None if state is None else state[0]

    def accept(self, value: Any, before: Any, after: Any) -> Slot:
        """An item has come."""
        slot = Slot(self.accepted, value, before, after)
        self.accepted += 1
        self.slots.append(slot)
        if self._mask >> (slot.number - self._origin) & 1:  # it went out before
            slot.state = SlotState.DONE
            slot.is_gone = True
            self._advance()
        else:
            slot.skip = slot.emitted = self._partly.get(slot.number, 0)
            self.open += 1
        return slot

    def has_room(self, limit: int) -> bool:
        """Return whether there is room for another item, while up to ``limit`` are in calls."""
        if self.accepted <= self._reach:  # it is to go out next
            return True
        room = limit + self._actor.how.waiting_results
        return self.open < room and len(self.slots) < 64 * room

    def gained(self, slot: Slot) -> None:
        """An item has outputs, or its last call has ended."""
        if slot not in self._ready:
            self._ready.append(slot)

    def is_due(self) -> bool:
        """Return whether `emit` would find something to do."""
        out = self._actor.out
        if len(out.items) >= out.capacity:
            return False
        slot = self._pick()
        return slot is not None and (bool(slot.outputs) or slot.state in (SlotState.DONE, SlotState.PAUSED))

    def emit(self) -> bool:
        """Give the results that are next; return whether one is left that there is no room for."""
        actor, out = self._actor, self._actor.out
        while (slot := self._pick()) is not None:
            if slot.outputs:
                if len(out.items) >= out.capacity:
                    return True
                value = slot.outputs.popleft()
                slot.emitted += 1
                actor.stats.items_out += 1
                self._gave(slot)
                out.items.append((value, self._trail))
                out.owner.wake()
            elif slot.state is SlotState.DONE:
                if slot.error is not None:
                    self.skipped += 1
                    if not actor.leaves_out(slot):
                        return False
                self._leave(slot)
            elif slot.state is SlotState.PAUSED and len(out.items) >= out.capacity:
                return False
            else:
                if slot in self._ready:
                    self._ready.remove(slot)
                if slot.state is SlotState.PAUSED:
                    actor.resume(slot)
                elif self._known:
                    break
        return False

    def clear(self) -> None:
        """Let go of all items."""
        self.slots.clear()
        self._ready.clear()

    def _pick(self) -> Slot | None:
        if self._known:
            index = self._known[0] - self._origin
            return self.slots[index] if 0 <= index < len(self.slots) else None
        return self._ready[0] if self._ready else None

    def _gave(self, slot: Slot) -> None:
        if self._known:
            self._known.popleft()
        if slot.state is SlotState.DONE and not slot.outputs and slot.error is None:
            self._leave(slot)
        else:
            self._partly[slot.number] = slot.emitted
        self._trail.next = self._trail = self._behind(slot.number)

    def _behind(self, number: int) -> Trail:
        partly = tuple(self._partly.items())
        return Trail(self._at, self._origin, self._mask, partly, self.seen, self.skipped, number)

    def _leave(self, slot: Slot) -> None:
        slot.is_gone = True
        self.open -= 1
        self.seen += 1
        self._partly.pop(slot.number, None)
        if slot in self._ready:
            self._ready.remove(slot)
        while self._known and self._known[0] == slot.number:  # it gives less than it did before
            self._known.popleft()
        self._mask |= 1 << (slot.number - self._origin)
        self._advance()

    def _advance(self) -> None:
        while self.slots and self.slots[0].is_gone:
            self._at = self.slots.popleft().after
            self._origin += 1
            self._mask >>= 1

    def freeze(self, position: Trail) -> Any:
        """A position as plain data."""
        known = []
        following = position.next
        while following is not None:
            known.append(following.number - position.origin)
            following = following.next
        partly = [[number - position.origin, emitted] for number, emitted in position.partly]
        front = self._actor.upstream.freeze(position.at)
        return [front, position.mask, partly, position.seen, position.skipped, known]
