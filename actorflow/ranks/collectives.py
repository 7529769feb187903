"""Order of a graph's collectives: the same on all ranks, though they become ready in different orders.

The lowest rank of a collective's group keeps the order: the others tell it what is ready there, it says what starts
next. Of several that are ready everywhere, the one with the highest priority goes first, so the front layers'
gradients, which the next frame needs first, overtake those of later layers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from actorflow.ops.collective import AllReduce
from actorflow.transport.base import Transport

#: Does this rank's part of a collective that starts; calls its argument when that has ended.
Run = Callable[[Callable[[], None]], None]
#: Collectives of one group under way at once: enough to hide the words between them, few enough to keep the order.
_AT_ONCE = 2


class _Tally:
    """Ranks that have spoken of one collective in one frame, counted by the keeper of the order."""

    __slots__ = ("priority", "ranks", "voices", "void")

    def __init__(self, ranks: tuple[int, ...], priority: int) -> None:
        self.ranks = ranks
        self.priority = priority
        self.voices = 0
        self.void = False


class Collectives:
    """The collectives of one graph on one rank."""

    def __init__(self, transport: Transport, post: Callable[..., None]) -> None:
        self._transport = transport  # computes them
        self._post = post  # says something to the counterpart on a rank
        self._waiting: dict[tuple[int, str], Run | None] = {}
        self._tallies: dict[tuple[int, str], _Tally] = {}
        self._ready: dict[tuple[int, ...], list[tuple[int, int, int, str]]] = {}
        self._running: dict[tuple[int, ...], int] = {}
        self._numbers = count()

    def ready(self, serial: int, operation: AllReduce, run: Run | None) -> None:
        """This rank's part of a collective is ready; None if this rank's frame has stopped."""
        self._waiting[serial, operation.group] = run
        keeper = operation.ranks[0]
        self._post(keeper, "ready", serial, operation.group, list(operation.ranks), operation.priority, run is not None)

    def heard_ready(self, _: int, serial: int, name: str, ranks: list[int], priority: int, is_ready: bool) -> None:
        """On the keeper of the order: a rank has said `ready`."""
        group = tuple(ranks)
        tally = self._tallies.setdefault((serial, name), _Tally(group, priority))
        tally.voices += 1
        tally.void |= not is_ready
        if tally.voices < len(group):
            return
        del self._tallies[serial, name]
        if tally.void:
            self._tell(group, "void", serial, name)
        else:
            # Earlier frames first: later ones cannot end before them anyway.
            entry = (serial, -priority, next(self._numbers), name)
            heapq.heappush(self._ready.setdefault(group, []), entry)
            self._start_next(group)

    def heard_start(self, _: int, serial: int, name: str, ranks: list[int]) -> None:
        """The keeper says that a collective starts now."""
        run = self._waiting.pop((serial, name))
        assert run is not None
        group = tuple(ranks)
        run(lambda: self._ended(group))

    def heard_void(self, _: int, serial: int, name: str) -> None:
        """The keeper says that a collective does not take place: a rank's frame has stopped."""
        self._waiting.pop((serial, name), None)

    def _start_next(self, group: tuple[int, ...]) -> None:
        ready = self._ready[group]
        while ready and self._running.get(group, 0) < _AT_ONCE:
            self._running[group] = self._running.get(group, 0) + 1
            serial, _, _, name = heapq.heappop(ready)
            self._tell(group, "start", serial, name, list(group))

    def _tell(self, group: tuple[int, ...], kind: str, *content: object) -> None:
        for rank in group:
            self._post(rank, kind, *content)

    def _ended(self, group: tuple[int, ...]) -> None:
        if group[0] == self._transport.rank:
            self._running[group] -= 1
            self._start_next(group)
