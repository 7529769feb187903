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
from actorflow.ops.operation import (
    Application,
    Grads,
    Operation,
    X,
    apply,
    axes_of,
    blob_of,
    savable,
    whole,
)
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
        axis: The axis, counted from the end if negative.
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
        (axis,) = axes_of(name, self.axis, len(x.shape))
        shape = (*x.shape[:axis], self.length(), *x.shape[axis + 1 :])
        return (TensorSpec(shape, np.result_type(x.dtype, np.complex64)),)

    def compute(self, *inputs: Any) -> Any:
        x = inputs[0].astype(
            np.result_type(inputs[0].dtype, np.float32), copy=False
        )  # NumPy's of half precision are half
        return getattr(np.fft, self.function_name)(x, n=self.points, axis=self.axis, norm=self.norm)


class Fft(_Transform):
    """The discrete Fourier transform; see `fft`."""

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (x,) = op.inputs
        adjoint = Fft if isinstance(self, Ifft) else Ifft
        back = apply(adjoint(self.points, self.axis, _SWAPPED[self.norm]), grads[0])
        return [fit(_resized(back, x.shape[self.axis], self.axis), x)]


class Ifft(Fft):
    """The inverse of `Fft`; see `ifft`."""


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


class Irfft(_Transform):
    """The inverse of `Rfft`; see `irfft`."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (y,) = _Transform.infer(self, *inputs)
        return (TensorSpec(y.shape, np.empty(0, y.dtype).real.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (x,) = op.inputs
        back = apply(Rfft(self.points, self.axis, _SWAPPED[self.norm]), grads[0])
        # All but the first one, and the last one of an even number, stand for two.
        shape = [n if i == self.axis % len(back.shape) else 1 for i, n in enumerate(back.shape)]
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
    axis %= len(x.shape)
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
    Example:
        >>> print(np.round(xp.fft.fft(xp.asarray([1.0, 0.0, -1.0, 0.0])), 6))
        [0.+0.j 2.+0.j 0.+0.j 2.+0.j]
    """
    return _made(Fft, x, n, axis, norm, name or "fft", half=False)


def ifft(x: X, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward", name: str | None = None) -> X:
    """The inverse of `fft`.

    Arguments, result, errors and gradient: as of `fft`.
    Example:
        >>> x = xp.asarray([1.0, 2.0, 4.0])
        >>> print(np.round(xp.real(xp.fft.ifft(xp.fft.fft(x))), 6))
        [1. 2. 4.]
    """
    return _made(Ifft, x, n, axis, norm, name or "ifft", half=False)


def rfft(x: X, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward", name: str | None = None) -> X:
    """The transform of real numbers along an axis, its redundant half left out.

    Args:
        x: Real and floating, at least one axis.
        n, axis, norm: As for `fft`.
    Returns:
        Complex, of ``n // 2 + 1`` elements along the axis.
    Raises:
        ShapeError, DTypeError: as for `fft`, and if ``x`` is complex.
    Gradient: the adjoint.
    Example:
        >>> print(np.round(xp.fft.rfft(xp.asarray([1.0, 2.0, 1.0, 0.0])), 6))
        [4.+0.j 0.-2.j 0.+0.j]
    """
    return _made(Rfft, x, n, axis, norm, name or "rfft", half=False)


def irfft(x: X, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward", name: str | None = None) -> X:
    """The inverse of `rfft`; real.

    Args:
        x: Floating: ``n // 2 + 1`` elements along the axis.
        n: Number of points of the result; by default ``2 * (elements - 1)``, so it must be given where it is odd.
        axis, norm: As for `fft`.
    Raises:
        ShapeError, DTypeError: as for `fft`.
    Gradient: the adjoint.
    Example:
        >>> x = xp.asarray([1.0, 2.0, 4.0])
        >>> print(np.round(xp.fft.irfft(xp.fft.rfft(x), n=3), 6))
        [1. 2. 4.]
    """
    return _made(Irfft, x, n, axis, norm, name or "irfft", half=True)


@whole
def hfft(x: X, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward", name: str | None = None) -> X:
    """The transform of Hermitian-symmetric numbers, of which one half is given; real.

    Arguments, errors and gradient: as of `irfft`.
    Returns:
        Real, of ``n`` elements along the axis.
    Example:
        >>> print(np.round(xp.fft.hfft(xp.asarray([1.0, 2.0, 1.0])), 6))
        [ 6.  0. -2.  0.]
    """
    return irfft(conj(x), n=n, axis=axis, norm=_SWAPPED.get(norm, norm), name=name or "hfft")


@whole
def ihfft(x: X, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward", name: str | None = None) -> X:
    """The inverse of `hfft`.

    Arguments, result, errors and gradient: as of `rfft`.
    Example:
        >>> x = xp.asarray([6.0, 0.0, -2.0, 0.0])
        >>> print(np.round(xp.fft.hfft(xp.fft.ihfft(x)), 6))
        [ 6.  0. -2.  0.]
    """
    return conj(rfft(x, n=n, axis=axis, norm=_SWAPPED.get(norm, norm)), name=name or "ihfft")


_Numbers = Sequence[int] | None


def _several(
    forms: tuple[Callable[..., X], ...], x: X, s: _Numbers, axes: _Numbers, norm: Norm, name: str, backwards: bool
) -> X:
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
    Returns:
        Complex, of as many elements along the axes as there are points.
    Raises:
        ShapeError, DTypeError: as for `fft`, and if there are not as many lengths as axes.
    Gradient: the adjoint.
    Example:
        >>> print(np.round(xp.fft.fftn(xp.asarray([[1.0, 2.0], [3.0, 4.0]])), 6))
        [[10.+0.j -2.+0.j]
         [-4.+0.j  0.+0.j]]
    """
    return _several((fft, fft, fft), x, s, axes, norm, name or "fftn", backwards=True)


@whole
def ifftn(x: X, /, *, s: _Numbers = None, axes: _Numbers = None, norm: Norm = "backward", name: str | None = None) -> X:
    """The inverse of `fftn`.

    Arguments, result, errors and gradient: as of `fftn`.
    Example:
        >>> x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
        >>> print(np.round(xp.real(xp.fft.ifftn(xp.fft.fftn(x))), 6))
        [[1. 2.]
         [3. 4.]]
    """
    return _several((ifft, ifft, ifft), x, s, axes, norm, name or "ifftn", backwards=True)


@whole
def rfftn(x: X, /, *, s: _Numbers = None, axes: _Numbers = None, norm: Norm = "backward", name: str | None = None) -> X:
    """The transform of real numbers along several axes, the redundant half of the last one left out.

    Arguments, errors and gradient: as of `fftn`; ``x`` is real. The last axis has ``n // 2 + 1`` elements.
    Returns:
        Complex.
    Example:
        >>> xp.fft.rfftn(xp.ones((4, 8))).shape
        (4, 5)
    """
    return _several((rfft, fft, fft), x, s, axes, norm, name or "rfftn", backwards=True)


@whole
def irfftn(
    x: X, /, *, s: _Numbers = None, axes: _Numbers = None, norm: Norm = "backward", name: str | None = None
) -> X:
    """The inverse of `rfftn`; real.

    Arguments, errors and gradient: as of `fftn`; the last number of points is by default as for `irfft`.
    Returns:
        Real, of as many elements along the axes as there are points.
    Example:
        >>> x = xp.ones((4, 8))
        >>> np.allclose(xp.fft.irfftn(xp.fft.rfftn(x)), x)
        True
    """
    return _several((ifft, ifft, irfft), x, s, axes, norm, name or "irfftn", backwards=False)


def fftshift(x: X, /, *, axes: Axis = None, name: str | None = None) -> X:
    """The elements moved along axes, by default all, so that frequency zero is in the middle.

    Args:
        x: Floating.
        axes: One axis or several; None for all.
    Returns:
        Blob or array of the type of ``x``.
    Raises:
        ShapeError, DTypeError: if ``x`` does not have the axes, or is not floating.
    Gradient: g, moved back.
    Example:
        >>> print(xp.fft.fftshift(xp.fft.fftfreq(4)))
        [-0.5  -0.25  0.    0.25]
    """
    return _shifted(x, axes, name or "fftshift", 1)


def ifftshift(x: X, /, *, axes: Axis = None, name: str | None = None) -> X:
    """The inverse of `fftshift`.

    Arguments, errors and gradient: as of `fftshift`.
    Returns:
        Blob or array of the type of ``x``.
    Example:
        >>> print(xp.fft.ifftshift(xp.asarray([-2.0, -1.0, 0.0, 1.0])))
        [ 0.  1. -2. -1.]
    """
    return _shifted(x, axes, name or "ifftshift", -1)


def _shifted(x: X, axes: Axis, name: str, sign: int) -> X:
    if x.dtype.kind not in "fc":
        raise DTypeError(f"{name}: x must be floating, got {x.spec}")
    along = axes_of(name, range(len(x.shape)) if axes is None else axes, len(x.shape))
    return roll(x, [sign * (x.shape[axis] // 2) for axis in along], along, name=name)
