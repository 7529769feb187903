"""Convolution over one, two or three spatial axes, channels last.

The three operations are the derivatives of one product of three arrays, ``sum(g * conv(x, weight))``, by one of them
each: so are their gradients, of any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from actorflow.errors import GraphError, ShapeError
from actorflow.ops.indexing import Pad
from actorflow.ops.nn.windows import (
    CHANNELS_FIRST,
    WEIGHT_FIRST,
    Border,
    Numbers,
    Pads,
    PerAxis,
    Windows,
    check_image,
    pads_per_axis,
    per_axis,
    plain,
    slide,
)
from actorflow.ops.operation import (
    Application,
    Cost,
    Grads,
    Layout,
    Operation,
    X,
    apply,
    blob_of,
    same_dtype,
    spec_of,
    whole,
)
from actorflow.spec import TensorSpec, may_divide


@dataclass(frozen=True)
class _Convolution(Operation):
    """Base of the three operations; the parameters are `Conv`'s.

    Class attributes:
        gives: Which of ``g``, ``x`` and ``weight`` the product is differentiated by; the other two are the arguments.
    """

    gives: ClassVar[str]
    layouts: ClassVar[Mapping[str, Layout]] = {"nchw": Layout((CHANNELS_FIRST, WEIGHT_FIRST), (CHANNELS_FIRST,))}

    stride: PerAxis = 1
    pad: Pads = 0
    dilation: PerAxis = 1
    groups: int = 1

    def windows(self, size: Sequence[int], kernel: Sequence[int]) -> Windows:
        """The windows of the kernel on images of this size, checked; ``out`` is the size of the output."""
        return slide(self.kind, tuple(size), tuple(kernel), self.stride, self.pad, self.dilation)

    def factors(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[Any, Any, Any]:
        """``g``, ``x`` and ``weight``, one of which is the output."""
        known = dict(zip((*self.arguments, self.gives), (*inputs, *outputs), strict=True))
        return known["g"], known["x"], known["weight"]

    def cost(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Cost | None:
        g, _, weight = self.factors(inputs, outputs)
        return Cost(g.size * math.prod(weight.shape[:-1]))

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        g, x, weight = self.factors(op.inputs, grads)
        how = (self.stride, self.pad, self.dilation, self.groups)
        by: dict[str, Callable[[], Any]] = {
            "g": lambda: apply(Conv(*how), x, weight),
            "x": lambda: apply(ConvDown(*how, size=x.shape[1:-1]), g, weight),
            "weight": lambda: apply(ConvWeight(*how, kernel=weight.shape[:-2]), g, x),
        }
        return [by[name]() if want else None for name, want in zip(self.arguments, wanted, strict=True)]

    def _check_weight(self, name: str, x: TensorSpec, weight: TensorSpec, is_image: bool = True) -> tuple[int, ...]:
        """Check a weight beside images (of in channels) or beside gradients; the size of its kernel."""
        if len(weight.shape) != len(x.shape):
            raise ShapeError(
                f"{self.kind}: weight must have shape (*kernel, in_channels / groups, out_channels) with {name}'s "
                f"{len(x.shape)} axes, got {weight}; {name} is {x}"
            )
        if is_image and weight.shape[-2] * self.groups != x.shape[-1]:
            of = f"{x.shape[-1]} channels" if self.groups == 1 else f"{x.shape[-1]} channels / {self.groups} groups"
            raise ShapeError(f"{self.kind}: weight must have {name}'s {of} on axis -2, got {weight}; {name} is {x}")
        self._check_groups("weight's output channels", weight.shape[-1])
        return weight.shape[:-2]

    def _check_groups(self, what: str, channels: int) -> None:
        if self.groups < 1:
            raise GraphError(f"{self.kind}: groups must be at least 1, got {self.groups}")
        if not may_divide(channels, self.groups):
            raise ShapeError(f"{self.kind}: {what}, {channels}, must be a multiple of groups, {self.groups}")


class Conv(_Convolution):
    """Cross-correlation of images with kernels; see `conv`."""

    arguments = ("x", "weight")
    gives = "g"

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, weight = inputs
        same_dtype(self.kind, x=x, weight=weight)
        size = check_image(self.kind, "x", x)
        self._check_groups("x's channels", x.shape[-1])
        kernel = self._check_weight("x", x, weight)
        return (TensorSpec((x.shape[0], *self.windows(size, kernel).out, weight.shape[-1]), x.dtype),)


@dataclass(frozen=True)
class ConvDown(_Convolution):
    """The data gradient of `Conv`: ``dx`` from ``g`` and ``weight``; also the transposed convolution of ``g``.

    Source: Purine2 ``ConvDown``.

    Attributes:
        size: Spatial size of ``x``.
    """

    arguments = ("g", "weight")
    gives = "x"

    size: tuple[int, ...] = ()

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        g, weight = inputs
        same_dtype(self.kind, g=g, weight=weight)
        check_image(self.kind, "g", g)
        size = per_axis(self.kind, "size", self.size, len(g.shape) - 2, 0)
        kernel = self._check_weight("g", g, weight, is_image=False)
        expected = (*self.windows(size, kernel).out, weight.shape[-1])
        if g.shape[1:] != expected:
            shape = ", ".join(map(str, ("batch", *expected)))
            raise ShapeError(f"{self.kind}: g must have shape ({shape}), got {g}; weight is {weight}, x's size {size}")
        return (TensorSpec((g.shape[0], *size, weight.shape[-2] * self.groups), g.dtype),)


@dataclass(frozen=True)
class ConvWeight(_Convolution):
    """The weight gradient of `Conv`: ``dweight`` from ``g`` and ``x``.

    Source: Purine2 ``ConvWeight``.

    Attributes:
        kernel: Size of the kernel.
    """

    arguments = ("g", "x")
    gives = "weight"
    layouts: ClassVar[Mapping[str, Layout]] = {"nchw": Layout((CHANNELS_FIRST, CHANNELS_FIRST), (WEIGHT_FIRST,))}

    kernel: tuple[int, ...] = ()

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        g, x = inputs
        same_dtype(self.kind, g=g, x=x)
        size = check_image(self.kind, "x", x)
        self._check_groups("x's channels", x.shape[-1])
        expected = (x.shape[0], *self.windows(size, self.kernel).out)
        if g.shape[:-1] != expected:
            shape = ", ".join(map(str, (*expected, "out_channels")))
            raise ShapeError(f"{self.kind}: g must have shape ({shape}), got {g}; x is {x}")
        self._check_groups("g's channels", g.shape[-1])
        return (TensorSpec((*self.kernel, x.shape[-1] // self.groups, g.shape[-1]), g.dtype),)


def conv(
    x: X,
    weight: X,
    stride: Numbers = 1,
    pad: Border = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    name: str | None = None,
) -> X:
    """Convolution (cross-correlation) with zero padding, channels last, over as many spatial axes as ``x`` has.

    With two of them and one group,
    ``y[n, i, j, o] = sum over a, b, c of x[n, i * stride + a * dilation - pad, j * stride + b * dilation - pad, c]
    * weight[a, b, c, o]``. With groups, output channel ``o`` sees the input channels of its own group, number
    ``o // (out_channels / groups)``; as many groups as input channels make it depthwise.

    Args:
        x: Images, shape (batch, [[depth,] height,] width, in_channels), floating.
        weight: Kernels, shape (*kernel, in_channels / groups, out_channels), dtype of ``x``.
        stride: Step of the kernel: a number, or one for each spatial axis.
        pad: Zeros around the images: a number, or for each spatial axis a number or (before, after).
        dilation: Step between the elements that a kernel sees: a number, or one for each spatial axis.
        groups: Number of parts that the channels are divided into.
    Returns:
        Blob of shape (batch, *out_size, out_channels), with
        ``out_size = (size + before + after - dilation * (kernel - 1) - 1) // stride + 1``.
    Raises:
        ShapeError: if the channels differ or the kernel is larger than the padded image.
        DTypeError: if the dtypes differ or are not floating.
        GraphError: if a parameter is out of range.
    Gradient: dx by `ConvDown`, dweight by `ConvWeight`; both have gradients.
    Source: Purine2 ``Conv``.
    Example:
        >>> graph = af.Graph("edges")
        >>> x = graph.blob("x", shape=("batch", 1, 5, 1))  # batch, height, width, channels
        >>> weight = graph.variable("weight", (1, 3, 1, 1), init=np.reshape([-1, 0, 1], (1, 3, 1, 1)))
        >>> y = af.ops.conv(x, weight, pad=(0, 1))
        >>> image = np.reshape([0, 0, 5, 5, 5], (1, 1, 5, 1)).astype("float32")
        >>> print(y.shape, graph.run_sync({x: image})[y].ravel())
        (batch, 1, 5, 1) [ 0.  5.  5.  0. -5.]
    """
    operation = Conv(plain(stride), plain(pad), plain(dilation), groups)
    return blob_of(operation, x, weight, name=name)


@whole
def conv_transpose(
    x: X,
    weight: X,
    stride: Numbers = 1,
    pad: Border = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    output_pad: Numbers = 0,
    name: str | None = None,
) -> X:
    """Transposed convolution: the data gradient of `conv` with these parameters.

    Args:
        x: Shape (batch, [[depth,] height,] width, in_channels), floating.
        weight: Kernels of the convolution that is transposed, from out to in channels: shape (*kernel,
            out_channels / groups, in_channels), dtype of ``x``.
        stride: Step in the output from one element of ``x`` to the next: a number, or one for each spatial axis.
        pad: Elements to cut off the output: a number, or for each spatial axis a number or (before, after).
        dilation, groups: As in `conv`, of the output.
        output_pad: Elements to add to the output at its far ends, less than the stride or the dilation: convolutions
            with a stride give images of several sizes one size, and this chooses among them. Elements that no
            element of ``x`` reaches are 0.
    Returns:
        Blob of shape (batch, *out_size, out_channels), with
        ``out_size = (size - 1) * stride - before - after + dilation * (kernel - 1) + 1 + output_pad``.
    Raises:
        ShapeError: if the channels do not fit, or nothing is left of the output.
        DTypeError: if the dtypes differ or are not floating.
        GraphError: if a parameter is out of range.
    Gradient: dx by `Conv`, dweight by `ConvWeight`.
    Source: PyTorch ``conv_transpose2d``.
    Example:
        >>> x = xp.asarray([[[1.0], [2.0], [3.0]]])  # (batch, width, channels)
        >>> weight = xp.ones((2, 1, 1))
        >>> y = af.ops.conv_transpose(x, weight, stride=2)
        >>> print(y.shape, xp.reshape(y, (-1,)))
        (1, 6, 1) [1. 1. 2. 2. 3. 3.]
    """
    steps, pads, gaps = plain(stride), plain(pad), plain(dilation)
    types = spec_of("conv_transpose", "x", x), spec_of("conv_transpose", "weight", weight)
    size, cut, zeros = _transposed(*types, steps, pads, gaps, plain(output_pad))
    y = blob_of(ConvDown(steps, cut, gaps, groups, size), x, weight, name=None if any(zeros) else name)
    return blob_of(Pad(((0, 0), *[(0, n) for n in zeros], (0, 0))), y, name=name) if any(zeros) else y


def _transposed(
    x: TensorSpec, weight: TensorSpec, stride: PerAxis, pad: Pads, dilation: PerAxis, output_pad: PerAxis
) -> tuple[tuple[int, ...], Pads, tuple[int, ...]]:
    """The size and the padding of the convolution whose transpose is taken, and how many zeros follow the result.

    The output padding is more than a stride leaves open where the dilation is larger: the rest of it takes back what
    the padding cuts off, and then, there is nothing but zeros.
    """
    kind, kernel = "conv_transpose", weight.shape[:-2]
    size = check_image(kind, "x", x)
    if len(weight.shape) != len(x.shape) or weight.shape[-1] != x.shape[-1]:
        raise ShapeError(
            f"{kind}: weight must have shape (*kernel, out_channels / groups, in_channels) with x's {len(x.shape)} "
            f"axes and {x.shape[-1]} channels, got {weight}; x is {x}"
        )
    if 0 in size:
        raise ShapeError(f"{kind}: x must have a spatial size of at least 1, got {x}")
    rank = len(size)
    strides, dilations = per_axis(kind, "stride", stride, rank, 1), per_axis(kind, "dilation", dilation, rank, 1)
    extra, cuts = per_axis(kind, "output_pad", output_pad, rank, 0), pads_per_axis(kind, pad, rank)
    if any(e >= max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True)):
        raise GraphError(
            f"{kind}: output_pad must be less than the stride {strides} or the dilation {dilations}, got {extra}"
        )
    beyond = [max(e - s + 1, 0) for e, s in zip(extra, strides, strict=True)]
    zeros = tuple(max(n - after, 0) for n, (_, after) in zip(beyond, cuts, strict=True))
    axes = zip(size, strides, cuts, dilations, kernel, extra, zeros, strict=True)
    found = tuple((n - 1) * s - sum(cut) + d * (k - 1) + 1 + e - zero for n, s, cut, d, k, e, zero in axes)
    if any(n < 1 for n in found):
        raise ShapeError(f"{kind}: nothing is left of {size} with kernel {kernel} and padding {cuts}: size {found}")
    if any(beyond):
        pad = tuple((before, max(after - n, 0)) for n, (before, after) in zip(beyond, cuts, strict=True))
    return found, pad, zeros
