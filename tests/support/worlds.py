"""Namespaces of functions that several libraries have, so that one text runs on the arrays of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class World:
    """Functions of one kind of arrays: those of the first namespace that has them."""

    def __init__(self, constant: Callable[[Any], Any], *namespaces: Any) -> None:
        self.constant, self._namespaces = constant, namespaces

    def __getattr__(self, name: str) -> Any:
        return next(getattr(each, name) for each in self._namespaces if hasattr(each, name))


class Sorted:
    """What the standard has otherwise than NumPy."""

    @staticmethod
    def sort(x: np.ndarray, *, axis: int = -1, descending: bool = False, **stable: bool) -> np.ndarray:
        y = np.sort(x, axis=axis)
        return np.flip(y, axis=axis) if descending else y

    @staticmethod
    def argsort(x: np.ndarray, *, axis: int = -1, descending: bool = False, **stable: bool) -> np.ndarray:
        return np.argsort(-x if descending else x, axis=axis, stable=True)

    @staticmethod
    def diff(x: np.ndarray, **options: Any) -> np.ndarray:
        return np.diff(x, **{name: each for name, each in options.items() if each is not None})


#: NumPy by the names of the standard.
STANDARD = World(np.asarray, Sorted, np)
