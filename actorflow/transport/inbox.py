"""Notes and ends of ranks that a rank has heard of, until its listener is told."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable

from actorflow.transport.base import Listener, PeerError


class Inbox:
    """Keeps what is for the listener while there is none, and its order.

    Args:
        later: Has the loop call something soon.

    Attributes:
        listener: Who is told, if somebody listens.
        ends: How other ranks have ended.
    """

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        self._later = later
        self.listener: Listener | None = None
        self.ends: dict[int, PeerError] = {}
        self._untold: deque[tuple[int, bytes | None]] = deque()  # None for the end of a rank
        self._told: set[int] = set()

    def listen(self, listener: Listener | None) -> None:
        """See `Transport.listen`."""
        self.listener = listener
        self._told.clear()
        if listener is not None:
            self._untold += [(rank, None) for rank in self.ends]
            for _ in self._untold:
                self._later(self._tell)

    def hear(self, rank: int, note: bytes) -> None:
        """A note has come. Called on the loop, outside of what the listener does."""
        self._untold.append((rank, note))
        self._tell()

    def hear_of_end(self, error: PeerError) -> None:
        """A rank has ended, and all its notes have come. Called as `hear` is, once for each rank."""
        self.ends[error.rank] = error
        self._untold.append((error.rank, None))
        self._tell()

    def error(self, rank: int) -> PeerError:
        """The error for what has to do with a rank that has ended: a new one, as whoever raises it changes it."""
        return copy.copy(self.ends[rank])

    def clear(self) -> None:
        """Forget the listener and what it was not told."""
        self.listener = None
        self._untold.clear()

    def _tell(self) -> None:
        """Tell the oldest; one at a time, so that a listener that raises is told the others."""
        if self.listener is None or not self._untold:
            return
        rank, note = self._untold.popleft()
        if note is not None:
            self.listener.heard(rank, note)
        elif rank not in self._told:
            self._told.add(rank)
            self.listener.ended(self.error(rank))
