"""Arrays of normal numbers, as literals of tests."""

from __future__ import annotations

from typing import Any

import numpy as np

SPECIAL = [0.0, -0.0, 1.0, -2.5, 1e30, np.inf, -np.inf, np.nan]


def numbers(*shape: int, seed: int = 0, dtype: str = "float64") -> np.ndarray:
    """Normal numbers."""
    return np.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [numbers(*shape, seed=seed) for seed, shape in enumerate(shapes)]


def complexes(*shape: int, seed: int = 0) -> np.ndarray:
    """Complex normal numbers."""
    return numbers(*shape, seed=seed) + 1j * numbers(*shape, seed=seed + 100)


def regular(*shape: int, seed: int = 0) -> np.ndarray:
    """Square matrices far from singular."""
    return numbers(*shape, seed=seed) + 3.0 * np.eye(shape[-1])


def with_specials(shape: tuple[int, ...], dtype: Any, seed: int, specials: bool) -> np.ndarray:
    """Normal numbers, of which the first are special ones if wanted."""
    found = numbers(*shape, seed=seed).astype(dtype)
    if specials and found.size:
        found.reshape(-1)[: len(SPECIAL)] = SPECIAL[: found.size]
    return found
