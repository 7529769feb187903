"""A memory budget that ops wait for, without ever waiting for each other.

A plan's order is one in which a frame, run op by op, holds at most its footprint's peak. That much is always kept for
the oldest frame, on each device, which may run the next op of that order at any time. All other ops, of this frame and
of later ones, share what is left. So the sum never exceeds the budget, and the oldest frame never waits for memory: it
ends, and the next one becomes the oldest. The others' memory was taken from the shared part, so that the same
holds for it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from actorflow.actors.frame import Frame
from actorflow.actors.op import OpActor
from actorflow.place import Place


class Account:
    """Bytes that one frame has taken from the budget.

    Args:
        peaks: The footprint's peak of its plan, in bytes, on each place with a limit.
        needs: Bytes of each op's outputs.
        charges: Bytes of each slot.
        places: Where each op's outputs are.
    """

    __slots__ = ("admitted", "charges", "ended", "needs", "next", "peaks", "places", "shared")

    def __init__(
        self, peaks: Mapping[Place, int], needs: Sequence[int], charges: Sequence[int], places: Sequence[Place]
    ) -> None:
        self.peaks = peaks
        self.needs = needs
        self.charges = charges
        self.places = places
        self.next = 0  # index of the first op in the plan's order that has not ended
        self.admitted = bytearray(len(needs))  # 1 for each op that may run or has run
        self.ended = bytearray(len(needs))  # 1 for each op that has ended
        self.shared: dict[int, tuple[Place, int]] = {}  # bytes that each slot has taken from the shared part


class Budget:
    """The memory that the frames of one graph may take on each device, besides its variables.

    Attributes:
        waiting: Called once when something was given back: loaders take from the shared part, too.
    """

    def __init__(self) -> None:
        self.capacities: dict[Place, int] = {}  # that memory in bytes, for each place with a limit
        self.shared: Counter[Place] = Counter()  # bytes taken from the shared part of each place
        self.freed: deque[tuple[Frame, int]] = deque()  # slots given back, from whatever thread, and not yet counted
        self.waiting: list[Callable[[], None]] = []
        self._accounts: dict[Frame, Account] = {}  # oldest first
        self._parked: list[tuple[int, int, OpActor, Frame]] = []

    @property
    def shared_bytes(self) -> int:
        """Bytes taken from the shared parts together."""
        return sum(self.shared.values())

    def open(self, frame: Frame, account: Account) -> None:
        """A frame starts."""
        self._accounts[frame] = account

    def close(self, frame: Frame) -> None:
        """A frame has ended and holds nothing any more."""
        self._count_freed()
        account = self._accounts.pop(frame, None)
        if account is None:  # it could not begin
            return
        for place, taken in account.shared.values():
            self.shared[place] -= taken
        self._parked = [entry for entry in self._parked if entry[3] is not frame]
        self.retry()

    def admit(self, frame: Frame, actor: OpActor) -> bool:
        """Return whether an op may run now; otherwise it becomes ready again when it may."""
        account = self._accounts[frame]
        if account.admitted[actor.index]:
            return True
        if self._parked:
            self._count_freed()
        if self._fits(frame, account, actor):
            return True
        self._parked.append((frame.number, actor.index, actor, frame))
        self._parked.sort(key=lambda entry: entry[:2])
        return False

    def replace(self, frame: Frame, update_slot: int, read_slot: int) -> None:
        """An update has been committed: its bytes now count for the old value, if the frame still reads that."""
        account = self._accounts[frame]
        if frame.values[read_slot] is None:
            self.freed.append((frame, update_slot))
        elif update_slot in account.shared:
            account.shared[read_slot] = account.shared.pop(update_slot)

    def ended(self, frame: Frame, actor: OpActor) -> None:
        """An op has ended, and given back the values that it was the last to read."""
        account = self._accounts.get(frame)
        if account is not None:
            account.ended[actor.index] = 1
            while account.next < len(account.ended) and account.ended[account.next]:
                account.next += 1
        if self._parked or self.waiting:
            self.retry()

    def reserve(self, place: Place) -> int:
        """Bytes kept for the oldest frame on a place."""
        return max((account.peaks.get(place, 0) for account in self._accounts.values()), default=0)

    def _fits(self, frame: Frame, account: Account, actor: OpActor) -> bool:
        need = account.needs[actor.index]
        oldest = next(iter(self._accounts))
        if need and not (frame is oldest and actor.index == account.next):
            place = account.places[actor.index]
            capacity = self.capacities.get(place)
            if capacity is not None:
                if self.shared[place] + need > capacity - self.reserve(place):
                    return False
                self.shared[place] += need
                for blob in actor.outputs:
                    account.shared[blob.slot] = place, account.charges[blob.slot]
        account.admitted[actor.index] = 1
        return True

    def _count_freed(self) -> None:
        while self.freed:
            frame, slot = self.freed.popleft()
            account = self._accounts.get(frame)
            taken = None if account is None else account.shared.pop(slot, None)
            if taken is not None:
                self.shared[taken[0]] -= taken[1]

    def retry(self) -> None:
        """Let parked ops go on as far as they may: something was given back."""
        self._count_freed()
        parked, self._parked = self._parked, []
        for entry in parked:
            _, _, actor, frame = entry
            if self._fits(frame, self._accounts[frame], actor):
                frame.ready.append((actor, frame))
                frame.wake()
            else:
                self._parked.append(entry)
        waiting, self.waiting = self.waiting, []
        for wake in waiting:
            wake()
