"""The same values in several orders in memory."""

from __future__ import annotations

import numpy as np

#: Row by row; column by column; every other element of the last axis, or of all other axes, of a larger array; all axes
#: backwards.
LAYOUTS = ("C", "F", "strided", "spaced", "mirrored")


def laid_out(array: np.ndarray, layout: str) -> np.ndarray:
    """A copy, in memory as one of `LAYOUTS` says."""
    if layout in ("C", "F") or not array.ndim:
        return np.array(array, order="F" if layout == "F" else "C")
    if layout == "mirrored":
        backwards = (slice(None, None, -1),) * array.ndim
        return np.array(array[backwards], order="C")[backwards]
    doubled = [layout == "spaced"] * (array.ndim - 1) + [layout == "strided"]
    wide = np.full([2 * n + 1 if twice else n for n, twice in zip(array.shape, doubled, strict=True)], 7, array.dtype)
    view = wide[tuple(slice(1, None, 2) if twice else slice(None) for twice in doubled)]
    view[...] = array
    return view
