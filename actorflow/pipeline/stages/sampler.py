"""The order in which the examples of a data set are taken, epoch by epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import DataError, whole

#: Numbers of examples in a data set, int64, shape (count,).
Rows = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio's share of 2**64: the step of SplitMix64's counter


def key_of(seed: int, epoch: int, stream: int) -> np.uint64:
    """The key of a stream of numbers, of one of several purposes; raises DataError if an argument is negative."""
    seed, epoch = whole("seed", seed, 0, error=DataError), whole("epoch", epoch, 0, error=DataError)
    stream = whole("stream", stream, 0, error=DataError)
    return np.uint64(np.random.SeedSequence(seed, spawn_key=(epoch, stream)).generate_state(1, np.uint64)[0])


def words_of(key: np.uint64 | _Words, counters: npt.NDArray[Any]) -> _Words:
    """The random word at each counter of a stream, or of one stream for each, uint64.

    Source: SplitMix64, any of whose outputs is a function of its place: Steele, Lea, Flood, "Fast splittable
    pseudorandom number generators", 2014; the mixing is variant 13 of Stafford.
    """
    words: _Words = (counters.astype(np.uint64) + np.uint64(1)) * _STEP + key
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


@dataclass(frozen=True)
class Sampler:
    """The order of the examples in each epoch: a function of the seed and the epoch, with no state.

    Attributes:
        count: Examples of the data set, at least 1.
        seed: Seed of the permutations, not negative; None for the examples in order.
        offset: Which of every ``interval`` examples of the order are taken, from 0 to ``interval - 1``.
        interval: Number of samplers with the same seed, such as one per machine, of which each takes another share of
            the epoch. The shares are of one size: up to ``interval - 1`` examples at the epoch's end are left out.

    Raises:
        DataError: if a number is out of range.
    Source: Purine2 ``ImageLabel`` (random, offset, interval).

    Example:
        >>> sampler = af.data.Sampler(10, seed=0)
        >>> sorted(sampler.rows(epoch=3).tolist()) == list(range(10))
        True
        >>> np.array_equal(sampler.rows(epoch=3), sampler.rows(epoch=4))
        False
        >>> af.data.Sampler(10, offset=1, interval=3).rows(epoch=0)  # the share of the second of three ranks
        array([1, 4, 7])
    """

    count: int
    seed: int | None = None
    offset: int = 0
    interval: int = 1

    def __post_init__(self) -> None:
        for name in ("count", "offset", "interval", "seed"):
            if name != "seed" or self.seed is not None:
                least = 0 if name == "seed" else None
                object.__setattr__(self, name, whole(f"Sampler: {name}", getattr(self, name), least, error=DataError))
        if not 0 <= self.offset < self.interval <= self.count:
            raise DataError(
                "Sampler: expected 0 <= offset < interval <= count, "
                f"got offset {self.offset}, interval {self.interval} and count {self.count}"
            )

    def __len__(self) -> int:
        """Number of examples of an epoch."""
        return self.count // self.interval

    def rows(self, epoch: int) -> Rows:
        """The examples of an epoch, int64, shape (len(self),).

        Args:
            epoch: Counted from 0.
        Raises:
            DataError: if it is negative.
        """
        epoch, order = whole("epoch", epoch, 0, error=DataError), np.arange(self.count)
        if self.seed is not None:
            # Sorting random numbers, whose low bits are made the examples' own. So no two are the same, and the result
            # is that of any sorting algorithm, of any machine and any NumPy.
            words, low = words_of(key_of(self.seed, epoch, 0), order), np.uint64((1 << self.count.bit_length()) - 1)
            words &= ~low
            words |= order.view(np.uint64)
            words.sort()
            words &= low
            order = words.view(np.int64)
        return order[: len(self) * self.interval][self.offset :: self.interval]
