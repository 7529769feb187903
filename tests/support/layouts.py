"""The same values in several orders in memory."""

from __future__ import annotations

import numpy as np


def laid_out(array: np.ndarray, layout: str) -> np.ndarray:
    """A copy, in memory as "C", "F" or "strided" says."""
    if layout == "C" or not array.ndim:
        return np.array(array, order="C")
    if layout == "F":
        return np.array(array, order="F")
    wide = np.full((*array.shape[:-1], 2 * array.shape[-1] + 1), 7, array.dtype)
    wide[..., 1::2] = array
    return wide[..., 1::2]
