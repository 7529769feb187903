"""Kernels of operations that say themselves what NumPy computes."""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.operation import Operation
from actorflow.ops.registry import ANY, Kernel, KernelKey, kernel_maker


def _computed(operation: Operation, inputs: list[Array], _outputs: None) -> list[Array]:
    found: Any = operation.compute(*inputs)
    return [np.asarray(each) for each in (found if isinstance(found, tuple) else (found,))]


@kernel_maker("cpu", "numpy")
def make(operation: type[Operation], key: KernelKey) -> Kernel | None:
    """The kernel of an operation that has none registered."""
    if operation.compute is Operation.compute:
        return None
    return Kernel(key._replace(dtype=ANY), _computed, returns=True)
