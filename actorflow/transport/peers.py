"""Other ranks as one of them knows them: their notes, whether they answer, and how they have ended."""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from actorflow.errors import PeerFailedError, PeerLostError, TransportError, seconds
from actorflow.transport.base import Listener, PeerError


class NoteInbox:
    """Keeps the news while there is no listener, in order."""

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        self._later = later  # has the loop call something soon
        self.listener: Listener | None = None  # told of notes and ends, if there is one
        self.ends: dict[int, PeerError] = {}
        self._untold: deque[tuple[int, bytes | None]] = deque()  # None for the end of a rank
        self._told: set[int] = set()

    def listen(self, listener: Listener | None) -> None:
        self.listener = listener
        self._told.clear()
        if listener is not None:
            self._untold += [(rank, None) for rank in self.ends]
            for _ in self._untold:
                self._later(self._tell)

    def hear(self, rank: int, note: bytes) -> None:
        """A note has come. Called on the loop, outside of the listener's calls."""
        self._untold.append((rank, note))
        self._tell()

    def hear_of_end(self, error: PeerError) -> None:
        """A rank has ended, and all its notes have come. Called as `hear` is, once for each rank."""
        self.ends[error.rank] = error
        self._untold.append((error.rank, None))
        self._tell()

    def error(self, rank: int) -> PeerError:
        """The error for a transfer with a rank that has ended: a new one each time, as raising changes it."""
        return copy.copy(self.ends[rank])

    def clear(self) -> None:
        """Forget the listener and the news it was not told."""
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


_DEFAULT_S = 30.0  # seconds, unless the program or the environment says otherwise
_VARIABLE = "ACTORFLOW_LIVENESS"
_TIMES = 20  # questions to a rank before it counts as lost: it may miss some, as datagrams get lost
_LONGEST_S = 5.0


class Liveness:
    """Asks the ranks that this one waits for whether they are alive, and finds those that do not answer.

    The time counts in which this rank itself could have heard an answer: while its loop is blocked, or its own
    process stopped, hardly any passes.
    """

    def __init__(self, limit_s: float, ask: Callable[[int], object]) -> None:
        self.limit_s = limit_s  # after how many seconds without an answer a rank is lost; infinite for never
        self._ask = ask  # asks a rank; its answer is told by `answered`
        self._silent_s: dict[int, float] = {}
        self._answered: set[int] = set()
        self._looked_s = 0.0

    @property
    def interval_s(self) -> float:
        """Seconds between two looks."""
        return min(self.limit_s / _TIMES, _LONGEST_S)

    def answered(self, rank: int) -> None:
        """A rank has given a sign of life. May be called on any thread."""
        self._answered.add(rank)

    def look(self, now_s: float, awaited: Iterable[int]) -> list[int]:
        """Ask the ranks that are waited for; returns those that are lost."""
        passed_s = max(0.0, min(now_s - self._looked_s, 2 * self.interval_s))
        self._looked_s = now_s
        answered, self._answered = self._answered, set()
        before, self._silent_s = self._silent_s, {}
        lost = []
        for rank in awaited:
            silent_s = before[rank] + passed_s if rank in before and rank not in answered else 0.0
            if silent_s >= self.limit_s:
                lost.append(rank)
            else:
                self._silent_s[rank] = silent_s
                self._ask(rank)
        return lost

    def error(self, rank: int) -> PeerLostError:
        """The error for a rank that this has found to be lost."""
        return PeerLostError(
            rank,
            f"rank {rank} is lost: it has not answered for {self.limit_s:g} s, so its process is frozen or cannot be "
            f"reached",
        )


def lost_elsewhere(rank: int, by: int) -> PeerLostError:
    """The error for a rank that another one has found to be lost, before that left."""
    return PeerLostError(rank, f"rank {rank} is lost: it has not answered rank {by}")


def has_left(rank: int) -> PeerFailedError:
    """The error for transfers under way with a rank that has closed its transport."""
    return PeerFailedError(rank, f"rank {rank} has left: its program has ended while others wait for it")


def given_up(rank: int) -> PeerFailedError:
    """The error on a rank that another one counts as lost, and waits for no more."""
    return PeerFailedError(rank, f"rank {rank} has given this rank up, which did not answer for too long")


def liveness_of(given_s: float | None, environment: Mapping[str, str] = os.environ) -> float:
    """Seconds after which a silent rank is lost: as given, as the environment says, or 30; raises TransportError."""
    name, value = "liveness_s", given_s
    if value is None:
        name, text = _VARIABLE, environment.get(_VARIABLE, "").strip()
        try:
            value = float(text) if text else _DEFAULT_S
        except ValueError:
            raise TransportError(f"{name} must be a number of seconds, or inf for no limit, got {text!r}") from None
    return seconds(name, value, positive=True, finite=False, error=TransportError)
