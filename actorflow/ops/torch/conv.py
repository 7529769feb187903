"""Kernels of `actorflow.ops.conv`: oneDNN for float32, im2col and MKL for float64.

Torch has no convolution that writes into a given buffer, so each result is copied once.
"""

from __future__ import annotations

from typing import Any

from actorflow.ops.conv import Conv2d, Conv2dDown, Conv2dWeight
from actorflow.ops.cpu.buffers import Array
from actorflow.ops.torch.tensors import images, torch, torch_kernel, weights

__all__: list[str] = []


@torch_kernel(Conv2d)
def _conv2d(operation: Conv2d, inputs: list[Array], outputs: list[Array]) -> None:
    x, weight = images(inputs[0]), weights(inputs[1])
    images(outputs[0]).copy_(torch.conv2d(x, weight, None, operation.stride, operation.pad))


@torch_kernel(Conv2dDown)
def _conv2d_down(operation: Conv2dDown, inputs: list[Array], outputs: list[Array]) -> None:
    dx = images(outputs[0])  # also stands for x, of which only the type and the strides count
    dx.copy_(_backward(operation, images(inputs[0]), dx, weights(inputs[1]), [True, False, False])[0])


@torch_kernel(Conv2dWeight)
def _conv2d_weight(operation: Conv2dWeight, inputs: list[Array], outputs: list[Array]) -> None:
    dweight = weights(outputs[0])
    # Stands for the weight, of which only the type and the strides count; not every path takes those of `dweight`.
    weight = torch.empty_like(dweight, memory_format=torch.contiguous_format)
    dweight.copy_(_backward(operation, images(inputs[0]), images(inputs[1]), weight, [False, True, False])[1])


def _backward(operation: Conv2dDown | Conv2dWeight, g: Any, x: Any, weight: Any, wanted: list[bool]) -> Any:
    """The gradients of (x, weight, bias) that are wanted."""
    return torch.ops.aten.convolution_backward(
        g, x, weight, None, operation.stride, operation.pad, (1, 1), False, (0, 0), 1, wanted
    )
