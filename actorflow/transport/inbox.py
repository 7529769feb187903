"""Notes and deaths that a rank has heard of, until its listener is told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from actorflow.transport.base import Listener

__all__ = ["Inbox"]


class Inbox:
    """Keeps what is for the listener while there is none, and its order.

    Args:
        later: Has the loop call something soon.
    """

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        self._later = later
        self._listener: Listener | None = None
        self._untold: deque[tuple[int, bytes | None]] = deque()  # None for the news of a death
        self._dead: list[int] = []
        self._told: set[int] = set()

    def listen(self, listener: Listener | None) -> None:
        """See `Transport.listen`."""
        self._listener = listener
        self._told.clear()
        if listener is not None:
            self._untold += [(rank, None) for rank in self._dead]
            for _ in self._untold:
                self._later(self._tell)

    def hear(self, rank: int, note: bytes) -> None:
        """A note has come. Called on the loop, outside of what the listener does."""
        self._untold.append((rank, note))
        self._tell()

    def hear_of_death(self, rank: int) -> None:
        """A rank has died, and all its notes have come. Called as `hear` is."""
        if rank not in self._dead:
            self._dead.append(rank)
            self._untold.append((rank, None))
            self._tell()

    def clear(self) -> None:
        """Forget the listener and what it was not told."""
        self._listener = None
        self._untold.clear()

    def _tell(self) -> None:
        """Tell the oldest; one at a time, so that a listener that raises is told the others."""
        if self._listener is None or not self._untold:
            return
        rank, note = self._untold.popleft()
        if note is not None:
            self._listener.heard(rank, note)
        elif rank not in self._told:
            self._told.add(rank)
            self._listener.lost(rank)
