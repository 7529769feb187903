"""Calls of the standard's functions, by name: `CASES`."""

from tests.array.cases import creation, fourier, linear, shapes, statistics
from tests.array.cases.registry import CASES

__all__ = ["CASES", "creation", "fourier", "linear", "shapes", "statistics"]
