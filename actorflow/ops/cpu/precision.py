"""Half-precision inputs computed in float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from actorflow.ops.cpu.buffers import Array

_F = TypeVar("_F", bound=Callable[..., None])


def wide_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What sums and exponentials of a floating dtype are computed in."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _is_half(array: Array) -> bool:
    return array.itemsize == 2 and array.dtype.kind in "fV"


def in_float32(function: _F) -> _F:
    """A kernel that is given float32 copies of float16 and bfloat16 arrays, and whose results are rounded once.

    NumPy computes these dtypes element by element, rounds after every step, and sums in them.
    """

    @wraps(function)
    def compute(operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
        if not any(_is_half(array) for array in (*inputs, *outputs)):
            function(operation, inputs, outputs)
            return
        wide = [np.empty(y.shape, np.float32) if _is_half(y) else y for y in outputs]
        function(operation, [x.astype(np.float32) if _is_half(x) else x for x in inputs], wide)
        with np.errstate(over="ignore"):  # beyond float16's range is infinity
            for result, output in zip(wide, outputs, strict=True):
                if result is not output:
                    output[...] = result

    return compute  # type: ignore[return-value]
