"""Pooling over one, two or three spatial axes, channels last: maximum and average of windows and of whole images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, overload

import numpy as np

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops.elementwise import equal, greater_equal, logical_and, scale, where
from actorflow.ops.indexing import take_along_axis
from actorflow.ops.nn.windows import (
    CHANNELS_FIRST,
    Border,
    Numbers,
    Pads,
    PerAxis,
    Windows,
    check_image,
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
    savable,
    spec_of,
    whole,
)
from actorflow.ops.shaping import broadcast_to, reshape
from actorflow.spec import TensorSpec, following, minimum

#: Elements of a kernel that see anything, at most, and for each pixel of an image, if these are more.
_MOST_TAPS, _MOST_TAPS_PER_PIXEL = 1 << 11, 64


@dataclass(frozen=True)
class _Pool(Operation):
    """Base of the pooling operations; the parameters are `max_pool`'s."""

    layouts: ClassVar[Mapping[str, Layout]] = {"nchw": Layout((CHANNELS_FIRST,), (CHANNELS_FIRST,))}

    kernel: PerAxis
    stride: PerAxis | None = None
    pad: Pads = 0
    ceil: bool = True
    dilation: PerAxis = field(default=1, kw_only=True)

    @property
    def how(self) -> dict[str, Any]:
        """The parameters that all poolings have."""
        return {name: getattr(self, name) for name in ("kernel", "stride", "pad", "ceil", "dilation")}

    def windows(self, size: Sequence[int]) -> Windows:
        """The windows on images of this size; ``out`` is the size of the output."""
        stride = self.kernel if self.stride is None else self.stride
        found = slide(self.kind, tuple(size), self.kernel, stride, self.pad, self.dilation, self.ceil)
        if any(max(pads) >= k for k, pads in zip(found.kernel, found.pad, strict=True)):
            raise GraphError(f"{self.kind}: pad must be less than the kernel {found.kernel}, got {found.pad}")
        # A window may be far larger than the images, but not so many that see them each at another place.
        axes = zip(found.kernel, found.out, size, strict=True)
        taps: Any = math.prod([minimum(k, count * n) for k, count, n in axes])
        most: Any = _MOST_TAPS_PER_PIXEL * math.prod(size)
        if isinstance(taps, int) and isinstance(most, int) and taps > max(_MOST_TAPS, most):
            raise GraphError(f"{self.kind}: kernel {found.kernel} and pad {found.pad} are too large for images {size}")
        if 0 in size:
            raise ShapeError(f"{self.kind}: x must have a spatial size of at least 1, got {tuple(size)}")
        return found

    def cost(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Cost | None:
        y = outputs[0] if self.arguments == ("x",) else inputs[0]
        return Cost(others=y.size * math.prod(per_axis(self.kind, "kernel", self.kernel, len(y.shape) - 2, 1)))

    def _pooled(self, x: TensorSpec) -> TensorSpec:
        size = check_image(self.kind, "x", x)
        return TensorSpec((x.shape[0], *self.windows(size).out, x.shape[-1]), x.dtype)


@dataclass(frozen=True)
class _MaxPool(_Pool):
    dilation: PerAxis = 1


@dataclass(frozen=True)
class MaxPool(_MaxPool):
    """The maximum of each window, and where it is; see `max_pool`."""

    return_indices: bool = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        if x.dtype.kind not in "fViu":  # ml_dtypes' bfloat16 has kind V
            raise DTypeError(f"{self.kind}: x must be floating or integers, got {x}")
        y = self._pooled(x)
        return (y, TensorSpec(y.shape, np.dtype(np.int64))) if self.return_indices else (y,)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [apply(MaxPoolDown(**self.how), grads[0], op.inputs[0], op.outputs[0])]


class MaxPoolDown(_MaxPool):
    """The gradient of `MaxPool`: each window's gradient goes to its first maximum, in the order of memory.

    ``x`` and ``y`` only say where: this operation's gradient by them is zero.

    Source: Purine2 ``PoolDown``.
    """

    arguments = ("g", "x", "y")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        g, x, y = inputs
        same_dtype(self.kind, g=g, x=x, y=y)
        expected = self._pooled(x)
        for name, spec in (("g", g), ("y", y)):
            if spec.shape != expected.shape:
                raise ShapeError(f"{self.kind}: {name} must have shape {expected.shape}, got {spec}; x is {x}")
        return (x,)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        """By ``g``: the gradient at each window's first maximum, 0 for windows without one or with a NaN."""
        (h,), (_, x, y) = grads, op.inputs
        if not wanted[0]:
            return [None] * 3
        _, indices = apply(MaxPool(**self.how, return_indices=True), x)
        images, places = (
            reshape(each, (x.shape[0], math.prod(each.shape[1:-1]), x.shape[-1])) for each in (h, indices)
        )
        picked = reshape(take_along_axis(images, places, axis=1), y.shape)
        return [where(logical_and(greater_equal(indices, 0), equal(y, y)), picked, 0.0), None, None]


@dataclass(frozen=True)
class AveragePool(_Pool):
    """The average of each window; see `average_pool`."""

    count_pad: bool = True

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        same_dtype(self.kind, x=x)
        return (self._pooled(x),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [apply(AveragePoolDown(count_pad=self.count_pad, size=op.inputs[0].shape[1:-1], **self.how), grads[0])]


@dataclass(frozen=True)
class AveragePoolDown(_Pool):
    """The gradient of `AveragePool`: each window's gradient, spread evenly over the elements that it averages.

    Source: Purine2 ``PoolDown``.

    Attributes:
        size: Spatial size of the images that were pooled.
    """

    arguments = ("g",)

    count_pad: bool = True
    size: tuple[int, ...] = ()

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (g,) = inputs
        same_dtype(self.kind, g=g)
        found = check_image(self.kind, "g", g)
        size = per_axis(self.kind, "size", self.size, len(found), 0)
        expected = self.windows(size).out
        if found != expected:
            raise ShapeError(f"{self.kind}: g must have spatial size {expected}, got {g}; x had {size}")
        return (TensorSpec((g.shape[0], *size, g.shape[-1]), g.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [apply(AveragePool(count_pad=self.count_pad, **self.how), grads[0])]


@savable
def _share(count: int) -> float:
    return 1 / count


class GlobalAverage(Operation):
    """The average over all spatial axes; see `global_average`."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        same_dtype(self.kind, x=x)
        if 0 in check_image(self.kind, "x", x):
            raise ShapeError(f"{self.kind}: x must have a spatial size of at least 1, got {x}")
        return (TensorSpec((x.shape[0], x.shape[-1]), x.dtype),)

    def cost(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Cost | None:
        return Cost(others=inputs[0].size)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (batch, *size, channels) = op.inputs[0].shape
        share = scale(grads[0], following(_share, math.prod(size)))
        return [broadcast_to(reshape(share, (batch, *[1] * len(size), channels)), op.inputs[0].shape)]


@overload
def max_pool(
    x: X,
    kernel: Numbers,
    stride: Numbers | None = None,
    pad: Border = 0,
    ceil: bool = True,
    dilation: Numbers = 1,
    name: str | None = None,
    return_indices: Literal[False] = False,
) -> X: ...
@overload
def max_pool(
    x: X,
    kernel: Numbers,
    stride: Numbers | None = None,
    pad: Border = 0,
    ceil: bool = True,
    dilation: Numbers = 1,
    name: str | None = None,
    *,
    return_indices: Literal[True],
) -> tuple[X, X]: ...
def max_pool(
    x: X,
    kernel: Numbers,
    stride: Numbers | None = None,
    pad: Border = 0,
    ceil: bool = True,
    dilation: Numbers = 1,
    name: str | None = None,
    return_indices: bool = False,
) -> X | tuple[X, X]:
    """The maximum of each window of the images; the border counts as the least value there is.

    Args:
        x: Images, shape (batch, [[depth,] height,] width, channels), floating or integers.
        kernel: Size of the window: a number, or one for each spatial axis.
        stride: Step of the window; the default is the kernel.
        pad: Border around the images, less than the kernel: a number, or for each spatial axis a number or (before,
            after).
        ceil: Round the number of windows up, so that the last one may reach over the border, as in Caffe and Purine2;
            False rounds down, as PyTorch does by default. A window that would start beyond the image is never made.
        dilation: Step between the elements that a window sees.
        return_indices: Also return where the maxima are.
    Returns:
        Blob of shape (batch, *out_size, channels), dtype of ``x``. With a dilation a window may see nothing but border.
        With ``return_indices`` also a blob of that shape, int64, of the flat index of each window's first maximum (or
        first NaN) among the elements of its image, the border not counted; -1 where a window sees nothing else.
    Raises:
        ShapeError: if ``x`` has other axes or the kernel is larger than the padded image.
        DTypeError: if ``x`` is neither floating nor integers.
        GraphError: if a parameter is out of range.
    Gradient: the whole of each window's gradient to its first maximum, in the order of memory; sums where windows
        overlap. The indices have none.
    Source: Purine2 ``Pool`` (max); the indices are as of `torch.nn.functional.max_pool2d`.
    Example:
        >>> x = xp.reshape(xp.arange(16.0), (1, 4, 4, 1))
        >>> y, places = af.ops.max_pool(x, 2, return_indices=True)
        >>> print(y.shape, xp.reshape(y, (-1,)), xp.reshape(places, (-1,)))
        (1, 2, 2, 1) [ 5.  7. 13. 15.] [ 5  7 13 15]
    """
    operation = MaxPool(plain(kernel), plain(stride), plain(pad), ceil, plain(dilation), return_indices)
    found: X | tuple[X, X] = apply(operation, x, name=name)
    return found


def average_pool(
    x: X,
    kernel: Numbers,
    stride: Numbers | None = None,
    pad: Border = 0,
    ceil: bool = True,
    count_pad: bool = True,
    name: str | None = None,
    dilation: Numbers = 1,
) -> X:
    """The average of each window of the images.

    Args:
        x: Images, shape (batch, [[depth,] height,] width, channels), floating.
        kernel, stride, pad, ceil, dilation: As in `max_pool`.
        count_pad: Whether the border counts, as zeros. Elements beyond the border never count.
    Returns:
        Blob of shape (batch, *out_size, channels), dtype of ``x``; 0 where a window sees nothing that counts.
    Raises:
        ShapeError, GraphError: as in `max_pool`.
        DTypeError: if ``x`` is not floating.
    Gradient: each window's gradient, spread evenly over the elements that it averages.
    Source: Purine2 ``Pool`` (average; average_exclude_padding is ``count_pad=False``), divisors as in Caffe.
    Example:
        >>> x = xp.reshape(xp.arange(16.0), (1, 4, 4, 1))
        >>> print(xp.reshape(af.ops.average_pool(x, 2), (2, 2)))
        [[ 2.5  4.5]
         [10.5 12.5]]
    """
    how = (plain(kernel), plain(stride), plain(pad), ceil, count_pad)
    return blob_of(AveragePool(*how, dilation=plain(dilation)), x, name=name)


def global_average(x: X, name: str | None = None) -> X:
    """The average of each channel over the whole image.

    Args:
        x: Images, shape (batch, [[depth,] height,] width, channels), floating.
    Returns:
        Blob of shape (batch, channels).
    Raises:
        ShapeError: if ``x`` has other axes, or no pixels.
        DTypeError: if ``x`` is not floating.
    Gradient: g, divided by the number of pixels, at each pixel.
    Source: Purine2 ``GlobalAverage``.
    Example:
        >>> x = xp.asarray([[[1.0, 10.0], [3.0, 30.0]]])  # (batch, width, channels)
        >>> print(af.ops.global_average(x))
        [[ 2. 20.]]
    """
    return blob_of(GlobalAverage(), x, name=name)


@whole
def global_max(x: X, name: str | None = None) -> X:
    """The maximum of each channel over the whole image, (batch, channels): `max_pool` with one window.

    Args:
        x: Images, shape (batch, [[depth,] height,] width, channels), floating or integers.
    Returns:
        Blob of shape (batch, channels), dtype of ``x``.
    Raises:
        ShapeError, DTypeError: as for `max_pool`.
    Gradient: g at the first maximum of each channel.
    Example:
        >>> x = xp.asarray([[[1.0, 30.0], [3.0, 10.0]]])  # (batch, width, channels)
        >>> print(af.ops.global_max(x))
        [[ 3. 30.]]
    """
    y = blob_of(MaxPool(check_image("global_max", "x", spec_of("global_max", "x", x))), x, name=name)
    return reshape(y, (x.shape[0], x.shape[-1]))
