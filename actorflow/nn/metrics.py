"""Numbers gathered over steps."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Mean", "means"]


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
