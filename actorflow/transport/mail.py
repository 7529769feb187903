"""Calls that are made at later turns of a loop, in order or as if they had been on their way for a while."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any


class Mail:
    """Letters: calls for a rank, which the loop makes at its next turn, or some turns later.

    Args:
        rng: Says who overtakes whom, and how long; None for nobody. Letters of one stream are never overtaken.

    Attributes:
        loop: The loop; None before `bind`.
    """

    def __init__(self, rng: random.Random | None) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._rng = rng
        self._letters: dict[Hashable, deque[_Letter]] = {}
        self._gone: set[int] = set()
        self._held: dict[int, list[_Letter]] = {}
        self._scheduled = False

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the loop. What was put before there was one is delivered; what another one did not deliver is not."""
        if self.loop is not None:
            self._letters.clear()
        self.loop = loop
        self._scheduled = False
        self._schedule()

    @property
    def is_busy(self) -> bool:
        """Whether letters wait for the loop."""
        return bool(self._letters)

    def put(self, stream: Hashable, rank: int | None, call: Callable[..., object], *args: Any) -> None:
        """Have ``call`` called, unless the rank has been dropped by then; None for no rank."""
        self._letters.setdefault(stream if self._rng else None, deque()).append((rank, call, args))
        self._schedule()

    def drop(self, rank: int) -> None:
        """Deliver nothing to a rank any more."""
        self._gone.add(rank)

    def hold(self, rank: int) -> None:
        """Keep what comes for a rank, until `release`."""
        self._held[rank] = []

    def keep(self, rank: int, call: Callable[..., object], *args: Any) -> None:
        """Have a call made when a rank is released."""
        self._held[rank].append((rank, call, args))

    def release(self, rank: int) -> None:
        """Deliver to a rank again, at once what was kept."""
        for letter in self._held.pop(rank):
            self._deliver(letter)

    def _schedule(self) -> None:
        if self._letters and not self._scheduled and self.loop is not None and not self.loop.is_closed():
            self._scheduled = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Hand this turn's letters to the loop, each by itself: one that raises does not touch the others."""
        assert self.loop is not None
        self._scheduled = False
        if self._rng is None:
            for letter in self._letters.pop(None):
                self.loop.call_soon(self._deliver, letter)
            return
        streams = list(self._letters.items())
        self._rng.shuffle(streams)
        for stream, letters in streams:
            for _ in range(self._rng.randint(-1, len(letters))):
                self.loop.call_soon(self._deliver, letters.popleft())
            if not letters:
                del self._letters[stream]
        self._schedule()

    def _deliver(self, letter: _Letter) -> None:
        rank, call, args = letter
        if rank is not None and rank in self._held:
            self._held[rank].append(letter)
        elif rank not in self._gone:
            call(*args)


_Letter = tuple[int | None, Callable[..., object], tuple[Any, ...]]
