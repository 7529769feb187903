"""Registry of calls of the standard's functions: each draws arrays, and gives what to do with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np

from tests.array.families import ALL, Call, Draw, arrays

CASES: dict[str, Draw] = {}


def case(draw: Draw) -> Draw:
    CASES[draw.__name__.rstrip("_")] = draw
    return draw


def call(values: list[np.ndarray], function: Callable[..., Any]) -> Call:
    return values, function


def nonempty(dtypes: tuple[str, ...] = ALL, dims: int = 0, most: int = 3, **options: Any) -> Any:
    return arrays(dtypes, hnp.array_shapes(min_dims=dims, max_dims=most, min_side=1, max_side=4), **options)
