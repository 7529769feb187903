"""Feeds, steps and epochs of a training, and means over them."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
)
from contextlib import aclosing
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.data import Feed
from actorflow.errors import GraphError
from actorflow.graph.graph import Feeds
from actorflow.graph.nodes import Blob


class Mean:
    """A running mean of weighted numbers.

    Attributes:
        total: Sum of the numbers, each times its weight.
        weight: Sum of the weights.

    Example:
        >>> mean = af.nn.Mean()
        >>> mean.add(2.0, weight=3)  # the mean of a batch of 3
        >>> mean.add(6.0)
        >>> mean.value
        3.0
    """

    def __init__(self) -> None:
        self.total = 0.0
        self.weight = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        """Count a number, or the mean of as many as the weight says."""
        self.total += value * weight
        self.weight += weight

    @property
    def value(self) -> float:
        """The mean; nan of nothing."""
        return self.total / self.weight if self.weight else float("nan")

    def __repr__(self) -> str:
        return f"<Mean {self.value:g} of {self.weight:g}>"


def means(gathered: Mapping[str, Mean]) -> dict[str, float]:
    """The means by name."""
    return {name: mean.value for name, mean in gathered.items()}


def check_counts(metrics: Mapping[str, Blob]) -> None:
    """Check that metrics can leave out rows that only fill a batch; raises GraphError naming a mean over all rows."""
    for name, blob in metrics.items():
        if not blob.shape:
            raise GraphError(
                f"metric {name!r} is a mean over the whole batch, of whose rows some may only fill it: "
                "give a value per row"
            )


def mean_of(name: str, value: npt.NDArray[Any], count: int | None, rows: int | None = None) -> tuple[float, int]:
    """The mean of a metric over the rows of a batch that count, and how many these are.

    A mean over the batch, of shape (), counts as ``rows``, or as one: all batches are alike then.

    Raises:
        GraphError: if it has fewer rows than count.
    """
    if not value.ndim:
        return float(value), 1 if rows is None else rows
    part = value[:count]
    if count is not None and len(part) < count:
        raise GraphError(f"metric {name!r} has values for {len(part)} rows, but {count} rows of the batch count")
    return (float(part.mean(dtype=np.float64)) if part.size else 0.0), len(part)


def rows_of(lengths: Mapping[str, int], axes: Collection[str]) -> int | None:
    """Rows of a frame's batches along open axes; None if it has no such axis."""
    found = [lengths[axis] for axis in axes if axis in lengths]
    return sum(found) if found else None


#: The feeds of one epoch: each a mapping, or a pair of it and the number of its rows that count.
Epochful = AsyncIterable[Any] | Iterable[Any]
#: Data to train on: the feeds of each epoch, or a function that gives those of an epoch, counted from 0.
Feeding = Epochful | Callable[[int], Epochful]
#: Measures the network after an epoch: numbers by name.
Validate = Callable[[], Awaitable[Mapping[str, float]]]


class Step(NamedTuple):
    """Results of one step of a training.

    Attributes:
        number: Of the step in the whole training, counted from 1.
        epoch: That it belongs to, counted from 0.
        loss: Before the step's updates.
        metrics: By name; means over the rows of the batch that count.
        rows: How many rows the step counts as in means over several; None where all batches have the same number.

    Example:
        >>> graph = af.Graph("g")
        >>> x, w = graph.blob("x", ["batch"]), graph.variable("w", [], init=1)
        >>> loss = af.ops.mean(af.ops.square(x - w))
        >>> trainer = af.nn.Trainer(loss, af.nn.SGD(0.25).minimize(loss))
        >>> async def main():
        ...     async with graph:
        ...         return [step async for step in trainer.steps([{x: [1, 3]}, {x: [2, 2, 2]}])]
        >>> af.run(main())
        [Step(number=1, epoch=0, loss=2.0, metrics={}, rows=2), Step(number=2, epoch=0, loss=0.25, metrics={}, rows=3)]
    """

    number: int
    epoch: int
    loss: float
    metrics: dict[str, float]
    rows: int | None = None

    def add_to(self, gathered: MutableMapping[str, Mean]) -> None:
        """Count the loss and the metrics, by the rows, in means over several steps.

        Example:
            >>> from collections import defaultdict
            >>> means = defaultdict(af.nn.Mean)
            >>> af.nn.Step(1, 0, loss=2.0, metrics={}, rows=3).add_to(means)
            >>> af.nn.Step(2, 0, loss=6.0, metrics={}, rows=1).add_to(means)
            >>> means["loss"].value
            3.0
        """
        for name, value in {"loss": self.loss, **self.metrics}.items():
            gathered.setdefault(name, Mean()).add(value, 1 if self.rows is None else self.rows)


class Epoch(NamedTuple):
    """Results of one epoch of a training.

    Attributes:
        number: Counted from 0.
        steps: How many steps were taken; fewer than the epoch has where the training began within it.
        means: Means of loss and metrics over these steps.
        validation: Result of ``validate`` after the last of them.

    Example:
        >>> graph = af.Graph("g")
        >>> x, w = graph.blob("x", []), graph.variable("w", [], init=1)
        >>> loss = af.ops.square(x - w)
        >>> trainer = af.nn.Trainer(loss, af.nn.SGD(0.5).minimize(loss))
        >>> async def main():
        ...     async with graph:
        ...         async for epoch in trainer.epochs([{x: 3}, {x: 3}], epochs=2):
        ...             print(epoch)
        >>> af.run(main())
        Epoch(number=0, steps=2, means={'loss': 2.0}, validation={})
        Epoch(number=1, steps=2, means={'loss': 0.0}, validation={})
    """

    number: int
    steps: int
    means: dict[str, float]
    validation: dict[str, float]


async def counted(items: AsyncIterable[Any] | Iterable[Any]) -> AsyncGenerator[tuple[Feeds, int | None], None]:
    """Feeds with the number of their rows that count in metrics, None for all of them; closed with ``items``."""
    async with aclosing(iterated(items)) as feeds:
        async for item in feeds:
            yield item if isinstance(item, tuple) else (item, item.count if isinstance(item, Feed) else None)


async def iterated(items: AsyncIterable[Any] | Iterable[Any]) -> AsyncGenerator[Any, None]:
    """Any iterable as an async one; closed with it, if it can be."""
    if isinstance(items, AsyncIterable):
        iterator = aiter(items)
        try:
            async for item in iterator:
                yield item
        finally:
            aclose = getattr(iterator, "aclose", None)
            if aclose is not None:
                await aclose()
    else:
        plain: Iterator[Any] = iter(items)
        try:
            for item in plain:
                yield item
        finally:
            close = getattr(plain, "close", None)
            if close is not None:
                close()
