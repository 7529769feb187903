"""What ranks may reduce together, and how two arrays become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from actorflow.errors import TransportError

#: What combines two arrays into ``out``, by the name of the operation.
OPERATIONS: dict[str, Callable[..., Any]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}

#: Names of the dtypes that add up and have an order; those of ``ml_dtypes`` have no kind of their own.
_DTYPES = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_DTYPES |= {"float16", "bfloat16", "float32", "float64"}


def check_reduction(operation: str, source: Any, target: Any) -> None:
    """Check what a rank hands to `Group.all_reduce`.

    Raises:
        TransportError: naming what cannot be reduced.
    """
    if operation not in OPERATIONS:
        raise TransportError(f"all_reduce computes {', '.join(OPERATIONS)}, not {operation!r}")
    for name, array in (("source", source), ("target", target)):
        if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
            raise TransportError(f"the {name} of all_reduce must be a C-contiguous host array, got {_described(array)}")
    if (source.shape, source.dtype) != (target.shape, target.dtype):
        raise TransportError(
            f"all_reduce of {_described(source)} needs a target of that type, got {_described(target)}"
        )
    if source.dtype.name not in _DTYPES or not source.dtype.isnative:
        raise TransportError(f"all_reduce cannot compute with dtype {source.dtype.str} ({source.dtype.name})")
    if not target.flags.writeable:
        raise TransportError(f"the target of all_reduce must be writable, and this {_described(target)} is not")


def _described(array: Any) -> str:
    if isinstance(array, np.ndarray):
        return f"{array.dtype}{list(array.shape)}" + ("" if array.flags.c_contiguous else " with strides")
    return type(array).__name__
