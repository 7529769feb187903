"""Kernels of `actorflow.ops.update`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.cuda.launch import FLOATS, Array, elementwise, kernel
from actorflow.ops.update import SgdUpdate

__all__: list[str] = []

# The rate is read on the device. A factor of 0 leaves its term out, which may be infinite.
_SGD = elementwise(
    "sgd",
    "T weight, T grad, T velocity, R rate, float64 scale, float64 momentum, float64 decay",
    "T new_weight, T new_velocity",
    """
    W step = W(scale * double(rate));
    W moved = step * (decay != 0 ? W(decay) * W(weight) + W(grad) : W(grad));
    if (momentum != 0) moved += W(momentum) * W(velocity);
    new_velocity = T(moved);
    new_weight = T(W(weight) - moved);
    """,
)


@kernel(SgdUpdate, dtypes=FLOATS)
def _sgd_update(operation: SgdUpdate, inputs: list[Array], outputs: list[Array]) -> None:
    factors = (operation.rate_scale, operation.momentum, operation.weight_decay)
    _SGD(*inputs, *(np.float64(factor) for factor in factors), *outputs)
