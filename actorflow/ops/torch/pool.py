"""Kernels of `actorflow.ops.nn.pool`; they write into the given buffers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import cycle
from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.cpu.parallel import element_ns, spread
from actorflow.ops.cpu.pool import average_pool, average_pool_down, max_pool, max_pool_down
from actorflow.ops.nn.pool import AveragePool, AveragePoolDown, GlobalAverage, MaxPool, MaxPoolDown
from actorflow.ops.nn.windows import Windows, is_even
from actorflow.ops.operation import Operation
from actorflow.ops.torch.tensors import image_cuts, images, tensor, torch, torch_kernel, within_share

#: How many times about each element is read or written, and how often in a piece for several cores.
_PASSES, _PIECE_ELEMENTS = 4, 1 << 20

_aten = torch.ops.aten
_Function = Callable[[Any, list[Array], list[Array]], None]


def _has_narrow_border(operation: Any) -> bool:
    """Torch refuses a border of more than half a window, or one that is wider on one side."""
    pads = operation.pad if isinstance(operation.pad, tuple) else (operation.pad,)
    kernels = operation.kernel if isinstance(operation.kernel, tuple) else (operation.kernel,)
    widest = [max(p) if isinstance(p, tuple) else p for p in pads]
    # One number stands for all axes.
    pairs = zip(cycle(widest), kernels) if len(widest) == 1 else zip(widest, cycle(kernels))
    return is_even(operation.pad) and all(2 * p <= k for p, k in pairs)


def _supports_maximum(operation: MaxPool | MaxPoolDown) -> bool:
    """A border and a dilation may make a window without elements, for which torch has no place to name."""
    return _has_narrow_border(operation) and (operation.dilation == 1 or operation.pad == 0)


def _supports_average(operation: AveragePool | AveragePoolDown) -> bool:
    """Torch has no averages of windows with a dilation."""
    return _has_narrow_border(operation) and operation.dilation == 1


def _pool_kernel(
    operation: type[Operation], volumes: _Function, supports: Callable[[Any], bool]
) -> Callable[[_Function], _Function]:
    """Like `torch_kernel`, for images of rows and of planes; the function for volumes is given.

    Torch 2.13 writes poolings of volumes to memory as if their channels came first, whatever the strides are.
    """

    def register(function: _Function) -> _Function:
        def dispatch(operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
            if inputs[0].ndim == 5:
                volumes(operation, inputs, outputs)
                return
            elements = _PASSES * sum(array.size for array in (*inputs, *outputs))
            cuts = image_cuts(len(inputs[0]), elements // _PIECE_ELEMENTS)

            def compute(cut: slice) -> None:
                function(operation, [x[cut] for x in inputs], [y[cut] for y in outputs])

            spread(cuts, within_share(compute), element_ns(elements))

        return torch_kernel(operation, supports)(wraps(function)(dispatch))

    return register


def _flat(array: Array) -> Any:
    """Images as torch's poolings of planes take them: a row is a plane of height 1."""
    lent = images(array)
    return lent.unsqueeze(2) if lent.ndim == 3 else lent


def _how(w: Windows) -> tuple[tuple[int, ...], ...]:
    """(kernel, stride, pad, dilation) for `_flat`."""
    pad = tuple(before for before, _ in w.pad)
    found = ((w.kernel, 1), (w.stride, 1), (pad, 0), (w.dilation, 1))
    return tuple((none, *values) if len(w.size) == 1 else values for values, none in found)


def _maxima(operation: MaxPool | MaxPoolDown, w: Windows, x: Any, y: Array, indices: Array | None = None) -> Any:
    """Writes the maximum of each window to ``y``; returns where it was found, in memory that the thread keeps."""
    found = _flat(scratch("indices", y.shape, np.int64) if indices is None else indices)
    _aten.max_pool2d_with_indices.out(x, *_how(w), operation.ceil, out=_flat(y), indices=found)
    return found


@_pool_kernel(MaxPool, max_pool, _supports_maximum)
def _max_pool(operation: MaxPool, inputs: list[Array], outputs: list[Array]) -> None:
    _maxima(operation, operation.windows(inputs[0].shape[1:-1]), _flat(inputs[0]), *outputs)


@_pool_kernel(MaxPoolDown, max_pool_down, _supports_maximum)
def _max_pool_down(operation: MaxPoolDown, inputs: list[Array], outputs: list[Array]) -> None:
    g, x, y = inputs
    w = operation.windows(x.shape[1:-1])
    # Torch wants to know where the maxima were, which the forward pass here does not keep: finding them again is cheap.
    found = _maxima(operation, w, _flat(x), scratch("maxima", y.shape, y.dtype))
    down = _aten.max_pool2d_with_indices_backward.grad_input
    down(_flat(g), _flat(x), *_how(w), operation.ceil, found, grad_input=_flat(outputs[0]))


@_pool_kernel(AveragePool, average_pool, _supports_average)
def _average_pool(operation: AveragePool, inputs: list[Array], outputs: list[Array]) -> None:
    how = (*_how(operation.windows(inputs[0].shape[1:-1]))[:3], operation.ceil, operation.count_pad, None)
    _aten.avg_pool2d.out(_flat(inputs[0]), *how, out=_flat(outputs[0]))


@_pool_kernel(AveragePoolDown, average_pool_down, _supports_average)
def _average_pool_down(operation: AveragePoolDown, inputs: list[Array], outputs: list[Array]) -> None:
    how = (*_how(operation.windows(outputs[0].shape[1:-1]))[:3], operation.ceil, operation.count_pad, None)
    dx = _flat(outputs[0])  # also stands for x, of which only the type and the strides count
    _aten.avg_pool2d_backward.grad_input(_flat(inputs[0]), dx, *how, grad_input=dx)


@torch_kernel(GlobalAverage)
def _global_average(operation: GlobalAverage, inputs: list[Array], outputs: list[Array]) -> None:
    torch.mean(tensor(inputs[0]), dim=tuple(range(1, inputs[0].ndim - 1)), out=tensor(outputs[0]))
