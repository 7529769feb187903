"""Kernels of `actorflow.ops.nn.updates`: block by block, so that all passes of a step stay in a core's cache."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from actorflow.ops.cpu.buffers import Array, flat_blocks, loops_for, scratch
from actorflow.ops.cpu.parallel import elementwise
from actorflow.ops.nn.updates import AdagradUpdate, AdamUpdate, NormFactor, RmsPropUpdate, ScaleBy, SgdUpdate, SquareSum
from actorflow.ops.registry import kernel


def _flat(*arrays: Array) -> list[Array]:
    return [array.reshape(-1) for array in arrays]


@kernel(SgdUpdate)
@elementwise
def _sgd_update(operation: SgdUpdate, inputs: list[Array], outputs: list[Array]) -> None:
    step = operation.rate_scale * float(inputs[3])
    loops = loops_for(*inputs[:3], *outputs)
    if loops is not None:
        how = (operation.weight_decay, step, operation.momentum, operation.nesterov and operation.momentum)
        loops.update_sgd(*_flat(*inputs[:3], *outputs), *how)
        return
    for weight, grad, velocity, new_weight, new_velocity in flat_blocks(*inputs[:3], *outputs):
        moved = (weight * operation.weight_decay + grad if operation.weight_decay else grad) * step
        new_velocity[...] = velocity * operation.momentum + moved if operation.momentum else moved
        is_ahead = operation.nesterov and operation.momentum
        np.subtract(weight, moved + new_velocity * operation.momentum if is_ahead else new_velocity, out=new_weight)


@kernel(AdamUpdate)
@elementwise
def _adam_update(operation: AdamUpdate, inputs: list[Array], outputs: list[Array]) -> None:
    rate, t = operation.rate_scale * float(inputs[4]), int(inputs[5]) + 1
    beta1, beta2 = operation.beta1, operation.beta2
    step = rate / (1.0 - beta1**t)
    unbias = 1.0 / math.sqrt(1.0 - beta2**t)
    decay = 0.0 if operation.decoupled else operation.weight_decay
    loops = loops_for(*inputs[:4], *outputs)
    if loops is not None:
        shrink = rate * operation.weight_decay if operation.decoupled else 0.0
        how = (decay, beta1, beta2, unbias, operation.eps, step, shrink)
        loops.update_adam(*_flat(*inputs[:4], *outputs), *how)
        return
    states = [*inputs[2:4], *outputs[1:]]
    for weight, grad, moved, (mean, square, new_mean, new_square) in _steps(inputs, outputs, states, decay):
        new_mean[...] = (grad - mean) * (1.0 - beta1) + mean
        new_square[...] = square * beta2 + grad * grad * (1.0 - beta2)
        np.multiply(new_mean / (np.sqrt(new_square) * unbias + operation.eps), step, out=moved)
        if operation.decoupled and operation.weight_decay:
            np.add(moved, weight * (rate * operation.weight_decay), out=moved)


@kernel(AdagradUpdate)
@elementwise
def _adagrad_update(operation: AdagradUpdate, inputs: list[Array], outputs: list[Array]) -> None:
    rate = operation.rate_scale * float(inputs[3])
    states = [inputs[2], outputs[1]]
    for _, grad, moved, (square, new_square) in _steps(inputs, outputs, states, operation.weight_decay):
        np.add(square, grad * grad, out=new_square)
        np.multiply(grad / (np.sqrt(new_square) + operation.eps), rate, out=moved)


@kernel(RmsPropUpdate)
@elementwise
def _rmsprop_update(operation: RmsPropUpdate, inputs: list[Array], outputs: list[Array]) -> None:
    rate = operation.rate_scale * float(inputs[3])
    old, new = [inputs[2], *inputs[4:]], outputs[1:]
    for _, grad, moved, states in _steps(inputs, outputs, [*old, *new], operation.weight_decay):
        before = dict(zip(("square", *operation.more), states, strict=False))
        after = dict(zip(("square", *operation.more), states[len(old) :], strict=True))
        share = 1.0 - operation.alpha
        variance = after["square"][...] = before["square"] * operation.alpha + grad * grad * share
        if operation.centered:
            mean = after["mean"][...] = (grad - before["mean"]) * share + before["mean"]
            variance = np.maximum(variance - mean * mean, 0.0)  # rounding can take a variance of nothing below 0
        change = grad / (np.sqrt(variance) + operation.eps)
        if operation.momentum:
            change = after["velocity"][...] = before["velocity"] * operation.momentum + change
        np.multiply(change, rate, out=moved)


def _steps(
    inputs: list[Array], outputs: list[Array], states: list[Array], decay: float
) -> Iterator[tuple[Array, Array, Array, list[Array]]]:
    """Block by block: the weight, the gradient with its decay, memory for the step, and the states.

    The step that the caller leaves in that memory is then taken. All are of the states' dtype: 16 bits are widened.
    """
    wide = states[0].dtype
    for weight, grad, new_weight, *own in flat_blocks(inputs[0], inputs[1], outputs[0], *states):
        weight, grad = weight.astype(wide, copy=False), grad.astype(wide, copy=False)
        moved = new_weight if new_weight.dtype == wide else scratch("moved", weight.shape, wide)
        yield weight, weight * decay + grad if decay else grad, moved, own
        np.subtract(weight, moved, out=moved)
        if moved is not new_weight:
            np.copyto(new_weight, moved, casting="unsafe")


#: Keeps a norm of 0 from being divided by.
_EPS = 1e-6


@kernel(SquareSum)
def _square_sum(operation: SquareSum, inputs: list[Array], outputs: list[Array]) -> None:
    total = 0.0
    for (part,) in flat_blocks(inputs[0]):
        wide = scratch("wide", part.shape, np.float64)
        np.copyto(wide, part)
        flat = wide.reshape(-1)
        total += float(np.dot(flat, flat))
    outputs[0][...] = total


@kernel(NormFactor)
def _norm_factor(operation: NormFactor, inputs: list[Array], outputs: list[Array]) -> None:
    norm = math.sqrt(sum(map(float, inputs)))
    outputs[0][...] = np.minimum(1.0, operation.max_norm / (norm + _EPS))


@kernel(ScaleBy, inplace=True)
def _scale_by(operation: ScaleBy, inputs: list[Array], outputs: list[Array]) -> None:
    # The factor is a Python number, so that it does not widen what it scales.
    np.multiply(inputs[0], float(inputs[1]), out=outputs[0])
