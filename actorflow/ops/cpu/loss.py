"""Kernels of `actorflow.ops.loss`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.loss import Accuracy, SoftmaxLoss, SoftmaxLossDown
from actorflow.ops.registry import kernel

__all__: list[str] = []


def _flat(kind: str, x: Array, labels: Array) -> tuple[Array, npt.NDArray[np.intp]]:
    """Scores as (samples, classes) and their labels, which index classes.

    Raises:
        ValueError: naming the first label that is out of range.
    """
    classes = x.shape[-1]
    flat = labels.reshape(-1)
    wrong = np.flatnonzero((flat < 0) | (flat >= classes))
    if wrong.size:
        where = tuple(int(i) for i in np.unravel_index(wrong[0], labels.shape))
        raise ValueError(f"{kind}: labels must be from 0 to {classes - 1}, got {flat[wrong[0]]} at {where}")
    return x.reshape(flat.size, classes), flat.astype(np.intp, copy=False)


@kernel(SoftmaxLoss)
def _softmax_loss(operation: SoftmaxLoss, inputs: list[Array], outputs: list[Array]) -> None:
    x, labels = _flat("SoftmaxLoss", *inputs)
    if not labels.size:
        outputs[0][...] = np.nan
        return
    shifted = np.subtract(x, np.max(x, axis=1, keepdims=True), out=scratch("scores", x.shape, x.dtype))
    picked = shifted[np.arange(labels.size), labels]
    log_sums = np.log(np.sum(np.exp(shifted, out=shifted), axis=1))
    np.mean(log_sums - picked, out=outputs[0])


@kernel(SoftmaxLossDown)
def _softmax_loss_down(operation: SoftmaxLossDown, inputs: list[Array], outputs: list[Array]) -> None:
    x, labels = _flat("SoftmaxLossDown", *inputs[1:])
    if not labels.size:
        return
    dx = outputs[0].reshape(x.shape)
    np.subtract(x, np.max(x, axis=1, keepdims=True), out=dx)
    np.exp(dx, out=dx)
    np.divide(dx, np.sum(dx, axis=1, keepdims=True), out=dx)
    dx[np.arange(labels.size), labels] -= 1
    np.multiply(dx, inputs[0] / labels.size, out=dx)


@kernel(Accuracy)
def _accuracy(operation: Accuracy, inputs: list[Array], outputs: list[Array]) -> None:
    x, labels = _flat("Accuracy", *inputs)
    if not labels.size:
        outputs[0][...] = np.nan
        return
    own = x[np.arange(labels.size), labels][:, np.newaxis]
    before = np.arange(x.shape[1]) < labels[:, np.newaxis]
    # "Not below" rather than "above": comparisons with nan are false, and a nan must not look right.
    ahead = np.where(before, ~(x < own), ~(x <= own))
    ahead[np.arange(labels.size), labels] = np.isnan(own[:, 0])
    outputs[0][...] = np.mean(np.count_nonzero(ahead, axis=1) < operation.top)
