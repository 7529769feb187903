"""Pooling, NHWC: maximum and average over windows, average over whole images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar

from actorflow.errors import GraphError, ShapeError
from actorflow.ops.conv import NCHW, Pair, Window, pair
from actorflow.ops.functional import apply
from actorflow.ops.operation import Layout, Operation, rank_is, same_dtype
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.node import Blob, Op

__all__ = [
    "AveragePool2d",
    "AveragePool2dDown",
    "GlobalAverage",
    "GlobalAverageDown",
    "MaxPool2d",
    "MaxPool2dDown",
    "average_pool2d",
    "global_average",
    "max_pool2d",
]

_X = ("batch", "height", "width", "channels")


@dataclass(frozen=True)
class _Pool2d(Operation):
    """What the pooling operations share.

    Attributes:
        kernel: Height and width of the window.
        stride: Steps of the window (vertical, horizontal).
        pad: Width of the border around the images (vertical, horizontal), less than the kernel.
        ceil: Whether the last window of an axis may reach over the border.
    """

    layouts: ClassVar[Mapping[str, Layout]] = {"nchw": Layout((NCHW,), (NCHW,))}

    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int] = (0, 0)
    ceil: bool = True

    def output_size(self, size: Sequence[int]) -> tuple[int, int]:
        """Height and width of the output for images of this height and width.

        Raises:
            GraphError: if the parameters are out of range, `ShapeError` if the kernel is larger than the padded image.
        """
        Window(self.kernel, self.stride, self.pad).check(self.kind)
        if any(p >= k for p, k in zip(self.pad, self.kernel, strict=True)):
            raise GraphError(f"{self.kind}: pad must be less than the kernel {self.kernel}, got {self.pad}")
        counts = []
        for n, k, s, p in zip(size, self.kernel, self.stride, self.pad, strict=True):
            room = n + 2 * p - k
            if room < 0 or n == 0:
                raise ShapeError(
                    f"{self.kind}: kernel {self.kernel} is larger than the image {tuple(size)} with padding {self.pad}"
                )
            count = (room + s - 1 if self.ceil else room) // s + 1
            # A window that starts in the far border would see no element of the image.
            counts.append(count - 1 if (count - 1) * s >= n + p else count)
        return counts[0], counts[1]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """(batch, height, width, channels)."""
        (x,) = inputs
        same_dtype(self.kind, x=x)
        rank_is(self.kind, "x", x, _X)
        return (TensorSpec((x.shape[0], *self.output_size(x.shape[1:3]), x.shape[3]), x.dtype),)


@dataclass(frozen=True)
class MaxPool2d(_Pool2d):
    """The maximum of each window; see `max_pool2d`."""

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`MaxPool2dDown`."""
        assert grads[0] is not None
        return [apply(MaxPool2dDown(**asdict(self)), grads[0], op.inputs[0], op.outputs[0])]


@dataclass(frozen=True)
class MaxPool2dDown(_Pool2d):
    """The gradient of `MaxPool2d`: each window's gradient goes to its first maximum, row by row.

    Source: Purine2 ``PoolDown``.
    """

    arguments = ("g", "x", "y")
    layouts: ClassVar[Mapping[str, Layout]] = {"nchw": Layout((NCHW, NCHW, NCHW), (NCHW,))}
    differentiable = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        g, x, y = inputs
        same_dtype(self.kind, g=g, x=x, y=y)
        (expected,) = super().infer(x)
        for name, spec in (("g", g), ("y", y)):
            if spec.shape != expected.shape:
                raise ShapeError(f"{self.kind}: {name} must have shape {expected.shape}, got {spec}; x is {x}")
        return (x,)


@dataclass(frozen=True)
class AveragePool2d(_Pool2d):
    """The average of each window; see `average_pool2d`.

    Attributes:
        count_pad: Whether the border counts, as zeros.
    """

    count_pad: bool = True

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`AveragePool2dDown`."""
        assert grads[0] is not None
        height, width = op.inputs[0].shape[1:3]
        return [apply(AveragePool2dDown(**asdict(self), size=(height, width)), grads[0])]


@dataclass(frozen=True)
class AveragePool2dDown(AveragePool2d):
    """The gradient of `AveragePool2d`: each window's gradient, spread evenly over the window.

    Source: Purine2 ``PoolDown``.

    Attributes:
        size: Height and width of the images that were pooled.
    """

    arguments = ("g",)
    differentiable = False

    size: tuple[int, int] = (1, 1)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """(batch, height, width, channels) of the images that were pooled."""
        (g,) = inputs
        same_dtype(self.kind, g=g)
        rank_is(self.kind, "g", g, _X)
        expected = self.output_size(self.size)
        if g.shape[1:3] != expected:
            raise ShapeError(f"{self.kind}: g must have height and width {expected}, got {g}; x had {self.size}")
        return (TensorSpec((g.shape[0], *self.size, g.shape[3]), g.dtype),)


@dataclass(frozen=True)
class GlobalAverage(Operation):
    """The average over height and width; see `global_average`."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """(batch, channels)."""
        (x,) = inputs
        same_dtype("GlobalAverage", x=x)
        rank_is("GlobalAverage", "x", x, _X)
        if 0 in x.shape[1:3]:
            raise ShapeError(f"GlobalAverage: x must have a height and width of at least 1, got {x}")
        return (TensorSpec((x.shape[0], x.shape[3]), x.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`GlobalAverageDown`."""
        assert grads[0] is not None
        height, width = op.inputs[0].shape[1:3]
        return [apply(GlobalAverageDown((height, width)), grads[0])]


@dataclass(frozen=True)
class GlobalAverageDown(Operation):
    """The gradient of `GlobalAverage`: ``g / (height * width)`` at each pixel.

    Attributes:
        size: Height and width of the images.
    """

    arguments = ("g",)
    differentiable = False

    size: tuple[int, int]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """(batch, height, width, channels)."""
        (g,) = inputs
        same_dtype("GlobalAverageDown", g=g)
        rank_is("GlobalAverageDown", "g", g, ("batch", "channels"))
        return (TensorSpec((g.shape[0], *self.size, g.shape[1]), g.dtype),)


def max_pool2d(
    x: Blob, kernel: Pair, stride: Pair | None = None, pad: Pair = 0, ceil: bool = True, name: str | None = None
) -> Blob:
    """The maximum of each window of the images; the border counts as minus infinity.

    Args:
        x: Images, shape (batch, height, width, channels), floating.
        kernel: Size of the window: a number, or (vertical, horizontal).
        stride: Step of the window; the default is the kernel.
        pad: Border on each side, less than the kernel.
        ceil: Round the number of windows up, so that the last one may reach over the border, as in Caffe and Purine2;
            False rounds down. A window that would start beyond the image is never made.
        name: Name of the op.
    Returns:
        Blob of shape (batch, out_height, out_width, channels).
    Raises:
        ShapeError: if ``x`` has other axes or the kernel is larger than the padded image.
        DTypeError: if ``x`` is not floating.
        GraphError: if a parameter is out of range.
    Gradient: the whole of each window's gradient to its first maximum, row by row; sums where windows overlap.
    Source: Purine2 ``Pool`` (max).
    """
    size = pair(kernel)
    y: Blob = apply(MaxPool2d(size, size if stride is None else pair(stride), pair(pad), ceil), x, name=name)
    return y


def average_pool2d(
    x: Blob,
    kernel: Pair,
    stride: Pair | None = None,
    pad: Pair = 0,
    ceil: bool = True,
    count_pad: bool = True,
    name: str | None = None,
) -> Blob:
    """The average of each window of the images.

    Args:
        x: Images, shape (batch, height, width, channels), floating.
        kernel: Size of the window: a number, or (vertical, horizontal).
        stride: Step of the window; the default is the kernel.
        pad: Border on each side, less than the kernel.
        ceil: As in `max_pool2d`.
        count_pad: Whether the border counts, as zeros. What a window covers beyond the border never counts.
        name: Name of the op.
    Returns:
        Blob of shape (batch, out_height, out_width, channels).
    Raises:
        ShapeError, DTypeError, GraphError: as in `max_pool2d`.
    Gradient: each window's gradient, spread evenly over the elements that it averages.
    Source: Purine2 ``Pool`` (average; average_exclude_padding is ``count_pad=False``), divisors as in Caffe.
    """
    size = pair(kernel)
    steps = size if stride is None else pair(stride)
    y: Blob = apply(AveragePool2d(size, steps, pair(pad), ceil, count_pad), x, name=name)
    return y


def global_average(x: Blob, name: str | None = None) -> Blob:
    """The average of each channel over the whole image.

    Args:
        x: Images, shape (batch, height, width, channels), floating.
        name: Name of the op.
    Returns:
        Blob of shape (batch, channels).
    Raises:
        ShapeError: if ``x`` has other axes, or no pixels.
        DTypeError: if ``x`` is not floating.
    Gradient: g / (height * width) at each pixel.
    Source: Purine2 ``GlobalAverage``.
    """
    y: Blob = apply(GlobalAverage(), x, name=name)
    return y
