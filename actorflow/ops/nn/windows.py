"""Windows that slide over images of one, two or three spatial axes, for convolution and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from actorflow.errors import GraphError, ShapeError
from actorflow.ops.operation import Axes
from actorflow.spec import Length, TensorSpec, is_natural, minimum

#: Order of the axes of images, and of a weight, for kernels of layout ``"nchw"``, whatever their number is.
CHANNELS_FIRST: Axes = (0, -1, ...)
WEIGHT_FIRST: Axes = (-1, -2, ...)

#: A number for all spatial axes, or one for each; as operations keep it, and as it may be given.
PerAxis = int | tuple[int, ...]
Numbers = int | Sequence[int]
#: A number for all spatial axes, or for each a number or (before, after).
Pads = int | tuple[int | tuple[int, int], ...]
Border = int | Sequence[int | Sequence[int]]

MOST_AXES = 3
#: A parameter is less than that.
_MOST = 1 << 31
#: Elements of an image with its border, at most, unless images and what windows see of them are large, too: a border is
#: made, so that its size must not be the word of a parameter alone.
_MOST_PADDED, _PADDED_PER_SEEN = 1 << 20, 64


@dataclass(frozen=True, slots=True)
class Windows:
    """Positions of the windows of one operation, each attribute axis by axis.

    Attributes:
        size: Size of the images.
        kernel: Elements that a window sees.
        stride: Distance from one window to the next.
        pad: Border around the images, (before, after).
        dilation: Distance from one element that a window sees to the next.
        out: Number of windows.
    """

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def padded_size(self) -> tuple[int, ...]:
        """Size of the images with their border."""
        return tuple(n + before + after for n, (before, after) in zip(self.size, self.pad, strict=True))

    @property
    def is_pointwise(self) -> bool:
        """True if each window is one element, and each element a window."""
        ones = (1,) * len(self.size)
        return self.kernel == self.stride == ones and not any(map(any, self.pad))


def is_even(pad: Pads) -> bool:
    """Return whether a border is as wide before as after the images, which is all that some libraries can do."""
    return isinstance(pad, int) or all(isinstance(v, int) or v[0] == v[1] for v in pad)


@lru_cache(maxsize=4096)
def slide(
    kind: str,
    size: tuple[int, ...],
    kernel: PerAxis,
    stride: PerAxis = 1,
    pad: Pads = 0,
    dilation: PerAxis = 1,
    ceil: bool = False,
) -> Windows:
    """The windows over images of this size.

    Args:
        kind: Name of the operation, for messages.
        size: Size of the images, axis by axis.
        kernel, stride, pad, dilation: As of `Windows`; a number stands for all axes.
        ceil: Whether a last window may reach over the border; not one that starts beyond the image.
    Raises:
        GraphError: if a parameter is out of range or has another number of axes.
        ShapeError: if a window is larger than the images with their border.
    """
    rank = len(size)
    kernels = per_axis(kind, "kernel", kernel, rank, 1)
    strides = per_axis(kind, "stride", stride, rank, 1)
    dilations = per_axis(kind, "dilation", dilation, rank, 1)
    pads = pads_per_axis(kind, pad, rank)
    dilated = tuple(d * (k - 1) + 1 for k, d in zip(kernels, dilations, strict=True))
    counts = []
    for n, seen, s, (before, after) in zip(size, dilated, strides, pads, strict=True):
        room = n + before + after - seen
        if room < 0:
            reach = "" if dilated == kernels else f" with dilation {dilations}, {dilated} in all,"
            border = pads if any(a != b for a, b in pads) else tuple(a for a, _ in pads)
            raise ShapeError(f"{kind}: kernel {kernels}{reach} is larger than the image {size} with padding {border}")
        count = (_divided_up(room, s) if ceil else room // s) + 1
        may_start_beyond = ceil and not is_natural(seen - after - s)
        counts.append(minimum(count, (n + before - 1) // s + 1) if may_start_beyond else count)
    found = Windows(tuple(size), kernels, strides, pads, dilations, tuple(counts))
    padded: Any = math.prod(found.padded_size)
    if isinstance(padded, int) and padded > _MOST_PADDED:
        seen = math.prod(size) + math.prod(kernels) * math.prod(counts)
        if padded > _PADDED_PER_SEEN * seen:
            raise GraphError(f"{kind}: pad {pads} is too wide: of {padded} elements windows see no more than {seen}")
    return found


def _divided_up(length: Any, by: Any) -> Any:
    """The quotient, rounded up; of a number by a length so that 0 gives 0, and not a formula that is it."""
    return -(-length // by) if isinstance(by, Length) else (length + by - 1) // by


def per_axis(kind: str, name: str, value: PerAxis, rank: int, least: int) -> tuple[int, ...]:
    """The values axis by axis.

    Raises:
        GraphError: if there are more or fewer than axes, or one is less than ``least``.
    """
    values: tuple[Any, ...] = value if isinstance(value, tuple) else (value,) * rank
    if len(values) != rank:
        raise GraphError(f"{kind}: {name} must be a number, or one for each of {rank} spatial axes, got {value}")
    if any(not isinstance(v, int | Length) or v < least for v in values):
        raise GraphError(f"{kind}: {name} must be at least {least}, got {values}")
    if any(isinstance(v, int) and v >= _MOST for v in values):
        raise GraphError(f"{kind}: {name} must be less than {_MOST}, got {values}")
    return values


def pads_per_axis(kind: str, pad: Pads, rank: int) -> tuple[tuple[int, int], ...]:
    """(before, after) axis by axis.

    Raises:
        GraphError: if there are more or fewer than axes, or one is negative.
    """
    values: tuple[Any, ...] = pad if isinstance(pad, tuple) else (pad,) * rank
    pairs = tuple(v if isinstance(v, tuple) else (v, v) for v in values)
    if len(pairs) != rank or any(len(p) != 2 for p in pairs):
        raise GraphError(
            f"{kind}: pad must be a number, or a number or (before, after) for each of {rank} spatial axes, got {pad}"
        )
    if any(not isinstance(v, int | Length) or v < 0 for p in pairs for v in p):
        raise GraphError(f"{kind}: pad must be at least 0, got {pad}")
    if any(isinstance(v, int) and v >= _MOST for p in pairs for v in p):
        raise GraphError(f"{kind}: pad must be less than {_MOST}, got {pad}")
    return pairs


def plain(value: Any) -> Any:
    """A parameter as operations keep it: integers of Python, in tuples; `per_axis` refuses the rest."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(plain, value))
    return int(value) if isinstance(value, np.integer) else value


def check_image(kind: str, name: str, spec: TensorSpec) -> tuple[int, ...]:
    """Check that a blob is images; their spatial size.

    Raises:
        ShapeError: if it has fewer than 1 or more than 3 spatial axes.
    """
    if not 1 <= len(spec.shape) - 2 <= MOST_AXES:
        raise ShapeError(f"{kind}: {name} must have shape (batch, 1 to {MOST_AXES} spatial axes, channels), got {spec}")
    return spec.shape[1:-1]
