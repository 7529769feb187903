"""Resizing along one axis, linear or by the nearest element, where the library finds the same places as we do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from actorflow.ops.cpu.parallel import element_ns
from actorflow.ops.nn.resize import Resize
from actorflow.ops.onednn.library import DST, FORWARD_INFERENCE, SRC, Handle, UnsupportedError, libdnnl
from actorflow.ops.onednn.steps import Call, Compute, Plain, images, kernel
from actorflow.spec import TensorSpec

_KINDS = {"nearest": 0x2FFF0, "linear": 0x2FFF1}
#: How far places may lie apart, of elements.
_APART = 1e-3


@kernel(Resize, supports=lambda operation: operation.mode in _KINDS)
def _resize(operation: Resize, specs: Sequence[TensorSpec]) -> Call:
    axis, shape = operation.axis, specs[0].shape
    length, inner = shape[axis], math.prod(shape[axis + 1 :])

    def described(outer: int) -> Handle:
        found = libdnnl()
        x, y = (images([outer, n, inner]) for n in (length, operation.size))
        how = (_KINDS[operation.mode], None, x, y, found.attributes())
        return found.descriptor("resampling_forward", FORWARD_INFERENCE, *how)

    _check_places(operation, described(1), length, inner)
    work_ns = element_ns(2 * max(1, operation.size // length) * specs[0].size)
    return Plain(partial(described, math.prod(shape[:axis])), [SRC, DST], work_ns)


def _check_places(operation: Resize, descriptor: Handle, length: int, inner: int) -> None:
    """Resize the numbers of elements: what comes of it says where the library has looked.

    Raises:
        UnsupportedError: if that is elsewhere.
    """
    numbers = np.repeat(np.arange(length, dtype=np.float32), inner).reshape(length, inner)
    found = np.empty((operation.size, inner), np.float32)
    Compute(descriptor, [SRC, DST])(numbers, found)
    seen, weights = operation.taps(length)
    if abs(found[:, 0] - (seen * weights).sum(1)).max() > _APART:
        raise UnsupportedError("other places")
