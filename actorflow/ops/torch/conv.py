"""Kernels of `actorflow.ops.conv`: oneDNN for float32, im2col and MKL for float64.

Torch has no convolution that writes into a given buffer, so each result is copied once.
"""

from __future__ import annotations

from typing import Any

from actorflow.ops.conv import Conv, ConvDown, ConvWeight
from actorflow.ops.cpu.buffers import Array
from actorflow.ops.torch.tensors import images, torch, torch_kernel, weights
from actorflow.ops.windows import Windows, is_even

__all__: list[str] = []


def _has_even_pad(operation: Conv | ConvDown | ConvWeight) -> bool:
    return is_even(operation.pad)


def _how(operation: Any, w: Windows) -> tuple[Any, ...]:
    """Torch's parameters from the stride on."""
    rank = len(w.size)
    return w.stride, tuple(before for before, _ in w.pad), w.dilation, False, (0,) * rank, operation.groups


@torch_kernel(Conv, supports=_has_even_pad)
def _conv(operation: Conv, inputs: list[Array], outputs: list[Array]) -> None:
    x, weight = inputs
    w = operation.windows(x.shape[1:-1], weight.shape[:-2])
    y = torch.ops.aten.convolution(images(x), weights(weight), None, *_how(operation, w))
    images(outputs[0]).copy_(y)


@torch_kernel(ConvDown, supports=_has_even_pad)
def _conv_down(operation: ConvDown, inputs: list[Array], outputs: list[Array]) -> None:
    g, weight = inputs
    w = operation.windows(outputs[0].shape[1:-1], weight.shape[:-2])
    dx = images(outputs[0])  # also stands for x, of which only the type and the strides count
    dx.copy_(_backward(operation, w, images(g), dx, weights(weight), [True, False, False])[0])


@torch_kernel(ConvWeight, supports=_has_even_pad)
def _conv_weight(operation: ConvWeight, inputs: list[Array], outputs: list[Array]) -> None:
    g, x = inputs
    w = operation.windows(x.shape[1:-1], operation.kernel)
    dweight = weights(outputs[0])
    # Stands for the weight, of which only the type and the strides count; not every path takes those of `dweight`.
    weight = torch.empty_like(dweight, memory_format=torch.contiguous_format)
    dweight.copy_(_backward(operation, w, images(g), images(x), weight, [False, True, False])[1])


def _backward(operation: Any, w: Windows, g: Any, x: Any, weight: Any, wanted: list[bool]) -> Any:
    """The gradients of (x, weight, bias) that are wanted."""
    return torch.ops.aten.convolution_backward(g, x, weight, None, *_how(operation, w), wanted)
