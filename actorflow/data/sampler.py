"""The order in which the examples of a data set are taken, epoch by epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from actorflow.data.draws import Rows, key_of, words_of
from actorflow.errors import DataError


@dataclass(frozen=True)
class Sampler:
    """The order of the examples in each epoch: a function of the seed and the epoch, with no state.

    ::

        sampler = Sampler(50_000, seed=0)
        sampler.rows(epoch=3)[1_000:1_128]  # what the examples 1,000 to 1,127 of the fourth epoch are

    Attributes:
        count: Examples of the data set, at least 1.
        seed: Of the permutations, not negative; None for the examples in order.
        offset: Which of every ``interval`` examples of the order are taken, from 0 to ``interval - 1``.
        interval: Of so many samplers with the same seed, one for each machine say, each takes another share of the
            epoch. The shares are of one size: up to ``interval - 1`` examples at the epoch's end are left out.

    Raises:
        DataError: if a number is out of range.
    Source: Purine2 ``ImageLabel`` (random, offset, interval).
    """

    count: int
    seed: int | None = None
    offset: int = 0
    interval: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.offset < self.interval <= self.count:
            raise DataError(
                "Sampler: expected 0 <= offset < interval <= count, "
                f"got offset {self.offset}, interval {self.interval} and count {self.count}"
            )
        if self.seed is not None and self.seed < 0:
            raise DataError(f"Sampler: expected a seed that is not negative, got {self.seed}")

    def __len__(self) -> int:
        """How many examples an epoch has."""
        return self.count // self.interval

    def rows(self, epoch: int) -> Rows:
        """The examples of an epoch, int64, shape (len(self),).

        Args:
            epoch: Counted from 0.
        Raises:
            DataError: if it is negative.
        """
        order = np.arange(self.count)
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
