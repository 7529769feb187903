"""Pooling. Maxima's gradients are left to others: the library wants to know from the forward pass where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from actorflow.ops.cpu.parallel import element_ns
from actorflow.ops.nn.pool import AveragePool, AveragePoolDown, GlobalAverage, MaxPool
from actorflow.ops.nn.windows import MOST_AXES, Windows
from actorflow.ops.onednn import library as dnnl
from actorflow.ops.onednn.library import Handle, UnsupportedError, dims, libdnnl
from actorflow.ops.onednn.steps import Call, Plain, images, kernel
from actorflow.ops.operation import Operation
from actorflow.ops.reductions import ReduceMean
from actorflow.spec import TensorSpec

_MAX, _WITH_BORDER, _WITHOUT_BORDER = 0x1FF, 0x2FF, 0x3FF


def _geometry(w: Windows) -> tuple[Any, ...]:
    """Strides, sizes, dilations and borders. Behind the images, the border reaches as far as the last window."""
    before = [first for first, _ in w.pad]
    axes = zip(w.out, w.stride, w.kernel, w.dilation, w.size, before, strict=True)
    after = [max(0, (out - 1) * s + (k - 1) * d + 1 - n - first) for out, s, k, d, n, first in axes]
    return tuple(map(dims, (w.stride, w.kernel, [d - 1 for d in w.dilation], before, after)))


def _average(operation: Any, w: Windows) -> int:
    """The library's number of an average. It knows no border that counts in part: where a last window leaves it."""
    if not operation.count_pad:
        return _WITHOUT_BORDER
    axes = zip(w.out, w.stride, w.kernel, w.dilation, w.padded_size, strict=True)
    if any((out - 1) * s + (k - 1) * d + 1 > n for out, s, k, d, n in axes):
        raise UnsupportedError("a window that leaves the border")
    return _WITH_BORDER


def _forward(kind: int, how: int, x: Sequence[int], y: Sequence[int], w: Windows) -> Handle:
    memories = (images(x), images(y))
    attributes = libdnnl().attributes()
    return libdnnl().descriptor("pooling_forward", kind, how, *memories, *_geometry(w), attributes)


def _pooled(operation: Any, specs: Sequence[TensorSpec], how: Callable[[Windows], int]) -> Call:
    (x,), (y, *_) = specs, operation.infer(*specs)
    w = operation.windows(x.shape[1:-1])
    describe = partial(_forward, dnnl.FORWARD_INFERENCE, how(w), x.shape, y.shape, w)
    return Plain(describe, [dnnl.SRC, dnnl.DST], element_ns(2 * x.size))


@kernel(MaxPool)
def _max_pool(operation: MaxPool, specs: Sequence[TensorSpec]) -> Call:
    if operation.return_indices:
        raise UnsupportedError("indices")
    return _pooled(operation, specs, lambda _: _MAX)


@kernel(AveragePool)
def _average_pool(operation: AveragePool, specs: Sequence[TensorSpec]) -> Call:
    return _pooled(operation, specs, partial(_average, operation))


@kernel(AveragePoolDown)
def _average_pool_down(operation: AveragePoolDown, specs: Sequence[TensorSpec]) -> Call:
    (g,), (dx,) = specs, operation.infer(*specs)
    w = operation.windows(dx.shape[1:-1])

    def describe() -> Handle:
        how, attributes = _average(operation, w), libdnnl().attributes()
        hint = _forward(dnnl.FORWARD_TRAINING, how, dx.shape, g.shape, w)
        memories = (images(dx.shape), images(g.shape))
        return libdnnl().descriptor("pooling_backward", how, *memories, *_geometry(w), hint, attributes)

    return Plain(describe, [dnnl.DIFF_DST, dnnl.DIFF_SRC], element_ns(2 * dx.size))


def _is_of_images(operation: ReduceMean, specs: Sequence[TensorSpec]) -> bool:
    rank = len(specs[0].shape)
    return 3 <= rank <= 2 + MOST_AXES and operation.axes(rank) == tuple(range(1, rank - 1))


@kernel(ReduceMean, fits=_is_of_images)
@kernel(GlobalAverage)
def _global_average(operation: Operation, specs: Sequence[TensorSpec]) -> Call:
    x = specs[0].shape
    size, ones = x[1:-1], (1,) * (len(x) - 2)
    w = Windows(size, size, ones, ((0, 0),) * len(size), ones, ones)
    describe = partial(_forward, dnnl.FORWARD_INFERENCE, _WITHOUT_BORDER, x, (x[0], *ones, x[-1]), w)
    return Plain(describe, [dnnl.SRC, dnnl.DST], element_ns(specs[0].size))
