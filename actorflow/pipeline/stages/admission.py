"""Items on a device count against the memory budget of the graph that they are meant for.

They are taken from the part of the budget that frames share, so the oldest frame never waits for a loader: see
`actorflow.actors.budget`. An item is given back when nobody refers to its arrays any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actorflow.actors.budget import Budget
from actorflow.errors import OutOfMemoryError
from actorflow.graph.graph import Graph
from actorflow.place import Place


class Admission:
    """What one stage may have on a device.

    Args:
        graph: Whose budget it is.
        place: Where.
        budget: What the graph's frames take from.
        limit_bytes: All of it.
        loop: Where what is freed is counted.
    """

    def __init__(
        self, graph: Graph, place: Place, budget: Budget, limit_bytes: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._graph = graph
        self._place = place
        self._budget = budget
        self._limit_bytes = limit_bytes
        self._loop = loop

    def admit(self, size_bytes: int, wake: Callable[[], None]) -> bool:
        """Whether an item may be copied now; otherwise ``wake`` is called when it may be tried again.

        Raises:
            OutOfMemoryError: if it never may.
        """
        place, budget = self._place, self._budget
        variables = sum(variable.spec.size_bytes for variable in self._graph.variables if variable.place == place)
        if size_bytes > self._limit_bytes - variables:
            raise OutOfMemoryError(
                f"an item of {size_bytes} bytes does not fit on {place}: the budget of graph {self._graph.name!r} "
                f"there is {self._limit_bytes} bytes, its variables take {variables}"
            )
        room = self._limit_bytes - variables - budget.reserve(place) - budget.shared[place]
        # What frames need there is not known before one has run: until then, one item.
        is_known = place in budget.capacities
        if size_bytes <= room and (is_known or not budget.shared[place]):
            budget.shared[place] += size_bytes
            return True
        if wake not in budget.waiting:
            budget.waiting.append(wake)
        return False

    def forget(self, wake: Callable[[], None]) -> None:
        """Nobody waits there any more."""
        if wake in self._budget.waiting:
            self._budget.waiting.remove(wake)

    def release(self, size_bytes: int) -> None:
        """An array is not referred to any more. In whatever thread, and at any moment."""
        try:
            self._loop.call_soon_threadsafe(self._released, size_bytes)
        except RuntimeError:  # the loop is closed, so no frame waits
            self._budget.shared[self._place] -= size_bytes

    def _released(self, size_bytes: int) -> None:
        self._budget.shared[self._place] -= size_bytes
        self._budget.retry()
