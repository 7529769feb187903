"""Rules of the Fourier transforms, which are linear: each rule is the adjoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from actorflow.array import namespace as xp
from actorflow.array.array import Array
from actorflow.array.transforms.derivatives.rules import Application, pulled_back, rule

Norm = Literal["backward", "ortho", "forward"]

#: Where an adjoint has its factor.
_SWAPPED: dict[str, Norm] = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def _resized(x: Array, length: int, axis: int) -> Array:
    lead = (slice(None),) * axis
    if x.shape[axis] >= length:
        return x[(*lead, slice(0, length))]
    missing = (*x.shape[:axis], length - x.shape[axis], *x.shape[axis + 1 :])
    return xp.concat([x, xp.zeros(missing, dtype=x.dtype)], axis=axis)


@rule("fft")
def _fft(at: Application, g: Array) -> Sequence[Array | None]:
    [x], (points, axis, norm) = at.inputs, at.params
    return [_resized(xp.fft.ifft(g, n=points, axis=axis, norm=_SWAPPED[norm]), x.shape[axis], axis)]


@rule("ifft")
def _ifft(at: Application, g: Array) -> Sequence[Array | None]:
    [x], (points, axis, norm) = at.inputs, at.params
    return [_resized(xp.fft.fft(g, n=points, axis=axis, norm=_SWAPPED[norm]), x.shape[axis], axis)]


@rule("rfft")
def _rfft(at: Application, g: Array) -> Sequence[Array | None]:
    [x], (points, axis, norm) = at.inputs, at.params
    back = xp.fft.ifft(_resized(g, points, axis), n=points, axis=axis, norm=_SWAPPED[norm])
    return [_resized(xp.real(back), x.shape[axis], axis)]


@rule("irfft")
def _irfft(at: Application, g: Array) -> Sequence[Array | None]:
    [x], (points, axis, norm) = at.inputs, at.params
    half = points // 2 + 1
    # All but the first one, and the last one of an even number, stand for two.
    weights = np.full(half, 2.0, g.dtype)
    weights[0] = 1.0
    if points % 2 == 0:
        weights[-1] = 1.0
    weights = weights.reshape([-1 if i == axis else 1 for i in range(g.ndim)])
    return [
        _resized(xp.fft.rfft(g, n=points, axis=axis, norm=_SWAPPED[norm]) * xp.asarray(weights), x.shape[axis], axis)
    ]


@rule("hfft")
def _hfft(at: Application, g: Array) -> Sequence[Array | None]:
    points, axis, norm = at.params
    return pulled_back(lambda x: xp.fft.irfft(xp.conj(x), n=points, axis=axis, norm=_SWAPPED[norm]), at.inputs, g)


@rule("ihfft")
def _ihfft(at: Application, g: Array) -> Sequence[Array | None]:
    points, axis, norm = at.params
    return pulled_back(lambda x: xp.conj(xp.fft.rfft(x, n=points, axis=axis, norm=_SWAPPED[norm])), at.inputs, g)


def _along(function: Any, x: Array, points: Sequence[int], axes: Sequence[int], norm: str) -> Array:
    for length, axis in zip(points, axes, strict=True):
        x = function(x, n=length, axis=axis, norm=norm)
    return x


@rule("fftn")
def _fftn(at: Application, g: Array) -> Sequence[Array | None]:
    return pulled_back(lambda x: _along(xp.fft.fft, x, *at.params), at.inputs, g)


@rule("ifftn")
def _ifftn(at: Application, g: Array) -> Sequence[Array | None]:
    return pulled_back(lambda x: _along(xp.fft.ifft, x, *at.params), at.inputs, g)


@rule("rfftn")
def _rfftn(at: Application, g: Array) -> Sequence[Array | None]:
    points, axes, norm = at.params

    def transform(x: Array) -> Array:
        half = xp.fft.rfft(x, n=points[-1], axis=axes[-1], norm=norm)
        return _along(xp.fft.fft, half, points[:-1], axes[:-1], norm)

    return pulled_back(transform, at.inputs, g)


@rule("irfftn")
def _irfftn(at: Application, g: Array) -> Sequence[Array | None]:
    points, axes, norm = at.params

    def transform(x: Array) -> Array:
        whole = _along(xp.fft.ifft, x, points[:-1], axes[:-1], norm)
        return xp.fft.irfft(whole, n=points[-1], axis=axes[-1], norm=norm)

    return pulled_back(transform, at.inputs, g)


rule("fftshift")(lambda at, g: [xp.fft.ifftshift(g, axes=at.params[0])])
rule("ifftshift")(lambda at, g: [xp.fft.fftshift(g, axes=at.params[0])])
