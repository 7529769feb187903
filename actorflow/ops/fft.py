"""Fourier transforms of blobs and lazy arrays.

Transforms are linear: the gradient of each is its adjoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops.elementwise import conj
from actorflow.ops.fills import numbers
from actorflow.ops.indexing import pad
from actorflow.ops.indexing import slice as part_of
from actorflow.ops.operation import Application, Grads, Operation, X, apply, axes_of, blob_of, savable, whole
from actorflow.ops.rows import fit
from actorflow.ops.shaping import Axis, roll, split
from actorflow.spec import TensorSpec, integers, minimum

__all__ = [
    "fft", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft", "rfftn",
]  # fmt: skip

Norm = Literal["backward", "ortho", "forward"]

#: Where an adjoint has its factor.
_SWAPPED: dict[Norm, Norm] = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


@dataclass(frozen=True)
class _Transform(Operation):
    """Base of the transforms along an axis.

    Attributes:
        points: Number of points; the axis is cut off there, or filled up with zeros.
        axis: The axis, counted from the front.
        norm: Where the factor is: "backward" in the inverse transform, "forward" in the other, "ortho" in both.
    """

    takes_complex = True
    #: Kinds of the dtypes that it takes.
    kinds: ClassVar[str] = "fc"

    points: int
    axis: int
    norm: Norm = "backward"

    def length(self) -> int:
        """Length of the result along the axis."""
        return self.points

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        name = self.function_name
        if x.dtype.kind not in self.kinds:
            raise DTypeError(f"{name}: x must be {'real and ' if self.kinds == 'f' else ''}floating, got {x}")
        if self.norm not in _SWAPPED:
            raise GraphError(f"{name}: norm must be 'backward', 'ortho' or 'forward', got {self.norm!r}")
        if self.points < 1:
            raise ShapeError(f"{name}: there must be at least one point, got {self.points} of x {x}")
        shape = (*x.shape[: self.axis], self.length(), *x.shape[self.axis + 1 :])
        return (TensorSpec(shape, np.result_type(x.dtype, np.complex64)),)

    def compute(self, *inputs: Any) -> Any:
        x = inputs[0].astype(
            np.result_type(inputs[0].dtype, np.float32), copy=False
        )  # NumPy's of half precision are half
        return getattr(np.fft, self.function_name)(x, n=self.points, axis=self.axis, norm=self.norm)


@dataclass(frozen=True)
class Fft(_Transform):
    """The discrete Fourier transform; see `fft`."""

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (x,) = op.inputs
        adjoint = Fft if isinstance(self, Ifft) else Ifft
        back = apply(adjoint(self.points, self.axis, _SWAPPED[self.norm]), grads[0])
        return [fit(_resized(back, x.shape[self.axis], self.axis), x)]


@dataclass(frozen=True)
class Ifft(Fft):
    """The inverse of `Fft`; see `ifft`."""


@dataclass(frozen=True)
class Rfft(_Transform):
    """The transform of real numbers; see `rfft`."""

    kinds = "f"

    def length(self) -> int:
        return self.points // 2 + 1

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (x,) = op.inputs
        both = _resized(grads[0], self.points, self.axis)
        back = apply(Ifft(self.points, self.axis, _SWAPPED[self.norm]), both)
        return [fit(_resized(back, x.shape[self.axis], self.axis), x)]


@dataclass(frozen=True)
class Irfft(_Transform):
    """The inverse of `Rfft`; see `irfft`."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (y,) = _Transform.infer(self, *inputs)
        return (TensorSpec(y.shape, np.empty(0, y.dtype).real.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (x,) = op.inputs
        back = apply(Rfft(self.points, self.axis, _SWAPPED[self.norm]), grads[0])
        # All but the first one, and the last one of an even number, stand for two.
        shape = [n if i == self.axis else 1 for i, n in enumerate(back.shape)]
        back = back * back.literal(
            numbers(_counts, self.points, tuple(shape), back.dtype, shape=shape, dtype=back.dtype)
        )
        return [fit(_resized(back, x.shape[self.axis], self.axis), x)]


@savable
def _counts(points: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    weights = np.full(math.prod(shape), 2, dtype)
    weights[0] = 1
    if points % 2 == 0:
        weights[-1] = 1
    return weights.reshape(shape)


def _resized(x: Any, length: int, axis: int) -> Any:
    """The first elements along an axis, with zeros behind them where there are not as many."""
    missing = length - x.shape[axis]
    if isinstance(missing, int) and missing <= 0:
        return split(x, [length, -missing], axis)[0] if missing else x
    kept = minimum(length, x.shape[axis])  # of open axes, it may be as well that elements are cut off as that some miss
    if kept != x.shape[axis]:
        x = part_of(x, (*[slice(None)] * axis, slice(None, kept)))
    return x if kept == length else pad(x, [(0, length - kept if i == axis else 0) for i in range(len(x.shape))])


def _made(
    made: Callable[[int, int, Norm], Operation], x: X, n: int | None, axis: int, norm: Norm, name: str, half: bool
) -> X:
    """A transform along an axis; ``half``: of one half, so that there are more points than elements."""
    (along,) = axes_of(name, axis, len(x.shape))
    points = x.shape[along] if n is None else integers(n)[0]
    return blob_of(made(2 * (points - 1) if half and n is None else points, along, norm), x, name=name)


def fft(x: X, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward", name: str | None = None) -> X:
    """The discrete Fourier transform along an axis.

    Args:
        x: Floating.
        n: Number of points: elements behind them are left out, missing ones are zeros; by default the elements. It is
            that of the real numbers where one half of the complex ones is left out.
        axis: The axis, counted from the end if negative.
        norm: "backward" for the factor 1/n in the inverse, "forward" for one here, "ortho" for its root in both.
    Returns:
        complex64 of float32 and complex64, else complex128.
    Raises:
        ShapeError: if there is no such axis, or no point.
        DTypeError: if ``x`` is not floating.
    Gradient: the adjoint.
    Source: `numpy.fft`, as all functions here.
    """
    return _made(Fft, x, n, axis, norm, name or "fft", half=False)


def ifft(x: X, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward", name: str | None = None) -> X:
    """The inverse of `fft`."""
    return _made(Ifft, x, n, axis, norm, name or "ifft", half=False)


def rfft(x: X, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward", name: str | None = None) -> X:
    """The transform of real numbers along an axis, its redundant half left out."""
    return _made(Rfft, x, n, axis, norm, name or "rfft", half=False)


def irfft(x: X, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward", name: str | None = None) -> X:
    """The inverse of `rfft`; real."""
    return _made(Irfft, x, n, axis, norm, name or "irfft", half=True)


@whole
def hfft(x: X, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward", name: str | None = None) -> X:
    """The transform of Hermitian-symmetric numbers, of which one half is given; real."""
    return irfft(conj(x), n=n, axis=axis, norm=_SWAPPED.get(norm, norm), name=name or "hfft")


@whole
def ihfft(x: X, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward", name: str | None = None) -> X:
    """The inverse of `hfft`."""
    return conj(rfft(x, n=n, axis=axis, norm=_SWAPPED.get(norm, norm)), name=name or "ihfft")


_Numbers = Sequence[int] | None


def _several(
    forms: tuple[Callable[..., Any], ...], x: Any, s: _Numbers, axes: _Numbers, norm: Norm, name: str, backwards: bool
) -> Any:
    """Transforms along several axes, in their order or ``backwards``; the forms of the first, middle, last of them."""
    rank = len(x.shape)
    if axes is None:
        axes = range(rank) if s is None else range(rank - len(s), rank)
    if s is not None and len(s) != len(axes):
        raise ShapeError(f"{name}: as many lengths as axes, got {tuple(s)} and {tuple(axes)}")
    points: Sequence[int | None] = s or [None] * len(axes)
    steps = [*zip([axes_of(name, int(axis), rank)[0] for axis in axes], points, strict=True)]
    first, middle, last = forms
    for i, (axis, n) in enumerate(steps[::-1] if backwards else steps, 1):
        is_last = i == len(steps)
        form = first if i == 1 and backwards else last if is_last and not backwards else middle
        x = form(x, n=n, axis=axis, norm=norm, name=name if is_last else None)
    return x


@whole
def fftn(x: X, /, *, s: _Numbers = None, axes: _Numbers = None, norm: Norm = "backward", name: str | None = None) -> X:
    """The discrete Fourier transform along several axes.

    Args:
        x: Floating.
        s: Number of points along each axis.
        axes: The axes; by default the last ones that ``s`` is of, or all.
        norm: As for `fft`.
    """
    made: X = _several((fft, fft, fft), x, s, axes, norm, name or "fftn", backwards=True)
    return made


@whole
def ifftn(x: X, /, *, s: _Numbers = None, axes: _Numbers = None, norm: Norm = "backward", name: str | None = None) -> X:
    """The inverse of `fftn`."""
    made: X = _several((ifft, ifft, ifft), x, s, axes, norm, name or "ifftn", backwards=True)
    return made


@whole
def rfftn(x: X, /, *, s: _Numbers = None, axes: _Numbers = None, norm: Norm = "backward", name: str | None = None) -> X:
    """The transform of real numbers along several axes, the redundant half of the last one left out."""
    made: X = _several((rfft, fft, fft), x, s, axes, norm, name or "rfftn", backwards=True)
    return made


@whole
def irfftn(
    x: X, /, *, s: _Numbers = None, axes: _Numbers = None, norm: Norm = "backward", name: str | None = None
) -> X:
    """The inverse of `rfftn`; real."""
    made: X = _several((ifft, ifft, irfft), x, s, axes, norm, name or "irfftn", backwards=False)
    return made


def fftshift(x: X, /, *, axes: Axis = None, name: str | None = None) -> X:
    """The elements moved along axes, by default all, so that frequency zero is in the middle."""
    return _shifted(x, axes, name or "fftshift", 1)


def ifftshift(x: X, /, *, axes: Axis = None, name: str | None = None) -> X:
    """The inverse of `fftshift`."""
    return _shifted(x, axes, name or "ifftshift", -1)


def _shifted(x: X, axes: Axis, name: str, sign: int) -> X:
    if x.dtype.kind not in "fc":
        raise DTypeError(f"{name}: x must be floating, got {x.spec}")
    along = axes_of(name, range(len(x.shape)) if axes is None else axes, len(x.shape))
    return roll(x, [sign * (x.shape[axis] // 2) for axis in along], along, name=name)
