"""Kernels of `actorflow.ops.pool`; they write into the given buffers."""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.pool import (
    AveragePool2d,
    AveragePool2dDown,
    GlobalAverage,
    GlobalAverageDown,
    MaxPool2d,
    MaxPool2dDown,
)
from actorflow.ops.torch.tensors import images, tensor, torch, torch_kernel

__all__: list[str] = []

_aten = torch.ops.aten
_NO_DILATION = (1, 1)


def _narrow_border(operation: Any) -> bool:
    """Torch refuses a border of more than half a window."""
    return all(2 * p <= k for k, p in zip(operation.kernel, operation.pad, strict=True))


def _maxima(operation: MaxPool2d | MaxPool2dDown, x: Any, y: Array) -> Any:
    """Writes the maximum of each window to ``y``; returns where it was found, in memory that the thread keeps."""
    found = images(scratch("indices", y.shape, np.int64))
    how = (operation.kernel, operation.stride, operation.pad, _NO_DILATION, operation.ceil)
    _aten.max_pool2d_with_indices.out(x, *how, out=images(y), indices=found)
    return found


@torch_kernel(MaxPool2d, supports=_narrow_border)
def _max_pool(operation: MaxPool2d, inputs: list[Array], outputs: list[Array]) -> None:
    _maxima(operation, images(inputs[0]), outputs[0])


@torch_kernel(MaxPool2dDown, supports=_narrow_border)
def _max_pool_down(operation: MaxPool2dDown, inputs: list[Array], outputs: list[Array]) -> None:
    g, x, y = inputs
    # Torch wants to know where the maxima were, which the forward pass here does not keep: finding them again is cheap.
    found = _maxima(operation, images(x), scratch("maxima", y.shape, y.dtype))
    how = (operation.kernel, operation.stride, operation.pad, _NO_DILATION, operation.ceil)
    _aten.max_pool2d_with_indices_backward.grad_input(images(g), images(x), *how, found, grad_input=images(outputs[0]))


def _average(operation: AveragePool2d) -> tuple[Any, ...]:
    return operation.kernel, operation.stride, operation.pad, operation.ceil, operation.count_pad, None


@torch_kernel(AveragePool2d, supports=_narrow_border)
def _average_pool(operation: AveragePool2d, inputs: list[Array], outputs: list[Array]) -> None:
    _aten.avg_pool2d.out(images(inputs[0]), *_average(operation), out=images(outputs[0]))


@torch_kernel(AveragePool2dDown, supports=_narrow_border)
def _average_pool_down(operation: AveragePool2dDown, inputs: list[Array], outputs: list[Array]) -> None:
    dx = images(outputs[0])  # also stands for x, of which only the type and the strides count
    _aten.avg_pool2d_backward.grad_input(images(inputs[0]), dx, *_average(operation), grad_input=dx)


@torch_kernel(GlobalAverage)
def _global_average(operation: GlobalAverage, inputs: list[Array], outputs: list[Array]) -> None:
    torch.mean(tensor(inputs[0]), dim=(1, 2), out=tensor(outputs[0]))


@torch_kernel(GlobalAverageDown)
def _global_average_down(operation: GlobalAverageDown, inputs: list[Array], outputs: list[Array]) -> None:
    height, width = operation.size
    share = tensor(inputs[0]) * (1.0 / (height * width))
    tensor(outputs[0]).copy_(share[:, None, None, :])
