"""Numbers gathered over steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import GraphError
from actorflow.graph.nodes import Blob


class Mean:
    """A running mean of weighted numbers.

    Attributes:
        total: Sum of the numbers, each times its weight.
        weight: Sum of the weights.
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
    """Check that metrics can leave out the rows that only fill a batch.

    Raises:
        GraphError: naming one that is a mean over the whole batch, with all its rows.
    """
    for name, blob in metrics.items():
        if not blob.shape:
            raise GraphError(
                f"metric {name!r} is a mean over the whole batch, of whose rows some may only fill it: "
                "give a value per row"
            )


def mean_of(name: str, value: npt.NDArray[Any], rows: int | None) -> tuple[float, int]:
    """The mean of a metric over the rows of a batch that count, and how many these are.

    Args:
        name: Of the metric.
        value: Shape () for a mean over the batch, which counts as one, or (batch, ...).
        rows: How many rows count, the first ones; None for all.
    Raises:
        GraphError: if it has fewer rows than count.
    """
    if not value.ndim:
        return float(value), 1
    part = value[:rows]
    if rows is not None and len(part) < rows:
        raise GraphError(f"metric {name!r} has values for {len(part)} rows, but {rows} rows of the batch count")
    return (float(part.mean(dtype=np.float64)) if part.size else 0.0), len(part)
