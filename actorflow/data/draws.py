"""Random numbers by counter: each is a function of a seed, an epoch and the number of an example, and of nothing else.

So what is drawn for an example depends neither on the batch it is in, nor on who draws it, when, or what was drawn
before, and no generator has a state that a checkpoint would have to hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import DataError

#: Numbers of examples in a data set, int64, shape (count,).
Rows = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

#: The golden ratio's share of 2**64: the step of SplitMix64's counter.
_STEP = np.uint64(0x9E3779B97F4A7C15)


def key_of(seed: int, epoch: int, stream: int) -> np.uint64:
    """The key of a stream of numbers.

    Args:
        seed: Not negative.
        epoch: Counted from 0.
        stream: Tells apart what is drawn for different purposes.
    Raises:
        DataError: if one of them is negative.
    """
    if seed < 0 or epoch < 0:
        raise DataError(f"expected a seed and an epoch that are not negative, got {seed} and {epoch}")
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


@dataclass(frozen=True, eq=False)
class Draws:
    """Random numbers for each example of a batch.

    The same numbers are given whenever they are asked for: a step that needs two asks for two columns.

    Attributes:
        seed: Not negative.
        epoch: Counted from 0.
        rows: Number of each example in the data set, shape (batch,).
        stream: Tells apart the steps of an augmentation.

    Raises:
        DataError: if the seed or the epoch is negative.
    """

    seed: int
    epoch: int
    rows: Rows
    stream: int = 0
    _words: _Words = field(init=False, repr=False)

    def __post_init__(self) -> None:
        words = words_of(key_of(self.seed, self.epoch, self.stream), self.rows)
        object.__setattr__(self, "_words", words)

    def uniform(self, columns: int = 1) -> npt.NDArray[np.float64]:
        """Numbers from 0 to less than 1, float64, shape (batch, columns)."""
        keys = words_of(np.uint64(0), np.arange(columns))
        return (words_of(keys, self._words[:, np.newaxis]) >> np.uint64(11)) * np.float64(2.0**-53)

    def below(self, *bounds: int) -> npt.NDArray[np.int64]:
        """Integers from 0 to less than each of the bounds, which are at least 1; int64, shape (batch, bounds)."""
        scaled: npt.NDArray[np.float64] = self.uniform(len(bounds)) * np.array(bounds)
        return scaled.astype(np.int64)
