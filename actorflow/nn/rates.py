"""Learning-rate policies: pure functions of the step, so that a run continues where its steps are.

A policy is any ``policy(step)`` that gives the rate of a step, which is counted from 0; those here are the usual ones,
and raise GraphError for numbers that are out of range::

    af.nn.SGD(af.nn.rates.Warmup(af.nn.rates.Cosine(0.1, steps=10_000), steps=500), momentum=0.9)
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actorflow.errors import GraphError, real, whole
from actorflow.ops.operation import savable

#: Gives the rate of a step; the first step is 0.
Policy = Callable[[int], float]


@savable
@dataclass(frozen=True)
class Fixed:
    """The same rate in all steps.

    Attributes:
        rate: The rate, not negative.

    Example:
        >>> rate = af.nn.rates.Fixed(0.1)
        >>> rate(0), rate(1000)
        (0.1, 0.1)
    """

    rate: float

    def __post_init__(self) -> None:
        _check(self, numbers=("rate",))

    def __call__(self, step: int) -> float:
        return self.rate


@savable
@dataclass(frozen=True)
class StepDecay:
    """``rate * factor ** (step // every)``. Source: Caffe ``step``.

    Attributes:
        rate: Rate of the first step, not negative.
        every: How many steps have one rate, positive.
        factor: Multiplier of the rate then, not negative.

    Example:
        >>> rate = af.nn.rates.StepDecay(1.0, every=100, factor=0.5)
        >>> [rate(step) for step in (0, 99, 100, 200)]
        [1.0, 1.0, 0.5, 0.25]
        >>> optimizer = af.nn.SGD(rate)
    """

    rate: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check(self, numbers=("rate", "factor"), counts=("every",))

    def __call__(self, step: int) -> float:
        return self.rate * self.factor ** (step // self.every)


@savable
@dataclass(frozen=True)
class MultiStep:
    """``rate * factor ** k``, where k of the milestones have been reached. Source: Caffe ``multistep``.

    Attributes:
        rate: Rate of the first step, not negative.
        milestones: Steps that are the first ones at the next rate, in ascending order.
        factor: Multiplier of the rate there, not negative.

    Raises:
        GraphError: if a number is out of range or the milestones are not ascending.

    Example:
        >>> rate = af.nn.rates.MultiStep(1.0, milestones=(100, 150), factor=0.5)
        >>> [rate(step) for step in (0, 99, 100, 150)]
        [1.0, 1.0, 0.5, 0.25]
    """

    rate: float
    milestones: tuple[int, ...]
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check(self, numbers=("rate", "factor"))
        milestones = tuple([whole("MultiStep: milestones", step) for step in self.milestones])
        object.__setattr__(self, "milestones", milestones)
        if any(a >= b for a, b in zip(self.milestones, self.milestones[1:], strict=False)):
            raise GraphError(f"MultiStep: milestones must be ascending, got {self.milestones}")

    def __call__(self, step: int) -> float:
        return self.rate * self.factor ** bisect_right(self.milestones, step)


@savable
@dataclass(frozen=True)
class Poly:
    """``rate * (1 - step / steps) ** power``, and 0 from ``steps`` on. Source: Caffe ``poly``.

    Attributes:
        rate: Rate of the first step, not negative.
        steps: Number of steps, positive.
        power: 1 for a straight line; 0.5 in Purine2's GoogLeNet. Not negative.

    Example:
        >>> rate = af.nn.rates.Poly(1.0, steps=100)
        >>> [rate(step) for step in (0, 25, 75, 100)]
        [1.0, 0.75, 0.25, 0.0]
    """

    rate: float
    steps: int
    power: float = 1.0

    def __post_init__(self) -> None:
        _check(self, numbers=("rate", "power"), counts=("steps",))

    def __call__(self, step: int) -> float:
        return self.rate * (1 - step / self.steps) ** self.power if step < self.steps else 0.0


@savable
@dataclass(frozen=True)
class Cosine:
    """Half a wave of a cosine from ``rate`` to ``floor``, and ``floor`` from ``steps`` on.

    Attributes:
        rate: Rate of the first step, not negative.
        steps: Number of steps, positive.
        floor: The last rate, not negative.
    Source: Loshchilov and Hutter, SGDR, 2017, without restarts.

    Example:
        >>> rate = af.nn.rates.Cosine(1.0, steps=100)
        >>> [round(rate(step), 3) for step in (0, 25, 50, 100)]
        [1.0, 0.854, 0.5, 0.0]
    """

    rate: float
    steps: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check(self, numbers=("rate", "floor"), counts=("steps",))

    def __call__(self, step: int) -> float:
        if step >= self.steps:
            return self.floor
        return self.floor + (self.rate - self.floor) * (1 + math.cos(math.pi * step / self.steps)) / 2


@savable
@dataclass(frozen=True)
class Warmup:
    """A straight line from ``start`` times the policy's first rate up to that rate, then the policy from its step 0 on.

    Attributes:
        policy: The policy that follows.
        steps: Steps of the warm-up, positive; they come in addition to the policy's own.
        start: Share of the rate that the first step has, not negative.
    Source: Goyal et al., Accurate, large minibatch SGD, 2017.

    Example:
        >>> rate = af.nn.rates.Warmup(af.nn.rates.Cosine(1.0, steps=100), steps=10)
        >>> [round(rate(step), 3) for step in (0, 5, 10, 60, 110)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    policy: Policy
    steps: int
    start: float = 0.0

    def __post_init__(self) -> None:
        _check(self, numbers=("start",), counts=("steps",))

    def __call__(self, step: int) -> float:
        if step >= self.steps:
            return self.policy(step - self.steps)
        return self.policy(0) * (self.start + (1 - self.start) * step / self.steps)


def _check(policy: object, *, numbers: Sequence[str], counts: Sequence[str] = ()) -> None:
    kind = type(policy).__name__
    for name in numbers:
        object.__setattr__(policy, name, real(f"{kind}: {name}", getattr(policy, name), 0))
    for name in counts:
        object.__setattr__(policy, name, whole(f"{kind}: {name}", getattr(policy, name), 1))
