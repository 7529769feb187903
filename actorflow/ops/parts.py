"""When a reduction may be put together from those of parts, as if it had been computed in one go.

What is largest, or true of one, does not depend on the order, and neither do sums and products of integers. Those of
floating numbers do where they leave the range on the way: 0 and infinity are products of parts of what is 1 in all, and
their product is NaN; so is the sum of parts whose sums are infinite and of either sign.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def may_be_parted(ufunc: np.ufunc, dtype: np.dtype[Any]) -> bool:
    """Whether parts say enough: a product's do not say whether it was 0 or infinite on the way."""
    return ufunc is not np.multiply or dtype.kind in "biu"


def may_be_uncertain(ufunc: np.ufunc, dtype: np.dtype[Any]) -> bool:
    """Whether there are parts whose total is not that of the whole: `is_certain` tells, once they are known."""
    return ufunc is np.add and dtype.kind not in "biu"


def is_certain(ufunc: np.ufunc, total: Any) -> bool:
    """Whether the total of the parts is that of the whole; a sum is where it is finite, as it then was on the way."""
    return not may_be_uncertain(ufunc, total.dtype) or bool(np.isfinite(total).all())
