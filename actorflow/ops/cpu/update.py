"""Kernels of `actorflow.ops.update`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.cpu.buffers import Array, flat_blocks
from actorflow.ops.registry import kernel
from actorflow.ops.update import SgdUpdate

__all__: list[str] = []


@kernel(SgdUpdate)
def _sgd_update(operation: SgdUpdate, inputs: list[Array], outputs: list[Array]) -> None:
    step = operation.rate_scale * float(inputs[3])
    for weight, grad, velocity, new_weight, new_velocity in flat_blocks(*inputs[:3], *outputs):
        # new_weight holds the step on the gradient until the velocity is known: no temporary.
        if operation.weight_decay:
            np.multiply(weight, operation.weight_decay, out=new_weight)
            np.add(new_weight, grad, out=new_weight)
            np.multiply(new_weight, step, out=new_weight)
        else:
            np.multiply(grad, step, out=new_weight)
        if operation.momentum:
            np.multiply(velocity, operation.momentum, out=new_velocity)
            np.add(new_velocity, new_weight, out=new_velocity)
        else:
            np.copyto(new_velocity, new_weight)
        np.subtract(weight, new_velocity, out=new_weight)
