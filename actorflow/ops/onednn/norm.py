"""Layer norm, batch norm of a training, and their gradients; response normalization where no gradient needs more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from actorflow.ops.cpu.buffers import Array, plain
from actorflow.ops.cpu.parallel import element_ns
from actorflow.ops.nn.lrn import LRN
from actorflow.ops.nn.norm import BatchNorm, BatchNormDown, LayerNorm, LayerNormDown
from actorflow.ops.onednn import library as dnnl
from actorflow.ops.onednn.library import Handle, UnsupportedError, libdnnl
from actorflow.ops.onednn.steps import Call, Compute, Indirect, Plain, images, kernel
from actorflow.spec import TensorSpec

_BACKWARD, _WITH_SCALE_AND_SHIFT, _ACROSS_CHANNELS = 128, 6, 0xAFF
#: Arguments of both kinds of normalization.
_FORWARD = (dnnl.SRC, dnnl.SCALE, dnnl.SHIFT, dnnl.DST, dnnl.MEAN, dnnl.VARIANCE)
#: Passes over its arrays that normalizing takes.
_PASSES = 4


def _rows(x: TensorSpec, axes: int) -> tuple[Handle, Handle]:
    """Descriptors of samples as rows, and of one number for each."""
    width = math.prod(x.shape[len(x.shape) - axes :])
    rows = x.size // width
    return libdnnl().memory([rows, width], [width, 1]), libdnnl().memory([rows], [1])


def _layer(operation: LayerNorm | LayerNormDown, x: TensorSpec) -> Handle:
    rows, statistics = _rows(x, operation.axes)
    how = (operation.epsilon, _WITH_SCALE_AND_SHIFT, libdnnl().attributes())
    return libdnnl().descriptor("layer_normalization_forward", dnnl.FORWARD_TRAINING, rows, rows, statistics, *how)


@kernel(LayerNorm)
def _layer_norm(operation: LayerNorm, specs: Sequence[TensorSpec]) -> Call:
    return Plain(partial(_layer, operation, specs[0]), _FORWARD, element_ns(_PASSES * specs[0].size), outputs=3)


@kernel(LayerNormDown)
def _layer_norm_down(operation: LayerNormDown, specs: Sequence[TensorSpec]) -> Call:
    x = specs[1]
    rows, statistics = _rows(x, operation.axes)
    how = (operation.epsilon, _WITH_SCALE_AND_SHIFT, _layer(operation, x), libdnnl().attributes())
    return _down("layer_normalization", rows, rows, rows, statistics, *how)


@kernel(BatchNormDown)
def _batch_norm_down(operation: BatchNormDown, specs: Sequence[TensorSpec]) -> Call:
    x = images(specs[1].shape)
    how = (operation.epsilon, _WITH_SCALE_AND_SHIFT, _batch(operation, specs[1]), libdnnl().attributes())
    return _down("batch_normalization", x, x, x, *how)


def _down(kind: str, *how: Any) -> Call:
    """Calls of a gradient, from ``g, x, scale, mean, variance``; the library sums it up, on one thread."""
    descriptor = libdnnl().descriptor(f"{kind}_backward", _BACKWARD, *how)
    # The library counts a shift among what a layer norm's gradient reads, and makes nothing of it.
    more = [2] * (libdnnl().count_of_inputs(descriptor) > 5)
    given = [dnnl.DIFF_DST, dnnl.SRC, dnnl.SCALE, dnnl.MEAN, dnnl.VARIANCE, *[dnnl.SHIFT] * len(more)]
    made = [dnnl.DIFF_SRC, dnnl.DIFF_SCALE, dnnl.DIFF_SHIFT]
    return Plain(lambda: descriptor, [*given, *made], 0.0, len(made), [*range(5), *more])


def _batch(operation: BatchNorm | BatchNormDown, x: TensorSpec) -> Handle:
    memory = images(x.shape)
    how = (operation.epsilon, _WITH_SCALE_AND_SHIFT, libdnnl().attributes())
    return libdnnl().descriptor("batch_normalization_forward", dnnl.FORWARD_TRAINING, memory, memory, *how)


@kernel(BatchNorm)
def _batch_norm(operation: BatchNorm, specs: Sequence[TensorSpec]) -> Call:
    compute = Compute(_batch(operation, specs[0]), _FORWARD)
    rows = specs[0].size // specs[0].shape[-1]

    def call(operation: BatchNorm, inputs: list[Array], outputs: list[Array]) -> None:
        *given, running_mean, running_variance = inputs
        y, mean, variance, new_mean, new_variance = outputs
        compute(*map(plain, given), y, mean, variance)
        momentum = operation.momentum
        new_mean[...] = (1 - momentum) * running_mean + momentum * mean
        new_variance[...] = (1 - momentum) * running_variance + momentum * rows / max(1, rows - 1) * variance

    return Indirect(call)


@kernel(LRN, supports=lambda operation: not operation.saves and operation.size % 2 == 1)
def _lrn(operation: LRN, specs: Sequence[TensorSpec]) -> Call:
    """Beyond 7e12, what values are divided by a power of is infinite here, as the library takes its cube."""
    if len(specs[0].shape) != 4:
        raise UnsupportedError("other than images")
    how = (operation.size, operation.alpha, operation.beta, operation.k)

    x = images(specs[0].shape)

    def describe() -> Handle:
        found = libdnnl()
        return found.descriptor("lrn_forward", dnnl.FORWARD_INFERENCE, _ACROSS_CHANNELS, x, x, *how, found.attributes())

    return Plain(describe, [dnnl.SRC, dnnl.DST], element_ns(_PASSES * specs[0].size))
