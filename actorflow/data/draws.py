"""Random numbers by counter: each is a function of a seed, an epoch and the number of an example, and of nothing else.

So what is drawn for an example depends neither on the batch it is in, nor on who draws it, when, or what was drawn
before, and no generator has a state that a checkpoint would have to hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from actorflow.pipeline.stages.sampler import Rows, key_of, words_of


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
    _words: npt.NDArray[np.uint64] = field(init=False, repr=False)

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
