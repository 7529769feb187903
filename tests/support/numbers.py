"""Arrays of normal numbers, as literals of tests."""

from __future__ import annotations

import numpy as np


def numbers(*shape: int, seed: int = 0, dtype: str = "float64") -> np.ndarray:
    """Normal numbers."""
    return np.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def complexes(*shape: int, seed: int = 0) -> np.ndarray:
    """Complex normal numbers."""
    return numbers(*shape, seed=seed) + 1j * numbers(*shape, seed=seed + 100)


def regular(*shape: int, seed: int = 0) -> np.ndarray:
    """Square matrices far from singular."""
    return numbers(*shape, seed=seed) + 3.0 * np.eye(shape[-1])
