"""Two-dimensional convolution, NHWC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from actorflow.errors import GraphError, ShapeError
from actorflow.ops.functional import apply
from actorflow.ops.operation import Layout, Operation, rank_is, same_dtype
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.node import Blob, Op

__all__ = ["NCHW", "OIHW", "Conv2d", "Conv2dDown", "Conv2dWeight", "Pair", "Window", "conv2d", "pair"]

_X = ("batch", "height", "width", "channels")
_WEIGHT = ("kernel_height", "kernel_width", "in_channels", "out_channels")

#: What the axes of images and of a weight are permuted to for kernels of layout ``"nchw"``.
NCHW, OIHW = (0, 3, 1, 2), (3, 2, 0, 1)

#: A number for both axes, or (vertical, horizontal).
Pair = int | tuple[int, int]


class Window(NamedTuple):
    """How a kernel slides over images; each a (vertical, horizontal) pair."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]

    def check(self, kind: str) -> None:
        """Check the ranges.

        Raises:
            GraphError: if the kernel or stride is not positive or the padding negative.
        """
        for name, values, least in (("kernel", self.kernel, 1), ("stride", self.stride, 1), ("pad", self.pad, 0)):
            if min(values) < least:
                raise GraphError(f"{kind}: {name} must be at least {least}, got {values}")


def pair(value: Pair) -> tuple[int, int]:
    """The same number twice, or the pair as it is."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


@dataclass(frozen=True)
class Conv2d(Operation):
    """Cross-correlation of images with kernels; see `conv2d`.

    Attributes:
        stride: Steps of the kernel (vertical, horizontal).
        pad: Zeros around the images (vertical, horizontal).
    """

    arguments = ("x", "weight")
    layouts: ClassVar[Mapping[str, Layout]] = {"nchw": Layout((NCHW, OIHW), (NCHW,))}

    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """(batch, height, width, out_channels).

        Raises:
            GraphError, ShapeError, DTypeError: if the parameters, ``x`` and ``weight`` do not fit.
        """
        x, weight = inputs
        same_dtype("Conv2d", x=x, weight=weight)
        rank_is("Conv2d", "x", x, _X)
        rank_is("Conv2d", "weight", weight, _WEIGHT)
        if x.shape[3] != weight.shape[2]:
            raise ShapeError(f"Conv2d: weight must have x's {x.shape[3]} channels on axis 2, got {weight}; x is {x}")
        height, width = self.output_size(x.shape[1:3], weight.shape[:2])
        return (TensorSpec((x.shape[0], height, width, weight.shape[3]), x.dtype),)

    def output_size(self, size: Sequence[int], kernel: Sequence[int]) -> tuple[int, int]:
        """Height and width of the output: ``(size + 2 * pad - kernel) // stride + 1``.

        Raises:
            GraphError: if the parameters are out of range, `ShapeError` if the kernel is larger than the padded image.
        """
        Window((kernel[0], kernel[1]), self.stride, self.pad).check("Conv2d")
        room = [n + 2 * p - k for n, p, k in zip(size, self.pad, kernel, strict=True)]
        if min(room) < 0:
            raise ShapeError(
                f"Conv2d: weight's kernel {tuple(kernel)} is larger than the image {tuple(size)} "
                f"with padding {self.pad}"
            )
        return room[0] // self.stride[0] + 1, room[1] // self.stride[1] + 1

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`Conv2dDown` and `Conv2dWeight`."""
        (g,), (x, weight) = grads, op.inputs
        assert g is not None
        down = Conv2dDown(x.shape[1:3], self.stride, self.pad)  # type: ignore[arg-type]  # two axes, infer() checked
        kernel = Conv2dWeight(weight.shape[:2], self.stride, self.pad)  # type: ignore[arg-type]
        return [apply(down, g, weight) if wanted[0] else None, apply(kernel, g, x) if wanted[1] else None]


@dataclass(frozen=True)
class Conv2dDown(Operation):
    """The data gradient of `Conv2d`: ``dx`` from ``g`` and ``weight``.

    Source: Purine2 ``ConvDown``.

    Attributes:
        size: Height and width of ``x``.
        stride: As in `Conv2d`.
        pad: As in `Conv2d`.
    """

    arguments = ("g", "weight")
    layouts: ClassVar[Mapping[str, Layout]] = {"nchw": Layout((NCHW, OIHW), (NCHW,))}
    differentiable = False

    size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """(batch, height, width, in_channels)."""
        g, weight = inputs
        same_dtype("Conv2dDown", g=g, weight=weight)
        rank_is("Conv2dDown", "g", g, _X)
        rank_is("Conv2dDown", "weight", weight, _WEIGHT)
        expected = (*Conv2d(self.stride, self.pad).output_size(self.size, weight.shape[:2]), weight.shape[3])
        if g.shape[1:] != expected:
            raise ShapeError(f"Conv2dDown: g must have shape (batch, *{expected}), got {g}; weight is {weight}")
        return (TensorSpec((g.shape[0], *self.size, weight.shape[2]), g.dtype),)


@dataclass(frozen=True)
class Conv2dWeight(Operation):
    """The weight gradient of `Conv2d`: ``dweight`` from ``g`` and ``x``.

    Source: Purine2 ``ConvWeight``.

    Attributes:
        kernel: Height and width of the kernel.
        stride: As in `Conv2d`.
        pad: As in `Conv2d`.
    """

    arguments = ("g", "x")
    layouts: ClassVar[Mapping[str, Layout]] = {"nchw": Layout((NCHW, NCHW), (OIHW,))}
    differentiable = False

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """(kernel_height, kernel_width, in_channels, out_channels)."""
        g, x = inputs
        same_dtype("Conv2dWeight", g=g, x=x)
        rank_is("Conv2dWeight", "g", g, _X)
        rank_is("Conv2dWeight", "x", x, _X)
        expected = (x.shape[0], *Conv2d(self.stride, self.pad).output_size(x.shape[1:3], self.kernel))
        if g.shape[:3] != expected:
            raise ShapeError(f"Conv2dWeight: g must have shape {(*expected, 'out_channels')}, got {g}; x is {x}")
        return (TensorSpec((*self.kernel, x.shape[3], g.shape[3]), g.dtype),)


def conv2d(x: Blob, weight: Blob, stride: Pair = 1, pad: Pair = 0, name: str | None = None) -> Blob:
    """Two-dimensional convolution (cross-correlation) with zero padding, channels last.

    ``y[n, i, j, o] = sum over a, b, c of x[n, i * stride + a - pad, j * stride + b - pad, c] * weight[a, b, c, o]``

    Args:
        x: Images, shape (batch, height, width, in_channels), floating.
        weight: Kernels, shape (kernel_height, kernel_width, in_channels, out_channels), dtype of ``x``.
        stride: Step of the kernel: a number, or (vertical, horizontal).
        pad: Zeros on each side: a number, or (vertical, horizontal).
        name: Name of the op.
    Returns:
        Blob of shape (batch, out_height, out_width, out_channels), with
        ``out = (size + 2 * pad - kernel) // stride + 1``.
    Raises:
        ShapeError: if the channels differ or the kernel is larger than the padded image.
        DTypeError: if the dtypes differ or are not floating.
        GraphError: if ``stride`` or ``pad`` is out of range.
    Gradient: dx by `Conv2dDown`, dweight by `Conv2dWeight`.
    Source: Purine2 ``Conv``.
    """
    y: Blob = apply(Conv2d(pair(stride), pair(pad)), x, weight, name=name)
    return y
