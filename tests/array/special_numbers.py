"""Numbers that programs of arrays are tried on."""

from __future__ import annotations

from typing import Any

import numpy as np

SPECIAL = [0.0, -0.0, 1.0, -2.5, 1e30, np.inf, -np.inf, np.nan]


def numbers(shape: tuple[int, ...], dtype: Any, seed: int, specials: bool) -> Any:
    """Normal ones, of which the first are special ones if wanted."""
    rng = np.random.default_rng(seed)
    found = np.asarray(rng.standard_normal(shape), dtype)
    if specials and found.size:
        found.reshape(-1)[: len(SPECIAL)] = SPECIAL[: found.size]
    return found
