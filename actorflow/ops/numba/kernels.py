"""Registration of compiled kernels: whatever one cannot do, and all until it is compiled, NumPy's kernel does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numpy as np

import actorflow.ops.cpu  # noqa: F401  registers NumPy's kernels
from actorflow.ops import registry
from actorflow.ops.cpu.buffers import Array
from actorflow.ops.operation import Operation

#: Returns whether it has computed the outputs.
Attempt = Callable[..., bool]

#: Flags of NumPy's arrays: C order, aligned.
_PLAIN = 0x101


def kernel(
    operation: type[Operation], *, supports: Callable[[Any], bool] | None = None, keeps: bool = False
) -> Callable[[Attempt], Attempt]:
    """Register a function that attempts to compute an operation; where it does not, NumPy's kernel does.

    It takes ``finish`` where that does; see `registry.Kernel`, also for ``keeps``.
    """
    numpys = _numpys()[operation.__name__]

    def register(attempt: Attempt) -> Attempt:
        @registry.kernel(
            operation,
            library="numba",
            dtypes=("float32", "float64"),
            inplace=numpys.inplace,
            supports=supports,
            finishes=numpys.finishes,
            keeps=keeps,
        )
        @wraps(attempt)
        def compute(operation: Any, inputs: list[Array], outputs: list[Array], *finish: Any) -> None:
            if not attempt(operation, inputs, outputs, *finish):
                numpys.function(operation, inputs, outputs, *finish)

        return attempt

    return register


@cache
def _numpys() -> dict[str, registry.Kernel]:
    return {known.key.operation: known for known in registry.kernels_of("cpu", "numpy")}


def are_plain(arrays: list[Array], dtype: np.dtype[Any]) -> bool:
    """Return whether arrays are of a dtype and as compiled code takes them: elements in C order, aligned."""
    for array in arrays:  # noqa: SIM110  a generator would take as long as the rest
        if array.flags.num & _PLAIN != _PLAIN or array.dtype != dtype:
            return False
    return True
