"""A seeded shuffle of a stream, through a buffer.

An item of the buffer is chosen when another one comes for its place. The choice depends on the seed, the epoch and
how many were chosen before, and never on the items. So the buffer need not be saved: a position names the numbers of
the items that are in it, and a run that begins there takes the stream up again at the oldest of them, and drops the
others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from actorflow.pipeline.stages.passing import PassActor
from actorflow.pipeline.stages.stage import Build, Stage

_BITS = (1 << 64) - 1
_START: Any = (None, 0)  # the position before the first item


class _Draws:
    """Numbers of a splitmix64 generator, whose whole state is one integer.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """

    __slots__ = ("state",)

    def __init__(self, state: int) -> None:
        self.state = state

    @classmethod
    def of(cls, seed: int, epoch: int) -> _Draws:
        """The generator for an epoch."""
        return cls(_mixed(_mixed(seed & _BITS) + epoch & _BITS))

    def below(self, limit: int) -> int:
        """An integer from 0 to ``limit - 1``."""
        self.state = (self.state + 0x9E3779B97F4A7C15) & _BITS
        return _mixed(self.state) * limit >> 64


def _mixed(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _BITS
    return word ^ (word >> 31)


@dataclass(slots=True, eq=False)
class _Basis:
    """Contents of the buffer at some time; positions after it only count the items that have gone out since."""

    held: list[tuple[int, Any]]  # number of each item in the buffer, and the position before it
    number: int  # of the first item that has come since
    draws: int  # state of the generator
    is_draining: bool  # the stream has ended
    came: list[Any] = field(default_factory=list)  # positions before the items that have come since


class _ShuffleActor(PassActor):
    def __init__(self, stage: Shuffle, build: Build, state: Any) -> None:
        super().__init__(stage, build, None if state is None else state[0])
        self._draws = _Draws.of(stage.seed, build.epoch)
        self._before: Any = self.start
        self._number = 0  # of the next item
        self._buffer: list[tuple[Any, int, Any]] = []
        self._since = 0
        # Of the items that come first in a run that begins at a saved position: their places in the buffer, by number.
        self._first: Any = [[], 0, self._draws.state] if state is None else state[1:]
        places, self._known, self._draws.state = self._first
        self._places = {number: place for place, number in enumerate(places)}
        self._buffer = [(None, number, None) for number in places]
        self._basis = self._basis_now(False)
        self.start = _START

    def pass_on(self, value: Any, at: Any) -> None:
        number, before = self._number, self._before
        self._number += 1
        self._before = at
        if number < self._known:  # it was in the buffer, or had gone out
            place = self._places.pop(number, None)
            if place is not None:
                self._buffer[place] = value, number, before
            if self._number == self._known:
                self._basis = self._basis_now(False)
            return
        buffer = self._buffer
        if len(buffer) < self._stage.size:
            buffer.append((value, number, before))
            if len(buffer) == self._stage.size:
                self._basis = self._basis_now(False)
            return
        place = self._draws.below(self._stage.size)
        chosen = buffer[place]
        buffer[place] = value, number, before
        self._basis.came.append(before)
        self._give(chosen[0])

    def flush(self) -> bool:
        buffer = self._buffer
        for place in sorted(self._places.values(), reverse=True):  # they did not come again
            del buffer[place]
        self._places.clear()
        if not buffer:
            return False
        if not self._basis.is_draining:
            self._basis = self._basis_now(True)
        place = self._draws.below(len(buffer))
        chosen, buffer[place] = buffer[place], buffer[-1]
        buffer.pop()
        self._give(chosen[0])
        return True

    def mark(self, at: Any) -> Any:
        if len(self._buffer) < self._stage.size or self._number < self._known:
            return self.start
        return self._basis, self._since

    def _give(self, value: Any) -> None:
        self._since += 1
        self.out.items.append((value, (self._basis, self._since)))
        if self._since >= self._stage.size and not self._basis.is_draining:
            self._basis = self._basis_now(False)

    def _basis_now(self, is_draining: bool) -> _Basis:
        self._since = 0
        held = [(number, before) for _, number, before in self._buffer]
        return _Basis(held, self._number, self._draws.state, is_draining)

    def freeze(self, position: Any) -> Any:
        basis, since = position
        if position is _START:
            return [self.upstream.freeze(self.upstream.start), *self._first]
        held, draws = list(basis.held), _Draws(basis.draws)
        for i in range(since):
            place = draws.below(len(held))
            if basis.is_draining:
                held[place] = held[-1]
                held.pop()
            else:
                held[place] = basis.number + i, basis.came[i]
        following = basis.number + (0 if basis.is_draining else since)
        origin, at = min(held, default=(following, None), key=itemgetter(0))
        if not held:
            origin = following
            at = self._before
        return [self.upstream.freeze(at), [number - origin for number, _ in held], following - origin, draws.state]

    def halt(self) -> None:
        self._buffer = []

    @property
    def held(self) -> int:
        return super().held + len(self._buffer)


class Shuffle(Stage):
    """`Pipeline.shuffle`."""

    kind = "shuffle"
    keeps_marks = True
    actor_type = _ShuffleActor

    size: int
    seed: int

    @property
    def seeds(self) -> tuple[int, ...]:
        return (self.seed,)

    @property
    def shape(self) -> str:
        return f"{self.kind}({self.size}, seed={self.seed})"
